"""Converts run tables to and from Parquet files and measurements, and adds device specs."""

import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
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
ROW_GROUP_SIZE = 1 << 14  # rows per Parquet row group
_VERSION_KEY = b"foretune.schema_version"
_MIXED_KEY = b"foretune.mixed_columns"
_JOURNAL_DIGEST_KEY = b"foretune.folded_journal"
_STORE_SIGNATURES = (b"SQLite format 3\0", b'{"format": "foretune tuned results"')
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
        inside = path / "runs.parquet"  # of a campaign
        named = inside if inside.exists() else "a file in it"
        raise RunTableError(f"{path} is a folder, not a run table: give {named}")
    version = _version(path)
    parts, journal, journal_digest = [], journal_path(path), ""
    if path.exists():
        file, mixed, journal_digest = open_runs(path)
        with files.translate_read_errors(path, RunTableError, "is damaged: {}"):
            parts.append(from_arrow(file.read(), mixed))
    # A process killed between writing the file and removing the journal leaves both.
    if digest(journal) not in ("", journal_digest):
        with files.translate_read_errors(journal, RunTableError, "is damaged: {}"):
            parts += [from_rows(rows)] if (rows := [r for _, r in read_journal(journal)]) else []
    if _version(path) != version:  # a log was closed meanwhile: its rows may be in neither
        return read_runs(path)
    if not parts:
        raise RunTableError(f"{path} does not exist: collect one with 'foretune collect'")
    with files.translate_read_errors(path, RunTableError, "is damaged: {}"):
        runs = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        return validate(runs, str(path))


def _version(path: Path) -> tuple[int, int] | None:
    """Return what tells versions of a file apart; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


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
    there = [c for c in runs if c in mixed]
    values = {t: files.parse_json(t, object) for c in there for t in runs[c].dropna().unique()}
    plain = {c: runs[c].astype(object).map(values.get, na_action="ignore") for c in there}
    return runs.assign(**plain)


def newest_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with only the newest row of each (kernel, device, problem, configuration)."""
    keys = ["kernel", "device", *columns_of(runs, "problem"), *columns_of(runs, "config")]
    order = runs
    if "recorded_at" in runs:  # rows without a time count as oldest
        recorded = runs["recorded_at"].reset_index(drop=True)
        times = recorded.astype("str").where(recorded.notna())
        order = runs.iloc[times.sort_values(kind="stable", na_position="first").index]
    return order.drop_duplicates(keys, keep="last").sort_index()


def from_measurements(
    measurements: Iterable[Measurement], device: Device | None = None
) -> pd.DataFrame:
    """Return one row per measurement, with the specs of ``device`` if given."""
    return from_rows([to_row(m, device) for m in measurements])


def to_measurements(runs: pd.DataFrame) -> list[Measurement]:
    """Return one measurement per row, without empty problem and configuration cells."""
    groups = {g: columns_of(runs, g) for g in ("problem", "config", "static")}
    records: list[dict[str, Any]] = runs.to_dict("records")
    return [_measurement(record, groups) for record in records]


def to_measurement(row: Mapping[str, Any]) -> Measurement:
    """Return the measurement of a row made by `to_row`."""
    groups = ("problem", "config", "static")
    return _measurement(row, {g: [c for c in row if c.startswith(f"{g}.")] for g in groups})


def problems_of(runs: pd.DataFrame) -> list[Problem]:
    """Return the problem of every row, without empty cells."""
    return [Problem(values) for values in _rows_of(runs, "problem")]


def configurations_of(runs: pd.DataFrame) -> list[Configuration]:
    """Return the configuration of every row, without empty cells."""
    return [Configuration(values) for values in _rows_of(runs, "config")]


def _rows_of(runs: pd.DataFrame, group: str) -> Iterator[dict[str, Any]]:
    columns = columns_of(runs, group)
    cells = [runs[c].tolist() for c in columns]
    for row in zip(*cells, strict=True) if columns else [()] * len(runs):
        yield _values(dict(zip(columns, row, strict=True)), columns)


def to_row(m: Measurement, device: Device | None = None) -> dict[str, Any]:
    """Return ``m`` as a flat dictionary of run-table columns."""
    row: dict[str, Any] = {"kernel": m.kernel, "device": m.device, "status": m.status.value}
    row.update({f"problem.{k}": v for k, v in m.problem.items()})
    row.update({f"config.{k}": v for k, v in m.config.items()})
    row.update({f"static.{k}": float(v) for k, v in m.static.items()})
    if device is not None:
        row.update({f"device.{k}": float(v) for k, v in device.specs.items()})
    row.update({name: getattr(m, name) for name in _SCALARS})
    row["time_ms_samples"] = list(m.time_ms_samples)
    return row


