"""The tuner of one call (order, earlier runs, stop, choice), its factory, and a ranking."""

import dataclasses
import hashlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import triton

from foretune.collect.power import explain_missing_meter, find_meter
from foretune.device import Device
from foretune.errors import ForetuneError, warn
from foretune.measurement import Measurement, Status
from foretune.objective import ConstrainedObjective, Objective
from foretune.search.encoding import KernelRuns
from foretune.search.loop import SearchLoop, search
from foretune.search.ordered import OrderedSearcher
from foretune.space import Configuration, ListedSpace
from foretune.tune.store.cache import LEAST_TIME, FallibleStore, MeasurementCache
from foretune.tune.store.reader import StoreFile
from foretune.tune.store.subject import Choice, ChoiceMethod, Subject
from foretune.tune.triton.kernel import MAX_COMPILE_THREADS, to_configuration
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import EXPECTED_LOG_RATIO, PriorFactory
from foretune.tune.triton.problem_key import Call


@lru_cache(maxsize=64)
def _digest(candidates: tuple[Configuration, ...], check: str) -> str:
    """Return a hash; cached, because most calls of a kernel have the same candidates."""
    parts = [*sorted(c.id for c in candidates), check]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


class CallTuner:
    """Chooses among the candidates of one call; the search loop asks and tells it."""

    def __init__(
        self,
        call: Call,
        configs: Sequence[Configuration],
        options: Options,
        cache: MeasurementCache,
        priors: PriorFactory,
    ) -> None:
        self.call = call
        self.space = ListedSpace(configs)
        self.new_count = 0
        """Number of measurements by this process in this search."""
        self.claimed_by_others: list[Configuration] = []
        """Candidates of the search that other processes are measuring."""
        self.cache = cache
        self._options, self._priors = options, priors
        self._objective = ConstrainedObjective(options.parsed_objective, ())
        self._previous_choice: Choice | None = None
        self._unrecorded: list[Measurement] = []
        self._asked: set[Configuration] = set()
        self._searcher: OrderedSearcher | None = None
        self._searcher_is_current = False
        self._expected_log_ratios: dict[Configuration, float] = {}
        """Expected log time of each candidate relative to the fastest, by the order."""

    def sufficient_choice(self) -> Choice | None:
        """Return the stored choice if it meets the options and no measurement refutes it."""
        choice = self._previous_choice = self.stored_choice()
        if choice is None or self._is_refuted(choice):
            return None
        runs = self.cache.known(self.call.problem)
        if any(m.config == choice.config and not m.ok for m in runs):
            return None
        options = self._options
        sure = choice.how == "verified" or choice.regret <= options.regret
        if choice.how == "all" or (sure and not options.measures_all):
            return choice
        return choice if options.is_spent(choice.measured) else None

    def stored_choice(self) -> Choice | None:
        """Return the stored choice among these candidates, also if it was made among others."""
        problem, among = self.call.problem, self._candidates
        found = self.cache.choice(problem, self._objective, candidates=self._id, among=among)
        if found is None and self._objective == LEAST_TIME:
            found = self.cache.choice(problem, among=among)
        return found

    def settle(self, choice: Choice) -> Choice:
        """Store a choice, or return one that another process stored in the meantime."""
        return self.cache.choose(
            self.call.problem, self._objective, choice, self._previous_choice, candidates=self._id
        )

    @property
    def _id(self) -> str:
        """Identifies the candidates, and whether their results are compared."""
        return _digest(tuple(self._candidates), str(self._options.check))

    @property
    def searcher(self) -> OrderedSearcher:
        """The underlying searcher, which has every measurement with a known objective."""
        if self._searcher is None or not self._searcher_is_current:
            others = [m for m in self.runs if not self._is_candidate(m)]
            if self._searcher is None or len(others) != len(self._searcher.other_measurements):
                self._searcher = self._make_searcher(others)
                self._searcher.proposed.update(map(self.space.index, self._asked))
            known = [m for m in self.measured() if not math.isnan(self._value(m))]
            self._searcher.tell(known)  # one without the objective may be measured again
            self._searcher_is_current = True
        return self._searcher

    @property
    def needs_power(self) -> bool:
        """Whether the objective needs a power meter."""
        return self._objective.objective.needs_power

    @property
    def best(self) -> Configuration:
        """The incumbent, else the candidate predicted to be fastest.

        Of equally fast candidates it is the one whose quantiles are lower.
        """
        values = {m.config: (self._value(m), m.time_ms_samples) for m in self.measured()}
        ran = {config: value for config, value in values.items() if math.isfinite(value[0])}
        return min(ran, key=lambda c: ran[c]) if ran else self.searcher.choice()

    def start_search(self, parallel: int | None = None) -> SearchLoop[Configuration]:
        """Return the search loop of this call.

        By default it runs one measurement at a time here, besides those in `claimed_by_others`.
        """
        return search(
            self,
            self._options.stopping,
            parallel=parallel or (lambda: 1 + len(self.claimed_by_others)),
            likely=self.likely,
            until_one_runs=self.best_measured() is None,
        )

    def ask(self, n: int = 1) -> list[Configuration]:
        """Return up to ``n`` candidates to measure, each once.

        If all of them are measured, they come in the order of the list.
        """
        proposed = self._not_asked()[:n] if self._options.measures_all else self.searcher.ask(n)
        self._asked.update(proposed)
        return proposed

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Record measurements made here or by other processes (`claimed_by_others`)."""
        new = [m for m in measurements if m.config not in self.claimed_by_others]
        reported = {m.config for m in measurements}
        self.claimed_by_others = [c for c in self.claimed_by_others if c not in reported]
        self.add(new)

    def expected_regret(self) -> float:
        """Return the expected regret of `best`, relative; infinite if too little was measured."""
        if self._options.measures_all:
            return math.inf if self.unmeasured() else 0.0
        return self.searcher.expected_regret()

    def expected_improvement(self) -> float:
        """Return the expected gain of one more measurement, relative."""
        return math.inf if self._options.measures_all else self.searcher.expected_improvement()

    def is_sure(self) -> bool:
        """Whether the expected regret is small enough to stop, or more measurements gain little."""
        stopping = self._options.stopping
        return stopping.regret is not None and stopping.reason(self, self.new_count) is not None

    def likely(self, n: int) -> list[Configuration]:
        """Return up to ``n`` candidates to compile ahead: those expected to be fastest."""
        if self._options.measures_all:
            return self._not_asked()
        left = self._options.max_measurements(len(self._candidates)) - self.new_count
        n = min(n, left - 1, MAX_COMPILE_THREADS - 1)
        if n <= 0:
            return []
        posterior = self.searcher.search_posterior
        free = ~np.isin(posterior.indices, list(self.searcher.proposed))
        order = np.argsort(np.where(free, posterior.log_mean, np.inf), kind="stable")
        return [self.space[int(i)] for i in posterior.indices[order[: min(n, int(free.sum()))]]]

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Record measurements of this process.

        Failures are recorded only after a success: if nothing runs, the call is at fault.
        """
        self.new_count += len(measurements)
        self._unrecorded += [
            dataclasses.replace(m, static={**m.static, **self._static_features(m.config)})
            for m in measurements
        ]
        self._invalidate_runs()
        if any(m.ok for m in self.measured()):
            self.record_pending()
        else:
            for m in measurements:
                self.cache.release(self.call.problem, m.config)

    def record_pending(self) -> None:
        """Record the failures that were held back."""
        self._record(self._unrecorded)
        self._unrecorded = []

    def record_crashes(self) -> None:
        """Record candidates that crashed two other processes as failed."""
        known = {m.config for m in self.measured()}
        for config in self.cache.crashed_configurations(self.call.problem):
            if config in self.space and config not in known:
                reason = "two processes died while measuring it"
                self._record([self.call.failure(config, Status.RUNTIME_ERROR, reason)])

    def fallback_configuration(self) -> Configuration:
        """Return the first candidate that did not crash, else the first."""
        crashed = {m.config for m in self.measured() if m.status is Status.RUNTIME_ERROR}
        return next((c for c in self._candidates if c not in crashed), self._candidates[0])

    def measured(self) -> list[Measurement]:
        """Return all known measurements of the candidates, in the order of the candidates."""
        found = {m.config: m for m in self.runs if self._is_candidate(m)}
        return [found[config] for config in self._candidates if config in found]

    def was_measured(self, config: Configuration) -> bool:
        """Whether a candidate has a measurement, even one that does not count."""
        which = self.call.problem, config
        return any((m.problem, m.config) == which for m in self.runs)

    def results_of_others(self) -> list[Measurement]:
        """Return new measurements that other processes made of `claimed_by_others`."""
        self._invalidate_runs()
        found = [m for m in self.measured() if m.config in self.claimed_by_others]
        return [m for m in found if not math.isnan(self._value(m))]

    def unmeasured(self) -> list[Configuration]:
        """Return the candidates whose objective is unknown, in their order."""
        known = {m.config for m in self.measured() if not math.isnan(self._value(m))}
        return [config for config in self._candidates if config not in known]

    def choose(self) -> Choice:
        """Choose the best candidate; return another process's choice if it was stored first."""
        left = len(self.unmeasured())
        measured = len(self._candidates) - left
        how: ChoiceMethod = "all" if not left else "measured" if measured else "predicted"
        regret = 0.0 if how == "all" else self.promised_regret()
        return self.settle(Choice(self.best, measured, regret, how))

    def promised_regret(self) -> float:
        """Return the expected regret to store with a choice; NaN if unknown."""
        regret = float(self.searcher.search_posterior.expected_regret)
        return regret if math.isfinite(regret) else math.nan

    def best_measured(self) -> Configuration | None:
        """Return the best candidate that was measured; None if none ran."""
        best = min((m for m in self.measured() if m.ok), key=self._value, default=None)
        return None if best is None else best.config

    @property
    def all_failed(self) -> bool:
        """Whether every candidate was measured and failed."""
        failed = [m for m in self.measured() if math.isinf(self._value(m))]
        return len(failed) == len(self._candidates)

    @cached_property
    def _candidates(self) -> list[Configuration]:
        return list(self.space)

    def _not_asked(self) -> list[Configuration]:
        return [c for c in self.unmeasured() if c not in self._asked]

    @cached_property
    def runs(self) -> list[Measurement]:
        """All measurements of the kernel on this device, including unrecorded ones."""
        known = self.cache.known(self.call.problem)
        others = self.cache.known_for_other_problems(self.call.problem)
        return [*others, *known, *self._unrecorded]

    def _invalidate_runs(self) -> None:
        self.__dict__.pop("runs", None)
        self._searcher_is_current = False

    def _value(self, measurement: Measurement) -> float:
        return self._objective.value_of(measurement)

    def _is_candidate(self, measurement: Measurement) -> bool:
        """Whether a run is of a candidate, with its output compared if the options require that."""
        if measurement.problem != self.call.problem or measurement.config not in self.space:
            return False
        check = self._options.check
        return check is None or not measurement.ok or measurement.relative_error <= check

    def _is_refuted(self, choice: Choice) -> bool:
        """Whether later measurements show a larger regret than the choice promised.

        Never a verified one: its times were compared in interleaved rounds.
        """
        if choice.how == "verified":
            return False
        values = {m.config: self._value(m) for m in self.measured()}
        promised = max(choice.regret if math.isfinite(choice.regret) else 0.0, self._options.regret)
        limit = (1.0 + promised) * min(values.values(), default=math.nan)
        return values.get(choice.config, math.nan) > limit

    def _record(self, measurements: Sequence[Measurement]) -> None:
        self.cache.append(*measurements)
        self._invalidate_runs()

    def _make_searcher(self, other_measurements: Sequence[Measurement]) -> OrderedSearcher:
        statics = [self._static_features(c) for c in self._candidates]
        rows = KernelRuns([self.call.problem] * len(self._candidates), self._candidates, statics)
        prior = self._priors.make_prior(self.call, rows)
        if prior is not None and not self._priors.predicts:
            ratios = prior.log_mean.tolist()
            self._expected_log_ratios = dict(zip(self._candidates, ratios, strict=True))
        return OrderedSearcher(
            self.space,
            self._options.parsed_objective,
            0,
            prior,
            self.call.problem,
            self.call.device,
            other_measurements,
            statics=statics,
        )

    def _static_features(self, config: Configuration) -> dict[str, float]:
        """Return features of a candidate that need no launch."""
        programs = self.call.programs(config)
        known = {} if math.isnan(programs) else {"programs": programs}
        if (expected := self._expected_log_ratios.get(config)) is not None:
            known[EXPECTED_LOG_RATIO] = expected
        return known


