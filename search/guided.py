"""Any searcher under a prior: in turns with one that learns how far the prior can be trusted.

Samplers of Optuna, Kernel Tuner's strategies and most others learn from what is measured alone.
Beside such a one a guide proposes: the surrogate, whose Gaussian process corrects the prior by how
its predictions turn out. Each learns from what the other proposed. The guide begins, which also
spares the other its random start; then the other has every third turn. Where the prior misleads,
the guide is a surrogate that soon knows it.
"""

from foretune.search.searcher import Searcher
from foretune.search.surrogate import PRIOR_CHECKS, SurrogateSearcher

GUIDED_MEASUREMENTS = PRIOR_CHECKS[-1]
"""Proposals of the guide before the first of the other: after them it has checked the prior."""
TURN_PERIOD = 3
"""Then one of so many is the other's."""


class GuidedSearcher(Searcher):
    """Proposes what a guide with a prior, and in its turn another searcher, proposes.

    Args:
        other: a searcher that cannot use its prior, of which nothing was asked yet.
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
        """Return what the guide expects."""
        return self._guide.expected_regret()

    def expected_improvement(self) -> float:
        """Return what the guide expects."""
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
