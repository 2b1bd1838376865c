"""Tuning without a stall: real calls carry the trials, one configuration each.

Every call launches exactly once, so nothing is run that the caller did not ask for. A trial is
compiled in the background before a call carries it; until then, and while the device has not
finished what was timed, calls run with the best known so far.
"""

import statistics
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import triton

from foretune.measurement import Measurement, Status
from foretune.tune.autotune.configs import configuration_of
from foretune.tune.autotune.stopwatch import Stopwatch
from foretune.tune.autotune.trials import CANNOT_RUN, Trials
from foretune.tune.autotune.tuning import failed

REPEATS = 3
"""Timed launches of a trial, after one that is not counted."""


@cache
def _planner() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "foretune-online")


class Online:
    """The search of one problem, spread over its calls.

    Args:
        trials: of the first call.

    Attributes:
        choice: None until the search is over.
    """

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.choice: triton.Config | None = None
        self._trial: triton.Config | None = None
        self._last: triton.Config | None = None
        self._watches: list[Stopwatch] = []
        remembered = trials.tuning.remembered()
        if remembered is not None:
            self.choice = self._incumbent = trials.own(remembered.config)
            return
        self._incumbent = trials.predicted()
        self._plan: Future[triton.Config | None] | None = self._submit(None)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch once, with a trial if one is due."""
        if self.choice is None:
            self._take_plan()
            self._take_times()
        tuner = self.trials.tuner
        if self._trial is None or len(self._watches) > REPEATS:
            return self._launch_best(args, kwargs)
        watch = Stopwatch()
        watch.start()
        try:
            result = tuner._launch(self._trial, args, kwargs)
        except CANNOT_RUN as e:
            self._give_up(Status.COMPILE_ERROR, e)
            return self._launch_best(args, kwargs)
        except Exception as e:
            self._give_up(Status.RUNTIME_ERROR, e)
            raise
        watch.stop()
        self._watches.append(watch)
        return result

    def _launch_best(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch the best known so far; it may turn out not to run."""
        while True:
            try:
                return self.trials.tuner._launch(self._incumbent, args, kwargs)
            except CANNOT_RUN as e:
                after = self.trials.without(self._incumbent, e)
                if after is None:
                    raise
                self._incumbent = after

    def _take_plan(self) -> None:
        """Go on to what was planned in the background, once that is there."""
        if self._plan is None or not self._plan.done():
            return
        plan, self._plan = self._plan, None
        self._trial, self._watches = None, []
        try:
            self._trial = plan.result()
        except Exception as e:
            self.trials.tuner.warn(e)
        if self._trial is None:
            self.choice = self._incumbent

    def _take_times(self) -> None:
        """Hand over the times of a trial, once the device has finished all its launches."""
        if self._trial is None or len(self._watches) <= REPEATS:
            return
        times = [watch.elapsed_ms() for watch in self._watches[1:]]
        known = [t for t in times if t is not None]
        if len(known) == len(times):
            self._trial = None
            self._plan = self._submit(known)

    def _give_up(self, status: Status, error: Exception) -> None:
        assert self._trial is not None
        text = f"{type(error).__name__}: {error}"
        failure = failed(self.trials.tuning.call, configuration_of(self._trial), status, text)
        self._trial = None
        self._plan = _planner().submit(self._next, failure)

    def _submit(self, times: list[float] | None) -> "Future[triton.Config | None]":
        if times is None:
            return _planner().submit(self._next, None)
        assert self._last is not None  # what was timed
        call = self.trials.tuning.call
        measurement = Measurement(
            call.kernel, call.problem, configuration_of(self._last), call.device.name, Status.OK,
            statistics.median(times), tuple(sorted(times)), environment=call.subject.versions,
        )  # fmt: skip
        return _planner().submit(self._next, measurement)

    def _next(self, news: Measurement | None) -> triton.Config | None:
        """Return the next trial, compiled; None when enough is known. Runs in the background."""
        tuning, lock = self.trials.tuning, self.trials.tuner.lock
        while True:
            with lock:
                if news is not None:
                    tuning.add(news)
                asked = tuning.next()
                if asked is None:
                    self._incumbent = self.trials.own(tuning.choose().config)
                    return None
                if news is not None:
                    self._incumbent = self.trials.own(tuning.best)
            trial = self.trials.own(asked)
            self.trials.ahead.compile([trial])
            limit_s = self.trials.tuner.options.compile_limit_s
            self.trials.ahead.settle(limit_s)
            if self.trials.ahead.done(trial):
                self._last = trial
                return trial
            news = failed(tuning.call, asked, Status.TIMEOUT, f"compiles for more than {limit_s} s")
