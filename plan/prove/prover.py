"""Proves a plan: start its server, load it, compare, correct the predictor, try what promises more.

It is a search like that for a kernel's configuration, with a server as the kernel. A **trial** is
one start of a server with one **setting**, under all loads. The prior is the plan's predictor, and
a setting that seems better than the plan's own is started again, in turn with it.

A trial's score is in milliseconds per token (`foretune.plan.prove.score`): lower is better. In the
store, it is the trial's ``time_ms``.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite

import numpy as np

from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.plan.describe.system import System
from foretune.plan.prove.failures import Failure
from foretune.plan.prove.load import Load
from foretune.plan.prove.memory_limit import IMPOSSIBLE, MemoryLimit, unplanned_gib
from foretune.plan.prove.pairs import NO_COMPARISON, PairedComparison, compare_in_turn
from foretune.plan.prove.prediction import Observation, Promise, ServerPredictor, StepFactors
from foretune.plan.prove.score import best_load, meets_limits
from foretune.plan.prove.searcher import CorrectedSearcher, prior_of_scores
from foretune.plan.prove.setting import SettingSpace
from foretune.plan.prove.trial import Trial, stored_figures, trial_problem
from foretune.plan.prove.trial_runner import TrialRunner
from foretune.plan.serve.requirements import Requirements
from foretune.problem import Problem
from foretune.search.factory import SearcherKind
from foretune.search.loop import SearchResult, run, search
from foretune.search.searcher import Prior
from foretune.search.stopping import DEFAULT_REGRET, Stopping
from foretune.space import Configuration
from foretune.tune.store.fallible import FallibleStore
from foretune.tune.store.subject import Subject

MAX_SETTINGS = 2000
"""Most settings of a space: the predictor simulates each of them."""
PROMISE_MARGIN = 0.1
"""A promise without an interval is kept if no figure is worse by more than this share."""
PAIRS = 3
"""Pairs of starts that compare a winner with the plan's setting, by default."""
LOWER_IS_BETTER = {"ttft_ms": True, "tpot_ms": True, "tokens_per_s": False}
"""Promised figures -> whether a lower value keeps the promise."""


@dataclass(frozen=True)
class Budget:
    """What proving may cost.

    Attributes:
        starts: of the search, that of the plan's own setting included; None is no limit.
        pairs: of starts in the comparison, which are not counted in ``starts``.
        seconds: of search and comparison. If the search takes them all, there is no comparison.
    """

    starts: int | None = 6
    pairs: int = PAIRS
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.starts is not None and self.starts < 1:
            raise UsageError(f"{self.starts} starts prove nothing: give at least 1")
        if self.pairs < 0:
            raise UsageError(f"{self.pairs} pairs: give 0 or more")


@dataclass(frozen=True)
class Proof:
    """What the trials showed.

    Attributes:
        trials: all of this proof, in order of time.
        planned: the first of them, which is of the plan's own setting.
        best_config: the setting with the best score, also of earlier proofs; None if none served.
        best: the best trial of ``best_config``; None if this proof did not serve it.
        comparison: of ``best_config`` with the plan's own setting, from starts in turn.
        search: how the search ended.
        unplanned_gib: memory that the servers took beyond what was planned; 0 if unknown.
        factors: how the server's steps differ from the simulated ones.
        spread: deviation of the logarithm of a corrected promise.
        requirements: limits and goal.
        seconds: of everything.
    """

    trials: Sequence[Trial]
    planned: Trial
    best_config: Configuration | None
    best: Trial | None
    comparison: PairedComparison
    search: SearchResult
    unplanned_gib: float
    factors: StepFactors
    spread: float
    requirements: Requirements
    seconds: float

    @property
    def promised_load(self) -> Load:
        """The load of the plan's promise, which is the last; lower ones tell what limits it."""
        return list(self.planned.promises)[-1]

    @cached_property
    def is_kept(self) -> bool:
        """Whether the plan's promise is kept: limits hold, and no figure is worse than promised."""
        if not self.planned.ok:
            return False
        measured = self.planned.figures.get(self.promised_load)
        if measured is None or not meets_limits(measured, self.requirements):
            return False
        return not broken_promises(self.planned, self.promised_load)

    @property
    def holds_limits(self) -> bool:
        """Whether the best trial meets all limits under one of its loads."""
        if self.best is None:
            return False
        return any(
            meets_limits(of_load, self.requirements) for of_load in self.best.figures.values()
        )

    @property
    def gain(self) -> float:
        """How many times lower, and so better, the best trial's score is than the planned one's."""
        if self.best is None or not self.planned.ok:
            return float("nan")
        planned_score = self.planned.score(self.requirements)
        best_score = self.best.score(self.requirements)
        return planned_score / best_score


