"""Proves a plan: start its server, load it, compare, correct the predictor, try what promises more.

It is the house's search loop with a server as the kernel: a start measures all loads, the prior is
the plan's predictor, and what wins is started again, in turn with the plan's own setting.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite

import numpy as np

from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.plan.prove.failures import Failure
from foretune.plan.prove.load import Load
from foretune.plan.prove.memory_limit import MemoryLimit
from foretune.plan.prove.pairs import NO_COMPARISON, PairedComparison, compare_in_turn
from foretune.plan.prove.prediction import Observation, Promise, ServerPredictor, StepFactors
from foretune.plan.prove.score import best_load, meets_limits
from foretune.plan.prove.searcher import CorrectedSearcher, prior_of_scores
from foretune.plan.prove.setting import SettingSpace
from foretune.plan.prove.trial import Trial, stored_figures, trial_problem
from foretune.plan.prove.trial_runner import TrialRunner
from foretune.plan.serve.requirements import Requirements
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


@dataclass(frozen=True)
class Budget:
    """What proving may cost: starts of the search, pairs of the comparison, seconds of both."""

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
        trials: all of them, in order of time.
        planned: the first trial of the plan's own setting.
        best: the trial with the best score; None if none served.
        comparison: of the best setting with the plan's, from starts in turn.
        search: how the search ended.
        factors: how the server's steps differ from the simulated ones.
        spread: deviation of the logarithm of a corrected promise.
        requirements: limits and goal.
        seconds: of everything.
    """

    trials: Sequence[Trial]
    planned: Trial
    best: Trial | None
    comparison: PairedComparison
    search: SearchResult
    factors: StepFactors
    spread: float
    requirements: Requirements
    seconds: float

    @cached_property
    def is_kept(self) -> bool:
        """Whether the plan's promise is kept: limits hold, and no figure is worse than promised."""
        if not self.planned.proofs:
            return False
        last = list(self.planned.promises)[-1]
        proven = self.planned.figures.get(last)
        if proven is None or not meets_limits(proven, self.requirements):
            return False
        return not broken_promises(self.planned, last)

    @property
    def holds_limits(self) -> bool:
        """Whether the best trial meets all limits under one of its loads."""
        if self.best is None:
            return False
        return any(meets_limits(shown, self.requirements) for shown in self.best.figures.values())

    @property
    def gain(self) -> float:
        """How many times better the best trial's score is than the planned one's."""
        if self.best is None or not self.planned.ok:
            return float("nan")
        return self.planned.score(self.requirements) / self.best.score(self.requirements)


