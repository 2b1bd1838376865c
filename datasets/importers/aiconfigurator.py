"""AIConfigurator: the performance tables it plans deployments with.

One file holds one operation of one framework, ``SYSTEM/…/BACKEND/VERSION/OPERATION_perf.parquet``
(``.txt`` with CSV in it in older releases). Also read: such tables put together, where columns
``system``, ``backend`` and ``backend_version`` say what the folders said.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.aiconfigurator_columns import (
    COLLECTIVES,
    FORMAT_COLUMNS,
    KERNELS,
    LABEL_COLUMNS,
    MEASURED_COLUMNS,
    OTHER_OPERATIONS,
    QUANTIZE_OPS,
    REQUIRED_COLUMNS,
    RUN_COLUMNS,
)
from foretune.datasets.importers.columns import (
    concatenated_rows,
    concatenated_text,
    constant,
    relabel,
)
from foretune.datasets.importers.files import WrongFile, read_table, require
from foretune.datasets.importers.precision import BYTES, canonical_dtype
from foretune.datasets.importers.request import Request
from foretune.datasets.importers.systems import SYSTEMS, device_of_system
from foretune.device import canonical_name
from foretune.errors import RunTableError
from foretune.measurement import Status

STAGES = ("dispatch", "combine")
"""Tables of exchanges between experts time both in one row: they become two."""
_MS = 1e-3  # per microsecond


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return the rows of one table.

    Raises:
        WrongFile: it is no table of AIConfigurator, or its name does not say of which operation.
        RunTableError: it is damaged.
    """
    op = operation_of(path)
    if op is not None and request.kernel and KERNELS.get(op, op) not in ("", request.kernel):
        return pd.DataFrame()
    needed = ["kernel_source", *REQUIRED_COLUMNS.get(op or "", ())]
    table = read_table(path, needed)
    op = op or operation_of_columns(table, path)
    what = f"AIConfigurator's table of {op}"
    require(table, needed, path, what)
    rows = concatenated_rows([_rows(op, part) for part in _timed(table, path, what)])
    rows = rows.assign(**_origin(table, path, request, len(rows) // max(len(table), 1)))
    if request.kernel:
        rows = rows[rows["kernel"] == request.kernel].reset_index(drop=True)
    return rows


def operation_of(path: Path) -> str | None:
    """Return the operation that a file's name gives, ``gemm`` of ``gemm_perf.parquet``, or None."""
    stem = path.name.partition(".")[0]
    if stem.endswith("_perf"):
        return stem.removesuffix("_perf")
    known = [op for op in (*KERNELS, *OTHER_OPERATIONS) if f"_{stem}".endswith(f"_{op}")]
    return max(known, key=len, default=None)


def operation_of_columns(table: pd.DataFrame, path: Path) -> str:
    """Return the operation whose columns ``table`` has.

    Prefill and decode have the same ones: a decode step adds one token.

    Raises:
        WrongFile: it has no operation's columns, or it may be several.
    """
    fitting = [op for op, columns in REQUIRED_COLUMNS.items() if set(columns) <= set(table)]
    max_columns = max((len(REQUIRED_COLUMNS[op]) for op in fitting), default=0)
    fitting = [op for op in fitting if len(REQUIRED_COLUMNS[op]) == max_columns]
    if len(fitting) == 2 and {"isl", "step"} <= set(table):
        decodes = bool((table["isl"] == 1).all() and (table["step"] > 0).any())
        fitting = [op for op in fitting if op.startswith("generation") == decodes]
    if not fitting or len({KERNELS[op] for op in fitting}) > 1:
        raise WrongFile(
            f"{path.name} does not say which operation it holds: name it OPERATION_perf.parquet "
            f"(operations: {', '.join(KERNELS)}, …)"
        )
    return fitting[0]


def _timed(table: pd.DataFrame, path: Path, what: str) -> Iterator[pd.DataFrame]:
    """Give tables with columns ``time_ms``, ``power_w`` and without those of other units."""
    if f"{STAGES[0]}_sms" in table or f"{STAGES[0]}_avg_t_us" in table:
        yield from (_stage(table, stage) for stage in STAGES)
        return
    if not {"latency", "avg_ms", "power"} & set(table):
        require(table, ["latency"], path, what)
    measured = {}
    if "latency" in table:
        # Beside its parts in microseconds the sum is in microseconds too.
        scale = _MS if "transmit_us" in table else 1.0
        measured["time_ms"] = table["latency"].astype(float) * scale
    elif "avg_ms" in table:
        measured["time_ms"] = table["avg_ms"].astype(float)
    else:
        measured["time_ms"] = np.nan
    if "power" in table:
        measured["power_w"] = table["power"].astype(float)
    if "power_limit" in table:
        measured["device.power_limit_w"] = table["power_limit"].astype(float)
    yield table.drop(columns=_measured(table)).assign(**measured)


def _stage(table: pd.DataFrame, stage: str) -> pd.DataFrame:
    stage_columns = [c for c in table if c.startswith(f"{stage}_")]
    others = [c for c in table if c.startswith(tuple(f"{s}_" for s in STAGES))]
    times = (
        table[[c for c in stage_columns if c.endswith("_us")]]
        .astype(float)
        .sum(axis=1, skipna=False)
    )
    timed = table.drop(columns=others).assign(
        phase=constant(stage, len(table)), time_ms=times * _MS
    )
    if f"{stage}_sms" in table:
        timed["sms"] = table[f"{stage}_sms"]
    return timed


def _measured(table: pd.DataFrame) -> list[str]:
    return [c for c in table if c in MEASURED_COLUMNS or c.endswith(("_us", "_gbps"))]


def _rows(op: str, table: pd.DataFrame) -> pd.DataFrame:
    rows = pd.DataFrame({"kernel": _kernels(op, table)})
    rows["status"] = constant(Status.OK.value, len(table))
    for column in table:
        name = _name(column, table[column])
        if name.endswith("format"):
            rows[name] = relabel(table[column], canonical_dtype)
        elif name:
            rows[name] = table[column]
    if "message_size" in table:  # counts elements
        formats = rows["config.format"].cat.categories
        if unknown := [f for f in formats if f not in BYTES]:
            raise RunTableError(f"{op}: bytes of number format {unknown[0]!r} are not known")
        width = rows["config.format"].map(BYTES).astype(float)
        rows["problem.message_bytes"] = table["message_size"] * width
    if op in QUANTIZE_OPS:
        rows["problem.op"] = constant(QUANTIZE_OPS[op], len(table))
    elif op not in KERNELS and "op_name" in table:
        rows["problem.op"] = table["op_name"]
    return _attention(op, rows)


def _kernels(op: str, table: pd.DataFrame) -> "pd.Series[str]":
    if KERNELS.get(op, op):
        return constant(KERNELS.get(op, op), len(table))
    return relabel(table["op_name"], lambda name: COLLECTIVES.get(name, name))


def _name(column: str, values: "pd.Series[object]") -> str:
    """Return the run-table column of a column; empty for those that are not copied."""
    if column in ("time_ms", "power_w", "device.power_limit_w"):
        return column
    if column in FORMAT_COLUMNS:
        return "config.format"
    if column in RUN_COLUMNS or column in LABEL_COLUMNS:
        return RUN_COLUMNS.get(column, "")
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    return f"problem.{column}" if numeric else f"config.{column}"


def _attention(op: str, rows: pd.DataFrame) -> pd.DataFrame:
    if "attention" in op:
        rows = rows.assign(**_heads_and_window(rows))
    if op == "encoder_attention":
        rows["problem.prefix_len"] = 0
        rows["config.kv_format"] = rows["config.format"]
    if "generation" in op and {"problem.seq_len", "problem.prefix_len"} <= set(rows):
        # One new token attends to itself and to the `step` before it.
        rows["problem.kv_len"] = rows["problem.seq_len"] + rows["problem.prefix_len"]
        rows = rows.drop(columns=["problem.seq_len", "problem.prefix_len"])
    return rows


def _heads_and_window(rows: pd.DataFrame) -> dict[str, "pd.Series[float]"]:
    heads = rows["problem.heads"]
    kv_heads = rows.get("problem.kv_heads", heads)
    kv_heads = kv_heads.mask(kv_heads == 0, heads)  # 0 stands for as many as there are heads
    zero = pd.Series(0, index=rows.index)
    window = rows["problem.window"].fillna(0) if "problem.window" in rows else zero
    return {"problem.kv_heads": kv_heads, "problem.window": window.astype(np.int64)}


def _origin(
    table: pd.DataFrame, path: Path, request: Request, copies: int
) -> dict[str, "pd.Series[str]"]:
    """Return the columns that say on what, with what and from where, for every row."""
    device, backend, version = _labels(table, path)
    if request.device:
        device = constant(request.device, len(table))
    source = constant(f"aiconfigurator {path.name}", len(table))
    columns = {
        "device": device,
        "config.backend": backend,
        "source": source,
        "environment": concatenated_text(backend, version),
    }
    if copies < 2:
        return columns
    return {c: pd.concat([v] * copies, ignore_index=True) for c, v in columns.items()}


def _labels(
    table: pd.DataFrame, path: Path
) -> tuple["pd.Series[str]", "pd.Series[str]", "pd.Series[str]"]:
    """Return device, backend and version: of the columns, else of the folders."""
    if {"system", "backend", "backend_version"} <= set(table):
        device = relabel(table["system"], device_of_system)
        return device, table["backend"], table["backend_version"]
    folders = path.resolve().parts[:-1]
    systems = [f for f in folders[:-2] if f in SYSTEMS]
    if systems:
        texts = (device_of_system(systems[-1]), folders[-2], folders[-1])
        device, backend, version = (constant(text, len(table)) for text in texts)
        return device, backend, version
    require(
        table, ["framework", "version", "device"], path,
        "in a folder SYSTEM/…/BACKEND/VERSION, so it must name its own: a table of AIConfigurator",
    )  # fmt: skip
    device = relabel(table["device"], canonical_name)
    return device, relabel(table["framework"], str.lower), relabel(table["version"], str)
