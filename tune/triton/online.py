"""Tuning without a stall: real calls carry the trials, one configuration each.

Every call launches exactly once, so nothing is run that the caller did not ask for. A trial is
judged and compiled in the background before a call carries it; until then, and while the device has
not finished what was timed, calls run with the best known so far. No tensor of a call is kept: the
search sees stand-ins that tell shape, type and alignment.
"""

import os
import queue
import statistics
import threading
from collections.abc import Callable
from typing import Any

import triton

from foretune.measurement import Measurement, Status
from foretune.tune.triton.benchmark import INVALID_CONFIG_ERRORS
from foretune.tune.triton.kernel import to_configuration
from foretune.tune.triton.runtime import EventTimer
from foretune.tune.triton.stalled import StalledCallDriver

REPEATS = 3
"""Timed launches of a trial, after one that is not counted."""


class OnlineDriver:
    """The search of one problem, spread over its calls.

    Args:
        driver: of stand-ins for the arguments of a call.
        launch: runs a configuration for the caller.
        warn: says what failed.

    Attributes:
        choice: None until the search is over.
    """

    def __init__(
        self,
        driver: StalledCallDriver,
        launch: Callable[[triton.Config, tuple[Any, ...], dict[str, Any]], Any],
        warn: Callable[[Exception], None],
    ) -> None:
        self.driver, self._launch, self._warn = driver, launch, warn
        self._trial: triton.Config | None = None
        self._timers: list[EventTimer] = []
        self._next: NextMeasurement | None = None
        self.choice = self.driver.sufficient_choice()
        self._incumbent = self.choice or self.driver.predicted_best()
        if self.choice is None:
            self._advance_in_background(None)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch once, with a trial if one is due."""
        watch = self._timer_if_due()
        if watch is None:
            return self._launch_best(args, kwargs)
        assert self._trial is not None
        watch.start()
        try:
            result = self._launch(self._trial, args, kwargs)
        except INVALID_CONFIG_ERRORS as e:
            self._report_failure(Status.COMPILE_ERROR, e)
            return self._launch_best(args, kwargs)
        except Exception as e:
            self._report_failure(Status.RUNTIME_ERROR, e)
            raise
        watch.stop()
        self._timers.append(watch)
        return result

    def _timer_if_due(self) -> EventTimer | None:
        """Take in what was planned and timed; return what times this call, if it carries a trial.

        Whatever goes wrong here ends the search, with a warning.
        """
        try:
            self._apply_next()
            self._report_times()
            if self._trial is not None and len(self._timers) <= REPEATS:
                return EventTimer()
        except Exception as e:
            self._warn(e)
            self.choice, self._trial = self._incumbent, None
        return None

    def _launch_best(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch the best known so far; it may turn out not to run."""
        while True:
            try:
                return self._launch(self._incumbent, args, kwargs)
            except INVALID_CONFIG_ERRORS as e:
                after = self.driver.next_best_after_failure(self._incumbent, e)
                if after is None:
                    raise
                self._incumbent = after

    def _apply_next(self) -> None:
        """Go on to what was planned in the background, once that is there."""
        if self._next is None or not self._next.ready.is_set():
            return
        plan, self._next = self._next, None
        if plan.error is not None:
            raise plan.error
        self._incumbent = plan.best or self._incumbent
        self._trial, self._timers = plan.trial, []
        if plan.trial is None:
            self.choice = self._incumbent

    def _report_times(self) -> None:
        """Hand over the times of a trial, once the device has finished all its launches."""
        if self._trial is None or len(self._timers) <= REPEATS:
            return
        times = [watch.elapsed_ms() for watch in self._timers[1:]]
        known = [t for t in times if t is not None]
        if len(known) == len(times):
            trial, self._trial = self._trial, None
            call = self.driver.tuner.call
            self._advance_in_background(
                call.success(to_configuration(trial), statistics.median(known), known)
            )

    def _report_failure(self, status: Status, error: Exception) -> None:
        trial, self._trial = self._trial, None
        assert trial is not None
        text = f"{type(error).__name__}: {error}"
        self._advance_in_background(self.driver.failure(trial, status, text))

    def _advance_in_background(self, measurement: Measurement | None) -> None:
        self._next = NextMeasurement(self.driver, measurement)
        _in_background(self._next.compute)


class NextMeasurement:
    """What to try next, made in the background.

    Args:
        driver: whose search it is.
        measurement: the measurement to take in first.

    Attributes:
        ready: set when the rest may be read.
        trial: what to try, compiled; None when enough is known.
        best: the best so far; None while nothing is measured.
        error: what went wrong.
    """

    def __init__(self, driver: StalledCallDriver, measurement: Measurement | None) -> None:
        self._driver, self._measurement = driver, measurement
        self.ready = threading.Event()
        self.trial: triton.Config | None = None
        self.best: triton.Config | None = None
        self.error: Exception | None = None

    def compute(self) -> None:
        """Make it."""
        try:
            self._compute()
        except Exception as e:
            self.error = e
        self.ready.set()

    def _compute(self) -> None:
        driver, tuner, measurement = self._driver, self._driver.tuner, self._measurement
        lock, limit_s = driver.lock, driver.kernel.options.compile_limit_s
        while True:
            with lock:
                if measurement is not None:
                    tuner.add(measurement)
                    self.best = driver.triton_config(tuner.best)
                proposed = tuner.next()
                if proposed is None:
                    self.best = driver.triton_config(tuner.choose().config)
                    return
            trial = driver.triton_config(proposed)
            driver.compile_ahead.compile([trial], limit_s)
            if driver.compile_ahead.is_ready(trial):
                self.trial = trial
                return
            measurement = driver.timed_out(trial)


_JOBS: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
_WORKERS = 2
_threads_lock = threading.Lock()
_threads: list[threading.Thread] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.clear)


def _in_background(job: Callable[[], None]) -> None:
    """Run ``job`` in one of a few threads that do not keep the process from ending."""
    with _threads_lock:
        while len(_threads) < _WORKERS:
            thread = threading.Thread(target=_run_jobs, name="foretune-online", daemon=True)
            _threads.append(thread)
            thread.start()
    _JOBS.put(job)


def _run_jobs() -> None:
    while True:
        _JOBS.get()()
