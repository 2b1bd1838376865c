"""Driver of a call that waits while its configuration is chosen (``mode="stall"``).

Its steps: take the stored choice if it suffices; else search, and store the best. In the search,
each batch is compiled ahead, its candidates are claimed from other processes, and measured.
"""

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import triton

from foretune.errors import UsageError, warn
from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.triton.benchmark import ConfigurationBenchmark, UserKernelError
from foretune.tune.triton.call_driver import CallDriver
from foretune.tune.triton.call_tuner import CallTunerFactory
from foretune.tune.triton.kernel import KernelCall, to_configuration
from foretune.tune.triton.output_check import ComparisonError

TIMEOUT_S = 30.0
"""How long to wait for a measurement by another process."""
POLL_S = 0.02
"""Time between two looks at the store while waiting."""


class StalledCallDriver(CallDriver):
    """Searches for the configuration of one call, which is stalled until `tune` returns.

    Attributes:
        config: the chosen candidate.
        timings: median, 20 % and 80 % quantile of every measured candidate, milliseconds; what the
            benchmarker returned if it was measured by this driver.
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
        super().__init__(kernel, tuner_factory, configs, ignore_known)
        self.config = self.configs[0]
        self.timings: dict[triton.Config, Any] = {}
        self.new_count = 0
        self.all_failed = False
        self._comparison_failed = False

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

    def collect_timings(self) -> dict[triton.Config, Any]:
        """Return the times of all measured candidates, in the order of the list."""
        own_timings = self._benchmark.timings
        return {
            config: own_timings.get(config, stored)
            for config, stored in super().collect_timings().items()
        }

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
            remeasure = self.ignore_known or history.was_measured(config)
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
