"""Tunes a wrapped function, source or program: a working default, the search, the result.

Any program by its command line, too.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

import numpy as np

from foretune.collect.devices import local_device
from foretune.collect.runner import InProcessRunner, IsolatedRunner, Runner
from foretune.collect.timing import Timing
from foretune.collect.worker_process import is_worker
from foretune.collect.wrapped.program import Program, ProgramKernel
from foretune.collect.wrapped.wrapped import CostOf, Restrictions, WrappedKernel
from foretune.console import progress_bar
from foretune.device import Device
from foretune.errors import MeasurementError, UsageError
from foretune.measurement import Status
from foretune.objective import ConstrainedObjective, Objective
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.space import Configuration
from foretune.tune.functions.result import Best
from foretune.tune.job import SearchOptions, check_options, limits_of
from foretune.tune.results import Comparison, TuneResult
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.tuner import tune_problem
from foretune.values import Value

if TYPE_CHECKING:
    from foretune.models.saved.lookup import PredictorSource


class WrappedOptions(SearchOptions, total=False):
    """The options of `foretune.tune.job.SearchOptions`, and more.

    Attributes:
        predictor: gives the prior: any model or a name (`foretune.models.saved.lookup`); none by
            default.
        isolated: run configurations in another process, which may hang or crash; the default.
        limit_s: maximum seconds of one configuration, 60 by default.
        verify_s: seconds of interleaved rounds in each process of the final comparison.
    """

    predictor: "PredictorSource"
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
MAX_DEFAULT_TRIES = 12
"""Number of configurations tried to find a working default."""

_ADVICE = {
    Status.COMPILE_ERROR: "mend the source or its options",
    Status.RUNTIME_ERROR: "mend it, or give another default",
    Status.WRONG_RESULT: "mend it, or what its output is compared with",
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
    """Tune a wrapped kernel.

    Raises:
        UsageError: an option is invalid.
        MeasurementError: the default does not work, or no configuration does.
    """
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
        raise KeyboardInterrupt(str(e) or "interrupted: run the same again to go on") from None


def _tune_on(
    runner: Runner, kernel: WrappedKernel, problem: Mapping[str, Any], progress: Progress,
    options: TuneOptions,
) -> Best:  # fmt: skip
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
        kernel, wanted, runner, options.get("predictor"), objective=objective,
        verify_s=options.get("verify_s", VERIFY_S), **search,
    )  # fmt: skip
    return Best(kernel, result)


def _untuned(kernel: WrappedKernel, problem: Problem, options: TuneOptions) -> Best:
    """Return the default, unmeasured: a measuring process imports a module that tunes."""
    default = Comparison("default", kernel.default(problem), math.nan, 1.0, 1.0, 1.0)
    result = TuneResult(
        kernel.name, problem, options.get("device", "cpu"),
        Objective.parse(options.get("objective", "time")), "none", (), (default,), 0, 0, 0.0,
    )  # fmt: skip
    return Best(kernel, result)


def with_working_default(
    kernel: WrappedKernel,
    problem: Problem,
    runner: Runner,
    cache: MeasurementCache,
    progress: Progress,
) -> tuple[WrappedKernel, int]:
    """Return ``kernel`` with a default that works, and the number of measurements that took.

    An explicit default must work. Otherwise some random configurations are tried. Measurements go
    to the store.

    Raises:
        MeasurementError: none works; the message has the reason of the first.
    """
    first, space = kernel.default(problem), kernel.space(problem)
    if any(m.ok and m.config == first for m in cache.known(problem)):
        return kernel, 0
    others = (
        []
        if kernel.has_explicit_default
        else space.sample(MAX_DEFAULT_TRIES, np.random.default_rng(0))
    )
    why = ""
    candidates = list(dict.fromkeys([first, *others]))
    for spent, config in enumerate(candidates, start=1):
        tried = kernel if config == first else kernel.with_default(config)
        reason = _try_default(tried, problem, config, runner, cache, progress)
        if not reason:
            return tried, spent
        why = why or reason
    if others:
        raise MeasurementError(
            f"none of {len(candidates)} configurations of {kernel.name} works; {first}: {why}"
        )
    raise MeasurementError(f"the default of {kernel.name}, {first}, does not work: {why}")


def _try_default(
    kernel: WrappedKernel, problem: Problem, config: Configuration, runner: Runner,
    cache: MeasurementCache, progress: Progress,
) -> str:  # fmt: skip
    """Return why a configuration does not work as default; empty if it does."""
    try:
        (measured,) = runner.run(kernel, problem, [config])
    except MeasurementError as e:
        return str(e)
    cache.append(measured)
    if measured.ok:
        progress.say(f"{kernel.name} takes {measured.time_ms:.3g} ms by default: {config}")
        return ""
    status = measured.status
    return f"{status.value}: {measured.error}; {_ADVICE[status]}"


def _runner(device: Device, timing: Timing | None, options: TuneOptions) -> Runner:
    power = (
        options.get("power", False)
        or Objective.parse(options.get("objective", "time")).needs_power
        or any(limit.needs_power for limit in limits_of(options))
    )
    if options.get("isolated", True):
        return IsolatedRunner(device, timing, options.get("limit_s", LIMIT_S), power)
    return InProcessRunner(device, timing, power)


EXTRA_RUNS = 10
"""Additional runs that a single request to the measuring process may make."""


def tune_program(
    command: Sequence[str],
    knobs: Mapping[str, Sequence[Value]],
    *,
    build: str = "",
    environment: Mapping[str, str] | None = None,
    templates: Mapping[str, str] | None = None,
    time: str | None = None,
    time_unit: Literal["ns", "us", "ms", "s"] = "ms",
    check: str | None = None,
    compare: str = "",
    shell: bool = False,
    sources: Sequence[str] = (),
    runs: int | None = None,
    time_limit_s: float = 60.0,
    restrictions: Restrictions = None,
    default: Mapping[str, Any] | None = None,
    name: str | None = None,
    cost: CostOf | None = None,
    **options: Unpack[TuneOptions],
) -> Best:
    """Find the values of a program's knobs with which it is fastest, and verify them.

    ``{knob}`` stands for a value in the program's words, the build, the environment, and files made
    from templates. ``{dir}`` is a folder per configuration, whose build runs once.

    Args:
        command: the program and its arguments; not read by a shell.
        knobs: name -> values to choose from.
        build: command that builds the program; not timed.
        environment: variables to set.
        templates: file -> file to write from it before the program runs.
        time: regular expression with one group, the time in the program's output; the last match
            counts. By default wall time.
        time_unit: unit of that time.
        check: regular expression that must match the output.
        compare: command that judges the program's output files: exit code 0 is right.
        shell: run the words, joined by blanks, and the other commands in a shell; values are
            quoted.
        sources: the program's source files that no command names; if their content changes,
            measurements are repeated.
        runs: number of runs of each configuration; by default more for a short program.
        time_limit_s: maximum seconds of one run.
        restrictions: rules between knobs.
        default: configuration to compare with; by default the first that works.
        name: name in the store; by default the program's file name.
        cost: operations and bytes of one run, if known.
        options: budget, searcher, store and so on, see `TuneOptions`.

    Raises:
        UsageError: a knob is not used, or an option is invalid.
        MeasurementError: no configuration works; the message has the reason of the first.
    """
    if runs is not None and runs < 1:
        raise UsageError(f"{runs} runs leave nothing to time: give at least 1")
    if options.get("device", "cpu") != "cpu":
        raise UsageError("a program finds its device itself: leave the device out")
    program = Program(
        tuple(map(str, command)), build, environment or {}, templates or {}, time, time_unit,
        check, compare, shell, tuple(sources), limit_s=time_limit_s,
    )  # fmt: skip
    fixed = Timing(math.inf, 0.0, 0.0, runs, runs) if runs else Timing(max_seconds=1.0)
    options.setdefault("limit_s", time_limit_s * ((runs or 5) + EXTRA_RUNS))
    with tempfile.TemporaryDirectory(prefix="foretune-") as scratch:
        kernel = ProgramKernel(
            program, knobs, scratch, restrictions=restrictions, default=default, name=name,
            cost=cost,
        )  # fmt: skip
        return tune_wrapped(kernel, options, timing=fixed)
