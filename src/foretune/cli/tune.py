"""``foretune tune``: one problem or a workload, a few measurements, a verified winner."""

import csv
import io
import math
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune import registry
from foretune.cli import options, tune_program
from foretune.cli.campaign import show_results
from foretune.cli.command import Command, find_program
from foretune.cli.output import Output, format_config
from foretune.errors import UsageError, require_known
from foretune.objective import Limit, Objective
from foretune.support.console import progress_bar
from foretune.support.files import read_bytes, require_writable
from foretune.values import short_number

if TYPE_CHECKING:
    from foretune.tune.functions.result import Best
    from foretune.tune.job import SearchOptions
    from foretune.tune.pareto import ParetoResult
    from foretune.tune.results import TuneResult
    from foretune.tune.workload import Calls

PROGRAM_KEY = "foretune.program"  # key of a program's words in a context
KNOB_PANEL = "Knobs"
WORKLOAD_COLUMNS = ("kernel", "problem", "calls")
FIRST_LINE_OF_ROWS = 2
"""The first line of a workload has the names of its columns."""
KERNEL = typer.Argument(
    "",
    help="A kernel's name, FILE.py:NAME, a source file, or -- PROGRAM …",
    autocompletion=lambda: list(registry.registered("kernels")),
)
WORKLOAD = typer.Option(None, help="CSV of kernel, problem, calls: tune all with one budget.")
BUDGET_HELP = (
    "Measurements; auto: 3 % regret; 60s. Default: 10; functions, programs: 20; workloads: 100."
)
PREDICTOR = typer.Option(
    "auto",
    help="A folder (also a campaign's), models:/NAME@ALIAS, FILE.py:NAME, FILE.onnx; "
    "auto: shipped; code: the kernel's own; none.",
)
BUDGET = typer.Option("", help=BUDGET_HELP, show_default=False)
OBJECTIVE = typer.Option(["time"], help="time, energy or edp; two of them give a Pareto front.")
LIMIT = typer.Option([], help="Reject runs above COLUMN=VALUE, like power_w=300 (repeatable).")
VERIFY_SECONDS = typer.Option(
    None,
    help="Maximum seconds of the verification. Default: as long as the search took, at least 5.",
    show_default=False,
)
VERIFY_AGAIN = typer.Option(
    False, "--verify-again", help="Verify a winner again although nothing has changed."
)
EXPORT = typer.Option([], help="Write the best to FILE.h, .json or .env (repeatable).")
PARAM = typer.Option(
    [],
    help="KNOB=1,2 or 0..3 or 8..256:x2 (repeatable).",
    rich_help_panel=KNOB_PANEL,
)
RESTRICT = typer.Option(
    [], help="Rule between knobs: 'tile * threads <= 256' (repeatable).", rich_help_panel=KNOB_PANEL
)
DEFAULT = typer.Option(
    "",
    help="KNOB=VALUE,… to compare with. Default: the function's own, else the first that works.",
    rich_help_panel=KNOB_PANEL,
)


class TuneCommand(Command):
    """A command whose line may hold a program: the words after ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the program out of the arguments."""
        if "--" in args:
            program = find_program(args)
            ctx.meta[PROGRAM_KEY] = args[program.start : program.stop]
            args = args[: program.start - 1] + args[program.stop :]
        return super().parse_args(ctx, args)


def tune(
    context: typer.Context,
    kernel: str = KERNEL,
    problem: str = typer.Option("", help="Problem to tune: M=…,N=…,…"),
    workload: Path | None = WORKLOAD,
    budget: str = BUDGET,
    objective: list[str] = OBJECTIVE,
    limit: list[str] = LIMIT,
    searcher: str = options.SEARCHER,
    verify_seconds: float | None = VERIFY_SECONDS,
    verify_again: bool = VERIFY_AGAIN,
    predictor: str = PREDICTOR,
    runs: Path = typer.Option(None, help="Also add the measurements to this run table (Parquet)."),
    export: list[Path] = EXPORT,
    device: str = options.DEVICE,
    runner: str = options.RUNNER,
    ray_address: str | None = options.RAY_ADDRESS,
    param: list[str] = PARAM,
    restrict: list[str] = RESTRICT,
    default: str = DEFAULT,
    name: str = tune_program.NAME,
    time: str | None = tune_program.TIME,
    time_unit: str = tune_program.TIME_UNIT,
    time_limit: float = tune_program.TIME_LIMIT,
    repeats: int | None = tune_program.REPEATS,
    check: str | None = tune_program.CHECK,
    compare: str = tune_program.COMPARE,
    build: str = tune_program.BUILD,
    env: list[str] = tune_program.ENV,
    template: list[str] = tune_program.TEMPLATE,
    function: str = tune_program.FUNCTION,
    arg: list[str] = tune_program.ARG,
    size: str = tune_program.SIZE,
    grid: str = tune_program.GRID,
    option: list[str] = tune_program.COMPILER_OPTION,
) -> None:
    """Find the fastest configuration and verify it.

    A function: foretune tune FILE.py:NAME --param block=1,16

    A program: foretune tune -- ./stencil --tile {tile} --param tile=8,16,32

    A source: foretune tune a.c --kernel f --arg float32[8] --param tile=1,8

    A workload: foretune tune --workload calls.csv --budget 100

    Stored measurements of this kernel on this device are reused. The winner is verified against the
    default and the library. With two objectives, find and verify their Pareto front.
    """
    root = options.root_options(context)
    output = Output(root.as_json)
    search: SearchOptions = {**root.search, **options.parse_budget(budget), "searcher": searcher}
    search["limits"] = [Limit.parse(text) for text in limit]
    options.read_verification(context)  # wrong seconds are an error before anything runs
    _check_exports(export)
    if workload is not None:
        _tune_workload(context, output, search, workload)
    elif PROGRAM_KEY in context.meta or kernel.endswith(tune_program.SOURCE_SUFFIXES):
        _show_winner(output, _tune_wrapped(context, kernel, search), export)
    elif ":" in kernel and registry.is_plain_function(registry.object_at(kernel)):
        _show_winner(output, _tune_plain(context, kernel, search), export)
    else:
        _tune_kernel(context, output, search, runs, export)


