"""Driver of a call that waits while its configuration is chosen (``mode="stall"``).

Its steps: take the stored choice if it suffices; else search, and store the best. In the search,
each batch is compiled ahead, its candidates are claimed from other processes, and measured. Online
tuning (`foretune.tune.triton.online`) takes single steps from this driver.
"""

import math
import threading
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import triton

from foretune.errors import UsageError, warn
from foretune.measurement import Measurement, Status
from foretune.search.loop import Batch, SearchLoop
from foretune.space import Configuration
from foretune.tune.store.subject import Choice
from foretune.tune.triton.benchmark import ConfigurationBenchmark, UserKernelError
from foretune.tune.triton.call_tuner import CallTuner, CallTunerFactory
from foretune.tune.triton.kernel import CompileAhead, KernelCall, to_configuration
from foretune.tune.triton.output_check import ComparisonError

TIMEOUT_S = 30.0
"""How long to wait for a measurement by another process."""
POLL_S = 0.02
"""Time between two looks at the store while waiting."""


class StalledCallDriver:
    """Searches for the configuration of one call, which is stalled until `tune` returns.

    Args:
        kernel: the call and its options.
        tuner_factory: makes the tuner, and guards it by its lock.
        configs: the candidates.
        ignore_known: search without earlier results.

    Attributes:
        config: the chosen candidate.
        timings: median, 20 % and 80 % quantile of every measured candidate, milliseconds.
        new_count: number of measurements that `tune` made.
        all_failed: whether every candidate was measured and failed.
    """

    def __init__(
        self,
        kernel: KernelCall,
        tuner_factory: CallTunerFactory,
        configs: Sequence[triton.Config],
        ignore_known: bool = False,
    ) -> None:
        self.kernel = kernel
        self.configs = list(configs)
        self.config = self.configs[0]
        self.timings: dict[triton.Config, Any] = {}
        self.new_count = 0
        self.all_failed = False
        self._ignore_known = ignore_known
        self._stored_choice: Choice | None = None  # when `sufficient_choice` looked
        self._comparison_failed = False
        self._configurations = [to_configuration(c) for c in self.configs]
        self.triton_configs: dict[Configuration, triton.Config] = {}
        for configuration, config in zip(self._configurations, self.configs, strict=True):
            self.triton_configs.setdefault(configuration, config)  # of equal ones the first
        self._tuner_factory = tuner_factory
        self._compile_ahead = CompileAhead(kernel)

    @cached_property
    def tuner(self) -> CallTuner:
        """The tuner of the call; use it under `lock`."""
        call = self.kernel.to_call()
        if self._ignore_known:
            self._tuner_factory.cache_of(call).forget(call.problem)
        return self._tuner_factory.make_tuner(call, self._configurations)

    @property
    def lock(self) -> threading.RLock:
        """Guards `tuner`."""
        return self._tuner_factory.lock

    def sufficient_choice(self) -> triton.Config | None:
        """Return the stored choice if it meets the options.

        `store_best` replaces the choice that was stored at this moment, and no later one.
        """
        with self.lock:
            rule = self.tuner.rule
            stored = rule.stored_choice()
            self._stored_choice = stored
            if stored is None or not rule.suffices(stored):
                return None
        return self.triton_configs[stored.config]

    def stored_choice(self) -> triton.Config | None:
        """Return the stored choice, whatever its regret; None if a measurement refutes it."""
        with self.lock:
            stored = self.tuner.rule.stored_choice()
            if stored is None or self.tuner.rule.is_wrong(stored):
                return None
        return self.triton_configs[stored.config]

    def predicted_best(self) -> triton.Config:
        """Return the incumbent, else the candidate predicted to be fastest."""
        with self.lock:
            return self.triton_configs[self.tuner.search.best]

    def tune(self) -> None:
        """Search and choose.

        Raises UserKernelError if the device is broken, the call is wrong, or every output is.
        """
        with self.lock:
            self.tuner.history.record_crashes()
        previous = self.sufficient_choice()
        if previous is None:
            self._search()
        with self.lock:
            history = self.tuner.history
            self.new_count = history.new_count
            self.all_failed = previous is None and history.all_failed
            self.timings = self.collect_timings()
            self.config = self._chosen(previous)

    def next_best_after_failure(
        self, config: triton.Config, error: Exception
    ) -> triton.Config | None:
        """Return the best after ``config`` failed to launch; None if all failed. Never raises."""
        try:
            with self.lock:
                history = self.tuner.history
                configuration = to_configuration(config)
                failure = history.call.failure(configuration, Status.COMPILE_ERROR, error)
                history.add([failure])
                if history.all_failed:
                    return None
                return self.triton_configs[self.tuner.search.best]
        except Exception:
            return None

    def store_best(self) -> triton.Config:
        """Choose the best candidate, store the choice and failures, and return it."""
        with self.lock:
            self.tuner.history.record_pending()
            choice = self.tuner.rule.choose_best(replacing=self._stored_choice)
        return self.triton_configs[choice.config]

    def collect_timings(self) -> dict[triton.Config, Any]:
        """Return the times of all measured candidates, in the order of the list."""
        with self.lock:
            measurements = {m.config: m for m in self.tuner.history.measured()}
        timings = {}
        for configuration, config in zip(self._configurations, self.configs, strict=True):
            if configuration in measurements:
                stored = _quantiles(measurements[configuration])
                timings[config] = self._benchmark.timings.get(config, stored)
        return timings

    def advance(
        self, loop: SearchLoop[Configuration], measurements: Sequence[Measurement] | None
    ) -> Batch[Configuration] | None:
        """Return the next batch after ``measurements`` (None: the first); None at the end."""
        with self.lock:
            try:
                return next(loop) if measurements is None else loop.send(measurements)
            except StopIteration:
                return None

    def compile(self, configs: Sequence[Configuration]) -> None:
        """Compile candidates; return when each is compiled or timed out."""
        limit_s = self.kernel.options.compile_limit_s
        self._compile_ahead.compile([self.triton_configs[c] for c in configs], limit_s)

    def compile_timeout(self, config: Configuration) -> Measurement | None:
        """Return a failed measurement if `compile` gave up a candidate, else None."""
        if self._compile_ahead.is_ready(self.triton_configs[config]):
            return None
        reason = f"takes more than {self.kernel.options.compile_limit_s:g} s"
        return self.tuner.history.call.failure(config, Status.TIMEOUT, reason)

    @cached_property
    def _benchmark(self) -> ConfigurationBenchmark:
        return ConfigurationBenchmark(
            self.kernel, self.configs, self.tuner.history, can_run=self._can_run
        )

    def _can_run(self, config: triton.Config) -> bool:
        """Whether a candidate compiles in time and is not known to break a launch."""
        configuration = to_configuration(config)
        with self.lock:
            statuses = {m.config: m.status for m in self.tuner.history.measured()}
        if statuses.get(configuration) is Status.RUNTIME_ERROR:
            return False
        self.compile([configuration])
        return self.compile_timeout(configuration) is None

    def _search(self) -> None:
        """Measure batch by batch until the search ends, or outputs cannot be compared."""
        try:
            with self.lock:
                loop = self.tuner.search.start()
            batch = self.advance(loop, None)
            # With nothing to start here, only wait for other processes while that may help.
            while batch is not None and (batch.start or not self._meets_stopping_rule()):
                self.compile((*batch.start, *batch.likely))
                measured = [self._measure(c) for c in batch.start if self._try_claim(c)]
                measured += self._results_of_others(wait=not batch.start)
                batch = self.advance(loop, measured)
        except ComparisonError as e:
            self._comparison_failed = True
            kept = "configurations whose results were compared, or the first"
            warn(f"{self.tuner.history.call.kernel} keeps to {kept}: {e}")
        finally:
            self._benchmark.close()

    def _chosen(self, previous: triton.Config | None) -> triton.Config:
        """Return the configuration to launch after a search; ``previous`` was stored before it."""
        history = self.tuner.history

        # Outputs cannot be compared: the first candidate is right by definition.
        if self._comparison_failed:
            best = history.best_measured()
            return self.configs[0] if best is None else self.triton_configs[best]

        if self.all_failed:
            self._fail_if_wrong()
            return self.triton_configs[history.fallback_configuration()]
        return previous or self.store_best()

    def _fail_if_wrong(self) -> None:
        """Raise UserKernelError if configurations ran, but none computes the expected outputs."""
        history = self.tuner.history
        wrong = [m for m in history.measured() if m.status is Status.WRONG_RESULT]
        if wrong:
            raise UserKernelError(
                UsageError(
                    f"no configuration of {history.call.kernel} computes the expected output; "
                    f"{wrong[0].config} {wrong[0].error}"
                )
            )

    def _meets_stopping_rule(self) -> bool:
        with self.lock:
            return self.tuner.search.meets_stopping_rule()

    def _try_claim(self, config: Configuration) -> bool:
        """Claim a candidate; False if another process measures it or has measured it."""
        history = self.tuner.history
        with self.lock:
            remeasure = self._ignore_known or history.was_measured(config)
            return history.try_claim(config, remeasure=remeasure)

    def _results_of_others(self, wait: bool) -> list[Measurement]:
        """Return results of candidates claimed by other processes; with ``wait``, at least one.

        A claim that ended without a result, or lasts longer than the timeout, is measured here.
        """
        history = self.tuner.history
        deadline = time.monotonic() + TIMEOUT_S
        while history.claimed_by_others:
            with self.lock:
                results = history.results_of_others()
            if results or not wait:
                return results

            is_late = time.monotonic() > deadline
            mine = [c for c in history.claimed_by_others if self._try_claim(c) or is_late]
            if mine:
                history.forget_claims(mine)
                return [self._measure(c) for c in mine]
            time.sleep(POLL_S)
        return []

    def _measure(self, config: Configuration) -> Measurement:
        timeout = self.compile_timeout(config)
        if timeout is not None:
            return timeout
        return self._benchmark.measure(self.triton_configs[config])


def _quantiles(m: Measurement) -> list[float]:
    """Return median, 20 % and 80 % quantile, ms; infinite for failures."""
    if not m.ok:
        return [math.inf] * 3
    if len(m.time_ms_samples) == 3:
        low, _, high = sorted(m.time_ms_samples)
        return [m.time_ms, low, high]
    return [m.time_ms] * 3
