"""What every way to tune something takes beside the thing itself."""

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
        budget: measurements of the search, 20 by default; ``"auto"``: until the regret is small.
        regret: stop where the best is expected to be this close to the optimum.
        seconds: wall time at most, instead of ``budget`` or beside it; builds count.
        limits: what breaks one of them never wins.
        searcher: registered name, `Searcher` class, or a sampler of Optuna.
        predictor: predicts every configuration first; none by default.
        store: where everybody finds measurements and the choice; None is the user's own, False
            none.
        isolated: whether every configuration runs in a process of its own, which may hang or die;
            the default.
        limit_s: seconds that one configuration may take in all, 60 by default.
        verify_s: seconds of the last comparison with the default.
        patience_s: how long to wait for a machine that does nothing else.
        progress: told what happens; else it is shown on stderr.
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
    progress: Progress


def check_options(options: Mapping[str, object]) -> None:
    """Return if all options are known.

    Raises:
        UnknownName: one is not.
    """
    known = TuneOptions.__required_keys__ | TuneOptions.__optional_keys__
    if unknown := [name for name in options if name not in known]:
        raise UnknownName("option", unknown[0], known)


class TuneOptions(SearchOptions, total=False):
    """What `SearchOptions` holds, and more.

    Attributes:
        objective: what is minimised: ``time`` (the default), ``energy`` or ``edp``.
        seed: of everything random.
        device: ``cpu`` (the default) or ``cuda:0``.
        quiet: whether nothing is printed.
        power: whether power is metered where a meter works, although neither the objective nor a
            limit needs it.
    """

    objective: Objective | str
    seed: int
    device: str
    quiet: bool
    power: bool
