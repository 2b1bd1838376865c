"""Which candidate of a call to measure next, and whether to stop.

`foretune.search.loop` asks this object for candidates and tells it their measurements. Those go to
the history. An `OrderedSearcher` proposes the candidates; it is brought up to date with the history
before each use. With ``budget="all"``, candidates come in the order of the list instead.
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
from foretune.tune.triton.prior import PriorFactory, expected_log_ratios


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
        self._version_told = -1
        """`CallHistory.version` when the searcher was last told."""

    def start(self, parallel: int | None = None) -> SearchLoop[Configuration]:
        """Return the search loop of this call.

        By default it runs one measurement at a time here, besides those of other processes. A
        number of measurements is exceeded until the first candidate runs.
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

        With ``budget="all"``, candidates come in the order of the list.
        """
        default = self._history.candidates[0]
        if self._options.measures_all:
            proposed = self._not_asked()[:n]
        elif self._options.include_default and default in self._not_asked():
            proposed = [default]
        else:
            proposed = self.updated_searcher().ask(n)
        self._asked.update(proposed)
        return proposed

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Record measurements made here or by other processes."""
        self._history.add_reported(measurements)

    def expected_regret(self) -> float:
        """Return the expected regret of `best`, relative; infinite if too little was measured."""
        if self._options.measures_all:
            return math.inf if self._history.unmeasured() else 0.0
        return self.updated_searcher().expected_regret()

    def expected_improvement(self) -> float:
        """Return the expected gain of one more measurement, relative."""
        if self._options.measures_all:
            return math.inf
        return self.updated_searcher().expected_improvement()

    def meets_stopping_rule(self) -> bool:
        """Whether the options accept a regret, and the search may stop now.

        Its expected regret is small enough, more measurements gain little, or the budget is spent.
        """
        stopping = self._options.stopping
        if stopping.regret is None:
            return False
        return stopping.reason(self, self._history.new_count) is not None

    def likely(self, n: int) -> list[Configuration]:
        """Return up to ``n`` candidates to compile ahead: those expected to be fastest."""
        if self._options.measures_all:
            return self._not_asked()[:n]

        # The candidate that was just asked for is one of the remaining measurements, and its
        # compilation takes one of the threads.
        history = self._history
        remaining = self._options.max_measurements(len(history.candidates)) - history.new_count
        count = min(n, remaining - 1, MAX_COMPILE_THREADS - 1)
        if count <= 0:
            return []

        # The fastest of those that the searcher has not proposed yet.
        searcher = self.updated_searcher()
        posterior = searcher.search_posterior
        is_free = ~np.isin(posterior.indices, list(searcher.proposed))
        fastest_first = np.argsort(np.where(is_free, posterior.log_mean, np.inf), kind="stable")
        chosen = posterior.indices[fastest_first[: min(count, int(is_free.sum()))]]
        return [history.space[int(index)] for index in chosen]

    @property
    def best(self) -> Configuration:
        """The incumbent, else the candidate predicted to be fastest.

        Of equally fast candidates it is the one whose stored quantiles are lower.
        """
        rank = {}
        for m in self._history.measured():
            value = self._history.value_of(m)
            if math.isfinite(value):
                rank[m.config] = (value, m.time_ms_samples)
        if not rank:
            return self.updated_searcher().choice()
        return min(rank, key=lambda config: rank[config])

    def updated_searcher(self) -> OrderedSearcher:
        """Bring the underlying searcher up to date with the history, and return it.

        It then has every measurement with a known objective.
        """
        history = self._history
        if self._searcher is not None and self._version_told == history.version:
            return self._searcher

        # A searcher gets the measurements that do not count for the search when it is made: those
        # of other problems, and those of this one that are unlisted or were not compared. If there
        # are new ones, make another searcher.
        other_measurements = [m for m in history.all_measurements if not history.counts(m)]
        searcher = self._searcher
        if searcher is None or len(other_measurements) != len(searcher.other_measurements):
            searcher = self._make_searcher(other_measurements)
            searcher.proposed.update(history.space.index(config) for config in self._asked)

        # A candidate without the objective, such as energy, may be measured again.
        with_objective = [m for m in history.measured() if not math.isnan(history.value_of(m))]
        searcher.tell(with_objective)
        self._searcher = searcher
        self._version_told = history.version
        return searcher

    def _make_searcher(self, other_measurements: Sequence[Measurement]) -> OrderedSearcher:
        """Return a new searcher, and let the features remember what its prior expects."""
        call = self._history.call
        candidates = self._history.candidates
        statics = [self._features.of(config) for config in candidates]
        rows = KernelRuns([call.problem] * len(candidates), candidates, statics)
        prior = self._priors.make_prior(call, rows)

        # What an order expects is stored with each measurement: without the call, it cannot be
        # computed later.
        if prior is not None and not self._priors.predicts:
            self._features.expect(candidates, expected_log_ratios(prior))

        return OrderedSearcher(
            self._history.space,
            objective=self._options.parsed_objective,
            seed=0,
            prior=prior,
            problem=call.problem,
            device=call.device,
            other_measurements=other_measurements,
            statics=statics,
        )

    def _not_asked(self) -> list[Configuration]:
        return [c for c in self._history.unmeasured() if c not in self._asked]
