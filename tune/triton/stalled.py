"""Driver of a stalled call: compile ahead, claim, measure, choose."""

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
from foretune.tune.triton.benchmark import ConfigurationBenchmark, UserKernelError
from foretune.tune.triton.choice import CallTuner, CallTunerFactory
from foretune.tune.triton.kernel import CompileAhead, KernelCall, to_configuration
from foretune.tune.triton.output_check import ComparisonError

TIMEOUT_S, POLL_S = 30.0, 0.02  # timeout and poll interval for measurements of other processes


class StalledCallDriver:
    """Searches for the configuration of one call; with ``ignore_known``, without earlier results.

    ``timings`` are median, 20 % and 80 % quantile of every measured candidate in ms. ``all_failed``
    is whether every candidate was measured and failed.
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
        self._comparison_failed = False
        self._configurations = [to_configuration(c) for c in self.configs]
        pairs = zip(reversed(self._configurations), reversed(self.configs), strict=True)
        self.triton_configs = dict(pairs)  # of equal ones the first
        self._tuner_factory = tuner_factory
        self._compile_ahead = CompileAhead(kernel)

    @cached_property
    def tuner(self) -> CallTuner:
        """The searcher of the call; use it under `lock`."""
        call = self.kernel.to_call()
        if self._ignore_known:
            self._tuner_factory.cache_of(call).forget(call.problem)
        return self._tuner_factory.make_tuner(call, self._configurations)

    @property
    def lock(self) -> threading.RLock:
        """Guards `tuner`."""
        return self._tuner_factory.lock

    def sufficient_choice(self) -> triton.Config | None:
        """Return the stored choice if it meets the options."""
        with self.lock:
            choice = self.tuner.sufficient_choice()
        return None if choice is None else self.triton_configs[choice.config]

    def predicted_best(self) -> triton.Config:
        """Return the incumbent, else the candidate predicted to be fastest."""
        with self.lock:
            return self.triton_configs[self.tuner.best]

    def tune(self) -> None:
        """Search and choose.

        Raises UserKernelError if the device is broken, the call is wrong, or every output is.
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
                self.config = self.configs[0] if best is None else self.triton_configs[best]
            elif self.all_failed:
                self._fail_if_wrong()
                self.config = self.triton_configs[self.tuner.fallback_configuration()]
            else:
                self.config = previous or self.store_best()

    def next_best_after_failure(
        self, config: triton.Config, error: Exception
    ) -> triton.Config | None:
        """Return the best after ``config`` failed to launch; None if all failed. Never raises."""
        try:
            with self.lock:
                named = to_configuration(config)
                self.tuner.add([self.tuner.call.failure(named, Status.COMPILE_ERROR, error)])
                return None if self.tuner.all_failed else self.triton_configs[self.tuner.best]
        except Exception:
            return None

    def store_best(self) -> triton.Config:
        """Choose the best candidate, store the choice and failures, and return it."""
        with self.lock:
            self.tuner.record_pending()
            return self.triton_configs[self.tuner.choose().config]

    def collect_timings(self) -> dict[triton.Config, Any]:
        """Return the times of all measured candidates, in the order of the list."""
        with self.lock:
            found = {m.config: m for m in self.tuner.measured()}
        return {
            config: self._benchmark.timings.get(config, _quantiles(found[named]))
            for named, config in zip(self._configurations, self.configs, strict=True)
            if named in found
        }

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
        return self.tuner.call.failure(config, Status.TIMEOUT, reason)

    @cached_property
    def _benchmark(self) -> ConfigurationBenchmark:
        return ConfigurationBenchmark(self.kernel, self.configs, self.tuner, self._can_run)

    def _can_run(self, config: triton.Config) -> bool:
        """Whether a candidate compiles in time and is not known to break a launch."""
        named = to_configuration(config)
        with self.lock:
            known = {m.config: m.status for m in self.tuner.measured()}
        if known.get(named) is Status.RUNTIME_ERROR:
            return False
        self.compile([named])
        return self.compile_timeout(named) is None

    def _search(self) -> None:
        try:
            with self.lock:
                loop = self.tuner.start_search()
            batch = self.advance(loop, None)
            while batch is not None and (batch.start or not self._is_sure()):
                self.compile((*batch.start, *batch.likely))
                done = [self._measure(c) for c in batch.start if self._try_claim(c)]
                done += self._results_of_others(wait=not batch.start)
                batch = self.advance(loop, done)
        except ComparisonError as e:
            self._comparison_failed = True
            kept = "configurations whose results were compared, or the first"
            warn(f"{self.tuner.call.kernel} keeps to {kept}: {e}")
        finally:
            self._benchmark.close()

    def _fail_if_wrong(self) -> None:
        """Raise UserKernelError if configurations ran, but none computes the expected outputs."""
        wrong = [m for m in self.tuner.measured() if m.status is Status.WRONG_RESULT]
        if wrong:
            raise UserKernelError(
                UsageError(
                    f"no configuration of {self.tuner.call.kernel} computes the expected output; "
                    f"{wrong[0].config} {wrong[0].error}"
                )
            )

    def _is_sure(self) -> bool:
        with self.lock:
            return self.tuner.is_sure()

    def _try_claim(self, config: Configuration) -> bool:
        """Claim a candidate; False if another process measures it or has measured it."""
        tuner = self.tuner
        with self.lock:
            known = self._ignore_known or tuner.was_measured(config)
            claimed = tuner.cache.try_claim(tuner.call.problem, config, remeasure=known)
            tuner.claimed_by_others = [c for c in tuner.claimed_by_others if c != config]
            tuner.claimed_by_others += [] if claimed else [config]
        return claimed

    def _results_of_others(self, wait: bool) -> list[Measurement]:
        """Return results of candidates claimed by other processes; with ``wait``, at least one.

        A claim that ended without a result, or lasts longer than the timeout, is measured here.
        """
        tuner, deadline = self.tuner, time.monotonic() + TIMEOUT_S
        while tuner.claimed_by_others:
            with self.lock:
                done = tuner.results_of_others()
            if done or not wait:
                return done
            late = time.monotonic() > deadline
            if mine := [c for c in tuner.claimed_by_others if self._try_claim(c) or late]:
                tuner.claimed_by_others = [c for c in tuner.claimed_by_others if c not in mine]
                return [self._measure(c) for c in mine]
            time.sleep(POLL_S)
        return []

    def _measure(self, config: Configuration) -> Measurement:
        timeout = self.compile_timeout(config)
        return timeout or self._benchmark.measure(self.triton_configs[config])


def _quantiles(m: Measurement) -> list[float]:
    """Return median, 20 % and 80 % quantile, ms; infinite for failures."""
    if not m.ok:
        return [math.inf] * 3
    if len(m.time_ms_samples) == 3:
        low, _, high = sorted(m.time_ms_samples)
        return [m.time_ms, low, high]
    return [m.time_ms] * 3
