"""Converts run tables to and from Parquet files and measurements, and adds device specs."""

import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from foretune.datasets.journal import digest, journal_path, read_journal
from foretune.datasets.schema import PLAIN_GROUPS, SCHEMA_VERSION, columns_of, validate
from foretune.device import SPECS, Device, find_device_or_none, generic_device
from foretune.errors import RunTableError, UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support import files
from foretune.support.parquet import ParquetFile

CSV_SUFFIXES = (".csv", ".csv.gz", ".txt")
"""Suffixes of files with arbitrary columns."""
ROW_GROUP_SIZE = 1 << 14
"""Rows per Parquet row group."""
SIGNATURE_BYTES = 200
"""Bytes at the start of a file that tell its format."""
_VERSION_KEY = b"foretune.schema_version"
_MIXED_KEY = b"foretune.mixed_columns"
_JOURNAL_DIGEST_KEY = b"foretune.folded_journal"
"""Keys of the metadata of a run table's file."""
_STORE_SIGNATURES = (b"SQLite format 3\0", b'{"format": "foretune tuned results"')
"""How the files of tuning stores start."""
_SCALARS = (
    "time_ms",
    "power_w",
    "energy_mj",
    "compile_s",
    "relative_error",
    "error",
    "source",
    "recorded_at",
    "environment",
)
"""Fields of a measurement that are columns of the same name."""
_MEASUREMENT_GROUPS = ("problem", "config", "static")
"""Groups of columns that are mappings of a measurement."""
_COLUMN_ORDER = ("kernel", "device", "status", "problem.", "config.", "time_ms", "power_w")
"""Columns and groups in reading order; others follow."""


def file_metadata(mixed: set[str], journal_digest: str = "") -> dict[bytes, bytes]:
    """Return the metadata of a run table's file.

    ``mixed`` are columns that mix text, numbers and booleans; they are stored as JSON, because
    Parquet columns have one type. ``journal_digest`` is that of the last merged journal.
    """
    return {
        _VERSION_KEY: str(SCHEMA_VERSION).encode(),
        _MIXED_KEY: json.dumps(sorted(mixed)).encode(),
        _JOURNAL_DIGEST_KEY: journal_digest.encode(),
    }


