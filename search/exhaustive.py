"""Exhaustive search: every configuration in order."""

from foretune.search.searcher import Searcher


class ExhaustiveSearcher(Searcher):
    """Proposes every configuration, best predicted first where there is a prior."""

    def _propose(self, n: int) -> list[int]:
        guided = self.prior is not None
        order = self.prior.log_mean.argsort(kind="stable") if guided else range(len(self.space))
        free = (int(i) for i in order if int(i) not in self.proposed)
        return [i for i, _ in zip(free, range(n), strict=False)]
