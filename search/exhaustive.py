"""Exhaustive search: every configuration in order."""

from collections.abc import Iterable

from foretune.search.searcher import Searcher


class ExhaustiveSearcher(Searcher):
    """Proposes every configuration, best predicted first where there is a prior."""

    def _propose(self, n: int) -> list[int]:
        order: Iterable[int] = range(len(self.space))
        if self.prior is not None:
            order = self.prior.log_mean.argsort(kind="stable")
        free = (int(i) for i in order if int(i) not in self.proposed)
        return [i for i, _ in zip(free, range(n), strict=False)]
