"""Tunes a wrapped function, source or program: finds a working default, searches, verifies."""

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np

from foretune.collect.devices import local_device
from foretune.collect.runner import InProcessRunner, IsolatedRunner, Runner
from foretune.collect.timing import Timing
from foretune.collect.worker_environment import is_worker
from foretune.collect.wrapped.wrapped import WrappedKernel
from foretune.device import Device
from foretune.errors import MeasurementError, warn
from foretune.measurement import Measurement, Status
from foretune.models.saved.lookup import PredictorSource
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search.stopping import Stopping
from foretune.space import Configuration
from foretune.support.console import progress_bar
from foretune.support.identity import explain_unreadable
from foretune.support.progress import SILENT, Progress
from foretune.tune.functions.repeated_values import warn_of_repeated_values
from foretune.tune.functions.result import Best
from foretune.tune.job import SearchOptions, TuningJob, check_options, limits_of
from foretune.tune.results import Comparison, TuneResult
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.tuner import tune_one
from foretune.values import short_number

DEFAULT_BUDGET = 20
"""Measurements of a search without another budget."""
LIMIT_S = 60.0
"""Maximum seconds of one configuration."""
LEAST_SECONDS = 1e-3
"""What is left at least of a budget of seconds."""
MAX_DEFAULT_TRIES = 12
"""Number of configurations that are tried to find a working default."""
PROCESS_DIED = "the process died"
"""Begins the reason of a failure if the measuring process ended without an answer."""
_ADVICE = {
    Status.COMPILE_ERROR: "fix the source or its options",
    Status.RUNTIME_ERROR: "fix it, or give another default",
    Status.WRONG_RESULT: "fix it, or the expected output",
    Status.TIMEOUT: "allow more time",
    Status.INVALID: "give another default",
}


class WrappedOptions(SearchOptions, total=False):
    """The options of `foretune.tune.job.SearchOptions`, and more.

    Attributes:
        predictor: gives the prior: any model or a name (`foretune.models.saved.lookup`); none by
            default.
        isolated: run configurations in another process, which may hang or crash; the default.
        limit_s: maximum seconds of one configuration, 60 by default.
        verify_s: maximum seconds of the final comparison; by default as long as the search took,
            and at least 5. Up to twice as long if five processes, which say much more than three,
            do not fit in.
        verify_again: compare a winner again although nothing has changed since.
    """

    predictor: PredictorSource
    isolated: bool
    limit_s: float
    verify_s: float | None
    verify_again: bool


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
    if kernel.unreadable:
        warn(explain_unreadable(kernel.name, kernel.unreadable), stacklevel=3)
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
    objective = Objective.parse(options.get("objective", "time"))
    given = {name: v for name, v in options.items() if name in SearchOptions.__optional_keys__}
    search = cast(SearchOptions, given | {"progress": progress})
    job = TuningJob.from_options(kernel, runner, search, objective, default_budget=DEFAULT_BUDGET)

    # A default that works is part of the search: its measurements and seconds count.
    started_at = time.monotonic()
    kernel, spent = with_working_default(kernel, wanted, runner, job.cache, progress)
    if not spent and _was_interrupted(job, wanted):
        spent = 1  # the default was measured before the interruption
    remaining = _without_spent(job.stopping, spent, time.monotonic() - started_at)
    job = replace(job.with_remaining_budget(remaining), kernel=kernel)

    result = tune_one(
        job,
        wanted,
        job.find_predictor(options.get("predictor")),
        options.get("verify_s"),
        verify_again=options.get("verify_again", False),
    )
    warn_of_repeated_values(kernel, result)
    return Best(kernel, result)


def _was_interrupted(job: TuningJob, problem: Problem) -> bool:
    unfinished = job.cache.choice(problem, job.constrained_objectives[0], unfinished=True)
    return unfinished is not None


def _without_spent(budget: Stopping, measurements: int, seconds: float) -> Stopping:
    """Return what is left of a budget: at least one measurement, and a moment."""
    left = budget
    if budget.measurements is not None:
        least = min(budget.measurements, 1)
        left = replace(left, measurements=max(budget.measurements - measurements, least))
    if budget.seconds is not None:
        left = replace(left, seconds=max(budget.seconds - seconds, LEAST_SECONDS))
    return left


def _untuned(kernel: WrappedKernel, problem: Problem, options: TuneOptions) -> Best:
    """Return the unmeasured default, for a measuring process that imports a module that tunes."""
    default = Comparison(
        name="default",
        config=kernel.default(problem),
        value=math.nan,
        ratio=1.0,
        ratio_low=1.0,
        ratio_high=1.0,
    )
    result = TuneResult(
        kernel=kernel.name,
        problem=problem,
        device=options.get("device", "cpu"),
        objective=Objective.parse(options.get("objective", "time")),
        searcher="none",
        trace=(),
        contenders=(default,),
        processes=0,
        rounds=0,
        seconds=0.0,
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
    first = kernel.default(problem)
    if any(m.ok and m.config == first for m in cache.known(problem)):
        return kernel, 0

    others: list[Configuration] = []
    if not kernel.has_explicit_default:
        space = kernel.space(problem)
        others = space.sample(MAX_DEFAULT_TRIES, np.random.default_rng(0))
    candidates = list(dict.fromkeys([first, *others]))

    reason = ""
    for spent, config in enumerate(candidates, start=1):
        tried = kernel if config == first else kernel.with_default(config)
        try:
            measured = _measure_default(tried, problem, runner, config)
        except MeasurementError as e:
            reason = reason or str(e)
            continue
        cache.append(measured)
        if measured.ok:
            time_ms = short_number(measured.time_ms)
            progress.say(f"{kernel.name} takes {time_ms} ms by default: {config}")
            return tried, spent
        advice = _ADVICE[measured.status]
        reason = reason or f"{measured.status.value}: {measured.error}; {advice}"

    if others:
        raise MeasurementError(
            f"none of {len(candidates)} configurations of {kernel.name} works; {first}: {reason}"
        )
    raise MeasurementError(f"the default of {kernel.name}, {first}, does not work: {reason}")


def _measure_default(
    kernel: WrappedKernel, problem: Problem, runner: Runner, config: Configuration
) -> Measurement:
    (measured,) = runner.run(kernel, problem, [config])
    if measured.error.startswith(PROCESS_DIED):
        # Something outside may have ended the process, such as the system when memory was short.
        (measured,) = runner.run(kernel, problem, [config])
    return measured


def _runner(device: Device, timing: Timing | None, options: TuneOptions) -> Runner:
    power = (
        options.get("power", False)
        or Objective.parse(options.get("objective", "time")).needs_power
        or any(limit.needs_power for limit in limits_of(options))
    )
    if options.get("isolated", True):
        return IsolatedRunner(device, timing, options.get("limit_s", LIMIT_S), power)
    return InProcessRunner(device, timing, power)
