"""Tunes a wrapped function, source or program: finds a working default, searches, verifies."""

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, cast

import numpy as np

from foretune.collect.devices import local_device
from foretune.collect.runner import InProcessRunner, IsolatedRunner, Runner
from foretune.collect.timing import Timing
from foretune.collect.worker_environment import is_worker
from foretune.collect.wrapped.wrapped import WrappedKernel
from foretune.device import Device
from foretune.errors import MeasurementError
from foretune.measurement import Status
from foretune.models.saved.lookup import PredictorSource
from foretune.objective import ConstrainedObjective, Objective
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.console import progress_bar
from foretune.support.progress import SILENT, Progress
from foretune.tune.functions.result import Best
from foretune.tune.job import SearchOptions, check_options, limits_of
from foretune.tune.results import Comparison, TuneResult
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.tuner import tune_problem
from foretune.values import short_number


class WrappedOptions(SearchOptions, total=False):
    """The options of `foretune.tune.job.SearchOptions`, and more.

    Attributes:
        predictor: gives the prior: any model or a name (`foretune.models.saved.lookup`); none by
            default.
        isolated: run configurations in another process, which may hang or crash; the default.
        limit_s: maximum seconds of one configuration, 60 by default.
        verify_s: seconds of interleaved rounds in each process of the final comparison.
    """

    predictor: PredictorSource
    isolated: bool
    limit_s: float
    verify_s: float


class TuneOptions(WrappedOptions, total=False):
    """The options of `WrappedOptions`, and more.

    Attributes:
        objective: minimized value: ``time`` (the default), ``energy`` or ``edp``.
        device: ``cpu`` (the default) or ``cuda:0``.
        power: meter power if possible, even if neither the objective nor a limit needs it.
    """

    objective: Objective | str
    device: str
    power: bool


DEFAULT_BUDGET = 20
LIMIT_S = 60.0
VERIFY_S = 0.5
MAX_DEFAULT_TRIES = 12  # number of configurations tried to find a working default

_ADVICE = {
    Status.COMPILE_ERROR: "fix the source or its options",
    Status.RUNTIME_ERROR: "fix it, or give another default",
    Status.WRONG_RESULT: "fix it, or the expected output",
    Status.TIMEOUT: "allow more time",
    Status.INVALID: "give another default",
}


def tune_wrapped(
    kernel: WrappedKernel,
    options: TuneOptions,
    problem: Mapping[str, Any] = {},
    timing: Timing | None = None,
    device: Device | None = None,
) -> Best:
    """Tune a wrapped kernel; errors are those of `foretune.tune_function`."""
    check_options(options, TuneOptions)
    if is_worker():
        return _untuned(kernel, kernel.problem(problem), options)
    if device is None:  # rates are for predictors: measuring them would keep people waiting
        device = local_device(options.get("device", "cpu"), options.get("predictor") is not None)
    given = options.get("progress", True)
    try:
        with (
            progress_bar(notes=True) if given is True else nullcontext(given or SILENT) as progress,
            _runner(device, timing, options) as runner,
        ):
            return _tune_on(runner, kernel, problem, progress, options)
    except KeyboardInterrupt as e:  # a few lines of traceback, not fifty
        raise KeyboardInterrupt(str(e) or "interrupted: run it again to continue") from None


def _tune_on(
    runner: Runner,
    kernel: WrappedKernel,
    problem: Mapping[str, Any],
    progress: Progress,
    options: TuneOptions,
) -> Best:
    wanted = kernel.problem(problem)
    cache = MeasurementCache.for_kernel(kernel, runner.device, options.get("store"))
    started_at = time.monotonic()
    kernel, spent = with_working_default(kernel, wanted, runner, cache, progress)
    objective = Objective.parse(options.get("objective", "time"))
    goal = ConstrainedObjective(objective, limits_of(options))
    if not spent and cache.choice(wanted, goal, unfinished=True):  # before it was interrupted
        spent = 1
    budget, seconds = options.get("budget"), options.get("seconds")
    if budget is None and seconds is None:
        budget = DEFAULT_BUDGET
    if seconds is not None and seconds > 0:  # the default's measurements count
        seconds = max(seconds - (time.monotonic() - started_at), 1e-3)
    if isinstance(budget, int) and not isinstance(budget, bool):
        budget = max(budget - spent, min(budget, 1))
    given = {n: v for n, v in options.items() if n in SearchOptions.__optional_keys__}
    changed = {"budget": budget, "seconds": seconds, "progress": progress}
    search = cast(SearchOptions, given | changed)
    result = tune_problem(
        kernel,
        wanted,
        runner,
        options.get("predictor"),
        objective=objective,
        verify_s=options.get("verify_s", VERIFY_S),
        **search,
    )
    return Best(kernel, result)


def _untuned(kernel: WrappedKernel, problem: Problem, options: TuneOptions) -> Best:
    """Return the unmeasured default, for a measuring process that imports a module that tunes."""
    default = Comparison("default", kernel.default(problem), math.nan, 1.0, 1.0, 1.0)
    result = TuneResult(
        kernel.name,
        problem,
        options.get("device", "cpu"),
        Objective.parse(options.get("objective", "time")),
        "none",
        (),
        (default,),
        0,
        0,
        0.0,
    )
    return Best(kernel, result)


def with_working_default(
    kernel: WrappedKernel,
    problem: Problem,
    runner: Runner,
    cache: MeasurementCache,
    progress: Progress,
) -> tuple[WrappedKernel, int]:
    """Return ``kernel`` with a working default, and the number of measurements to find it.

    An explicit default must work, else some random configurations are tried; all go to the store.
    If none works, the MeasurementError has the reason of the first.
    """
    first, space = kernel.default(problem), kernel.space(problem)
    if any(m.ok and m.config == first for m in cache.known(problem)):
        return kernel, 0
    others: list[Configuration] = []
    if not kernel.has_explicit_default:
        others = space.sample(MAX_DEFAULT_TRIES, np.random.default_rng(0))
    why, candidates = "", list(dict.fromkeys([first, *others]))
    for spent, config in enumerate(candidates, start=1):
        tried = kernel if config == first else kernel.with_default(config)
        try:
            (measured,) = runner.run(tried, problem, [config])
        except MeasurementError as e:
            why = why or str(e)
            continue
        cache.append(measured)
        if measured.ok:
            time_ms = short_number(measured.time_ms)
            progress.say(f"{kernel.name} takes {time_ms} ms by default: {config}")
            return tried, spent
        why = why or f"{measured.status.value}: {measured.error}; {_ADVICE[measured.status]}"
    text = f"the default of {kernel.name}, {first}, does not work: {why}"
    if others:
        text = f"none of {len(candidates)} configurations of {kernel.name} works; {first}: {why}"
    raise MeasurementError(text)


def _runner(device: Device, timing: Timing | None, options: TuneOptions) -> Runner:
    power = (
        options.get("power", False)
        or Objective.parse(options.get("objective", "time")).needs_power
        or any(limit.needs_power for limit in limits_of(options))
    )
    if options.get("isolated", True):
        return IsolatedRunner(device, timing, options.get("limit_s", LIMIT_S), power)
    return InProcessRunner(device, timing, power)
