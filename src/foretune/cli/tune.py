"""``foretune tune``: one problem, a few measurements, a verified winner or Pareto front."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from foretune.cli import options
from foretune.cli.campaign import REMEASURE_ADVICE, show_results
from foretune.cli.output import Output
from foretune.cli.workloads import tune_calls
from foretune.cli.wrapping import (
    KNOB_OPTIONS,
    PROGRAM_OPTIONS,
    SOURCE_OPTIONS,
    SOURCE_SUFFIXES,
    SearchOptions,
    tune_program_command,
    tune_source,
)
from foretune.console import progress_bar
from foretune.errors import UsageError
from foretune.objective import Limit

if TYPE_CHECKING:
    from foretune.tune.functions.result import Best
    from foretune.tune.pareto import ParetoResult


PROGRAM_KEY = "foretune.program"
"""Where a context keeps the words of a program."""
PROGRAM_PANEL, SOURCE_PANEL, KNOB_PANEL = (
    "Programs (after --)",
    "Sources (.c, .cpp, .cl, .cu, .hip)",
    "Knobs",
)


class TuneCommand(TyperCommand):
    """What follows ``--`` is a program, up to the first ``--param``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the program out of the arguments."""
        if "--" in args:
            separator = args.index("--")
            own_args, program_args = args[:separator], args[separator + 1 :]
            end = program_args.index("--param") if "--param" in program_args else len(program_args)
            ctx.meta[PROGRAM_KEY], args = program_args[:end], own_args + program_args[end:]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(cls=TuneCommand)(tune)


def tune(
    context: typer.Context,
    kernel: str = typer.Argument(
        "",
        help="Name of a kernel, your own (FILE.py:NAME), a source file, or -- PROGRAM …",
        autocompletion=options.registered_completion("kernels"),
    ),
    problem: str = typer.Option("", help="Problem to tune: M=…,N=…,…"),
    workload: Path | None = typer.Option(
        None, help="CSV with columns kernel, problem, calls: all of them with one budget."
    ),
    budget: str = typer.Option(
        "", help="New measurements (default 10), or auto: until the expected regret is small."
    ),
    regret: float | None = options.REGRET,
    seconds: float | None = options.SECONDS,
    objective: list[str] = typer.Option(
        ["time"], help="time, energy or edp; two of them give a Pareto front."
    ),
    limit: list[str] = typer.Option(
        [], help="Reject configurations above COLUMN=MOST, like power_w=300 (repeatable)."
    ),
    searcher: str = options.SEARCHER,
    predictor: str = options.PREDICTOR_OPTION,
    runs: Path = typer.Option(None, help="Also add the measurements to this run table (Parquet)."),
    export: list[Path] = typer.Option(
        [], help="Write the best configuration to FILE.h, .json or .env (repeatable)."
    ),
    store: str | None = options.STORE,
    no_store: bool = options.NO_STORE,
    wait_quiet: float = options.WAIT_QUIET,
    device: str = options.DEVICE,
    runner: str = options.RUNNER,
    ray_address: str | None = options.RAY_ADDRESS,
    seed: int = options.SEED,
    param: list[str] = typer.Option(
        [],
        help="KNOB=VALUE,VALUE,… or KNOB=8..256 (doubling); {KNOB} inserts it (repeatable).",
        rich_help_panel=KNOB_PANEL,
    ),
    restrict: list[str] = typer.Option(
        [],
        help="Rule between knobs: 'tile * threads <= 256' (repeatable).",
        rich_help_panel=KNOB_PANEL,
    ),
    default: str = typer.Option(
        "",
        help="KNOB=VALUE,… to compare with. Default: the first configuration that works.",
        rich_help_panel=KNOB_PANEL,
    ),
    name: str = typer.Option(
        "",
        help="Name in the store. Default: the program's file name.",
        rich_help_panel=PROGRAM_PANEL,
    ),
    time: str = typer.Option(
        None,
        help="Regular expression whose (group) is the time in the output. Default: wall time.",
        rich_help_panel=PROGRAM_PANEL,
    ),
    time_unit: str = typer.Option(
        "ms", help="Unit of that time: ns, us, ms or s.", rich_help_panel=PROGRAM_PANEL
    ),
    check: str = typer.Option(
        None, help="Regular expression that must be in the output.", rich_help_panel=PROGRAM_PANEL
    ),
    compare: str = typer.Option(
        "",
        help="Command that checks the result: exit code 0 means right.",
        rich_help_panel=PROGRAM_PANEL,
    ),
    build: str = typer.Option(
        "",
        help="Command to run first, untimed. If it builds into {dir}, once per configuration.",
        rich_help_panel=PROGRAM_PANEL,
    ),
    env: list[str] = typer.Option(
        [], help="NAME=TEXT, an environment variable (repeatable).", rich_help_panel=PROGRAM_PANEL
    ),
    template: list[str] = typer.Option(
        [],
        help="TEMPLATE:FILE, writes the second from the first (repeatable).",
        rich_help_panel=PROGRAM_PANEL,
    ),
    source: list[str] = typer.Option(
        [],
        help="Source of the program: measurements count until it changes (repeatable).",
        rich_help_panel=PROGRAM_PANEL,
    ),
    repeats: int = typer.Option(
        None, help="Runs of each configuration.", rich_help_panel=PROGRAM_PANEL
    ),
    time_limit: float = typer.Option(
        60.0, help="Most seconds of one run.", rich_help_panel=PROGRAM_PANEL
    ),
    shell: bool = typer.Option(
        False, "--shell", help="Run the commands in a shell.", rich_help_panel=PROGRAM_PANEL
    ),
    function: str = typer.Option(
        "", "--kernel", help="Function in the source.", rich_help_panel=SOURCE_PANEL
    ),
    arg: list[str] = typer.Option(
        [],
        help="Argument, in order: float32[512,64] (random), float32[512]=0 (filled), int32=7.",
        rich_help_panel=SOURCE_PANEL,
    ),
    size: str = typer.Option(
        "", help="Problem size, 1024,512: work items or threads.", rich_help_panel=SOURCE_PANEL
    ),
    grid: str = typer.Option(
        "",
        help="Divide it by block_size_x*tile,block_size_y. Default: the work group.",
        rich_help_panel=SOURCE_PANEL,
    ),
    option: list[str] = typer.Option(
        [], help="Option of the compiler (repeatable).", rich_help_panel=SOURCE_PANEL
    ),
    as_json: bool = options.JSON,
) -> None:
    """Tune one problem and verify the winner against the default and the library.

    Nothing that the store knows of this kernel on this device is measured again. With two
    objectives, find and verify their Pareto front.

    A workload: foretune tune --workload calls.csv --budget 100

    A program: foretune tune -- ./stencil --tile {tile} --param tile=8,16,32

    A source: foretune tune blur.cl --kernel blur --arg float32[512,512]=0 --arg float32[512,512]
    --size 512,512 --param block_size_x=8..64
    """
    if workload is not None:
        options.reject_options(
            context,
            (
                *KNOB_OPTIONS,
                *PROGRAM_OPTIONS,
                *SOURCE_OPTIONS,
                "problem",
                "regret",
                "searcher",
                "predictor",
                "runs",
                "export",
            ),
            "a workload does not take",
        )
        tune_calls(
            workload, kernel, budget, seconds, objective, limit,
            options.read_store(store, no_store), seed, wait_quiet, device, runner, ray_address,
            Output(as_json),
        )  # fmt: skip
        return
    program = context.meta.get(PROGRAM_KEY)
    search = SearchOptions(
        options.read_budget(budget) if budget else None, regret, seconds, objective, limit,
        searcher, options.read_store(store, no_store), seed, wait_quiet,
    )  # fmt: skip
    output = Output(as_json)
    _check_exports(export)
    if program is None and not kernel.endswith(SOURCE_SUFFIXES):
        options.reject_options(
            context, (*KNOB_OPTIONS, *PROGRAM_OPTIONS, *SOURCE_OPTIONS), "a kernel does not take"
        )
        _tune_kernel(
            kernel, problem, search, predictor, runs, export, device, runner, ray_address, output
        )
        return
    what = "a program" if program is not None else "a source"
    options.reject_options(
        context,
        ("problem", "predictor", "runs", "device", "runner", "ray_address"),
        f"{what} does not take",
    )
    if program is None:
        options.reject_options(context, PROGRAM_OPTIONS, "a source does not take")
        best = tune_source(
            kernel, search, function=function, arg=arg, size=size, grid=grid, option=option,
            param=param, restrict=restrict, default=default,
        )  # fmt: skip
    else:
        if kernel:
            raise UsageError(f"give a kernel ({kernel}) or a program after --, not both")
        options.reject_options(context, SOURCE_OPTIONS, "a program does not take")
        best = tune_program_command(
            program, search, time=time, time_unit=time_unit, check=check, compare=compare,
            build=build, env=env, template=template, source=source, repeats=repeats,
            time_limit=time_limit, shell=shell, name=name, param=param, restrict=restrict,
            default=default,
        )  # fmt: skip
    _show_winner(output, best, export)


def _tune_kernel(
    kernel: str, problem: str, search: SearchOptions, predictor: str, runs: Path | None,
    export: list[Path], device: str, runner: str,
    ray_address: str | None, output: Output,
) -> None:  # fmt: skip
    from foretune.datasets import RunLog
    from foretune.models.saved.lookup import AUTO, NONE, read_predictor
    from foretune.registry import get_kernel, load
    from foretune.tune import tune_pareto, tune_problem
    from foretune.tune.functions.result import Best

    if not kernel:
        raise UsageError(
            "there is nothing to tune: give a kernel, FILE.py:NAME, FILE.c or -- PROGRAM …"
        )
    chosen = get_kernel(kernel)
    objectives = [options.read_objective(text) for text in dict.fromkeys(search.objective)]
    limits = [Limit.parse(text) for text in search.limit]
    wanted = options.read_problem(chosen, problem)
    load("searchers", search.searcher)
    trained = predictor if predictor in (AUTO, NONE) else read_predictor(predictor)
    with (
        options.make_runner(runner, ray_address, chosen, device) as active_runner,
        RunLog(runs, active_runner.device) if runs else nullcontext() as log,
        progress_bar() as progress,
    ):
        if len(objectives) > 1:
            if search.budget == "auto" or search.regret is not None:
                raise UsageError("a Pareto front has no regret: give --budget a number")
            if export:
                raise UsageError("a Pareto front is no one configuration: leave --export out")
            front = tune_pareto(
                chosen,
                wanted,
                active_runner,
                trained,
                budget=search.budget,
                seconds=search.seconds,
                objectives=objectives,
                limits=limits,
                searcher=search.searcher,
                seed=search.seed,
                store=search.store,
                log=log,
                patience_s=search.patience_s,
                progress=progress,
            )
        else:
            result = tune_problem(
                chosen, wanted, active_runner, trained, budget=search.budget, regret=search.regret,
                seconds=search.seconds, objective=objectives[0], limits=limits,
                searcher=search.searcher, seed=search.seed,
                store=search.store, log=log, patience_s=search.patience_s,
                progress=progress,
            )  # fmt: skip
    if len(objectives) > 1:
        _show_front(output, front)
    else:
        _show_winner(output, Best(chosen, result), export)


def _check_exports(paths: list[Path]) -> None:
    """Refuse a file's ending before anything is measured."""
    from foretune.tune.functions.result import export_format

    for path in paths:
        export_format(path)


