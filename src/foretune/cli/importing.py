"""``foretune import``: other tools' results into a run table."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.console import progress_bar
from foretune.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


def import_(
    files: list[str] = typer.Argument(
        help="Files or folders; for aiconfigurator also 'installed' or a system, e.g. h200_sxm."
    ),
    format: str = typer.Option(..., help="Format: aiconfigurator, kerneltuner, generic, …"),
    out: Path = typer.Option(..., help="Run table to write (Parquet)."),
    kernel: str = typer.Option(
        "", help="Only this kernel; or its name, if the files do not say it."
    ),
    device: str = typer.Option("", help="Name of the device, if the files do not say it."),
    map_: list[str] = typer.Option(
        [], "--map", help="Column: 'time_ms=latency_us*0.001', 'problem.M=m' (repeatable)."
    ),
    set_: list[str] = typer.Option(
        [], "--set", help="Set one value in every row: 'problem.M=64' (repeatable)."
    ),
    as_json: bool = options.JSON,
) -> None:
    """Turn another tool's results into a run table.

    Rows that cannot be believed are left out and counted by reason.
    """
    from foretune.datasets import import_runs, read_runs, write_runs
    from foretune.datasets.importers.records import as_number

    mapping, constants = (
        options.parse_key_values(map_, "--map"),
        options.parse_key_values(set_, "--set"),
    )
    output = Output(as_json)
    if any(Path(file).resolve() == out.resolve() for file in files):
        raise UsageError(f"{out} is what is read: give another --out")
    with progress_bar() as progress:
        imported = import_runs(
            files, format, kernel=kernel or None, device=device or None, mapping=mapping,
            constants={c: as_number(v) for c, v in constants.items()}, progress=progress,
        )  # fmt: skip
    rows, rejected = len(imported.runs), sum(imported.rejected.values())
    if not rows:
        reasons = "; ".join(imported.rejected) or "; ".join(imported.skipped.values())
        raise UsageError(f"nothing was imported: {reasons}")
    if out.exists() and (lost := _count_lost_runs(read_runs(out), imported.runs)):
        raise UsageError(f"{out} holds {lost:,} runs that are not among these: give another --out")
    write_runs(out, imported.runs)
    for reason in imported.skipped.values():
        output.say(f"skipped: {reason}")
    output.say(f"{out}: {rows} rows, {rejected} rejected")
    for reason, count in imported.rejected.items():
        output.say(f"  {count} rejected: {reason}")
    output.table("", ("kernel", "rows"), [(k, str(n)) for k, n in imported.kernels.items()])
    output.result(
        {"rows": rows, "rejected": rejected, "reasons": imported.rejected,
         "kernels": imported.kernels, "skipped": list(imported.skipped), "out": str(out)}
    )  # fmt: skip


def _count_lost_runs(before: "pd.DataFrame", now: "pd.DataFrame") -> int:
    from foretune.models.repeats import count_missing_runs

    return max(count_missing_runs(now, before), len(before) - len(now))