class CallTunerFactory:
    """State shared by all calls of one decorated kernel; makes their tuners."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._store = FallibleStore(options.store)
        self.caches: dict[Subject, MeasurementCache] = {}
        self.lock = threading.RLock()
        """Held while choosing or recording, never while launching or compiling."""
        self._per_device: dict[str, tuple[Options, PriorFactory]] = {}

    def cache_of(self, call: Call) -> MeasurementCache:
        """Return the measurements of a call's kernel, device and versions."""
        subject = call.subject
        if subject not in self.caches:
            self.caches[subject] = MeasurementCache(subject, self._store, shipped=self._shipped)
        return self.caches[subject]

    @cached_property
    def _shipped(self) -> StoreFile | None:
        try:
            return StoreFile(self.options.shipped) if self.options.shipped is not None else None
        except ForetuneError as e:
            warn(f"shipped results are not used: {e}")
            return None

    def make_tuner(self, call: Call, candidates: Sequence[Configuration]) -> CallTuner:
        """Return the tuner of a call."""
        device = call.device
        if device.name not in self._per_device:
            options = _with_measurable_objective(self.options, device)
            priors = PriorFactory(call.kernel, call.source, device, options)
            self._per_device[device.name] = options, priors
        options, priors = self._per_device[device.name]
        return CallTuner(call, candidates, options, self.cache_of(call), priors)


