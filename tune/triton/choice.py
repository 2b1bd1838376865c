"""Searcher of one call: order, experience, stop; ranking."""

import dataclasses
import math
import threading
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import triton

from foretune.collect.power import explain_missing_meter, find_meter
from foretune.device import Device
from foretune.errors import ForetuneWarning
from foretune.features.launches import TileLaunch
from foretune.measurement import Measurement, Status
from foretune.objective import Objective
from foretune.search.encoding import KernelRuns
from foretune.search.multitask import MIN_FIT, Fits, TransferSearcher
from foretune.search.stopping import Stopping
from foretune.space import Configuration, ListedSpace
from foretune.tune.store import Choice
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.store.subject import ChoiceMethod
from foretune.tune.triton.call_cache import CallCaches, find_choice, known_runs, settle
from foretune.tune.triton.kernel import to_configuration
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import EXPECTED_LOG_RATIO, PriorFactory, tile_edges
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.tiles import tile_launches


class CallTuner:
    """The choice among the candidates of one call.

    Args:
        call: what is to be run.
        configs: the candidates.
        options: how to decide.
        cache: what was measured and chosen before.
        priors: what is believed of what was not.
        fits: fitted processes of the kernel's searches.
    """

    def __init__(
        self,
        call: Call,
        configs: Sequence[Configuration],
        options: Options,
        cache: MeasurementCache,
        priors: PriorFactory,
        fits: Fits,
    ) -> None:
        self.call = call
        self.space = ListedSpace(configs)
        self.new_count = 0
        """Measurements of this search."""
        self._options, self.cache = options, cache
        self._priors, self._fits = priors, fits
        # a number is what the user grants, "auto" what it takes
        self._stopping = Stopping(
            options.measurement_limit, None if options.measurement_limit else options.regret
        )
        self._previous_choice: Choice | None = None
        self._unrecorded: list[Measurement] = []
        self._code_features: dict[Configuration, dict[str, float]] = {}
        self._searcher: TransferSearcher | None = None
        self._searcher_is_current = False
        self._expected_log_ratios: dict[Configuration, float] = {}
        """What the order of launches expects of each candidate."""

    def sufficient_choice(self) -> Choice | None:
        """Return the choice that was made before, if it rests on enough and nothing refutes it."""
        choice = self._previous_choice = find_choice(
            self.cache, self.call, self._candidates, self._options
        )
        if choice is None or self._has_failed(choice.config) or self._is_refuted(choice):
            return None
        if choice.how == "all":
            return choice
        options = self._options
        if options.budget == "all":
            return None
        sure = choice.how == "verified" or choice.regret <= options.regret
        spent = (
            options.measurement_limit is not None and choice.measured >= options.measurement_limit
        )
        return choice if sure or spent else None

    @property
    def searcher(self) -> TransferSearcher:
        """What proposes; it was told of all that is known now."""
        if self._searcher is None or not self._searcher_is_current:
            other_measurements = [m for m in self._runs if not self._is_candidate(m)]
            if self._searcher is None or len(other_measurements) != len(
                self._searcher.other_measurements
            ):
                self._searcher = self._make_searcher(other_measurements)
            self._searcher.tell(self.measured())
            self._searcher_is_current = True
        return self._searcher

    @property
    def needs_power(self) -> bool:
        """Whether the objective can only be measured with a power meter."""
        return self._options.parsed_objective.needs_power

    @property
    def best(self) -> Configuration:
        """The candidate to take now; of equally fast ones that of the lower quantile."""
        values = {m.config: (self._value(m), m.time_ms_samples) for m in self.measured()}
        ran = {config: value for config, value in values.items() if math.isfinite(value[0])}
        return min(ran, key=lambda c: ran[c]) if ran else self.searcher.choice()

    def next(self, claimed: Collection[Configuration] = ()) -> Configuration | None:
        """Return the candidate to measure; None when measuring is over, or all others are busy.

        Args:
            claimed: candidates that other processes are measuring.
        """
        proposed = [] if self.is_over() else self.searcher.ask()
        if proposed and proposed[0] in claimed:
            proposed = [c for c in self.promising(len(self._candidates)) if c not in claimed]
        return proposed[0] if proposed else None

    def refresh(self) -> None:
        """Find out what other processes measured."""
        self._invalidate_runs()

    def is_over(self) -> bool:
        """Whether measuring is over: sure enough, no longer worth it, or not allowed."""
        if self._options.budget == "all":
            return False
        searcher = self.searcher
        # a budget is exceeded while nothing ran: something must
        counted = self.new_count if searcher.best() or not self._options.budget else 0
        return self._stopping.is_over(searcher, counted)

    def promising(self, n: int) -> list[Configuration]:
        """Return the ``n`` unmeasured candidates that are expected to be fastest."""
        if n <= 0:
            return []
        forecast = self.searcher.search_posterior
        free = np.isnan(forecast.objective)
        order = np.argsort(np.where(free, forecast.log_mean, np.inf), kind="stable")
        count = min(n, int(free.sum()))
        return [self.space[int(i)] for i in forecast.indices[order[:count]]]

    def add(self, measurement: Measurement) -> None:
        """Take in a measurement of a candidate.

        Failures are kept back until something ran: where nothing does, the call is at fault.
        """
        static = {**measurement.static, **self._static_features(measurement.config)}
        self.new_count += 1
        self._unrecorded.append(dataclasses.replace(measurement, static=static))
        self._invalidate_runs()
        if any(m.ok for m in self.measured()):
            self.record_pending()
        else:
            self.cache.release(self.call.problem, measurement.config)

    def record_pending(self) -> None:
        """Remember what was kept back."""
        self._record(self._unrecorded)
        self._unrecorded = []

    def record_crashes(self) -> None:
        """Count as failed what took another process with it."""
        known = {m.config for m in self.measured()}
        for config in self.cache.crashed_configurations(self.call.problem):
            if config in self.space and config not in known:
                reason = "its measurement took the process with it"
                self._record([self.call.failure(config, Status.RUNTIME_ERROR, reason)])

    def fallback_configuration(self) -> Configuration:
        """Return the first candidate that did not crash; the first where all did."""
        crashed = {m.config for m in self.measured() if m.status is Status.RUNTIME_ERROR}
        return next((c for c in self._candidates if c not in crashed), self._candidates[0])

    def add_code_features(self, config: Configuration, code: Mapping[str, float]) -> None:
        """Take in what the code of a candidate shows."""
        if code:
            self._code_features.setdefault(config, {}).update(code)
            self._searcher = None

    def has_machine_code(self, config: Configuration) -> bool:
        """Whether the machine code of a candidate was looked at."""
        return "instructions" in self._code_features.get(config, {})

    @property
    def is_uninformed(self) -> bool:
        """Whether nothing is known of the kernel, not even by the names of its knobs."""
        return self.searcher.min_measurements >= MIN_FIT and not any(
            map(tile_edges, self._candidates)
        )

    def measured(self) -> list[Measurement]:
        """Return what was measured of the candidates, now or before, in their order."""
        found = {m.config: m for m in self._runs if self._is_candidate(m)}
        return [found[config] for config in self._candidates if config in found]

    def unmeasured(self) -> list[Configuration]:
        """Return the candidates whose objective nobody knows, in the order of the list."""
        known = {m.config for m in self.measured() if not math.isnan(self._value(m))}
        return [config for config in self._candidates if config not in known]

    def choose(self) -> Choice:
        """Settle the choice: for this process and, unless it was settled before, for all."""
        measured = len(self._candidates) - len(self.unmeasured())
        how: ChoiceMethod = (
            "all" if measured == len(self._candidates) else "measured" if measured else "predicted"
        )
        regret = 0.0 if how == "all" else self.searcher.search_posterior.expected_regret
        regret = regret if math.isfinite(regret) else math.nan
        choice = Choice(self.best, measured, regret, how)
        return settle(
            self.cache, self.call, self._candidates, self._options, choice, self._previous_choice
        )

    def best_measured(self) -> Configuration | None:
        """Return the best candidate that was measured; None if none ran."""
        ran = [m for m in self.measured() if m.ok]
        return min(ran, key=self._value).config if ran else None

    @property
    def all_failed(self) -> bool:
        """Whether every candidate was tried and failed."""
        failed = [m for m in self.measured() if math.isinf(self._value(m))]
        return len(failed) == len(self._candidates)

    @cached_property
    def _candidates(self) -> list[Configuration]:
        return list(self.space)

    @cached_property
    def _launches(self) -> list[TileLaunch] | None:
        return tile_launches(self.call, self._candidates)

    @cached_property
    def _runs(self) -> list[Measurement]:
        """Everything measured of the kernel on the device by now."""
        return [*known_runs(self.cache, self.call), *self._unrecorded]

    def _invalidate_runs(self) -> None:
        """Forget what was known: more was measured."""
        self.__dict__.pop("_runs", None)
        self._searcher_is_current = False

    def _value(self, measurement: Measurement) -> float:
        return self._options.parsed_objective.value_of(measurement)

    def _is_candidate(self, measurement: Measurement) -> bool:
        matches = measurement.problem == self.call.problem and measurement.config in self.space
        return matches and self._passed_check(measurement)

    def _passed_check(self, measurement: Measurement) -> bool:
        """Whether what ran was compared, if it has to be."""
        check = self._options.check
        return check is None or not measurement.ok or measurement.relative_error <= check

    def _has_failed(self, config: Configuration) -> bool:
        """Whether a candidate is known not to run on this problem."""
        runs = self.cache.known(self.call.problem)
        return any(m.config == config and not m.ok for m in runs)

    def _is_refuted(self, choice: Choice) -> bool:
        """Whether measurements that came later show that a choice loses more than it promised.

        One that `tune` compared in turn with the default stands: times of other days say less.
        """
        if choice.how == "verified":
            return False
        values = {m.config: self._value(m) for m in self.measured()}
        choice_value, best = (
            values.get(choice.config, math.nan),
            min(values.values(), default=math.nan),
        )
        promised = max(choice.regret if math.isfinite(choice.regret) else 0.0, self._options.regret)
        return choice_value > (1.0 + promised) * best

    def _record(self, measurements: Sequence[Measurement]) -> None:
        self.cache.append(*measurements)
        self._invalidate_runs()

    def _make_searcher(self, other_measurements: Sequence[Measurement]) -> TransferSearcher:
        measured_statics = {m.config: m.static for m in self.measured()}
        statics = [
            {**measured_statics.get(c, {}), **self._static_features(c)} for c in self._candidates
        ]
        rows = KernelRuns([self.call.problem] * len(self._candidates), self._candidates, statics)
        prior = self._priors.make_prior(rows, self._launches)
        if self._launches is not None:
            self._expected_log_ratios = dict(
                zip(self._candidates, prior.log_mean.tolist(), strict=True)
            )
        return TransferSearcher(
            self.space, self._options.parsed_objective, 0, prior, self.call.problem,
            self.call.device, other_measurements, statics=statics, fits=self._fits,
        )  # fmt: skip

    def _static_features(self, config: Configuration) -> dict[str, float]:
        """Return what is known of a candidate without running it."""
        programs = self.call.programs(config)
        known = {} if math.isnan(programs) else {"programs": programs}
        if (expected := self._expected_log_ratios.get(config)) is not None:
            known[EXPECTED_LOG_RATIO] = expected
        return {**known, **self._code_features.get(config, {})}


