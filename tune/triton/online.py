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
from foretune.tune.triton.configs import configuration_of
from foretune.tune.triton.measuring import CANNOT_RUN
from foretune.tune.triton.stopwatch import Stopwatch
from foretune.tune.triton.trials import Trials

REPEATS = 3
"""Timed launches of a trial, after one that is not counted."""


class Online:
    """The search of one problem, spread over its calls.

    Args:
        trials: of stand-ins for the arguments of a call.
        launch: runs a configuration for the caller.
        warn: says what failed.

    Attributes:
        choice: None until the search is over.
    """

    def __init__(
        self,
        trials: Trials,
        launch: Callable[[triton.Config, tuple[Any, ...], dict[str, Any]], Any],
        warn: Callable[[Exception], None],
    ) -> None:
        self.trials, self._launch, self._warn = trials, launch, warn
        self._trial: triton.Config | None = None
        self._watches: list[Stopwatch] = []
        self._plan: Plan | None = None
        self.choice = self.trials.settled()
        self._incumbent = self.choice or self.trials.predicted()
        if self.choice is None:
            self._think(None)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch once, with a trial if one is due."""
        watch = self._due()
        if watch is None:
            return self._launch_best(args, kwargs)
        assert self._trial is not None
        watch.start()
        try:
            result = self._launch(self._trial, args, kwargs)
        except CANNOT_RUN as e:
            self._give_up(Status.COMPILE_ERROR, e)
            return self._launch_best(args, kwargs)
        except Exception as e:
            self._give_up(Status.RUNTIME_ERROR, e)
            raise
        watch.stop()
        self._watches.append(watch)
        return result

    def _due(self) -> Stopwatch | None:
        """Take in what was planned and timed; return what times this call, if it carries a trial.

        Whatever goes wrong here ends the search, with a warning.
        """
        try:
            self._take_plan()
            self._take_times()
            if self._trial is not None and len(self._watches) <= REPEATS:
                return Stopwatch()
        except Exception as e:
            self._warn(e)
            self.choice, self._trial = self._incumbent, None
        return None

    def _launch_best(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch the best known so far; it may turn out not to run."""
        while True:
            try:
                return self._launch(self._incumbent, args, kwargs)
            except CANNOT_RUN as e:
                after = self.trials.without(self._incumbent, e)
                if after is None:
                    raise
                self._incumbent = after

    def _take_plan(self) -> None:
        """Go on to what was planned in the background, once that is there."""
        if self._plan is None or not self._plan.ready.is_set():
            return
        plan, self._plan = self._plan, None
        if plan.error is not None:
            raise plan.error
        self._incumbent = plan.best or self._incumbent
        self._trial, self._watches = plan.trial, []
        if plan.trial is None:
            self.choice = self._incumbent

    def _take_times(self) -> None:
        """Hand over the times of a trial, once the device has finished all its launches."""
        if self._trial is None or len(self._watches) <= REPEATS:
            return
        times = [watch.elapsed_ms() for watch in self._watches[1:]]
        known = [t for t in times if t is not None]
        if len(known) == len(times):
            trial, self._trial = self._trial, None
            call = self.trials.tuning.call
            self._think(call.ran(configuration_of(trial), statistics.median(known), known))

    def _give_up(self, status: Status, error: Exception) -> None:
        trial, self._trial = self._trial, None
        assert trial is not None
        text = f"{type(error).__name__}: {error}"
        self._think(self.trials.failed(trial, status, text))

    def _think(self, news: Measurement | None) -> None:
        self._plan = Plan(self.trials, news)
        _in_background(self._plan.make)


class Plan:
    """What to try next, made in the background.

    Args:
        trials: whose search it is.
        news: the measurement to take in first.

    Attributes:
        ready: set when the rest may be read.
        trial: what to try, compiled; None when enough is known.
        best: the best so far; None while nothing is measured.
        error: what went wrong.
    """

    def __init__(self, trials: Trials, news: Measurement | None) -> None:
        self._trials, self._news = trials, news
        self.ready = threading.Event()
        self.trial: triton.Config | None = None
        self.best: triton.Config | None = None
        self.error: Exception | None = None

    def make(self) -> None:
        """Make it."""
        try:
            self._make()
        except Exception as e:
            self.error = e
        self.ready.set()

    def _make(self) -> None:
        trials, tuning, news = self._trials, self._trials.tuning, self._news
        lock, limit_s = trials.lock, trials.kernel.options.compile_limit_s
        while True:
            with lock:
                if news is not None:
                    tuning.add(news)
                    self.best = trials.own(tuning.best)
                asked = tuning.next()
                if asked is None:
                    self.best = trials.own(tuning.choose().config)
                    return
            trial = trials.own(asked)
            trials.ahead.compile([trial], limit_s)
            if trials.ahead.done(trial):
                self.trial = trial
                return
            news = trials.timed_out(trial)


_JOBS: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
_THINKERS = 2
_started = threading.Lock()
_threads: list[threading.Thread] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.clear)


def _in_background(job: Callable[[], None]) -> None:
    """Run ``job`` in one of a few threads that do not keep the process from ending."""
    with _started:
        while len(_threads) < _THINKERS:
            thread = threading.Thread(target=_work, name="foretune-online", daemon=True)
            _threads.append(thread)
            thread.start()
    _JOBS.put(job)


def _work() -> None:
    while True:
        _JOBS.get()()
