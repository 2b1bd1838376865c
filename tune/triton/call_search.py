"""Which candidate of a call to measure next, and whether to stop.

`foretune.search.loop` asks this object and tells it. It forwards both to an `OrderedSearcher`,
which it keeps up to date with the history; with ``budget="all"``, candidates come in their order.
"""

import math
from collections.abc import Sequence

import numpy as np

from foretune.measurement import Measurement
from foretune.search.encoding import KernelRuns
from foretune.search.loop import SearchLoop, search
from foretune.search.ordered import OrderedSearcher
from foretune.space import Configuration
from foretune.tune.triton.candidate_features import CandidateFeatures
from foretune.tune.triton.history import CallHistory
from foretune.tune.triton.kernel import MAX_COMPILE_THREADS
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import PriorFactory


class CallSearch:
    """Proposes candidates of one call to measure; the search loop asks and tells it."""

    def __init__(
        self,
        history: CallHistory,
        features: CandidateFeatures,
        *,
        options: Options,
        priors: PriorFactory,
    ) -> None:
        self._history = history
        self._features = features
        self._options = options
        self._priors = priors
        self._asked: set[Configuration] = set()
        self._searcher: OrderedSearcher | None = None
        self._changes_told = -1
        """`CallHistory.changes` when the searcher was last told."""

    def start(self, parallel: int | None = None) -> SearchLoop[Configuration]:
        """Return the search loop of this call.

        By default it runs one measurement at a time here, besides those of other processes.
        """
        history = self._history
        return search(
            self,
            self._options.stopping,
            parallel=parallel or (lambda: 1 + len(history.claimed_by_others)),
            likely=self.likely,
            until_one_runs=history.best_measured() is None,
        )

    def ask(self, n: int = 1) -> list[Configuration]:
        """Return up to ``n`` candidates to measure, each once.

        If all of them are measured, they come in the order of the list.
        """
        in_order = self._options.measures_all
        proposed = self._not_asked()[:n] if in_order else self.searcher.ask(n)
        self._asked.update(proposed)
        return proposed

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Record measurements made here or by other processes."""
        self._history.add_reported(measurements)

    def expected_regret(self) -> float:
        """Return the expected regret of `best`, relative; infinite if too little was measured."""
        if self._options.measures_all:
            return math.inf if self._history.unmeasured() else 0.0
        return self.searcher.expected_regret()

    def expected_improvement(self) -> float:
        """Return the expected gain of one more measurement, relative."""
        if self._options.measures_all:
            return math.inf
        return self.searcher.expected_improvement()

    def is_sure(self) -> bool:
        """Whether the expected regret is small enough to stop, or more measurements gain little."""
        stopping = self._options.stopping
        if stopping.regret is None:
            return False
        return stopping.reason(self, self._history.new_count) is not None

    def likely(self, n: int) -> list[Configuration]:
        """Return up to ``n`` candidates to compile ahead: those expected to be fastest."""
        if self._options.measures_all:
            return self._not_asked()

        # One of the remaining measurements is the candidate that was just asked for.
        history = self._history
        remaining = self._options.max_measurements(len(history.candidates)) - history.new_count
        count = min(n, remaining - 1, MAX_COMPILE_THREADS - 1)
        if count <= 0:
            return []

        posterior = self.searcher.search_posterior
        is_free = ~np.isin(posterior.indices, list(self.searcher.proposed))
        fastest_first = np.argsort(np.where(is_free, posterior.log_mean, np.inf), kind="stable")
        chosen = posterior.indices[fastest_first[: min(count, int(is_free.sum()))]]
        return [history.space[int(index)] for index in chosen]

    @property
    def best(self) -> Configuration:
        """The incumbent, else the candidate predicted to be fastest.

        Of equally fast candidates it is the one whose quantiles are lower.
        """
        ran = {}
        for m in self._history.measured():
            value = self._history.value_of(m)
            if math.isfinite(value):
                ran[m.config] = (value, m.time_ms_samples)
        if not ran:
            return self.searcher.choice()
        return min(ran, key=lambda config: ran[config])

    @property
    def searcher(self) -> OrderedSearcher:
        """The underlying searcher, which has every measurement with a known objective."""
        history = self._history
        if self._searcher is not None and self._changes_told == history.changes:
            return self._searcher

        # Runs of other problems are part of a searcher. If there are new ones, make another.
        other_runs = [m for m in history.runs if not history.is_candidate(m)]
        searcher = self._searcher
        if searcher is None or len(other_runs) != len(searcher.other_measurements):
            searcher = self._make_searcher(other_runs)
            searcher.proposed.update(history.space.index(config) for config in self._asked)

        # A candidate without the objective, such as energy, may be measured again.
        known = [m for m in history.measured() if not math.isnan(history.value_of(m))]
        searcher.tell(known)
        self._searcher = searcher
        self._changes_told = history.changes
        return searcher

    def _make_searcher(self, other_measurements: Sequence[Measurement]) -> OrderedSearcher:
        call = self._history.call
        candidates = self._history.candidates
        statics = [self._features.of(config) for config in candidates]
        rows = KernelRuns([call.problem] * len(candidates), candidates, statics)
        prior = self._priors.make_prior(call, rows)
        if prior is not None and not self._priors.predicts:
            ratios = prior.log_mean.tolist()
            self._features.expected_log_ratios = dict(zip(candidates, ratios, strict=True))
        return OrderedSearcher(
            self._history.space,
            self._options.parsed_objective,
            0,
            prior,
            call.problem,
            call.device,
            other_measurements,
            statics=statics,
        )

    def _not_asked(self) -> list[Configuration]:
        return [c for c in self._history.unmeasured() if c not in self._asked]
