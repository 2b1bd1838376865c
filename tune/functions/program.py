"""Tunes any program by its command line."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from foretune.collect.timing import Timing
from foretune.collect.wrapped.program import Program, ProgramKernel
from foretune.collect.wrapped.wrapped import CostOf, Restrictions
from foretune.errors import UsageError
from foretune.tune.functions.result import Best
from foretune.tune.functions.tuning import TuneOptions, tune_wrapped
from foretune.tune.job import check_options
from foretune.values import Value

EXTRA_RUNS = 10
"""Additional runs that one request to the measuring process may make."""
EXPECTED_RUNS = 5
"""Timed runs of a program whose number the user does not give."""
MAX_TIMING_S = 1.0
"""Seconds of timing per configuration if the number of runs is not given."""


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
    """Find the fastest values of a program's knobs, and verify them.

    ``{knob}`` is replaced by a value in the program's words, the build, the environment, and files
    made from templates. ``{dir}`` is a folder per configuration, whose build runs once.

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
        compare: command that judges the program's output files: exit code 0 means correct.
        shell: run the words, joined by spaces, and the other commands in a shell; values are
            quoted.
        sources: source files of the program that no command names; if their content changes,
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
    check_options(options, TuneOptions, function=tune_program)
    if runs is not None and runs < 1:
        raise UsageError(f"{runs} runs leave nothing to time: give at least 1")
    if options.get("device", "cpu") != "cpu":
        raise UsageError("a program finds its device itself: leave the device out")
    program = Program(
        words=tuple(map(str, command)),
        build=build,
        environment=environment or {},
        templates=templates or {},
        time=time,
        time_unit=time_unit,
        check=check,
        compare=compare,
        shell=shell,
        sources=tuple(sources),
        limit_s=time_limit_s,
    )
    timing = Timing(max_seconds=MAX_TIMING_S)
    if runs is not None:
        timing = Timing(
            max_seconds=math.inf,
            warmup_s=0.0,
            relative_width=0.0,
            min_repeats=runs,
            max_repeats=runs,
        )
    options.setdefault("limit_s", time_limit_s * ((runs or EXPECTED_RUNS) + EXTRA_RUNS))
    with tempfile.TemporaryDirectory(prefix="foretune-") as scratch:
        kernel = ProgramKernel(
            program,
            knobs,
            scratch,
            restrictions=restrictions,
            default=default,
            name=name,
            cost=cost,
        )
        return tune_wrapped(kernel, options, timing=timing)