def read_runs(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read and validate a run table, including the journal of an interrupted collection.

    Raises RunTableError if the file is missing, a folder, truncated, of a newer schema, or holds
    impossible rows.
    """
    path = Path(path)
    if path.is_dir():
        of_campaign = path / "runs.parquet"
        advice = of_campaign if of_campaign.exists() else "a file in it"
        raise RunTableError(f"{path} is a folder, not a run table: give {advice}")

    version = _version(path)
    parts = []
    merged_journal = ""
    if path.exists():
        opened = open_runs(path)
        merged_journal = opened.journal_digest
        with files.translate_read_errors(path, RunTableError, "is damaged: {}"):
            parts.append(from_arrow(opened.file.read(), opened.mixed))

    # Add the journal. A process killed between writing the file and removing the journal leaves
    # both: then the file has its rows already.
    journal = journal_path(path)
    if digest(journal) not in ("", merged_journal):
        with files.translate_read_errors(journal, RunTableError, "is damaged: {}"):
            rows = [row for _, row in read_journal(journal)]
            if rows:
                parts.append(from_rows(rows))

    # If a log was closed meanwhile, its rows may be in neither: read again.
    if _version(path) != version:
        return read_runs(path)
    if not parts:
        raise RunTableError(f"{path} does not exist: collect one with 'foretune collect'")
    with files.translate_read_errors(path, RunTableError, "is damaged: {}"):
        runs = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        return validate(runs, str(path))


def _version(path: Path) -> tuple[int, int] | None:
    """Return what tells versions of a file apart; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def require_table_name(path: Path) -> Path:
    """Return ``path``; raise UsageError if commands would read it as a CSV file."""
    if path.name.lower().endswith(CSV_SUFFIXES):
        raise UsageError(f"{path}: run tables are Parquet files: use a name that ends in .parquet")
    return path


def write_runs(path: str | os.PathLike[str], runs: pd.DataFrame) -> None:
    """Validate ``runs``, and write them atomically; raise RunTableError or OutputError."""
    path = require_table_name(Path(path))
    validate(runs, str(path))
    table, mixed = to_arrow(runs, path)
    metadata = {**(table.schema.metadata or {}), **file_metadata(mixed)}
    table = table.replace_schema_metadata(metadata)
    with files.atomic_write(path) as new:
        pq.write_table(table, new, ROW_GROUP_SIZE, compression="zstd")


def to_arrow(runs: pd.DataFrame, path: Path) -> tuple[pa.Table, set[str]]:
    """Return the run table as an Arrow table, and the columns that were encoded as JSON."""
    mixed = {c for c in runs.columns if c.startswith(PLAIN_GROUPS) and _is_mixed(runs[c])}
    encoded = {c: runs[c].astype(object).map(json.dumps, na_action="ignore") for c in mixed}
    plain = runs.assign(**encoded)
    try:
        return pa.Table.from_pandas(plain, preserve_index=False), mixed
    except (pa.ArrowException, OverflowError, UnicodeError) as e:
        raise RunTableError(f"{path}: Parquet cannot hold these values: {e}") from e


def from_arrow(table: pa.Table, mixed: Collection[str]) -> pd.DataFrame:
    """Return the run table of an Arrow table; ``mixed`` columns are decoded from JSON."""
    runs = table.to_pandas()
    decoded = {}
    for column in runs:
        if column not in mixed:
            continue
        texts = runs[column].dropna().unique()
        value_of = {text: files.parse_json(text, object) for text in texts}
        decoded[column] = runs[column].astype(object).map(value_of.get, na_action="ignore")
    return runs.assign(**decoded)


def newest_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with only the newest row of each (kernel, device, problem, configuration)."""
    keys = ["kernel", "device", *columns_of(runs, "problem"), *columns_of(runs, "config")]
    oldest_first = runs
    if "recorded_at" in runs:
        # Rows without a time count as oldest.
        recorded = runs["recorded_at"].reset_index(drop=True)
        times = recorded.astype("str").where(recorded.notna())
        oldest_first = runs.iloc[times.sort_values(kind="stable", na_position="first").index]
    return oldest_first.drop_duplicates(keys, keep="last").sort_index()


def from_measurements(
    measurements: Iterable[Measurement], device: Device | None = None
) -> pd.DataFrame:
    """Return one row per measurement, with the specs of ``device`` if given."""
    return from_rows([to_row(m, device) for m in measurements])


def to_measurements(runs: pd.DataFrame) -> list[Measurement]:
    """Return one measurement per row, without empty problem and configuration cells."""
    groups = {group: columns_of(runs, group) for group in _MEASUREMENT_GROUPS}
    records: list[dict[str, Any]] = runs.to_dict("records")
    return [_measurement(record, groups) for record in records]


def to_measurement(row: Mapping[str, Any]) -> Measurement:
    """Return the measurement of a row made by `to_row`."""
    groups = {
        group: [column for column in row if column.startswith(f"{group}.")]
        for group in _MEASUREMENT_GROUPS
    }
    return _measurement(row, groups)


def problems_of(runs: pd.DataFrame) -> list[Problem]:
    """Return the problem of every row, without empty cells."""
    return [Problem(values) for values in _rows_of(runs, "problem")]


def tasks_of(runs: pd.DataFrame) -> list[str]:
    """Return device and problem of every row, as text: configurations compete within a task."""
    pairs = zip(runs["device"], problems_of(runs), strict=True)
    return [f"{device}/{problem}" for device, problem in pairs]


def configurations_of(runs: pd.DataFrame) -> list[Configuration]:
    """Return the configuration of every row, without empty cells."""
    return [Configuration(values) for values in _rows_of(runs, "config")]


def _rows_of(runs: pd.DataFrame, group: str) -> Iterator[dict[str, Any]]:
    """Yield the values of a group in every row, by name."""
    columns = columns_of(runs, group)
    if not columns:
        yield from ({} for _ in range(len(runs)))
        return
    cells = [runs[column].tolist() for column in columns]
    for row in zip(*cells, strict=True):
        yield _values(dict(zip(columns, row, strict=True)), columns)


def to_row(measurement: Measurement, device: Device | None = None) -> dict[str, Any]:
    """Return a measurement as a flat dictionary of run-table columns."""
    row: dict[str, Any] = {
        "kernel": measurement.kernel,
        "device": measurement.device,
        "status": measurement.status.value,
    }
    for name, value in measurement.problem.items():
        row[f"problem.{name}"] = value
    for name, value in measurement.config.items():
        row[f"config.{name}"] = value
    for name, number in measurement.static.items():
        row[f"static.{name}"] = float(number)
    if device is not None:
        for name, number in device.specs.items():
            row[f"device.{name}"] = float(number)
    for name in _SCALARS:
        row[name] = getattr(measurement, name)
    row["time_ms_samples"] = list(measurement.time_ms_samples)
    return row


def _measurement(record: Mapping[str, Any], groups: Mapping[str, list[str]]) -> Measurement:
    """Return the measurement of a row; ``groups`` are its columns by group."""
    scalars = {
        name: record[name] for name in _SCALARS if name in record and not is_empty(record[name])
    }
    samples = record.get("time_ms_samples")
    if samples is None or is_empty(samples):
        samples = ()
    return Measurement(
        kernel=record["kernel"],
        problem=Problem(_values(record, groups["problem"])),
        config=Configuration(_values(record, groups["config"])),
        device=record["device"],
        status=Status(record["status"]),
        static=_cells(record, groups["static"]),
        time_ms_samples=tuple(map(float, samples)),
        **scalars,
    )


def _cells(record: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    """Return a row's cells in some columns of a group, by name, without empty ones."""
    return {c.partition(".")[2]: record[c] for c in columns if not is_empty(record[c])}


def _values(record: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    """Return the values of a problem or configuration."""
    return {name: _restore_integer(value) for name, value in _cells(record, columns).items()}


def is_empty(value: Any) -> bool:
    """Return whether a cell has no value."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _restore_integer(value: Any) -> Any:
    """Undo the float conversion of integers in columns with gaps."""
    is_integer = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if is_integer else value


def _is_mixed(values: pd.Series) -> bool:
    """Return whether a column mixes text, numbers and booleans."""
    cells = values.cat.categories if isinstance(values.dtype, pd.CategoricalDtype) else values
    inferred = pd.api.types.infer_dtype(cells, skipna=True)
    return cells.dtype == object and inferred in ("mixed", "mixed-integer")


def from_rows(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the run table of rows made by `to_row`."""
    columns = len({column for row in rows for column in row})
    files.require_cells(len(rows) * columns, columns)
    runs = pd.DataFrame(rows)
    return runs[ordered_columns(runs.columns)]


def ordered_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns in reading order: run, configuration, then results."""

    def rank(column: str) -> int:
        group = f"{column.partition('.')[0]}."
        for i, first in enumerate(_COLUMN_ORDER):
            if first in (column, group):
                return i
        return len(_COLUMN_ORDER)

    return sorted(columns, key=rank)


@dataclass(frozen=True)
class OpenedRuns:
    """A run table's file, its columns of mixed types, and the digest of its last journal."""

    file: ParquetFile
    mixed: set[str]
    journal_digest: str


def open_runs(path: Path) -> OpenedRuns:
    """Open the file of a run table.

    Raises RunTableError if the file is not a run table.
    """
    if _is_store(path):
        raise RunTableError(
            f"{path} is a tuning store, not a run table: export one with 'foretune store "
            f"--store {path} --export {path.stem}.parquet'"
        )
    hint = "read it with 'foretune import --format generic'" if path.suffix == ".csv" else "{}"
    with files.translate_read_errors(
        path, RunTableError, f"is not a readable Parquet file: {hint}"
    ):
        file = ParquetFile(path)
        metadata = file.schema.metadata or {}
        version = int(metadata.get(_VERSION_KEY, SCHEMA_VERSION))
        mixed = set(files.parse_json(metadata.get(_MIXED_KEY, b"[]"), list))
        journal_digest = metadata.get(_JOURNAL_DIGEST_KEY, b"").decode()
    if version > SCHEMA_VERSION:
        raise RunTableError(
            f"{path} has schema version {version}, this Foretune reads up to {SCHEMA_VERSION}: "
            "install a newer Foretune"
        )
    return OpenedRuns(file=file, mixed=mixed, journal_digest=journal_digest)


def _is_store(path: Path) -> bool:
    try:
        with files.require_regular_file(path).open("rb") as file:
            return file.read(SIGNATURE_BYTES).startswith(_STORE_SIGNATURES)
    except (OSError, ValueError):
        return False


def with_specs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with the specs of every device in the spec table.

    Values already in a row are kept, e.g. ``device.power_limit_w`` of a board with a lower limit.
    Unknown devices get NaN. A spec without any value gets no column.
    """
    names = runs["device"].astype("category").cat
    codes = names.codes.to_numpy()

    # The last one, empty, is for rows without a device: their code is -1.
    devices = [find_device_or_none(str(name)) for name in names.categories]
    specs_of_code = [device.specs if device else {} for device in devices]
    specs_of_code.append({})

    columns = {}
    for spec in SPECS:
        known = np.array([specs.get(spec, np.nan) for specs in specs_of_code])
        if np.isnan(known).all():
            continue
        column = f"device.{spec}"
        filled = known[codes]
        if column in runs:
            in_row = runs[column].to_numpy(dtype=float)
            filled = np.where(np.isnan(in_row), filled, in_row)
        columns[column] = filled
    return runs.assign(**columns)


def with_specs_of(runs: pd.DataFrame, device: Device | None) -> pd.DataFrame:
    """Return ``runs`` with the specs of ``device`` in every row."""
    specs = {f"device.{name}": value for name, value in device.specs.items()} if device else {}
    other_columns = [column for column in runs if column not in specs]
    # `assign` is slow: it adds one column at a time.
    return pd.concat([runs[other_columns], pd.DataFrame(specs, index=runs.index)], axis=1)


def device_of(runs: pd.DataFrame) -> Device:
    """Return the one device of ``runs``, its specs completed from the spec table.

    An unknown device counts as a CPU if it has ``vector_bits`` or a CPU's name, else as a GPU.
    """
    name = str(runs["device"].iloc[0])
    known = find_device_or_none(name)
    first_row = with_specs(runs.head(1))
    numbers = first_row.filter(regex=r"^device\.").astype(float).iloc[0].dropna()
    specs = {column.removeprefix("device."): float(value) for column, value in numbers.items()}
    if known:
        return Device(
            name=name,
            kind=known.kind,
            architecture=known.architecture,
            specs=specs,
            source=known.source,
        )
    kind = "cpu" if "vector_bits" in specs else generic_device(name).kind
    return Device(name=name, kind=kind, specs=specs, source="run table")