def broken_promises(trial: Trial, load: Load) -> list[str]:
    """Return the figures that are worse than promised, beyond the interval or the margin."""
    promise = trial.promises[load]
    figures = trial.figures[load]
    broken = []
    for name, lower_is_better in LOWER_IS_BETTER.items():
        promised = getattr(promise, name)
        measured = getattr(figures, name)
        low, high = promise.interval(promised)
        if not isfinite(low):
            low = promised / (1.0 + PROMISE_MARGIN)
            high = promised * (1.0 + PROMISE_MARGIN)
        is_broken = measured > high if lower_is_better else measured < low
        if is_broken:
            broken.append(name)
    return broken


@dataclass
class Prover:
    """Proves one plan.

    Attributes:
        settings: what may be started.
        runner: starts and loads servers.
        predictor: predicts settings; it is corrected.
        requirements: limits and goal.
        plan_promises: load -> what the plan promised of its own setting, its own load last.
        budget: of the proof.
        subject: names the work in the store.
        store: keeps every trial.
        on_trial: called with every trial as soon as it ended.
        kind: the searcher under the predictor.
        seed: its seed.
    """

    settings: SettingSpace
    runner: TrialRunner
    predictor: ServerPredictor
    requirements: Requirements
    plan_promises: Mapping[Load, Promise]
    budget: Budget
    subject: Subject
    store: FallibleStore
    on_trial: Callable[[Trial], None] = lambda trial: None
    kind: SearcherKind = "surrogate"
    seed: int = 0
    _trials: list[Trial] = field(default_factory=list, init=False)

    def prove(self) -> Proof:
        """Run trials until the budget ends, or nothing better is expected."""
        start_s = time.monotonic()
        space = self.settings.space
        if len(space) > MAX_SETTINGS:
            raise UsageError(
                f"{len(space):,} settings are too many to predict: give fewer values with --flag"
            )

        searcher = CorrectedSearcher(space, self.correct, self.kind, self.seed)

        # The plan's own setting is always started, whatever earlier proofs know.
        planned_config = self.settings.planned
        earlier = [
            m for m in self._stored_trials() if m.config in space and m.config != planned_config
        ]
        planned = self._run_trial(planned_config, self.plan_promises)

        # Then what is expected to be better, until the budget ends.
        search_result = self._search(
            searcher, known=[*earlier, self._to_measurement(planned)], start_s=start_s
        )

        # A setting that seems better has to be so again.
        best_config = self._best_config(earlier)
        comparison = self._compare(planned, best_config, start_s)
        return Proof(
            trials=tuple(self._trials),
            planned=planned,
            best_config=best_config,
            best=self._best_trial(best_config),
            comparison=comparison,
            search=search_result,
            unplanned_gib=self._unplanned_gib(),
            factors=self.predictor.factors,
            spread=self.predictor.spread,
            requirements=self.requirements,
            seconds=time.monotonic() - start_s,
        )

    def _search(
        self, searcher: CorrectedSearcher, *, known: Sequence[Measurement], start_s: float
    ) -> SearchResult:
        """Start further settings, with what the first trial leaves of the budget."""
        # A running server has one setting.
        starts = 1 if self.runner.url else self.budget.starts
        left_s = self._left_s(start_s)
        if left_s <= 0.0:
            return SearchResult(measured=0, reason="seconds", regret=inf)

        stopping = Stopping(
            measurements=None if starts is None else starts - 1,
            regret=DEFAULT_REGRET,
            seconds=left_s if isfinite(left_s) else None,
        )
        return run(
            search(searcher, stopping, known=known),
            measure=lambda configs: [
                self._to_measurement(self._run_trial(config, self._promises(config)))
                for config in configs
            ],
        )

    def _left_s(self, start_s: float) -> float:
        """Return the seconds that are left of the budget; infinite without a limit."""
        if self.budget.seconds is None:
            return inf
        return self.budget.seconds - (time.monotonic() - start_s)

    def _run_trial(self, config: Configuration, promises: Mapping[Load, Promise]) -> Trial:
        """Run a trial, and keep it at once."""
        setting = self.settings.setting(config)
        trial = self.runner.run(config, setting, promises, self._unplanned_gib())
        self._trials.append(trial)
        measurement = self._to_measurement(trial)
        self.store.write(lambda store: store.put(self.subject, [measurement]), None)
        self.on_trial(trial)
        return trial

    @property
    def _system(self) -> System:
        """The machine of all settings."""
        return self.settings.setting(self.settings.planned).deployment.system

    def _unplanned_gib(self) -> float:
        """Return what this proof's servers took beyond what was planned.

        It is 0 on GPUs: what is measured there is the memory of the host.
        """
        if self._system.device.kind != "cpu":
            return 0.0
        return unplanned_gib(
            (self.settings.setting(trial.config).memory_gib, trial.memory_gib)
            for trial in self._trials
        )

    def _to_measurement(self, trial: Trial) -> Measurement:
        return trial.to_measurement(self._problem, self.subject.device, self.requirements)

    @property
    def _problem(self) -> Problem:
        return trial_problem(list(self.runner.loads), self.requirements)

    def _promises(self, config: Configuration) -> dict[Load, Promise]:
        """Return what the corrected predictor promises of a setting; empty if it cannot serve."""
        setting = self.settings.setting(config)
        try:
            return {load: self.predictor.promise(setting, load) for load in self.runner.loads}
        except UsageError:  # a request does not fit into the cache
            return {}

    def correct(self, measurements: Sequence[Measurement]) -> Prior:
        """Correct the predictor by all trials, and return its prior over all settings."""
        # Which figures did each setting have, and which ran out of memory?
        observations: list[Observation] = []
        memory: list[tuple[float, bool]] = []
        for measurement in measurements:
            setting = self.settings.setting(measurement.config)
            figures_of_load = stored_figures(measurement, list(self.runner.loads))
            observations += [
                Observation(setting, load, vars(figures))
                for load, figures in figures_of_load.items()
            ]
            ran_out = Failure(measurement.error).is_out_of_memory
            if figures_of_load or ran_out:
                memory.append((setting.memory_gib, ran_out))
        self.predictor.learn(observations)

        # The score of every setting under the corrected predictor.
        scores: list[float] = []
        sizes_gib: list[float] = []
        for config in self.settings.space:
            promises = self._promises(config)
            promise_of_load = {load.key: promise for load, promise in promises.items()}
            _, score = best_load(promise_of_load, self.requirements)
            scores.append(score)
            sizes_gib.append(self.settings.setting(config).memory_gib)
        p_valid = MemoryLimit.of_trials(memory).probability(np.array(sizes_gib))

        # What nobody planned takes memory from the settings that nearly fill the machine.
        exceeds = np.array(sizes_gib) + self._unplanned_gib() > self._system.memory_gib
        p_valid = np.where(exceeds, np.minimum(p_valid, IMPOSSIBLE), p_valid)
        return prior_of_scores(scores, self.predictor.spread, p_valid)

    def _stored_trials(self) -> list[Measurement]:
        """Return the trials of earlier proofs of the same work."""
        problem = self._problem
        return self.store.query(lambda store: store.measurements(self.subject, problem), default=[])

    def _best_config(self, earlier: Sequence[Measurement]) -> Configuration | None:
        """Return the setting with the lowest score, also of earlier proofs; None if none served."""
        scores = {m.config: m.time_ms for m in earlier if m.ok}
        for trial in self._trials:
            scores[trial.config] = trial.score(self.requirements)
        served = {config: score for config, score in scores.items() if isfinite(score)}
        return min(served, key=lambda config: served[config], default=None)

    def _best_trial(self, config: Configuration | None) -> Trial | None:
        """Return this proof's best trial of a setting; None if it was not served here."""
        served = [trial for trial in self._trials if trial.ok and trial.config == config]
        return min(served, key=lambda trial: trial.score(self.requirements), default=None)

    def _compare(
        self, planned: Trial, best_config: Configuration | None, start_s: float
    ) -> PairedComparison:
        """Start the best setting and the plan's in turn."""
        if best_config is None or best_config == planned.config:
            return NO_COMPARISON
        if self.runner.url:
            return PairedComparison((), "a running server has one setting")
        if not planned.ok:
            return PairedComparison((), "the plan's own setting did not serve")

        def start(is_other: bool) -> float:
            config = best_config if is_other else planned.config
            trial = self._run_trial(config, self._promises(config))
            return trial.score(self.requirements)

        def may_go_on() -> bool:
            usual_s = float(np.median([t.seconds for t in self._trials if t.ok]))
            return 2.0 * usual_s <= self._left_s(start_s)

        return compare_in_turn(start, self.budget.pairs, may_go_on)