def _tune_wrapped(context: typer.Context, source: str, search: "SearchOptions") -> "Best":
    """Tune a program, if there is one after ``--``, or else a source file."""
    unused: tuple[str, ...] = ("problem", "runs", "device", "runner", "ray_address")
    program = context.meta.get(PROGRAM_KEY)
    if program is None:
        unused += tune_program.PROGRAM_OPTIONS
        options.reject_options(context, unused, "a source does not take")
        return tune_program.tune_source(context, source, search)

    unused += tune_program.SOURCE_OPTIONS
    options.reject_options(context, unused, "a program does not take")
    if source:
        raise UsageError(f"give a kernel ({source}) or a program after --, not both")
    return tune_program.tune_command(context, program, search)


def _tune_plain(context: typer.Context, location: str, search: "SearchOptions") -> "Best":
    """Tune a plain Python function."""
    of_others = set(tune_program.WRAPPED_OPTIONS) - set(tune_program.FUNCTION_OPTIONS)
    unused = ("problem", "runs", "runner", "ray_address", *sorted(of_others))
    options.reject_options(context, unused, "a function does not take")
    return tune_program.tune_function(context, location, search)


def _tune_workload(
    context: typer.Context, output: Output, search: "SearchOptions", path: Path
) -> None:
    """Tune every call of a file with one budget."""
    from foretune.tune.workload import tune_workload

    unused = ("problem", "searcher", "predictor", "runs", "export", *tune_program.WRAPPED_OPTIONS)
    options.reject_options(context, unused, "a workload does not take")
    objectives = context.params["objective"]
    if search.get("budget") == "auto" or "regret" in search or len(objectives) > 1:
        raise UsageError("a workload takes a number or seconds as --budget, and one --objective")
    objective = Objective.parse(objectives[0])
    calls = read_calls(path, context.params["kernel"])
    del search["searcher"]
    with (
        options.make_runner(context, calls[0].kernel) as runner,
        progress_bar() as search["progress"],
    ):
        verification = options.read_verification(context)
        result = tune_workload(calls, runner, objective=objective, **verification, **search)

    results_of_kernel: dict[str, list[TuneResult]] = {}
    for one_result in result.results:
        results_of_kernel.setdefault(one_result.kernel, []).append(one_result)
    for results in results_of_kernel.values():
        show_results(output, results)
    summary = result.to_dict()
    output.say(
        f"all calls: {result.default:.4g} {objective.unit} by default, {result.best:.4g} now "
        f"({summary['speedup']:.2f}×), after {summary['measurements']} measurements"
    )
    output.result(summary)


def read_calls(path: Path, kernel: str = "") -> "list[Calls]":
    """Read a workload: a CSV file with columns kernel, problem (M=…,N=…) and calls.

    Problems with commas are quoted; ``kernel`` applies to lines without a kernel.
    """
    from foretune.tune.workload import Calls

    find_kernel = cache(registry.get_kernel)  # once per name: a kernel may be code of the user's
    calls = []
    for line, row in enumerate(_read_workload_rows(path, kernel), start=FIRST_LINE_OF_ROWS):
        name = row.get("kernel") or kernel
        count = _parse_count(row["calls"])
        if not name or count is None:
            raise UsageError(f"{path}, line {line}: give a kernel, and calls above 0")
        found = find_kernel(name)
        calls.append(Calls(found, options.read_problem(found, row["problem"] or ""), count))
    return calls