def broken_promises(trial: Trial, load: Load) -> list[str]:
    """Return the figures that are worse than promised, beyond the interval or the margin."""
    promise = trial.promises[load]
    proven = trial.figures[load]
    broken = []
    for name, worse in (("ttft_ms", 1), ("tpot_ms", 1), ("tokens_per_s", -1)):
        promised = getattr(promise, name)
        measured = getattr(proven, name)
        low, high = promise.interval(promised)
        if not isfinite(low):
            low = promised / (1.0 + PROMISE_MARGIN)
            high = promised * (1.0 + PROMISE_MARGIN)
        if (measured > high) if worse > 0 else (measured < low):
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
        plan_promises: load -> what the plan promised for its setting.
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
        begun = time.monotonic()
        space = self.settings.space
        if len(space) > MAX_SETTINGS:
            raise UsageError(
                f"{len(space):,} settings are too many to predict: give fewer values with --flag"
            )
        planned = self.settings.planned
        known = [m for m in self._known_trials() if m.config in space and m.config != planned]
        searcher = CorrectedSearcher(space, self.correct, self.kind, self.seed)
        starts = 1 if self.runner.url else self.budget.starts
        stopping = Stopping(starts, regret=DEFAULT_REGRET, seconds=self.budget.seconds)
        found = run(
            search(searcher, stopping, known=known, first=[planned]),
            measure=lambda configs: [self._measure(config) for config in configs],
        )

        best = self._best(known)
        comparison = self._compare(best, begun)
        return Proof(
            trials=tuple(self._trials),
            planned=self._trials[0],
            best=self._best_trial(best),
            comparison=comparison,
            search=found,
            factors=self.predictor.factors,
            spread=self.predictor.spread,
            requirements=self.requirements,
            seconds=time.monotonic() - begun,
        )

    def _measure(self, config: Configuration) -> Measurement:
        """Run a trial, and keep it at once."""
        setting = self.settings.setting(config)
        is_first = not self._trials
        promises = self.plan_promises if is_first else self._promises(config)
        trial = self.runner.run(config, setting, promises)
        self._trials.append(trial)

        measurement = trial.to_measurement(
            trial_problem(list(self.runner.loads), self.requirements),
            self.subject.device,
            self.requirements,
        )
        self.store.write(lambda store: store.put(self.subject, [measurement]), None)
        self.on_trial(trial)
        return measurement

    def _promises(self, config: Configuration) -> dict[Load, Promise]:
        """Return what the corrected predictor promises of a setting; empty if it cannot serve."""
        setting = self.settings.setting(config)
        try:
            return {load: self.predictor.promise(setting, load) for load in self.runner.loads}
        except UsageError:  # a request does not fit into the cache
            return {}

    def correct(self, measurements: Sequence[Measurement]) -> Prior:
        """Correct the predictor by all trials, and return its prior over all settings."""
        observations: list[Observation] = []
        memory: list[tuple[float, bool]] = []
        for measurement in measurements:
            setting = self.settings.setting(measurement.config)
            shown = stored_figures(measurement, list(self.runner.loads))
            observations += [
                Observation(setting, load, vars(figures)) for load, figures in shown.items()
            ]
            ran_out = Failure(measurement.error).is_out_of_memory
            if shown or ran_out:
                memory.append((setting.memory_gib, ran_out))
        self.predictor.learn(observations)

        # The score of every setting under the corrected predictor.
        scores: list[float] = []
        sizes: list[float] = []
        for config in self.settings.space:
            promises = self._promises(config)
            named = {load.key: promise for load, promise in promises.items()}
            scores.append(best_load(named, self.requirements)[1])
            sizes.append(self.settings.setting(config).memory_gib)
        p_valid = MemoryLimit.of_trials(memory).probability(np.array(sizes))
        return prior_of_scores(scores, self.predictor.spread, p_valid)

    def _known_trials(self) -> list[Measurement]:
        """Return the trials of earlier proofs of the same work."""
        problem = trial_problem(list(self.runner.loads), self.requirements)
        return self.store.query(lambda store: store.measurements(self.subject, problem), default=[])

    def _best(self, known: Sequence[Measurement]) -> Configuration:
        """Return the setting with the best score of all trials, also of earlier proofs."""
        scores = {m.config: m.time_ms for m in known if m.ok}
        for trial in self._trials:
            scores[trial.config] = trial.score(self.requirements)
        return min(scores, key=lambda config: scores[config])

    def _best_trial(self, best: Configuration) -> Trial | None:
        """Return this proof's best trial of the best setting; None if it was not served here."""
        served = [trial for trial in self._trials if trial.ok and trial.config == best]
        return min(served, key=lambda trial: trial.score(self.requirements), default=None)

    def _compare(self, best: Configuration, begun: float) -> PairedComparison:
        """Start the best setting and the plan's in turn."""
        planned = self.settings.planned
        if best == planned or self.runner.url:
            return NO_COMPARISON
        if not self._trials[0].ok:
            return PairedComparison((), "the plan's own setting did not serve")

        def start(is_other: bool) -> float:
            self._measure(best if is_other else planned)
            return self._trials[-1].score(self.requirements)

        def may_go_on() -> bool:
            usual_s = float(np.median([t.seconds for t in self._trials if t.ok]))
            left_s = (self.budget.seconds or inf) - (time.monotonic() - begun)
            return 2.0 * usual_s <= left_s

        return compare_in_turn(start, self.budget.pairs, may_go_on)
