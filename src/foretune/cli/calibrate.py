"""``foretune choose`` and ``calibrate``: a few runs on a new device correct a predictor."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import METRIC_COLUMNS, Output, metric_rows
from foretune.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


def choose(
    predictor: str = options.PREDICTOR,
    files: list[Path] = typer.Argument(
        None, help="Run tables of what you will predict. Default: what the predictor learned."
    ),
    kernel: str = options.ONLY_KERNEL,
    map_: list[str] = options.MAP,
    count: int = typer.Option(
        64, help="Runs per device: 10 teach little, more than 512 hardly more."
    ),
    device: str = typer.Option(
        None,
        help="Where you will measure: cpu, cuda:0 or a name. Default: as in the files.",
    ),
    out: Path = typer.Option(..., help="CSV file to write, one run per line."),
    seed: int = options.SEED,
    as_json: bool = options.JSON,
) -> None:
    """Choose the few runs to measure on a new device, for 'calibrate'.

    With the time of each in a column time_ms, 'foretune import --format generic' reads the file;
    'foretune collect KERNEL --rows' measures the runs of a kernel that is Foretune's own.
    """
    from foretune.cli.run_files import read_files
    from foretune.files import atomic_write
    from foretune.models.saved.lookup import read_predictor
    from foretune.registry import registered

    if not files and device is None:
        raise UsageError("give --device, or run tables of the device")
    loaded = read_predictor(predictor)
    hardware = None if device is None else options.device_for(loaded, device)
    chosen = loaded.choose(
        count, read_files(files, kernel, map_, loaded) if files else None, hardware, seed
    )
    _protect_filled_times(out, chosen)
    with atomic_write(out) as new:
        chosen.to_csv(new, index=False)
    devices = sorted(map(str, chosen["device"].unique()))
    output = Output(as_json)
    output.say(f"{out}: {len(chosen)} runs to measure on {', '.join(devices)}")
    name = loaded.kernel_name_
    output.say(
        f"foretune collect {name} --rows {out} --out there.parquet"
        if name in registered("kernels")
        else "add a column time_ms, then: "
        f"foretune import {out} --format generic --out there.parquet"
    )
    output.say(f"foretune calibrate {predictor} there.parquet --out calibrated")
    output.result({"out": str(out), "rows": len(chosen), "devices": devices})


def _protect_filled_times(out: Path, chosen: "pd.DataFrame") -> None:
    import pandas as pd

    if out.suffix != ".csv":
        raise UsageError(f"--out {out}: the runs are written as CSV, name it so")
    try:
        added = set(pd.read_csv(out, nrows=0)) - set(chosen) if out.exists() else set()
    except ValueError as e:
        raise UsageError(f"{out} is no list of runs: give another --out") from e
    if added:
        raise UsageError(f"{out} has {', '.join(sorted(added))} filled in: give another --out")


def calibrate(
    predictor: str = options.PREDICTOR,
    files: list[Path] = typer.Argument(help="Run tables of the new device: 10 … 1500 runs."),
    kernel: str = options.ONLY_KERNEL,
    map_: list[str] = options.MAP,
    check: list[Path] = typer.Option([], help="Run tables to score before and after (repeatable)."),
    out: Path = typer.Option(..., help="Folder for the calibrated predictor."),
    as_json: bool = options.JSON,
) -> None:
    """Correct a predictor for a new device, with a few runs measured there."""
    from foretune.cli.run_files import read_files
    from foretune.models import evaluate_predictor
    from foretune.models.saved.lookup import read_predictor

    output = Output(as_json)
    before = read_predictor(predictor)
    runs = read_files(files, kernel, map_, before)
    after = before.calibrate(runs)
    after.save(out)
    scores: dict[str, dict[str, dict[str, float]]] = {}
    if check:
        rows = read_files(check, kernel, map_, before)
        for when, scored in (("before", before), ("after", after)):
            scores[when] = evaluate_predictor(scored, rows)
        for target in scores["after"]:
            named = {when: by_target[target] for when, by_target in scores.items()}
            output.table(f"predicting {target}", METRIC_COLUMNS, metric_rows({"checked": named}))
    devices = ", ".join(after.calibration_.devices)
    output.say(f"\npredictor: {out}, calibrated for {devices} with {len(runs)} runs")
    output.result({"out": str(out), "rows": len(runs), "devices": devices, **scores})
