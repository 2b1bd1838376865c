"""Reads the run tables of commands: Parquet files, or CSV files with arbitrary columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli.csv_files import CsvOptions, read_csv_file
from foretune.cli.options import parse_key_values
from foretune.errors import RunTableError, UsageError, require_known

if TYPE_CHECKING:
    import pandas as pd

    from foretune.models.predictor import Predictor

RUNS = typer.Argument(help="Run tables (Parquet, or CSV with any columns).")
ONLY_KERNEL = typer.Option(None, help="Use only this kernel, if the files hold several.")
SEPARATOR = typer.Option("", help="Separator of CSV files; found if left out.")
DECIMAL = typer.Option("", help="Decimal mark of CSV files, . or ,; found if left out.")
MAP = typer.Option([], "--map", help="A CSV column: 'time_ms=latency_us*0.001' (repeatable).")
IGNORE = typer.Option([], "--ignore", help="A column of CSV files to leave out (repeatable).")
DEVICE = typer.Option("", help="Device of CSV files that name none: 'RTX 4090', or cpu: this one.")


def require_files(files: Sequence[Path]) -> None:
    """Raise RunTableError for the first file that does not exist, before imports take seconds."""
    for file in files:
        if not file.exists():
            raise RunTableError(f"{file} cannot be read: there is no such file")


def read_files(
    files: list[Path],
    kernel: str | None,
    maps: Sequence[str] = (),
    predictor: "Predictor | None" = None,
    device: str = "",
) -> "pd.DataFrame":
    """Return the rows of ``files``; with ``kernel``, only those of this kernel.

    Columns of CSV files that a run table lacks are as the ``predictor`` knows them. ``maps`` has
    texts ``COLUMN=SOURCE``. For ``kernel`` and ``device``, see `CsvOptions`.
    Raises RunTableError, UsageError if a file cannot be read, or lacks the kernel or a column.
    """
    return read_tables(
        files,
        CsvOptions(kernel=kernel, sources=parse_key_values(maps, "--map"), device=device),
        predictor,
    )


def read_tables(
    files: list[Path], options: CsvOptions, predictor: "Predictor | None" = None
) -> "pd.DataFrame":
    """Return the rows of ``files``, see `read_files`; ``options`` are for CSV files."""
    import pandas as pd

    from foretune.datasets.runs import CSV_SUFFIXES

    csv_files = [f for f in files if f.name.lower().endswith(CSV_SUFFIXES)]
    if len(csv_files) < len(files):
        given = {
            "--sizes": options.sizes,
            "--map": options.sources,
            "--ignore": options.ignored,
            "--device": options.device,
        }
        unused = " and ".join(name for name, value in given.items() if value)
        if unused:
            raise UsageError(
                f"only CSV files take {unused}: leave that out, or give files that end with "
                f"{' or '.join(CSV_SUFFIXES)}"
            )
    if (options.separator or options.decimal) and not csv_files:
        raise UsageError("only CSV files take --separator and --decimal: leave them out")
    parts = [
        read_csv_file(file, options, predictor) if file in csv_files else _read_run_table(file)
        for file in files
    ]
    return select_rows(pd.concat(parts, ignore_index=True), "kernel", options.kernel)


def _read_run_table(file: Path) -> "pd.DataFrame":
    """Return a run table; if it is none, the error says what the file is."""
    from foretune.datasets.file_contents import PARQUET, SQLITE, require_text_table
    from foretune.datasets.runs import read_runs
    from foretune.support.files import read_bytes

    try:
        return read_runs(file)
    except RunTableError:
        content = read_bytes(file) if file.is_file() else PARQUET
        if content.startswith(PARQUET):
            raise
        if content.startswith(SQLITE):
            raise RunTableError(
                f"{file} is an SQLite database, not a run table: 'foretune store --store {file} "
                f"--export {file.stem}.parquet' exports a tuning store, 'foretune import --format "
                "optuna' reads studies"
            ) from None
        try:
            require_text_table(content)
        except ValueError as e:
            raise RunTableError(
                f"{file} is not a run table: {e} (foretune import makes run tables)"
            ) from e
        raise


def select_rows(runs: "pd.DataFrame", column: str, name: str | None) -> "pd.DataFrame":
    """Return the rows of one kernel or device, by default all; UnknownName if there are none."""
    if name is None:
        return runs
    require_known(f"{column} in these files", name, map(str, runs[column].unique()))
    return runs[runs[column] == name].reset_index(drop=True)