def _measurement(record: Mapping[str, Any], groups: Mapping[str, list[str]]) -> Measurement:
    scalars = {n: record[n] for n in _SCALARS if n in record and not _missing(record[n])}
    samples = record.get("time_ms_samples")
    return Measurement(
        kernel=record["kernel"],
        problem=Problem(_values(record, groups["problem"])),
        config=Configuration(_values(record, groups["config"])),
        device=record["device"],
        status=Status(record["status"]),
        static=_cells(record, groups["static"]),
        time_ms_samples=() if samples is None or _missing(samples) else tuple(map(float, samples)),
        **scalars,
    )


def _cells(record: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    return {c.partition(".")[2]: record[c] for c in columns if not _missing(record[c])}


def _values(record: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    return {name: _restore_integer(value) for name, value in _cells(record, columns).items()}


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _restore_integer(value: Any) -> Any:
    """Undo the float conversion of integers in columns with gaps."""
    is_integer = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if is_integer else value


def _is_mixed(values: pd.Series) -> bool:
    cells = values.cat.categories if isinstance(values.dtype, pd.CategoricalDtype) else values
    kind = pd.api.types.infer_dtype(cells, skipna=True)
    return cells.dtype == object and kind in ("mixed", "mixed-integer")


def from_rows(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the run table of rows made by `to_row`."""
    columns = len({column for row in rows for column in row})
    files.require_cells(len(rows) * columns, columns)
    runs = pd.DataFrame(rows)
    return runs[ordered_columns(runs.columns)]


def ordered_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns in reading order: run, configuration, then results."""
    groups = ("kernel", "device", "status", "problem.", "config.", "time_ms", "power_w")

    def rank(column: str) -> int:
        group = column if column in groups else column.partition(".")[0] + "."
        return groups.index(group) if group in groups else len(groups)

    return sorted(columns, key=rank)


def open_runs(path: Path) -> tuple[ParquetFile, set[str], str]:
    """Return a run table, its columns of mixed types, and the digest of its last journal.

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
    return file, mixed, journal_digest


def _is_store(path: Path) -> bool:
    try:
        with files.require_regular_file(path).open("rb") as file:
            return file.read(200).startswith(_STORE_SIGNATURES)
    except (OSError, ValueError):
        return False


def with_specs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with the specs of every device in the spec table.

    Values already in a row are kept, e.g. ``device.power_limit_w`` of a board with a lower limit.
    Unknown devices get NaN. A spec without any value gets no column.
    """
    names = runs["device"].astype("category").cat
    found = [find_device_or_none(str(name)) for name in names.categories]
    codes = names.codes.to_numpy()
    columns = {}
    for spec in SPECS:
        # the last entry is for rows without a device (code -1)
        values = np.array([d.specs.get(spec, np.nan) if d else np.nan for d in found] + [np.nan])
        if np.isnan(values).all():
            continue
        column, filled = f"device.{spec}", values[codes]
        if column in runs:
            row_values = runs[column].to_numpy(dtype=float)
            filled = np.where(np.isnan(row_values), filled, row_values)
        columns[column] = filled
    return runs.assign(**columns)


def with_specs_of(runs: pd.DataFrame, device: Device | None) -> pd.DataFrame:
    """Return ``runs`` with the specs of ``device`` in every row."""
    specs = {f"device.{name}": value for name, value in device.specs.items()} if device else {}
    others = [c for c in runs if c not in specs]  # `assign` is slow: it adds one column at a time
    return pd.concat([runs[others], pd.DataFrame(specs, index=runs.index)], axis=1)


def device_of(runs: pd.DataFrame) -> Device:
    """Return the one device of ``runs``, its specs completed from the spec table.

    An unknown device counts as a CPU if it has ``vector_bits`` or a CPU's name, else as a GPU.
    """
    name = str(runs["device"].iloc[0])
    known = find_device_or_none(name)
    row = with_specs(runs.head(1)).filter(regex=r"^device\.").astype(float).iloc[0].dropna()
    specs = {c.removeprefix("device."): float(v) for c, v in row.items()}
    if known:
        return Device(name, known.kind, known.architecture, specs, known.source)
    kind = "cpu" if "vector_bits" in specs else generic_device(name).kind
    return Device(name, kind, specs=specs, source="run table")
