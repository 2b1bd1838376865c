"""``foretune tune``: one problem, a few measurements, a verified winner or Pareto front."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.campaign import show_results
from foretune.cli.output import Output
from foretune.console import progress_bar
from foretune.errors import UsageError
from foretune.limit import Limit

if TYPE_CHECKING:
    from foretune.tune.pareto import ParetoResult
    from foretune.tune.results import TuneResult


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(tune)


def tune(
    kernel: str = options.KERNEL,
    problem: str = typer.Option(..., help="M=…,N=…,…"),
    budget: str = typer.Option(
        "10", help="New measurements of the search; auto: until the regret is small."
    ),
    regret: float | None = options.REGRET,
    objective: list[str] = typer.Option(
        ["time"], help="time, energy or edp; given twice, the Pareto front of both."
    ),
    limit: list[str] = typer.Option(
        [], help="COLUMN=MOST, like power_w=300: what breaks it is rejected (repeatable)."
    ),
    searcher: str = options.SEARCHER,
    predictor: str = options.GUIDE,
    runs: Path = typer.Option(None, help="Run table that gets the measurements, too; Parquet."),
    store: str | None = options.STORE,
    no_store: bool = options.NO_STORE,
    device: str = options.DEVICE,
    seed: int = options.SEED,
    as_json: bool = options.JSON,
) -> None:
    """Tune one problem and verify the winner against the default and the library.

    What the store knows of this kernel on this device is not measured again; it gets what is.
    With several objectives, find and verify their Pareto front.
    """
    from foretune.collect import IsolatedRunner
    from foretune.datasets import RunLog
    from foretune.models.saved.named import AUTO, NONE, read_predictor
    from foretune.registry import get_kernel, load
    from foretune.tune import tune_pareto, tune_problem

    chosen = get_kernel(kernel)
    goals = [options.read_objective(text) for text in dict.fromkeys(objective)]
    limits = [Limit.parse(text) for text in limit]
    wanted = options.read_problem(chosen, problem)
    most, where = options.read_budget(budget), options.read_store(store, no_store)
    load("searchers", searcher)
    trained = predictor if predictor in (AUTO, NONE) else read_predictor(predictor)
    output, hardware = Output(as_json), options.read_device(device)
    with (
        RunLog(runs, hardware) if runs else nullcontext() as log,
        progress_bar() as progress,
        IsolatedRunner(hardware) as runner,
    ):
        if len(goals) > 1:
            if most == "auto" or regret is not None:
                raise UsageError("a Pareto front has no regret: give --budget a number")
            front = tune_pareto(
                chosen, wanted, runner, trained, budget=most, objectives=goals, limits=limits,
                searcher=searcher, seed=seed, store=where, log=log, progress=progress,
            )  # fmt: skip
        else:
            result = tune_problem(
                chosen, wanted, runner, trained, budget=most, regret=regret, objective=goals[0],
                limits=limits, searcher=searcher, seed=seed, store=where, log=log,
                progress=progress,
            )  # fmt: skip
    if len(goals) > 1:
        _show_front(output, front)
    else:
        _show_winner(output, result)


def _show_winner(output: Output, result: "TuneResult") -> None:
    summary = result.summary()
    show_results(output, [result])
    output.say("winner: " + _words(result.winner.config or {}))
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
    output.result(summary)


def _say_rejected(output: Output, summary: Mapping[str, Any]) -> None:
    if summary["rejected"]:
        limits = ", ".join(f"{column} ≤ {most:g}" for column, most in summary["limits"].items())
        output.say(f"rejected {summary['rejected']} that broke {limits}")


def _words(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())
