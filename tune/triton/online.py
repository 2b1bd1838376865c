"""Driver of online tuning: each real call measures one configuration.

Every call launches exactly once. The search step after a measurement (ask, compile) runs in the
background. Meanwhile, and until the device has finished the timed launches, calls run with the
incumbent. The search keeps descriptions of the arguments (shape, type, alignment), no tensors.
"""

import os
import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import triton

from foretune.measurement import Measurement, Status
from foretune.tune.triton.benchmark import INVALID_CONFIG_ERRORS
from foretune.tune.triton.kernel import to_configuration
from foretune.tune.triton.runtime import EventTimer
from foretune.tune.triton.stalled import StalledCallDriver

REPEATS = 3  # timed launches of a trial, after one warm-up launch
MAX_STEPS = 2  # maximum number of concurrent search steps, over all problems
_Step = tuple[triton.Config | None, triton.Config]
"""The next trial, compiled, and the incumbent; no trial if the search is over."""
_slots = threading.Semaphore(MAX_STEPS)
if hasattr(os, "register_at_fork"):  # threads that hold a slot do not exist in the child
    os.register_at_fork(
        after_in_child=lambda: globals().update(_slots=threading.Semaphore(MAX_STEPS))
    )


class OnlineDriver:
    """Searches over a problem's calls; ``choice`` is the result, None until the search is over."""

    def __init__(
        self,
        driver: StalledCallDriver,
        launch: Callable[[triton.Config, tuple[Any, ...], dict[str, Any]], Any],
        warn: Callable[[Exception], None],
    ) -> None:
        self.driver, self._launch, self._warn = driver, launch, warn
        self._trial: triton.Config | None = None
        self._timers: list[EventTimer] = []
        self._step: Future[_Step] | None = None
        self.choice = driver.sufficient_choice()
        self._incumbent = self.choice or driver.predicted_best()
        if self.choice is None:
            with driver.lock:
                self._loop = driver.tuner.search.start()
            self._advance(None)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch the trial if it still has to be timed, else the incumbent."""
        timer = self._timer_if_due()
        if timer is None:
            return self._launch_best(args, kwargs)
        assert self._trial is not None
        timer.start()
        try:
            result = self._launch(self._trial, args, kwargs)
        except INVALID_CONFIG_ERRORS as e:
            self._report_failure(Status.COMPILE_ERROR, e)
            return self._launch_best(args, kwargs)
        except Exception as e:
            self._report_failure(Status.RUNTIME_ERROR, e)
            raise
        timer.stop()
        self._timers.append(timer)
        return result

    def _timer_if_due(self) -> EventTimer | None:
        """Return a timer if this call launches the trial; an error ends the search."""
        try:
            self._apply_step()
            self._report_times()
            if self._trial is not None and len(self._timers) <= REPEATS:
                return EventTimer(self._timers[-1].host_s if self._timers else 0.0)
        except Exception as e:
            self._warn(e)
            self.choice, self._trial = self._incumbent, None
        return None

    def _launch_best(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch the incumbent, or the next best candidate if it cannot run."""
        while True:
            try:
                return self._launch(self._incumbent, args, kwargs)
            except INVALID_CONFIG_ERRORS as e:
                after = self.driver.next_best_after_failure(self._incumbent, e)
                if after is None:
                    raise
                self._incumbent = after

    def _advance(self, measurements: Sequence[Measurement] | None) -> None:
        """Run the next step of the search in the background, one at a time."""
        step = self._step = Future[_Step]()

        def run() -> None:
            with _slots:
                try:
                    step.set_result(self._next_trial(measurements))
                except Exception as e:
                    step.set_exception(e)

        threading.Thread(target=run, name="foretune-online", daemon=True).start()

    def _next_trial(self, measurements: Sequence[Measurement] | None) -> _Step:
        driver = self.driver
        while (batch := driver.advance(self._loop, measurements)) is not None:
            (trial,) = batch.start
            driver.compile([trial])
            if (timeout := driver.compile_timeout(trial)) is None:
                return driver.triton_configs[trial], driver.predicted_best()
            measurements = [timeout]
        return None, driver.store_best()

    def _apply_step(self) -> None:
        if self._step is None or not self._step.done():
            return
        step, self._step = self._step, None
        self._trial, self._incumbent = step.result()
        self._timers = []
        if self._trial is None:
            self.choice = self._incumbent

    def _report_times(self) -> None:
        """Send the times of the trial after the device has finished all its launches."""
        if self._trial is None or len(self._timers) <= REPEATS:
            return
        times = [timer.elapsed_ms() for timer in self._timers[1:]]
        known = [t for t in times if t is not None]
        if len(known) == len(times):
            trial, self._trial = to_configuration(self._trial), None
            call = self.driver.tuner.history.call
            self._advance([call.success(trial, statistics.median(known), known)])

    def _report_failure(self, status: Status, error: Exception) -> None:
        trial, self._trial = self._trial, None
        assert trial is not None
        call = self.driver.tuner.history.call
        self._advance([call.failure(to_configuration(trial), status, error)])