def _with_measurable_objective(options: Options, device: Device) -> Options:
    """Return ``options``; without a power meter for ``device``, the objective is time."""
    objective = options.parsed_objective
    if not objective.needs_power or find_meter(device.kind, device.index) is not None:
        return options
    reason = explain_missing_meter(device.kind)
    warn(f"objective {objective.value!r} needs a power meter ({reason}): minimizing time instead")
    return dataclasses.replace(options, objective=Objective.TIME)


@dataclass(frozen=True)
class RankedConfiguration:
    """A configuration with its expected slow-down against the best of all.

    The expected loss is relative, and infinite if certainly far off. ``measured`` is in the unit of
    the objective, and NaN without a measurement.
    """

    config: triton.Config
    expected_loss: float
    measured: float

    def __repr__(self) -> str:
        known = "" if np.isnan(self.measured) else f", measured={self.measured:.4g}"
        return f"RankedConfiguration({self.config}, expected_loss={self.expected_loss:.3g}{known})"


def rank_configurations(
    tuner: CallTuner, configs: Sequence[triton.Config]
) -> list[RankedConfiguration]:
    """Return ``configs``, best first: measured ones, predicted ones, failures."""
    posterior = tuner.searcher.search_posterior
    found = {to_configuration(c): c for c in configs}
    conditions = [np.isfinite(posterior.objective), np.isnan(posterior.objective)]
    kind = np.select(conditions, [0, 1], 2)
    unlikely = posterior.log_mean - np.log(posterior.p_valid)
    value = np.where(kind == 0, posterior.objective, unlikely)
    return [
        RankedConfiguration(
            found[tuner.space[int(posterior.indices[i])]],
            float(posterior.expected_regrets[i]),
            float(posterior.objective[i]),
        )
        for i in np.lexsort((value, kind))
    ]
