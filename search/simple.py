"""Random and exhaustive search."""

from itertools import islice

import numpy as np

from foretune.search.searcher import Searcher


class RandomSearcher(Searcher):
    """Proposes configurations uniformly at random."""

    def _propose(self, n: int) -> list[int]:
        return self.random_indices(n)


class ExhaustiveSearcher(Searcher):
    """Proposes every configuration, by predicted objective if there is a prior."""

    uses_prior = True

    def _prepare(self) -> None:
        if self.prior is None:
            order = np.arange(len(self.space.codes))
        else:
            order = np.argsort(self.prior.log_mean, kind="stable")
        self._order = iter(order.tolist())

    def _propose(self, n: int) -> list[int]:
        return list(islice((i for i in self._order if i not in self.proposed), n))
