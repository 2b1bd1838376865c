"""Chooses the next setting: by expected gain under the predictor, which every trial corrects.

The house's surrogate searches under a prior, and learns the prior's errors. Here the prior itself
learns, so a new surrogate is made after every trial, with the corrected prior and all trials.
"""

from collections.abc import Callable, Sequence
from math import inf, log

import numpy as np

from foretune.measurement import Measurement
from foretune.search.factory import SearcherKind, make_searcher
from foretune.search.searcher import AskTell, Prior, Searcher
from foretune.space import Configuration, SearchSpace

Correct = Callable[[Sequence[Measurement]], Prior]
"""All measurements so far -> the corrected prior over the space."""


class CorrectedSearcher(AskTell[Configuration]):
    """A searcher whose prior is corrected by every measurement.

    Args:
        space: the settings.
        correct: corrects the predictor, and returns its prior.
        kind: the searcher that searches under the prior.
        seed: its seed.
    """

    def __init__(
        self,
        space: SearchSpace,
        correct: Correct,
        kind: SearcherKind = "surrogate",
        seed: int = 0,
    ) -> None:
        self._space = space
        self._correct = correct
        self._kind = kind
        self._seed = seed
        self._measurements: list[Measurement] = []
        self._searcher = self._make()

    def ask(self, n: int = 1) -> list[Configuration]:
        """Return up to ``n`` settings that were not measured."""
        return self._searcher.ask(n)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Correct the predictor, and search under it from now on."""
        self._measurements += measurements
        self._searcher = self._make()

    def expected_regret(self) -> float:
        """Return how much slower the best setting is than the optimum, as expected."""
        return self._searcher.expected_regret() if self._has_success else inf

    def expected_improvement(self) -> float:
        """Return the expected gain of one more start, relative."""
        return self._searcher.expected_improvement() if self._has_success else inf

    @property
    def _has_success(self) -> bool:
        return any(measurement.ok for measurement in self._measurements)

    def _make(self) -> Searcher:
        """Return a searcher that knows all measurements, under the corrected prior."""
        prior = self._correct(self._measurements)
        searcher = make_searcher(self._kind, self._space, seed=self._seed, prior=prior)
        searcher.tell(self._measurements)
        return searcher


def prior_of_scores(scores: Sequence[float], spread: float, p_valid: np.ndarray) -> Prior:
    """Return the prior of predicted scores; infinite ones are of settings that cannot serve.

    It is of this very machine, and trials correct it: no start is spent at the far end of the space
    to check it, as with a prior from another device.
    """
    finite = [score for score in scores if score < inf]
    worst = max(finite, default=1.0)
    log_mean = np.array([log(score if score < inf else worst) for score in scores])
    runs = np.array([score < inf for score in scores], dtype=float)
    return Prior(log_mean, log_spread=spread, p_valid=p_valid * runs, foreign=False)
