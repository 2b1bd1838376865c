"""``foretune train``, ``evaluate`` and ``predict``: predictors offline."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import SCORE_COLUMNS, Output, score_rows
from foretune.errors import PredictorError, UnknownName, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from foretune.models import Predictor, Training

FILES = typer.Argument(help="Run tables (Parquet).")


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(train)
    app.command()(evaluate)
    app.command()(predict)


def train(
    context: typer.Context,
    files: list[Path] = FILES,
    model: str = options.MODEL,
    target: list[str] = typer.Option([], help="time_ms, power_w (repeatable); else what is there."),
    group: str = typer.Option(
        "problem", help="What is held out together: problem, device, or columns (problem.N,…)."
    ),
    split: list[str] = typer.Option(
        ["random", "grouped"], help="How to validate: random, grouped, device, time (repeatable)."
    ),
    compiled: bool = typer.Option(False, help="Learn from static.… columns too."),
    kernel: str = typer.Option(None, help="Of this kernel only, where a file holds several."),
    resume: Path = typer.Option(
        None, help="Go on with this predictor: its rows, model, targets, seed; the newest row wins."
    ),
    mlflow: str = typer.Option(None, help="Log to this MLflow too: sqlite:///mlflow.db or a URL."),
    out: Path = typer.Option(..., help="Folder for the predictor."),
    seed: int = options.SEED,
    as_json: bool = options.JSON,
) -> None:
    """Train a predictor, with honest validation."""
    from foretune.models import Predictor, train_predictor
    from foretune.models.splits import SPLITS, group_columns
    from foretune.models.targets import TARGETS
    from foretune.registry import load

    load("models", model)
    _known("target", target, TARGETS)
    _known("split", split, SPLITS)
    output = Output(as_json)
    runs = read_files(files, kernel)
    like = Predictor(model, tuple(target) or None, seed, compiled=compiled)  # type: ignore[arg-type]
    if resume is not None:
        _refuse(context, ("model", "target", "seed", "compiled"), "--resume keeps the predictor's")
        like = Predictor.load(resume)
        runs = _after(like, runs, resume)
    group_columns(runs, group)
    with _tracked(mlflow, like.model, runs) as log:
        done = train_predictor(
            runs,
            like.model,
            like.targets,
            group,
            like.seed,
            splits=split,  # type: ignore[arg-type]
            compiled=like.compiled,
            parameters=like.parameters,
        )
        done.predictor.save(out)
        log(done, out)
    for name, scores in done.scores.items():
        output.table(f"predicting {name}", SCORE_COLUMNS, score_rows(scores))
    output.say(f"\npredictor: {out}")
    output.result({"out": str(out), **done.metrics(), "training": done.predictor.training_})


def evaluate(
    predictor: Path = typer.Argument(help="Folder of a predictor."),
    files: list[Path] = FILES,
    kernel: str = typer.Option(None, help="Of this kernel only, where a file holds several."),
    as_json: bool = options.JSON,
) -> None:
    """Score a saved predictor on runs it never saw."""
    from foretune.models import Predictor, evaluate_predictor

    output = Output(as_json)
    scores = evaluate_predictor(Predictor.load(predictor), read_files(files, kernel))
    for name, metrics in scores.items():
        rows = score_rows({"these runs": {str(predictor): metrics}})
        output.table(f"predicting {name}", SCORE_COLUMNS, rows)
    output.result(scores)


def predict(
    predictor: Path = typer.Argument(help="Folder of a predictor."),
    kernel: str = typer.Option(..., help="Name of the kernel."),
    problem: str = typer.Option(..., help="M=…,N=…,…"),
    top: int = typer.Option(10, help="How many of the best to show."),
    device: str = options.DEVICE,
    as_json: bool = options.JSON,
) -> None:
    """Rank the configurations of a problem without running anything."""
    from foretune.models import Predictor
    from foretune.registry import get_kernel

    chosen = get_kernel(kernel)
    wanted = options.read_problem(chosen, problem)
    options.at_least_one(top, "--top")
    loaded = Predictor.load(predictor)
    if loaded.kernel_name_ != kernel:
        raise PredictorError(f"{predictor} knows {loaded.kernel_name_!r}, not {kernel!r}")
    space = chosen.space(wanted)
    ranked = loaded.predict_space(wanted, space, options.read_device(device))
    best = ranked.nsmallest(top, "time_ms")
    configs = [
        {
            "config": dict(space[int(i)]),
            "time_ms": row["time_ms"],
            "low": row["time_ms_low"],
            "high": row["time_ms_high"],
            "power_w": row.get("power_w"),
            "p_valid": row["p_valid"],
        }
        for i, row in best.iterrows()
    ]
    output = Output(as_json)
    rows = [
        [f"{c['time_ms']:.3g}", f"{c['low']:.3g}–{c['high']:.3g}", f"{c['p_valid']:.2f}", _text(c)]
        for c in configs
    ]
    output.table(
        f"{kernel} {wanted}: {len(space):,} configurations predicted",
        ("ms", "90 % interval", "valid", "configuration"),
        rows,
    )
    output.result({"problem": dict(wanted), "configurations": len(space), "configs": configs})


def _refuse(context: typer.Context, names: tuple[str, ...], why: str) -> None:
    """Raise UsageError if one of the named options was typed."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{why} {name}: leave --{name} out")


def _after(predictor: "Predictor", new: "pd.DataFrame", folder: Path) -> "pd.DataFrame":
    """Return the rows of ``predictor`` followed by ``new`` ones of the same kernel."""
    import pandas as pd

    others = sorted(set(map(str, new["kernel"])) - {predictor.kernel_name_})
    if others:
        raise PredictorError(
            f"{folder} knows {predictor.kernel_name_!r}, the new runs are of {', '.join(others)}: "
            "choose with --kernel, or train without --resume"
        )
    if predictor.corrections_:
        raise PredictorError(
            f"{folder} was calibrated with runs it does not hold: resume the one it was made from, "
            "and give those runs too"
        )
    return pd.concat([predictor.runs_, new], ignore_index=True)


@contextmanager
def _tracked(
    uri: str | None, model: str, runs: "pd.DataFrame"
) -> "Iterator[Callable[[Training, Path], None]]":
    """Open an MLflow run at ``uri`` and yield what logs a training to it; nothing without one."""
    if uri is None:
        yield lambda training, folder: None
        return
    from foretune.models.predictor import only_kernel
    from foretune.tune.tracking import Tracker

    kernel = only_kernel(runs)
    tracker = Tracker(uri)  # before the training: what cannot be reached is noticed at once
    run_id = tracker.open_run(f"{kernel}: train {model}", None, {"foretune.kernel": kernel})
    with tracker.running(run_id):
        yield lambda training, folder: tracker.log_training(run_id, training, folder)


def _text(entry: dict[str, dict[str, object]]) -> str:
    return " ".join(f"{k}={v}" for k, v in entry["config"].items())


def read_files(files: list[Path], kernel: str | None) -> "pd.DataFrame":
    """Return the rows of ``files``, of one kernel where it is named.

    Raises:
        RunTableError, UnknownName: a file cannot be read, or has no such kernel.
    """
    import pandas as pd

    from foretune.datasets import read_runs

    runs = pd.concat([read_runs(f) for f in files], ignore_index=True)
    if kernel is None:
        return runs
    if kernel not in set(runs["kernel"]):
        raise UnknownName("kernel in these files", kernel, map(str, runs["kernel"].unique()))
    return runs[runs["kernel"] == kernel].reset_index(drop=True)


def _known(what: str, names: list[str], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            raise UnknownName(what, name, known)
