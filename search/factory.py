"""Makes searchers from a name, a class or an Optuna sampler, and gives any of them a prior.

It also checks which of them can estimate their regret.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from foretune.device import Device
from foretune.errors import ForetuneError, UsageError
from foretune.measurement import Measurement
from foretune.objective import Objective, Scalarization
from foretune.problem import Problem
from foretune.registry import load, registered
from foretune.search.searcher import PRIOR_CHECKS, Prior, Searcher
from foretune.space import SearchSpace

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

SearcherKind: TypeAlias = "str | Callable[..., Searcher] | BaseSampler"

GUIDED_MEASUREMENTS = PRIOR_CHECKS[-1]
"""Proposals by the guide before the other searcher's first, enough to check the prior."""
TURN_PERIOD = 3  # every n-th later proposal comes from the other searcher


class GuidedSearcher(Searcher):
    """Gives a prior to a searcher that learns from measurements only.

    It takes turns with a surrogate searcher, the guide, whose Gaussian process corrects the prior;
    each learns from the other's proposals. The guide proposes first, which replaces the other's
    random start. ``other``: a new searcher that cannot use its prior.
    """

    uses_prior = True

    def __init__(self, other: Searcher) -> None:
        self._other = other
        super().__init__(
            other.space,
            objective=other.objective,
            seed=other.seed,
            prior=other.prior,
            problem=other.problem,
            device=other.device,
            other_measurements=other.other_measurements,
        )

    def _prepare(self) -> None:
        self._guide = make_searcher(
            "surrogate",
            self.space,
            objective=self.objective,
            seed=self.seed,
            prior=self.prior,
            problem=self.problem,
            device=self.device,
        )

    def expected_regret(self) -> float:
        """Return the guide's estimate."""
        return self._guide.expected_regret()

    def expected_improvement(self) -> float:
        """Return the guide's estimate."""
        return self._guide.expected_improvement()

    def _propose(self, n: int) -> list[int]:
        numbers: list[int] = []
        for turn in range(len(self.proposed), len(self.proposed) + n):
            is_turn = turn >= GUIDED_MEASUREMENTS and turn % TURN_PERIOD == 0
            searcher = self._other if is_turn else self._guide
            searcher.proposed |= self.proposed.union(numbers)
            numbers += map(self.space.index, searcher.ask(1))
        return numbers

    def _learn(self, new_values: dict[int, float]) -> None:
        for searcher in (self._guide, self._other):
            searcher.tell_values(new_values)


def searcher_name(kind: SearcherKind) -> str:
    """Return the name of a searcher, given as for `make_searcher`, for results."""
    if isinstance(kind, str):
        return kind
    kind = getattr(kind, "func", kind)  # of a partial
    return getattr(kind, "__name__", None) or type(kind).__name__


def make_searcher(
    kind: SearcherKind,
    space: SearchSpace,
    objective: Scalarization = Objective.TIME,
    seed: int = 0,
    prior: Prior | None = None,
    problem: Problem | None = None,
    device: Device | None = None,
    other_measurements: Sequence[Measurement] = (),
) -> Searcher:
    """Return a new searcher.

    Args:
        kind: a registered name; a `Searcher` class or factory with the same arguments; or an Optuna
            sampler, which keeps its own seed.
        space: the search space.
        objective: the minimized value.
        seed: seed of the searcher.
        prior: predictions of every configuration. A searcher that cannot use a prior is wrapped in
            `GuidedSearcher`.
        problem: the problem that is tuned.
        device: the device that is tuned for.
        other_measurements: measurements of the same kernel on other problems.

    Raises:
        UnknownName: there is no searcher of this name.
    """
    if isinstance(kind, str):
        make = load("searchers", kind)
    elif callable(kind):
        make = kind
    else:
        from foretune.search.optuna.searchers import OptunaSearcher

        make = partial(OptunaSearcher, sampler=kind)
    searcher: Searcher = make(space, objective, seed, prior, problem, device, other_measurements)
    return searcher if prior is None or searcher.uses_prior else GuidedSearcher(searcher)


def require_regret_estimate(searcher: Searcher, name: str) -> None:
    """Raise if ``searcher`` cannot estimate its expected regret.

    Raises UsageError if it cannot; the message names the searchers that can.
    """
    if _estimates_regret(type(searcher)):
        return
    able = []
    for other in registered("searchers"):
        with suppress(ForetuneError):  # its extra is not installed
            if _estimates_regret(load("searchers", other)):
                able.append(other)
    raise UsageError(
        f"searcher {name!r} cannot estimate its regret: give a number as budget and no regret, or "
        f"use searcher {' or '.join(able)}"
    )


def _estimates_regret(kind: object) -> bool:
    inherited = Searcher.expected_regret
    return getattr(kind, "expected_regret", inherited) is not inherited
