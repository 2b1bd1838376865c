"""Reads the run tables of commands: Parquet files, or CSV files with arbitrary columns."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli.options import parse_key_values
from foretune.errors import DataWarning, RunTableError, UsageError, require_known
from foretune.registry import get_kernel, registered
from foretune.values import Value, counted, parse_value

if TYPE_CHECKING:
    import pandas as pd

    from foretune.datasets.text_tables import Dialect
    from foretune.models.predictor import Predictor

RUNS = typer.Argument(help="Run tables (Parquet, or CSV with any columns).")
ONLY_KERNEL = typer.Option(None, help="Use only this kernel, if the files hold several.")
SEPARATOR = typer.Option("", help="Separator of CSV files; found if left out.")
DECIMAL = typer.Option("", help="Decimal mark of CSV files, . or ,; found if left out.")
MAP = typer.Option([], "--map", help="A CSV column: 'time_ms=latency_us*0.001' (repeatable).")


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
    problem: Sequence[str] = (),
    separator: str = "",
    decimal: str = "",
) -> "pd.DataFrame":
    """Return the rows of ``files``; with ``kernel``, only those of this kernel.

    Columns of CSV files that a run table lacks are sizes of the problem (all, or those in
    ``problem``, or those that the ``predictor`` knows), or else configuration. ``maps`` has texts
    ``COLUMN=SOURCE``, see `generic`. ``separator`` and ``decimal`` are found if empty. A
    CSV file without a kernel column gets the name ``kernel``.
    Raises RunTableError, UsageError if a file cannot be read, or lacks the kernel or a column.
    """
    import pandas as pd

    from foretune.datasets.runs import CSV_SUFFIXES

    csv_files = [file for file in files if file.name.lower().endswith(CSV_SUFFIXES)]
    if (problem or maps) and len(csv_files) < len(files):
        raise UsageError(
            "only CSV files take --sizes and --map: leave them out, or give files that end with "
            f"{' or '.join(CSV_SUFFIXES)}"
        )
    if (separator or decimal) and not csv_files:
        raise UsageError("only CSV files take --separator and --decimal: leave them out")

    source_of_column = parse_key_values(maps, "--map")
    csv_dialect = dialect(separator, decimal)
    tables = []
    for file in files:
        if file in csv_files:
            table = _read_csv_file(
                file,
                kernel=kernel,
                source_of_column=source_of_column,
                predictor=predictor,
                problem=problem,
                dialect=csv_dialect,
            )
        else:
            table = _read_run_table(file)
        tables.append(table)
    return select_rows(pd.concat(tables, ignore_index=True), "kernel", kernel)


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


def _read_csv_file(
    file: Path,
    *,
    kernel: str | None,
    source_of_column: Mapping[str, str],
    predictor: "Predictor | None",
    problem: Sequence[str],
    dialect: "Dialect",
) -> "pd.DataFrame":
    """Return the runs of a CSV file; what each of its columns means is found, see `read_files`."""
    from foretune.datasets.importers import import_runs
    from foretune.datasets.importers.files import read_table
    from foretune.datasets.importers.generic import stated_status, time_column
    from foretune.datasets.plain_tables import UNNAMED, run_columns

    constants, sources = split_constants(source_of_column)
    table = read_table(file, dialect=dialect).rename(columns=str)
    columns = list(map(str, table.columns))

    # The time may have another name and unit.
    if "time_ms" not in {*sources, *constants, *columns}:
        source_of_time = time_column(table, file)
        if source_of_time is not None:
            sources["time_ms"] = source_of_time

    # How a run ended is neither its problem nor its configuration.
    if "status" not in sources:
        named_by_user = {"status", *problem, *sources.values()}
        status_columns = set(stated_status(table)) - named_by_user
        columns = [column for column in columns if column not in status_columns]

    # What files leave out is that of the predictor's training.
    device = UNNAMED
    if predictor is not None:
        kernel = predictor.kernel_name_
        devices = predictor.runs_["device"].unique()
        device = str(devices[0]) if len(devices) == 1 else UNNAMED
        problem = problem or _sizes_of_training(predictor, columns)

    mapping = run_columns(columns, problem, sources)
    if "time_ms" not in mapping:
        raise UsageError(
            f"{file} has no column time_ms: name the time's column with --map "
            f"time_ms=COLUMN*FACTOR; there are {', '.join(columns)}"
        )
    imported = import_runs(
        file,
        "generic",
        kernel=None if "kernel" in mapping else kernel or _kernel_name(file, mapping),
        device=None if "device" in mapping else device,
        mapping=mapping,
        constants=constants,
        separator=dialect.separator,
        decimal=dialect.decimal,
    )
    for note in imported.notes:
        typer.echo(note, err=True)
    for reason, count in imported.rejected.items():
        left_out = f"{counted(count, 'row')} of {file} left out"
        warnings.warn(f"{left_out}: {reason}", DataWarning, stacklevel=2)
    return imported.runs


def split_constants(
    source_of_column: Mapping[str, str],
) -> tuple[dict[str, Value], dict[str, str]]:
    """Split ``--map`` into constants, written ``COLUMN==VALUE``, and sources of columns."""
    constants = {}
    sources = {}
    for column, source in source_of_column.items():
        if source.startswith("="):
            constants[column] = parse_value(source.removeprefix("="))
        else:
            sources[column] = source
    return constants, sources


def _sizes_of_training(predictor: "Predictor", columns: Sequence[str]) -> list[str]:
    """Return those of ``columns`` that are sizes of the problems in training."""
    from foretune.datasets.schema import columns_of

    sizes = {c.removeprefix("problem.") for c in columns_of(predictor.runs_, "problem")}
    return [column for column in columns if column in sizes]


def dialect(separator: str, decimal: str) -> "Dialect":
    r"""Return what the options say about text tables; a separator may be written ``\t``."""
    from foretune.datasets.importers import checked_dialect

    separator = "\t" if separator == "\\t" else separator
    return checked_dialect(separator or None, decimal or None)


def _kernel_name(file: Path, columns: Collection[str]) -> str:
    """Return the file's name, unless a kernel of ours has that name and other parameters."""
    from foretune.datasets.plain_tables import UNNAMED

    name = file.name.partition(".")[0]
    is_known = name in registered("families") or is_registered(name, columns)
    return name if is_known or name not in registered("kernels") else UNNAMED


def is_registered(kernel: str, columns: Collection[str]) -> bool:
    """Whether there is a kernel of this name, and run-table ``columns`` have its parameters."""
    if kernel not in registered("kernels"):
        return False
    found = get_kernel(kernel)
    sizes = {f"problem.{p.name}" for p in found.problem_parameters if p.default is None}
    space = found.space(found.training_problems(1)[0])
    knobs = {f"config.{name}" for name in space.names}
    return sizes | knobs <= set(columns)
