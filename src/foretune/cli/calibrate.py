"""``foretune calibrate``: correct a predictor for a new device with a few runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options, run_files
from foretune.cli.output import Output
from foretune.errors import UsageError
from foretune.registry import registered
from foretune.support.files import atomic_write

if TYPE_CHECKING:
    import pandas as pd


def calibrate(
    context: typer.Context,
    predictor: str = options.PREDICTOR,
    files: list[Path] = typer.Argument(
        None,
        help="Run tables of the new device: 10 … 1500 runs. With --choose: run tables of what you "
        "will predict; by default, the predictor's own runs.",
    ),
    kernel: str = run_files.ONLY_KERNEL,
    map_: list[str] = run_files.MAP,
    choose: int | None = typer.Option(
        None, help="Choose this many runs to measure instead; 64 is a good number."
    ),
    device: str = typer.Option(
        None,
        help="The new device: cpu, cuda:0 or a name. Default: that of the files.",
    ),
    out: Path = typer.Option(
        ..., help="Folder for the calibrated predictor; with --choose, CSV file for the runs."
    ),
) -> None:
    """Correct a predictor for a new device, with a few runs measured there.

    --choose selects the most useful runs to measure. 'foretune collect KERNEL --rows' measures
    them; or fill in their times as column time_ms, then 'foretune import --format generic'.
    """
    output = Output(options.root_options(context).as_json)
    if choose is not None:
        _choose(context, output, files or [], out)
        return
    if not files:
        raise UsageError("give run tables of the new device; --choose 64 selects runs to measure")
    from foretune.models.saved.lookup import read_predictor

    before = read_predictor(predictor)
    runs = run_files.read_files(files, kernel, map_, before, device or "")
    after = before.calibrate(runs)
    after.save(out)
    devices = ", ".join(after.calibration_.devices)
    output.say(f"predictor: {out}, calibrated for {devices} with {len(runs)} runs")
    output.result({"out": str(out), "rows": len(runs), "devices": devices})


def _choose(context: typer.Context, output: Output, files: list[Path], out: Path) -> None:
    """Write the runs whose measurements would help most, and say how to go on."""
    from foretune.models.saved.lookup import read_predictor

    given = context.params
    device = given["device"]
    count = options.require_positive_int(given["choose"], "--choose")
    if not files and device is None:
        raise UsageError("give --device, or run tables of the device")
    loaded = read_predictor(given["predictor"])
    hardware = None if device is None else options.device_for(loaded, device)
    runs = None
    if files:
        runs = run_files.read_files(files, given["kernel"], given["map_"], loaded)
    chosen = loaded.choose(count, runs, hardware, options.root_options(context).seed)
    _protect_filled_times(out, chosen)
    with atomic_write(out) as new:
        chosen.to_csv(new, index=False)

    devices = sorted(map(str, chosen["device"].unique()))
    output.say(f"{out}: {len(chosen)} runs to measure on {', '.join(devices)}")
    if loaded.kernel_name_ in registered("kernels"):
        measure = f"foretune collect {loaded.kernel_name_} --rows {out}"
    else:
        measure = f"add a column time_ms, then: foretune import {out} --format generic"
    output.say(f"{measure} --out there.parquet")
    output.say(f"foretune calibrate {given['predictor']} there.parquet --out calibrated")
    output.result({"out": str(out), "rows": len(chosen), "devices": devices})


def _protect_filled_times(out: Path, chosen: "pd.DataFrame") -> None:
    """Raise UsageError if ``out`` has columns that this command does not write."""
    import pandas as pd

    if out.suffix != ".csv":
        raise UsageError(f"--out {out}: the runs are written as CSV: use a name that ends in .csv")
    if not out.exists():
        return
    try:
        columns = set(pd.read_csv(out, nrows=0))
    except (OSError, ValueError) as e:
        raise UsageError(f"{out} is not a list of runs: give another --out") from e
    added = sorted(columns - set(chosen))
    if added:
        raise UsageError(f"{out} already has {', '.join(added)}: give another --out")
