"""Options that all functions of this package share."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from foretune.errors import UnknownName
from foretune.objective import Limit, Objective
from foretune.progress import Progress
from foretune.tune.store.cache import StoreLocation

if TYPE_CHECKING:
    from foretune.models.saved.lookup import PredictorSource
    from foretune.search.factory import SearcherKind


class SearchOptions(TypedDict, total=False):
    """How to search, and where results go; see `foretune.tune_problem`.

    Attributes:
        budget: measurements of the search, 20 by default; ``"auto"`` stops at a small expected
            regret.
        regret: accepted expected regret.
        seconds: maximum wall time, instead of ``budget`` or with it; builds count.
        limits: configurations that violate one never win.
        searcher: a registered name, a `Searcher` class, or an Optuna sampler.
        predictor: gives the prior: any model or a name (`foretune.models.saved.lookup`); none by
            default.
        store: shares measurements and choices; None is the user's own, False none.
        isolated: run configurations in another process, which may hang or crash; the default.
        limit_s: maximum seconds of one configuration, 60 by default.
        verify_s: seconds of interleaved rounds in each process of the final comparison.
        patience_s: seconds to wait for an idle machine.
        progress: shows the progress; by default on stderr. False: print nothing.
    """

    budget: int | Literal["auto"]
    regret: float | None
    seconds: float | None
    limits: Sequence[Limit | str]
    searcher: "SearcherKind"
    predictor: "PredictorSource"
    store: StoreLocation
    isolated: bool
    limit_s: float
    verify_s: float
    patience_s: float
    progress: Progress | bool


def check_options(options: Mapping[str, object]) -> None:
    """Raise if an option is unknown.

    Raises:
        UnknownName: an option is unknown.
    """
    known = TuneOptions.__required_keys__ | TuneOptions.__optional_keys__
    if unknown := [name for name in options if name not in known]:
        raise UnknownName("option", unknown[0], known)


class TuneOptions(SearchOptions, total=False):
    """The options of `SearchOptions`, and more.

    Attributes:
        objective: minimized value: ``time`` (the default), ``energy`` or ``edp``.
        seed: seed of all random choices.
        device: ``cpu`` (the default) or ``cuda:0``.
        power: meter power if possible, even if neither the objective nor a limit needs it.
    """

    objective: Objective | str
    seed: int
    device: str
    power: bool
