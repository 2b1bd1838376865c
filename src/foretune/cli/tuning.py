"""``foretune tune``: one problem, a few measurements, a verified winner."""

from contextlib import nullcontext
from pathlib import Path

import typer

from foretune.cli import options
from foretune.cli.campaign import show_results
from foretune.cli.output import Output, progress_bar


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(tune)


def tune(
    kernel: str = options.KERNEL,
    problem: str = typer.Option(..., help="M=…,N=…,…"),
    budget: int = typer.Option(10, help="Measurements of the search."),
    objective: str = options.OBJECTIVE,
    searcher: str = options.SEARCHER,
    predictor: Path = typer.Option(None, help="Folder of a trained predictor."),
    runs: Path = typer.Option(None, help="Run table that gets the measurements, Parquet."),
    device: str = options.DEVICE,
    seed: int = options.SEED,
    as_json: bool = options.JSON,
) -> None:
    """Tune one problem and verify the winner against the default and the library."""
    from foretune.collect import IsolatedRunner
    from foretune.datasets import RunLog
    from foretune.models import Predictor
    from foretune.registry import get_kernel, load
    from foretune.tune import tune_problem

    chosen, goal = get_kernel(kernel), options.read_objective(objective)
    wanted = options.read_problem(chosen, problem)
    options.at_least_one(budget, "--budget")
    load("searchers", searcher)
    trained = Predictor.load(predictor) if predictor else None
    output, hardware = Output(as_json), options.read_device(device)
    with (
        RunLog(runs, hardware) if runs else nullcontext() as log,
        progress_bar() as progress,
        IsolatedRunner(hardware) as runner,
    ):
        result = tune_problem(
            chosen, wanted, runner, trained, budget=budget, objective=goal,
            searcher=searcher, seed=seed, log=log, progress=progress,
        )  # fmt: skip
    show_results(output, [result])
    output.say("winner: " + " ".join(f"{k}={v}" for k, v in (result.winner.config or {}).items()))
    trace = result.to_json()["trace"]
    output.result({"best": result.summary(), "trace": trace, "verified": result.verified})
