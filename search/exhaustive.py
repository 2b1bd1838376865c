"""Exhaustive search: every configuration in order."""

from itertools import islice

import numpy as np

from foretune.objective import Objective
from foretune.search.searcher import Prior, Searcher
from foretune.space import SearchSpace


class ExhaustiveSearcher(Searcher):
    """Proposes every configuration, best predicted first where there is a prior."""

    def __init__(
        self,
        space: SearchSpace,
        objective: Objective = Objective.TIME,
        seed: int = 0,
        prior: Prior | None = None,
    ) -> None:
        super().__init__(space, objective, seed, prior)
        order = np.argsort(prior.log_mean, kind="stable") if prior else np.arange(len(space))
        self._order = iter(order.tolist())

    def _propose(self, n: int) -> list[int]:
        return list(islice((i for i in self._order if i not in self.proposed), n))
