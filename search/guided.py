"""Gives a prior to any searcher by alternating with the surrogate searcher.

Most searchers, such as Optuna's samplers and Kernel Tuner's strategies, learn from measurements
only. `GuidedSearcher` pairs one with a surrogate searcher, the guide, whose Gaussian process
corrects the prior. Each learns from the other's proposals. The guide proposes first, which replaces
the other's random start. Then every third proposal comes from the other. If the prior misleads, the
guide soon learns that.
"""

from foretune.search.searcher import Searcher
from foretune.search.surrogate import PRIOR_CHECKS, SurrogateSearcher

GUIDED_MEASUREMENTS = PRIOR_CHECKS[-1]
"""Proposals of the guide before the other's first: by then it has checked the prior."""
TURN_PERIOD = 3
"""Every n-th later proposal is the other's."""


class GuidedSearcher(Searcher):
    """Alternates between a guide with a prior and another searcher.

    Args:
        other: a new searcher that cannot use its prior.
    """

    uses_prior = True

    def __init__(self, other: Searcher) -> None:
        self._other = other
        super().__init__(
            other.space, other.objective, other.seed, other.prior, other.problem, other.device,
            other.other_measurements,
        )  # fmt: skip

    def _prepare(self) -> None:
        self._guide = SurrogateSearcher(
            self.space, self.objective, self.seed, self.prior, self.problem, self.device
        )
        self._guide.costs_s = self._other.costs_s = self.costs_s  # `tell` fills them for all three

    def expected_regret(self) -> float:
        """Return the guide's estimate."""
        return self._guide.expected_regret()

    def expected_improvement(self) -> float:
        """Return the guide's estimate."""
        return self._guide.expected_improvement()

    def _propose(self, n: int) -> list[int]:
        numbers: list[int] = []
        for turn in range(len(self.proposed), len(self.proposed) + n):
            searcher = (
                self._other
                if turn >= GUIDED_MEASUREMENTS and turn % TURN_PERIOD == 0
                else self._guide
            )
            searcher.proposed |= self.proposed.union(numbers)
            numbers += map(self.space.index, searcher.ask(1))
        return numbers

    def _learn(self, new_values: dict[int, float]) -> None:
        for searcher in (self._guide, self._other):
            searcher.tell_values(new_values)