def _show_winner(output: Output, best: "Best", export: list[Path]) -> None:
    result = best.result
    for path in export:
        best.export(path)
    summary = result.summary()
    show_results(output, [result])
    output.say("winner: " + _format_config(result.winner.config or {}))
    if result.failures:
        output.say(result.failures)
    for path in export:
        output.say(f"written: {path}")
    _say_rejected(output, summary)
    if result.default_breaks:
        output.say(f"the default breaks a limit: {result.default_breaks}")
    trace = result.to_json()["trace"]
    output.result({"best": summary, "trace": trace, "verified": result.verified})


def _show_front(output: Output, result: "ParetoResult") -> None:
    summary = result.summary()
    gains = [f"{objective.value} gain (95 %)" for objective in result.objectives]
    rows = [
        [
            *(f"{figure:.3g}" for figure in (t.time_ms, t.power_w, t.energy_mj)),
            *(f"{c.ratio:.2f}× ({c.ratio_low:.2f}–{c.ratio_high:.2f})" for c in t.against_default),
            _format_config(t.config),
        ]
        for t in result.front
    ]
    title = f"{result.kernel} {result.problem} on {result.device}: Pareto front"
    output.table(title, ("ms", "W", "mJ", *gains, "configuration"), rows)
    reference = " and ".join(
        f"{value:.3g} {objective.unit}"
        for value, objective in zip(result.reference, result.objectives, strict=True)
    )
    output.say(f"hypervolume {result.hypervolume:.3f} of the box to {reference}")
    _say_rejected(output, summary)
    if result.unstable:
        output.say(f"unstable: {result.unstable}; {REMEASURE_ADVICE}")
    output.result(summary)


def _say_rejected(output: Output, summary: Mapping[str, Any]) -> None:
    if summary["rejected"]:
        limits = ", ".join(
            f"{column} ≤ {maximum:g}" for column, maximum in summary["limits"].items()
        )
        output.say(f"rejected {summary['rejected']} that broke {limits}")


def _format_config(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())