class CallTunerFactory:
    """Makes the `CallTuner` of a call.

    Args:
        options: how to decide.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.caches = CallCaches(options)
        self.lock = threading.RLock()
        """Held by who chooses or remembers, never while something is launched or compiled."""
        self._per_device: dict[str, tuple[Options, PriorFactory, Fits]] = {}

    def make_tuner(self, call: Call, candidates: Sequence[Configuration]) -> CallTuner:
        """Return the choice among ``candidates`` for a call."""
        device = call.device
        if device.name not in self._per_device:
            options = _with_measurable_objective(self.options, device)
            priors = PriorFactory(call.kernel, call.source, device, options)
            self._per_device[device.name] = options, priors, {}
        options, priors, fits = self._per_device[device.name]
        return CallTuner(call, candidates, options, self.caches.cache_of(call), priors, fits)


def _with_measurable_objective(options: Options, device: Device) -> Options:
    """Return ``options`` with an objective that can be measured on ``device``."""
    if (
        not options.parsed_objective.needs_power
        or find_meter(device.kind, device.index) is not None
    ):
        return options
    warnings.warn(
        f"objective {options.parsed_objective.value!r} needs a power meter "
        f"({explain_missing_meter(device.kind)}): time is minimized instead",
        ForetuneWarning,
        stacklevel=2,
    )
    return dataclasses.replace(options, objective=Objective.TIME)


@dataclass(frozen=True)
class RankedConfiguration:
    """A configuration for a call, and what is known of it.

    Attributes:
        config: the configuration.
        expected_loss: how much slower than the best of all it is expected to be, relative;
            infinite where it is certain to be far off, or failed.
        measured: its objective, in the objective's unit; NaN if it was not measured.
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
    """Return ``configs`` with what is known of them, the one to take first."""
    forecast = tuner.searcher.search_posterior
    found = {to_configuration(c): c for c in configs}
    conditions = [np.isfinite(forecast.objective), np.isnan(forecast.objective)]
    kind = np.select(conditions, [0, 1], 2)
    unlikely = forecast.log_mean - np.log(forecast.p_valid)
    value = np.where(kind == 0, forecast.objective, unlikely)
    return [
        RankedConfiguration(
            found[tuner.space[int(forecast.indices[i])]],
            float(forecast.expected_regrets[i]),
            float(forecast.objective[i]),
        )
        for i in np.lexsort((value, kind))
    ]
