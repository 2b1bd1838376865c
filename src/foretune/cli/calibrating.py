"""``foretune calibrate``: correct a predictor with a few runs on a new device."""

from pathlib import Path

import typer

from foretune.cli import options
from foretune.cli.output import SCORE_COLUMNS, Output, score_rows


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(calibrate)


def calibrate(
    predictor: Path = typer.Argument(help="Folder of a predictor."),
    files: list[Path] = typer.Argument(help="Run tables of the new device: 10 … 1500 runs."),
    kernel: str = typer.Option(None, help="Of this kernel only, where a file holds several."),
    check: list[Path] = typer.Option([], help="Runs to score before and after."),
    out: Path = typer.Option(..., help="Folder for the calibrated predictor."),
    as_json: bool = options.JSON,
) -> None:
    """Correct a predictor for a device it never saw, with a few runs measured there."""
    from foretune.cli.predictors import read_files
    from foretune.models import Predictor, evaluate_predictor

    output = Output(as_json)
    before = Predictor.load(predictor)
    runs = read_files(files, kernel)
    after = before.calibrate(runs)
    after.save(out)
    scores: dict[str, dict[str, dict[str, float]]] = {}
    if check:
        rows = read_files(check, kernel)
        for when, scored in (("before", before), ("after", after)):
            scores[when] = evaluate_predictor(scored, rows)
        for target in scores["after"]:
            named = {when: by_target[target] for when, by_target in scores.items()}
            output.table(f"predicting {target}", SCORE_COLUMNS, score_rows({"checked": named}))
    devices = ", ".join(sorted({device for _, device in after.corrections_}))
    output.say(f"\npredictor: {out}, calibrated for {devices} with {len(runs)} runs")
    output.result({"out": str(out), "rows": len(runs), "devices": devices, **scores})
