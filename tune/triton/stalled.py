"""The search for one call's configuration: compile ahead, read the code, measure, choose."""

import math
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import triton

from foretune.errors import ForetuneWarning
from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.triton.benchmark import ConfigurationBenchmark
from foretune.tune.triton.choice import CallTuner, CallTunerFactory
from foretune.tune.triton.code import MAX_EARLY_COMPILES, CodeReader
from foretune.tune.triton.compile_ahead import MAX_COMPILE_THREADS, CompileAhead
from foretune.tune.triton.kernel import DecoratedKernel, to_configuration
from foretune.tune.triton.output_check import ComparisonError

PATIENCE_S, POLL_S = 30.0, 0.02
"""How long one waits for what other processes are measuring, and how often one looks."""


class ClaimedElsewhere(set[Configuration]):
    """Candidates that other processes are measuring; their results are waited for, not for ever.

    Attributes:
        still_waiting: whether they still are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.still_waiting = True
        self._deadline: float | None = None

    def wait(self) -> bool:
        """Wait a moment, and forget who was busy; return whether anybody was."""
        if not self:
            return False
        now = time.monotonic()
        self._deadline = self._deadline or now + PATIENCE_S
        self.still_waiting = now < self._deadline
        self.clear()
        time.sleep(POLL_S)
        return True


class StalledCallDriver:
    """What is known and tried of one call.

    Args:
        kernel: what is called.
        tunings: chooses; calls of the kernel share it.
        args: positional arguments of the call.
        kwargs: arguments by name, and ``grid``.
        configs: the candidates, after pruning; at least two.
        ignore_known: as if nothing were known of this call.

    Attributes:
        config: the choice so far.
        timings: of every candidate measured now or before: median and 20 and 80 % quantiles, ms.
        new_count: how many of them were measured now.
        all_failed: whether every candidate was tried and failed.
    """

    def __init__(
        self,
        kernel: DecoratedKernel,
        tunings: CallTunerFactory,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        configs: Sequence[triton.Config],
        ignore_known: bool = False,
    ) -> None:
        self.kernel, self.args, self.kwargs = kernel, args, kwargs
        self.configs = list(configs)
        self.config = self.configs[0]
        self.timings: dict[triton.Config, Any] = {}
        self.new_count = 0
        self.all_failed = False
        self._ignore_known = ignore_known
        self._comparison_failed = False
        self._configurations = [to_configuration(c) for c in self.configs]
        self._triton_configs = dict(
            zip(reversed(self._configurations), reversed(self.configs), strict=True)
        )
        self._tuner_factory = tunings
        self.compile_ahead = CompileAhead(kernel.fn, args, kwargs)

    @cached_property
    def tuner(self) -> CallTuner:
        """What chooses."""
        call = self.kernel.call(self.args, self.kwargs)
        call = replace(call, knobs=tuple(self._configurations[-1]))
        if self._ignore_known:
            self._tuner_factory.caches.cache_of(call).forget(call.problem)
        return self._tuner_factory.make_tuner(call, self._configurations)

    @property
    def lock(self) -> threading.RLock:
        """To be held by who uses `tuning`."""
        return self._tuner_factory.lock

    def triton_config(self, config: Configuration) -> triton.Config:
        """Return Triton's form of a candidate."""
        return self._triton_configs[config]

    def sufficient_choice(self) -> triton.Config | None:
        """Return the choice that was made before; None if there is none that suffices."""
        with self.lock:
            choice = self.tuner.sufficient_choice()
        return None if choice is None else self._triton_configs[choice.config]

    def predicted_best(self) -> triton.Config:
        """Return the best candidate without measuring any."""
        with self.lock:
            return self._triton_configs[self.tuner.best]

    def tune(self) -> None:
        """Measure as much as it takes, and choose.

        Raises:
            UserKernelError: the device works no more, or the call itself is wrong.
        """
        with self.lock:
            self.tuner.record_crashes()
        previous = self.sufficient_choice()
        if previous is None:
            self._search()
        with self.lock:
            self.new_count = self.tuner.new_count
            self.all_failed = previous is None and self.tuner.all_failed
            self.timings = self.collect_timings()
            if self._comparison_failed:  # the first is right by definition
                best = self.tuner.best_measured()
                self.config = self.configs[0] if best is None else self._triton_configs[best]
            elif self.all_failed:
                self.config = self._triton_configs[self.tuner.fallback_configuration()]
            else:
                self.config = previous or self._triton_configs[self.tuner.choose().config]

    def next_best_after_failure(
        self, config: triton.Config, error: Exception
    ) -> triton.Config | None:
        """Return the next best candidate after ``config`` failed to launch; None if there is none.

        Raises nothing: whatever goes wrong here, the caller has the kernel's own error.
        """
        try:
            with self.lock:
                text = f"{type(error).__name__}: {error}"
                self.tuner.add(self.failure(config, Status.COMPILE_ERROR, text))
                return None if self.tuner.all_failed else self._triton_configs[self.tuner.best]
        except Exception:
            return None

    def store_best(self) -> None:
        """Settle on what is best now that some did not run, for later processes too."""
        with self.lock:
            self.tuner.record_pending()
            self.tuner.choose()

    def collect_timings(self) -> dict[triton.Config, Any]:
        """Return times of everything measured of this problem, in the order of the list."""
        found = {m.config: m for m in self.tuner.measured()}
        return {
            config: self._benchmark.timings.get(config) or _quantiles(found[named])
            for named, config in zip(self._configurations, self.configs, strict=True)
            if named in found
        }

    def failure(self, config: triton.Config, status: Status, reason: str) -> Measurement:
        """Return the measurement of a candidate that did not run."""
        return self.tuner.call.failure(to_configuration(config), status, reason)

    def timed_out(self, config: triton.Config) -> Measurement:
        """Return the measurement of a candidate that was given up."""
        reason = f"compiles for more than {self.kernel.options.compile_limit_s:g} s"
        return self.failure(config, Status.TIMEOUT, reason)

    @cached_property
    def _benchmark(self) -> ConfigurationBenchmark:
        tuner = self.tuner
        return ConfigurationBenchmark(
            self.kernel,
            self.args,
            self.kwargs,
            self.configs,
            tuner.call,
            tuner.cache,
            tuner.needs_power,
        )

    def _search(self) -> None:
        tuner, lock = self.tuner, self.lock
        try:
            if self.kernel.options.budget == "all":
                with lock:
                    self._compile([self._triton_configs[c] for c in tuner.unmeasured()])
            else:
                self._read_early_stages()
            claimed = ClaimedElsewhere()
            while True:
                with lock:
                    proposed = self._next_candidate(claimed)
                    also = tuner.promising(self._compile_ahead_count()) if proposed else []
                if proposed is None:
                    if not claimed.wait():
                        return
                    with lock:
                        tuner.refresh()
                    continue
                self._compile([self._triton_configs[c] for c in dict.fromkeys((proposed, *also))])
                if self._read_machine_code(proposed):
                    continue
                if not claimed.still_waiting or self._try_claim(proposed):
                    self._measure(self._triton_configs[proposed])
                else:
                    claimed.add(proposed)
                    with lock:
                        tuner.refresh()
        except ComparisonError as e:
            self._comparison_failed = True
            warnings.warn(
                f"{tuner.call.kernel} keeps to configurations whose results were compared, or the "
                f"first: {e}",
                ForetuneWarning,
                stacklevel=2,
            )
        finally:
            self._benchmark.close()

    def _next_candidate(self, claimed: "ClaimedElsewhere") -> Configuration | None:
        """Return the candidate to measure now; None if there is none but busy ones."""
        tuner = self.tuner
        if self.kernel.options.budget != "all":
            if claimed and tuner.is_over():
                claimed.clear()
            return tuner.next(claimed)
        return next((c for c in tuner.unmeasured() if c not in claimed), None)

    def _try_claim(self, config: Configuration) -> bool:
        """Return whether no other process has measured ``config`` meanwhile, or is at it."""
        known = self._ignore_known or any(m.config == config for m in self.tuner.measured())
        return self.tuner.cache.try_claim(self.tuner.call.problem, config, remeasure=known)

    def _read_early_stages(self) -> None:
        """Look at the first stages of some candidates' code, where nothing else is known."""
        tuner = self.tuner
        with self.lock:
            uninformed = tuner.is_uninformed and not tuner.is_over()
            selected = tuner.promising(MAX_EARLY_COMPILES) if uninformed else []
        code = self._code_reader.early_stage_features(
            [self._triton_configs[c] for c in selected], MAX_COMPILE_THREADS
        )
        with self.lock:
            for config, features in zip(selected, code, strict=True):
                tuner.add_code_features(config, features)

    def _read_machine_code(self, config: Configuration) -> bool:
        """Look at a candidate's machine code; return whether it shows anything new."""
        tuner, compiled = (
            self.tuner,
            self.compile_ahead.compiled_kernel(self._triton_configs[config]),
        )
        if compiled is None or tuner.has_machine_code(config):
            return False
        features = self._code_reader.machine_code_features(compiled)
        with self.lock:
            tuner.add_code_features(config, features)
            return tuner.has_machine_code(config)

    @cached_property
    def _code_reader(self) -> CodeReader:
        return CodeReader(self.kernel.fn, self.args, self.kwargs, self.tuner.call.device)

    def _compile(self, configs: Sequence[triton.Config]) -> None:
        self.compile_ahead.compile(configs, self.kernel.options.compile_limit_s)

    def _compile_ahead_count(self) -> int:
        """Return how many more candidates are worth compiling ahead of their turn."""
        left = self.kernel.options.max_measurements(len(self.configs)) - self.tuner.new_count
        return min(MAX_COMPILE_THREADS, left) - 1

    def _measure(self, config: triton.Config) -> None:
        if self.compile_ahead.is_ready(config):
            measurement = self._benchmark.measure(config)
        else:
            measurement = self.timed_out(config)
        with self.lock:
            self.tuner.add(measurement)


def fail_if_conflicting(configs: Sequence[triton.Config], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call that passes what is being tuned, as stock Triton does, in its words."""
    conflicts = kwargs.keys() & configs[0].kwargs.keys()
    if conflicts:
        raise ValueError(
            f"Conflicting meta-parameters: {', '.join(conflicts)}."
            " Make sure that you don't re-define auto-tuned symbols."
        )


def _quantiles(m: Measurement) -> list[float]:
    """Return what a benchmarker would: median, 20 and 80 % quantiles, ms; infinite if it failed."""
    if not m.ok:
        return [math.inf] * 3
    if len(m.time_ms_samples) == 3:
        low, _, high = sorted(m.time_ms_samples)
        return [m.time_ms, low, high]
    return [m.time_ms] * 3
