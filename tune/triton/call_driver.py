"""The steps of choosing a configuration for one call, which all modes share.

`StalledCallDriver` (``mode="stall"``) takes them while the call waits, `OnlineSearch`
(``mode="online"``) one by one between calls. Other modes only ask for the stored or the predicted
choice. A call's `CallTuner` knows, searches and decides; a driver translates between its
configurations and Triton's, compiles ahead, and holds its lock.
"""

import math
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import triton

from foretune.measurement import Measurement, Status
from foretune.search.loop import Batch, SearchLoop
from foretune.space import Configuration
from foretune.tune.store.subject import Choice
from foretune.tune.triton.call_tuner import CallTuner, CallTunerFactory
from foretune.tune.triton.kernel import CompileAhead, KernelCall, to_configuration

QUANTILES = (0.5, 0.2, 0.8)
"""What Triton's benchmarkers return of a configuration's times, and a measurement keeps."""


class CallDriver:
    """Takes the steps of choosing among the candidates of one call.

    Args:
        kernel: the call and its options.
        tuner_factory: makes the tuner, and guards it by its lock.
        configs: the candidates, at least one.
        ignore_known: search without earlier results.

    Attributes:
        triton_configs: configuration -> Triton's; of equal ones the first.
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
        self.ignore_known = ignore_known
        self._configurations = [to_configuration(c) for c in self.configs]
        self.triton_configs: dict[Configuration, triton.Config] = {}
        for configuration, config in zip(self._configurations, self.configs, strict=True):
            self.triton_configs.setdefault(configuration, config)
        self._tuner_factory = tuner_factory
        self._compile_ahead = CompileAhead(kernel)
        self._stored_choice: Choice | None = None  # when `sufficient_choice` looked

    @cached_property
    def tuner(self) -> CallTuner:
        """The tuner of the call; use it under `lock`."""
        call = self.kernel.to_call()
        if self.ignore_known:
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
        """Return the quantiles (ms) of all measured candidates, in the order of the list."""
        with self.lock:
            measurements = {m.config: m for m in self.tuner.history.measured()}
        return {
            config: _quantiles_ms(measurements[configuration])
            for configuration, config in zip(self._configurations, self.configs, strict=True)
            if configuration in measurements
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
        return self.tuner.history.call.failure(config, Status.TIMEOUT, reason)


def _quantiles_ms(m: Measurement) -> list[float]:
    """Return the `QUANTILES` of a measurement; infinite for failures.

    A benchmarker of the user may return another number of values: then the time stands for all.
    """
    if not m.ok:
        return [math.inf] * len(QUANTILES)
    if len(m.time_ms_samples) == len(QUANTILES):
        low, _, high = sorted(m.time_ms_samples)
        return [m.time_ms, low, high]
    return [m.time_ms] * len(QUANTILES)
