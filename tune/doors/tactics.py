"""Times of one operator's tactics: which to time in a bucket of sizes, which of them is fastest."""

import math
from collections.abc import Mapping, Sequence

from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.search.ordered import OrderedSearcher
from foretune.space import Configuration, ListedSpace
from foretune.tune.store.cache import MeasurementCache, StoreLocation
from foretune.tune.store.subject import Subject

FULL_BUCKETS = 2
"""Number of buckets of an operator that are timed in full: its largest and its smallest."""


class TacticTimes:
    """The times of an operator's tactics, kept in a store; a bucket is a problem."""

    def __init__(self, subject: Subject, store: StoreLocation) -> None:
        self._subject = subject
        self._cache = MeasurementCache(subject, store)

    def choose(self, problem: Problem, configs: Sequence[Configuration], count: int) -> list[int]:
        """Return the indices of ``count`` tactics to time; of all in the first buckets."""
        earlier = self._cache.known_for_other_problems(Problem())  # of this bucket, too
        if len({m.problem for m in earlier}) < FULL_BUCKETS:
            return list(range(len(configs)))
        space = ListedSpace(configs)
        searcher = OrderedSearcher(space, problem=problem, other_measurements=earlier)
        return sorted(space.index(config) for config in searcher.ask(count))

    def record(self, problem: Problem, config: Configuration, time_ms: float) -> None:
        """Remember a time in milliseconds; infinite is a failure."""
        self._cache.append(self._measurement(problem, config, time_ms))

    def estimates(
        self, problem: Problem, times: Mapping[Configuration, float]
    ) -> dict[Configuration, float]:
        """Return the milliseconds of timed tactics as all buckets together tell them."""
        others = self._cache.known_for_other_problems(problem)
        space = ListedSpace(times)
        searcher = OrderedSearcher(space, problem=problem, other_measurements=others)
        searcher.tell([self._measurement(problem, c, t) for c, t in times.items()])
        expected = searcher.search_posterior.log_mean
        return {
            config: math.exp(expected[i]) if math.isfinite(times[config]) else math.inf
            for i, config in enumerate(space)
        }

    def _measurement(self, problem: Problem, config: Configuration, time_ms: float) -> Measurement:
        ok = 0 < time_ms < math.inf
        status, time_ms = (Status.OK, time_ms) if ok else (Status.RUNTIME_ERROR, math.nan)
        return Measurement(
            self._subject.kernel, problem, config, self._subject.device, status, time_ms,
            source="flashinfer",
        )  # fmt: skip
