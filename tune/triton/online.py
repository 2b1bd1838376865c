"""Online tuning: each real call measures one configuration (``mode="online"``).

Every call launches exactly once. The search step after a measurement (ask, compile) runs in the
background. Meanwhile, and until the device has finished the timed launches, calls run with the
incumbent. The search keeps descriptions of the arguments (shape, type, alignment), no tensors.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton

from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.triton.benchmark import INVALID_CONFIG_ERRORS
from foretune.tune.triton.call_driver import QUANTILES, CallDriver
from foretune.tune.triton.kernel import to_configuration
from foretune.tune.triton.runtime import EventTimer

REPEATS = 3
"""Timed launches of a trial, after one warm-up launch."""
MAX_STEPS = 2
"""Maximum number of concurrent search steps, over all problems."""


@dataclass(frozen=True)
class Trial:
    """What calls launch after a search step.

    Attributes:
        config: the configuration to measure, compiled; None if the search is over.
        incumbent: the best configuration so far; at the end, the choice.
    """

    config: triton.Config | None
    incumbent: triton.Config


class StepSlots:
    """Limits how many search steps run at the same time in this process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.reset()

    def reset(self) -> None:
        """Free all slots. In a forked process, the threads that held some do not exist."""
        self._semaphore = threading.Semaphore(self._count)

    @contextmanager
    def hold_one(self) -> Iterator[None]:
        """Wait for a slot and hold it."""
        with self._semaphore:
            yield


_slots = StepSlots(MAX_STEPS)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_slots.reset)


class OnlineSearch:
    """Searches over a problem's calls.

    Args:
        driver: takes the steps of the search.
        launch: runs a call with a configuration.
        warn: gets an error of Foretune that ends the search.

    Attributes:
        choice: the result; None until the search is over.
    """

    def __init__(
        self,
        driver: CallDriver,
        launch: Callable[[triton.Config, tuple[Any, ...], dict[str, Any]], Any],
        warn: Callable[[Exception], None],
    ) -> None:
        self.driver = driver
        self._launch = launch
        self._warn = warn
        self._trial_config: triton.Config | None = None
        self._timers: list[EventTimer] = []
        self._step: Future[Trial] | None = None
        self.choice = driver.sufficient_choice()
        self._incumbent = self.choice or driver.predicted_best()
        if self.choice is None:
            with driver.lock:
                self._loop = driver.tuner.search.start(parallel=1)
            self._start_step(None)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch the trial if it still has to be timed, else the incumbent."""
        timer = self._start_timer_if_due()
        if timer is None:
            return self._launch_best(args, kwargs)

        assert self._trial_config is not None
        try:
            result = self._launch(self._trial_config, args, kwargs)
        except INVALID_CONFIG_ERRORS as e:
            self._report_failure(Status.COMPILE_ERROR, e)
            return self._launch_best(args, kwargs)
        except Exception as e:
            self._report_failure(Status.RUNTIME_ERROR, e)
            raise
        self._stop(timer)
        return result

    def _start_timer_if_due(self) -> EventTimer | None:
        """Return a started timer if this call launches the trial; an error ends the search."""
        try:
            self._take_over_step()
            self._report_times_if_finished()
            if self._trial_config is None or self._is_timed:
                return None
            host_s = self._timers[-1].host_s if self._timers else 0.0
            timer = EventTimer(host_s)
            timer.start()
        except Exception as e:
            self._end_after_error(e)
            return None
        return timer

    def _stop(self, timer: EventTimer) -> None:
        """Stop the timer of a launch; an error ends the search, but not the user's call."""
        try:
            timer.stop()
        except Exception as e:
            self._end_after_error(e)
        else:
            self._timers.append(timer)

    def _end_after_error(self, error: Exception) -> None:
        """End the search: the incumbent is the choice."""
        self._warn(error)
        self.choice = self._incumbent
        self._trial_config = None

    @property
    def _is_timed(self) -> bool:
        """Whether the trial had its warm-up launch and all timed ones."""
        return len(self._timers) > REPEATS

    def _launch_best(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch the incumbent, or the next best candidate if it cannot run."""
        while True:
            try:
                return self._launch(self._incumbent, args, kwargs)
            except INVALID_CONFIG_ERRORS as e:
                next_best = self.driver.next_best_after_failure(self._incumbent, e)
                if next_best is None:
                    raise
                self._incumbent = next_best

    def _start_step(self, measurements: Sequence[Measurement] | None) -> None:
        """Run the next step of the search in the background, one at a time."""
        step = Future[Trial]()
        self._step = step

        def take_step() -> None:
            with _slots.hold_one():
                try:
                    step.set_result(self._next_trial(measurements))
                except Exception as e:
                    step.set_exception(e)

        threading.Thread(target=take_step, name="foretune-online", daemon=True).start()

    def _next_trial(self, measurements: Sequence[Measurement] | None) -> Trial:
        """Return the next trial that compiles in time; report the others as failed."""
        driver = self.driver
        while (batch := driver.advance(self._loop, measurements)) is not None:
            (config,) = batch.start  # the search is not parallel: one at a time
            driver.compile([config])
            timeout = driver.compile_timeout(config)
            if timeout is None:
                return Trial(driver.triton_configs[config], incumbent=driver.predicted_best())
            measurements = [timeout]
        return Trial(None, incumbent=driver.store_best())

    def _take_over_step(self) -> None:
        """Take over the result of the background step, if it is there."""
        if self._step is None or not self._step.done():
            return
        step = self._step
        self._step = None
        trial = step.result()
        self._trial_config = trial.config
        self._incumbent = trial.incumbent
        self._timers = []
        if trial.config is None:
            self.choice = trial.incumbent

    def _report_times_if_finished(self) -> None:
        """Send the times of the trial after the device has finished all its launches."""
        if self._trial_config is None or not self._is_timed:
            return
        _, *timed = self._timers  # the first was the warm-up
        times_ms = [elapsed for t in timed if (elapsed := t.elapsed_ms()) is not None]
        if len(times_ms) < len(timed):
            return
        config = self._take_trial()
        call = self.driver.tuner.history.call
        median_ms, low_ms, high_ms = np.quantile(times_ms, QUANTILES).tolist()
        self._start_step([call.success(config, median_ms, [median_ms, low_ms, high_ms])])

    def _report_failure(self, status: Status, error: Exception) -> None:
        config = self._take_trial()
        call = self.driver.tuner.history.call
        self._start_step([call.failure(config, status, error)])

    def _take_trial(self) -> Configuration:
        """Return the trial's configuration; calls launch the incumbent from now on."""
        assert self._trial_config is not None
        config = to_configuration(self._trial_config)
        self._trial_config = None
        return config
