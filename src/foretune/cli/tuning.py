"""``foretune tune``: one problem, a few measurements, a verified winner or Pareto front."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from foretune.cli import options
from foretune.cli.campaign import QUIETER, show_results
from foretune.cli.output import Output
from foretune.cli.workloads import tune_calls
from foretune.cli.wrapping import (
    OF_PROGRAMS,
    OF_SOURCES,
    SHARED,
    SUFFIXES,
    Search,
    tune_source,
    tune_words,
)
from foretune.console import progress_bar
from foretune.errors import UsageError
from foretune.limit import Limit

if TYPE_CHECKING:
    from foretune.tune.pareto import ParetoResult
    from foretune.tune.wrapped.best import Best


PROGRAM = "foretune.program"
"""Where a context keeps the words of a program."""
PROGRAMS, SOURCES, ANY = (
    "Programs (after --)",
    "Sources (.c, .cpp, .cl, .cu, .hip)",
    "Knobs",
)


class Tune(TyperCommand):
    """What follows ``--`` is a program, up to the first ``--param``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the program out of the arguments."""
        if "--" in args:
            at = args.index("--")
            own, words = args[:at], args[at + 1 :]
            end = words.index("--param") if "--param" in words else len(words)
            ctx.meta[PROGRAM], args = words[:end], own + words[end:]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(cls=Tune)(tune)


def tune(
    context: typer.Context,
    kernel: str = typer.Argument(
        "",
        help="Name of a kernel, your own (FILE.py:NAME), a source file, or -- PROGRAM …",
        autocompletion=options.registered_names("kernels"),
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
    predictor: str = options.GUIDE,
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
        rich_help_panel=ANY,
    ),
    restrict: list[str] = typer.Option(
        [],
        help="Rule between knobs: 'tile * threads <= 256' (repeatable).",
        rich_help_panel=ANY,
    ),
    default: str = typer.Option(
        "",
        help="KNOB=VALUE,… to compare with. Default: the first configuration that works.",
        rich_help_panel=ANY,
    ),
    name: str = typer.Option(
        "",
        help="Name in the store. Default: the program's file name.",
        rich_help_panel=PROGRAMS,
    ),
    time: str = typer.Option(
        None,
        help="Regular expression whose (group) is the time in the output. Default: wall time.",
        rich_help_panel=PROGRAMS,
    ),
    time_unit: str = typer.Option(
        "ms", help="Unit of that time: ns, us, ms or s.", rich_help_panel=PROGRAMS
    ),
    check: str = typer.Option(
        None, help="Regular expression that must be in the output.", rich_help_panel=PROGRAMS
    ),
    compare: str = typer.Option(
        "",
        help="Command that checks the result: exit code 0 means right.",
        rich_help_panel=PROGRAMS,
    ),
    build: str = typer.Option(
        "",
        help="Command to run first, untimed. If it builds into {dir}, once per configuration.",
        rich_help_panel=PROGRAMS,
    ),
    env: list[str] = typer.Option(
        [], help="NAME=TEXT, an environment variable (repeatable).", rich_help_panel=PROGRAMS
    ),
    template: list[str] = typer.Option(
        [],
        help="TEMPLATE:FILE, writes the second from the first (repeatable).",
        rich_help_panel=PROGRAMS,
    ),
    source: list[str] = typer.Option(
        [],
        help="Source of the program: measurements count until it changes (repeatable).",
        rich_help_panel=PROGRAMS,
    ),
    repeats: int = typer.Option(None, help="Runs of each configuration.", rich_help_panel=PROGRAMS),
    time_limit: float = typer.Option(
        60.0, help="Most seconds of one run.", rich_help_panel=PROGRAMS
    ),
    shell: bool = typer.Option(
        False, "--shell", help="Run the commands in a shell.", rich_help_panel=PROGRAMS
    ),
    function: str = typer.Option(
        "", "--kernel", help="Function in the source.", rich_help_panel=SOURCES
    ),
    arg: list[str] = typer.Option(
        [],
        help="Argument, in order: float32[512,64] (random), float32[512]=0 (filled), int32=7.",
        rich_help_panel=SOURCES,
    ),
    size: str = typer.Option(
        "", help="Problem size, 1024,512: work items or threads.", rich_help_panel=SOURCES
    ),
    grid: str = typer.Option(
        "",
        help="Divide it by block_size_x*tile,block_size_y. Default: the work group.",
        rich_help_panel=SOURCES,
    ),
    option: list[str] = typer.Option(
        [], help="Option of the compiler (repeatable).", rich_help_panel=SOURCES
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
        options.refuse(
            context,
            (*SHARED, *OF_PROGRAMS, *OF_SOURCES, "problem", "regret", "searcher", "predictor",
             "runs", "export"),
            "a workload does not take",
        )  # fmt: skip
        tune_calls(
            workload, kernel, budget, seconds, objective, limit,
            options.read_store(store, no_store), seed, wait_quiet, device, runner, ray_address,
            Output(as_json),
        )  # fmt: skip
        return
    program = context.meta.get(PROGRAM)
    search = Search(
        options.read_budget(budget) if budget else None, regret, seconds, objective, limit,
        searcher, options.read_store(store, no_store), seed, wait_quiet,
    )  # fmt: skip
    output = Output(as_json)
    _check_exports(export)
    if program is None and not kernel.endswith(SUFFIXES):
        options.refuse(context, (*SHARED, *OF_PROGRAMS, *OF_SOURCES), "a kernel does not take")
        _tune_kernel(
            kernel, problem, search, predictor, runs, export, device, runner, ray_address, output
        )
        return
    what = "a program" if program is not None else "a source"
    options.refuse(
        context,
        ("problem", "predictor", "runs", "device", "runner", "ray_address"),
        f"{what} does not take",
    )
    if program is None:
        options.refuse(context, OF_PROGRAMS, "a source does not take")
        best = tune_source(
            kernel, search, function=function, arg=arg, size=size, grid=grid, option=option,
            param=param, restrict=restrict, default=default,
        )  # fmt: skip
    else:
        if kernel:
            raise UsageError(f"give a kernel ({kernel}) or a program after --, not both")
        options.refuse(context, OF_SOURCES, "a program does not take")
        best = tune_words(
            program, search, time=time, time_unit=time_unit, check=check, compare=compare,
            build=build, env=env, template=template, source=source, repeats=repeats,
            time_limit=time_limit, shell=shell, name=name, param=param, restrict=restrict,
            default=default,
        )  # fmt: skip
    _show_winner(output, best, export)


def _tune_kernel(
    kernel: str, problem: str, search: Search, predictor: str, runs: Path | None,
    export: list[Path], device: str, runner: str,
    ray_address: str | None, output: Output,
) -> None:  # fmt: skip
    from foretune.datasets import RunLog
    from foretune.models.saved.named import AUTO, NONE, read_predictor
    from foretune.registry import get_kernel, load
    from foretune.tune import tune_pareto, tune_problem
    from foretune.tune.wrapped.best import Best

    if not kernel:
        raise UsageError(
            "there is nothing to tune: give a kernel, FILE.py:NAME, FILE.c or -- PROGRAM …"
        )
    chosen = get_kernel(kernel)
    goals = [options.read_objective(text) for text in dict.fromkeys(search.objective)]
    limits = [Limit.parse(text) for text in search.limit]
    wanted = options.read_problem(chosen, problem)
    load("searchers", search.searcher)
    trained = predictor if predictor in (AUTO, NONE) else read_predictor(predictor)
    with (
        options.make_runner(runner, ray_address, chosen, device) as measuring,
        RunLog(runs, measuring.device) if runs else nullcontext() as log,
        progress_bar() as progress,
    ):
        if len(goals) > 1:
            if search.budget == "auto" or search.regret is not None:
                raise UsageError("a Pareto front has no regret: give --budget a number")
            if export:
                raise UsageError("a Pareto front is no one configuration: leave --export out")
            front = tune_pareto(
                chosen, wanted, measuring, trained, budget=search.budget, seconds=search.seconds,
                objectives=goals, limits=limits,
                searcher=search.searcher, seed=search.seed, store=search.store, log=log,
                patience_s=search.patience_s,
                progress=progress,
            )  # fmt: skip
        else:
            result = tune_problem(
                chosen, wanted, measuring, trained, budget=search.budget, regret=search.regret,
                seconds=search.seconds, objective=goals[0], limits=limits,
                searcher=search.searcher, seed=search.seed,
                store=search.store, log=log, patience_s=search.patience_s,
                progress=progress,
            )  # fmt: skip
    if len(goals) > 1:
        _show_front(output, front)
    else:
        _show_winner(output, Best(chosen, result), export)


def _check_exports(paths: list[Path]) -> None:
    """Refuse a file's ending before anything is measured."""
    from foretune.tune.wrapped.best import export_format

    for path in paths:
        export_format(path)


def _show_winner(output: Output, best: "Best", export: list[Path]) -> None:
    result = best.result
    for path in export:
        best.export(path)
    summary = result.summary()
    show_results(output, [result])
    output.say("winner: " + _words(result.winner.config or {}))
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
            _words(t.config),
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
        output.say(f"unstable: {result.unstable}; {QUIETER}")
    output.result(summary)


def _say_rejected(output: Output, summary: Mapping[str, Any]) -> None:
    if summary["rejected"]:
        limits = ", ".join(f"{column} ≤ {most:g}" for column, most in summary["limits"].items())
        output.say(f"rejected {summary['rejected']} that broke {limits}")


def _words(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())
