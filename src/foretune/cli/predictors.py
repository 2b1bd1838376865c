"""``foretune train``, ``evaluate`` and ``predict``: predictors offline."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import SCORE_COLUMNS, Output, score_rows
from foretune.errors import PredictorError, UnknownName

if TYPE_CHECKING:
    import pandas as pd

FILES = typer.Argument(help="Run tables (Parquet).")


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(train)
    app.command()(evaluate)
    app.command()(predict)


def train(
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
    out: Path = typer.Option(..., help="Folder for the predictor."),
    seed: int = options.SEED,
    as_json: bool = options.JSON,
) -> None:
    """Train a predictor, with honest validation."""
    from foretune.models import train_predictor
    from foretune.models.splits import SPLITS, group_columns
    from foretune.models.targets import TARGETS
    from foretune.registry import load

    load("models", model)
    _known("target", target, TARGETS)
    _known("split", split, SPLITS)
    output = Output(as_json)
    runs = _read(files, kernel)
    group_columns(runs, group)
    done = train_predictor(
        runs,
        model,
        tuple(target) or None,  # type: ignore[arg-type]
        group,
        seed,
        splits=split,  # type: ignore[arg-type]
        compiled=compiled,
    )
    done.predictor.save(out)
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
    scores = evaluate_predictor(Predictor.load(predictor), _read(files, kernel))
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


def _text(entry: dict[str, dict[str, object]]) -> str:
    return " ".join(f"{k}={v}" for k, v in entry["config"].items())


def _read(files: list[Path], kernel: str | None) -> "pd.DataFrame":
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