def _read_workload_rows(path: Path, kernel: str) -> list[dict[str, str | None]]:
    """Read the lines of a workload, and check its columns; a cell that lacks is None."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except (OSError, ValueError, csv.Error) as e:
        raise UsageError(f"{path} cannot be read: {e}") from e

    columns = ", ".join(WORKLOAD_COLUMNS)
    if not rows:
        raise UsageError(f"{path} lacks all lines: its columns are {columns}")
    needed = [column for column in WORKLOAD_COLUMNS if column != "kernel" or not kernel]
    missing = [column for column in needed if column not in rows[0]]
    if missing:
        raise UsageError(f"{path} lacks {', '.join(missing)}: its columns are {columns}")
    return rows


def _parse_count(text: str | None) -> float | None:
    """Parse a number of calls; None unless it is finite and above 0."""
    try:
        count = float(text or "")
    except ValueError:
        return None
    return count if 0 < count < math.inf else None


def _tune_kernel(
    context: typer.Context,
    output: Output,
    search: "SearchOptions",
    runs: Path | None,
    export: list[Path],
) -> None:
    """Tune one problem of a kernel for one objective, or find the Pareto front of two."""
    # What can be wrong with the line is checked before imports that take seconds.
    given = context.params
    kernel = registry.get_kernel(given["kernel"]) if given["kernel"] else None
    options.reject_options(context, tune_program.WRAPPED_OPTIONS, "a kernel does not take")
    if kernel is None:
        raise UsageError("nothing to tune: give a kernel, FILE.py:NAME, FILE.c or -- PROGRAM …")
    objectives = [Objective.parse(text) for text in dict.fromkeys(given["objective"])]
    problem = options.read_problem(kernel, given["problem"])
    require_known("searcher", given["searcher"], registry.registered("searchers"))
    is_front = len(objectives) > 1
    verification = options.read_verification(context)
    if is_front:
        _check_front(context, search)

    from foretune.datasets.run_log import RunLog
    from foretune.models.guides.request import AUTO, NONE
    from foretune.models.saved.lookup import read_model
    from foretune.tune.functions.result import Best
    from foretune.tune.pareto import tune_pareto
    from foretune.tune.tuner import tune_problem

    registry.load("searchers", given["searcher"])
    guide = given["predictor"]
    if guide not in (AUTO, NONE, *registry.registered("predictors")):
        guide = read_model(guide)
    with (
        options.make_runner(context, kernel) as runner,
        RunLog(runs, runner.device) if runs else nullcontext() as log,
        progress_bar() as search["progress"],
    ):
        if is_front:
            front = tune_pareto(
                kernel, problem, runner, guide, objectives=objectives, log=log, **search
            )
        else:
            result = tune_problem(
                kernel,
                problem,
                runner,
                guide,
                objective=objectives[0],
                log=log,
                **verification,
                **search,
            )
    if is_front:
        _show_front(output, front)
    else:
        _show_winner(output, Best(kernel, result), export)


def _check_front(context: typer.Context, search: "SearchOptions") -> None:
    """Raise UsageError for options that a Pareto front does not take."""
    if search.get("budget") == "auto" or "regret" in search:
        raise UsageError("a Pareto search has no regret: give a number as --budget")
    if context.params["export"]:
        raise UsageError("a Pareto front is not a single configuration: leave --export out")
    unused = ("verify_seconds", "verify_again")
    options.reject_options(context, unused, "a Pareto front does not take")


def _check_exports(paths: list[Path]) -> None:
    """Check, before anything is measured, that all exports can be written."""
    from foretune.tune.functions.result import export_format

    for path in paths:
        export_format(path)
        require_writable(path.parent, "into")


def _show_winner(output: Output, best: "Best", export: list[Path]) -> None:
    result = best.result
    summary = result.summary()
    show_results(output, [result])
    word = "winner" if result.verified else "the default stays"
    output.say(f"{word}: {format_config(result.winner.config or {})}")
    if result.failures:
        output.say(result.failures, wrapped=True)
    _say_rejected(output, summary)
    if result.default_breaks:
        output.say(f"the default violates a limit: {result.default_breaks}")
    trace = result.to_dict()["trace"]
    for path in export:
        output.say(f"written: {best.export(path)}")
    output.result({"best": summary, "trace": trace, "verified": result.verdict})


def _show_front(output: Output, result: "ParetoResult") -> None:
    """Print the verified configurations of a front, best in the first objective first."""
    rows = []
    for contender in result.front:
        figures = (contender.time_ms, contender.power_w, contender.energy_mj)
        gains = [comparison.ratio_text for comparison in contender.against_default]
        rows.append([*map(short_number, figures), *gains, format_config(contender.config)])
    gain_columns = [f"{objective.value} gain (95 %)" for objective in result.objectives]
    title = f"{result.kernel} {result.problem.shown} on {result.device}: Pareto front"
    output.table(title, ("ms", "W", "mJ", *gain_columns, "configuration"), rows)

    reference = " and ".join(
        f"{short_number(value)} {objective.unit}"
        for value, objective in zip(result.reference, result.objectives, strict=True)
    )
    output.say(f"hypervolume {result.hypervolume:.3f} of the box up to {reference}")
    summary = result.summary()
    _say_rejected(output, summary)
    if result.disturbed:
        output.say(f"disturbed: {result.disturbed}")
    output.result(summary)


def _say_rejected(output: Output, summary: Mapping[str, Any]) -> None:
    """Say how many configurations violated a limit."""
    if summary["rejected"]:
        limits = ", ".join(f"{column} ≤ {most:g}" for column, most in summary["limits"].items())
        output.say(f"rejected {summary['rejected']} that violated {limits}")
