"""AIConfigurator: measured operator tables."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.importers.columns import (
    BYTES,
    SYSTEMS,
    canonical_dtype,
    concatenated_rows,
    concatenated_text,
    constant,
    device_of_system,
    relabel,
)
from foretune.datasets.importers.files import Request, WrongFile, read_table, require
from foretune.datasets.text_tables import Dialect
from foretune.device import canonical_name
from foretune.errors import RunTableError
from foretune.measurement import Status
from foretune.support.operator_package import installed_tables

KERNELS = {
    "gemm": "gemm",
    "moe": "moe",
    "context_attention": "attention_prefill",
    "generation_attention": "attention_decode",
    "encoder_attention": "attention_encoder",
    "context_mla": "mla_prefill",
    "generation_mla": "mla_decode",
    "mla_context_module": "mla_prefill_module",
    "mla_generation_module": "mla_decode_module",
    "custom_allreduce": "all_reduce",
    "computescale": "quantize",
    "scale_matrix": "quantize",
    "nccl": "",
    "oneccl": "",
}
"""Operation -> kernel; empty if each row names its own. Unlisted operations keep their name."""

OTHER_OPERATIONS = (
    "mla_bmm",
    "gdn",
    "kda",
    "mamba2",
    "mhc_module",
    "moe_a2a",
    "trtllm_alltoall",
    "dsa_context_module",
    "dsa_generation_module",
    "msa_context_module",
    "msa_generation_module",
    "dsv4_csa_context_module",
    "dsv4_csa_generation_module",
    "dsv4_hca_context_module",
    "dsv4_hca_generation_module",
    "wideep_moe",
    "wideep_context_mla",
    "wideep_generation_mla",
    "wideep_context_moe",
    "wideep_generation_moe",
    "wideep_context_mlp",
    "wideep_generation_mlp",
    "wideep_deepep_ll",
    "wideep_deepep_normal",
)
"""Operations that keep their name; recognized without ``_perf`` in the file name."""

COLLECTIVES = {"alltoall": "all_to_all"}
"""Collective -> kernel, if the names differ."""

QUANTIZE_OPS = {"computescale": "compute_scale", "scale_matrix": "scale_matrix"}
"""Operation -> ``problem.op`` of the kernel ``quantize``."""

RUN_COLUMNS = {
    **{
        column: f"problem.{name}"
        for column, name in {
            "m": "M",
            "n": "N",
            "k": "K",
            "batch_size": "batch",
            "isl": "seq_len",
            "seq_len": "seq_len",
            "step": "prefix_len",
            "num_heads": "heads",
            "num_key_value_heads": "kv_heads",
            "head_dim": "head_dim",
            "window_size": "window",
            "num_tokens": "tokens",
            "num_token": "tokens",
            "hidden_size": "hidden",
            "inter_size": "intermediate",
            "intermediate_size": "intermediate",
            "topk": "top_k",
            "num_topk": "top_k",
            "num_experts": "experts",
            "distribution": "distribution",
            "num_gpus": "devices",
            "phase": "phase",
            "model": "model",
            "model_name": "model",
            "architecture": "architecture",
        }.items()
    },
    **{
        column: f"config.{name}"
        for column, name in {
            "moe_tp_size": "tp",
            "tp_size": "tp",
            "moe_ep_size": "ep",
            "ep_size": "ep",
            "sms": "sms",
            "gemm_type": "gemm_format",
            "kv_cache_dtype": "kv_format",
            "kernel_dtype": "kernel_format",
            "kernel_source": "implementation",
        }.items()
    },
}
"""Column -> run-table column. ``…_dtype`` is ``config.format``.

Of other columns, numbers belong to the problem, text and booleans to the configuration.
"""

FORMAT_COLUMNS = (
    "gemm_dtype",
    "moe_dtype",
    "attn_dtype",
    "mla_dtype",
    "bmm_dtype",
    "quant_dtype",
    "quant_type",
    "nccl_dtype",
    "allreduce_dtype",
    "comm_dtype",
)
"""Columns that hold the number format of the operation."""

LABEL_COLUMNS = (
    "framework",
    "version",
    "device",
    "op_name",
    "system",
    "backend",
    "backend_version",
    "beam_width",
    "message_size",
    "ar_backend",
    "implementation",
)
"""Columns that state the origin or are read by name; not copied."""

MEASURED_COLUMNS = ("latency", "avg_ms", "power", "power_limit")
"""Measured columns, besides those that end in ``_us`` or ``_gbps``."""

REQUIRED_COLUMNS = {
    "gemm": ("gemm_dtype", "m", "n", "k"),
    "moe": (
        "moe_dtype",
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "distribution",
    ),
    "context_attention": (
        "batch_size",
        "isl",
        "num_heads",
        "num_key_value_heads",
        "head_dim",
        "attn_dtype",
        "kv_cache_dtype",
        "step",
    ),
    "generation_attention": (
        "batch_size",
        "isl",
        "num_heads",
        "num_key_value_heads",
        "head_dim",
        "attn_dtype",
        "kv_cache_dtype",
        "step",
    ),
    "encoder_attention": ("batch_size", "isl", "num_heads", "head_dim", "attn_dtype"),
    "context_mla": ("mla_dtype", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step"),
    "generation_mla": ("mla_dtype", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step"),
    "custom_allreduce": ("allreduce_dtype", "num_gpus", "message_size"),
    "nccl": ("op_name", "nccl_dtype", "num_gpus", "message_size"),
    "oneccl": ("op_name", "nccl_dtype", "num_gpus", "message_size"),
    "computescale": ("m", "k", "quant_dtype"),
    "scale_matrix": ("m", "k", "quant_dtype"),
}
"""Operation -> columns that its tables must have."""
STAGES = ("dispatch", "combine")
"""Exchanges between experts are timed together in one row, which becomes two."""
_MS = 1e-3
"""Milliseconds per microsecond."""
INSTALLED = "installed"
"""FILE argument for all tables of the installed package."""


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return the rows of one table."""
    op = operation_of(path)
    if op is not None and request.kernel and KERNELS.get(op, op) not in ("", request.kernel):
        return pd.DataFrame()
    needed = ["kernel_source", *REQUIRED_COLUMNS.get(op or "", ())]
    table = read_table(path, needed, Dialect(separator=",", decimal="."))
    op = op or operation_of_columns(table, path)
    what = f"AIConfigurator's table of {op}"
    require(table, needed, path, what)
    origin = _origin(table, path, request)
    parts = _timed(table, path, what)
    rows = concatenated_rows([_rows(op, part).assign(**origin) for part in parts])
    if request.kernel:
        rows = rows[rows["kernel"] == request.kernel].reset_index(drop=True)
    return rows


def operation_of(path: Path) -> str | None:
    """Return the operation in a file name, ``gemm`` for ``gemm_perf.parquet``, or None."""
    stem = path.name.partition(".")[0]
    if stem.endswith("_perf"):
        return stem.removesuffix("_perf")
    known = [op for op in (*KERNELS, *OTHER_OPERATIONS) if f"_{stem}".endswith(f"_{op}")]
    return max(known, key=len, default=None)


def operation_of_columns(table: pd.DataFrame, path: Path) -> str:
    """Return the operation whose columns ``table`` has.

    Prefill and decode have the same columns; in decode, every step adds one token. Raises WrongFile
    if no operation fits, or several do.
    """
    # The operation that needs the most of the columns.
    fitting = [op for op, columns in REQUIRED_COLUMNS.items() if set(columns) <= set(table)]
    max_columns = max((len(REQUIRED_COLUMNS[op]) for op in fitting), default=0)
    fitting = [op for op in fitting if len(REQUIRED_COLUMNS[op]) == max_columns]

    if len(fitting) == 2 and {"isl", "step"} <= set(table):
        is_decode = bool((table["isl"] == 1).all() and (table["step"] > 0).any())
        fitting = [op for op in fitting if op.startswith("generation") == is_decode]

    kernels = {KERNELS[op] for op in fitting}
    if len(kernels) != 1:
        raise WrongFile(
            f"{path.name} does not name its operation: call it OPERATION_perf.parquet "
            f"(operations: {', '.join(KERNELS)}, …)"
        )
    return fitting[0]


def _timed(table: pd.DataFrame, path: Path, what: str) -> Iterator[pd.DataFrame]:
    """Convert the table's time and power columns to ``time_ms`` and ``power_w``."""
    if f"{STAGES[0]}_sms" in table or f"{STAGES[0]}_avg_t_us" in table:
        yield from (_stage(table, stage) for stage in STAGES)
        return
    if not {"latency", "avg_ms", "power"} & set(table):
        require(table, ["latency"], path, what)
    column_of = {"latency": "time_ms", "power": "power_w", "power_limit": "device.power_limit_w"}
    if "latency" not in table:
        column_of["avg_ms"] = "time_ms"
    measured: dict[str, Any] = {"time_ms": np.nan}
    for source, column in column_of.items():
        if source in table:
            measured[column] = table[source].astype(float)
    # With parts in microseconds, the sum is in microseconds, too.
    if {"latency", "transmit_us"} <= set(table):
        measured["time_ms"] *= _MS
    read = [c for c in table if c in MEASURED_COLUMNS or c.endswith(("_us", "_gbps"))]
    yield table.drop(columns=read).assign(**measured)


def _stage(table: pd.DataFrame, stage: str) -> pd.DataFrame:
    """Return the rows of one exchange between experts: its time is the sum of its parts."""
    of_any_stage = [c for c in table if c.startswith(tuple(f"{s}_" for s in STAGES))]
    parts_us = [c for c in of_any_stage if c.startswith(f"{stage}_") and c.endswith("_us")]
    time_ms = table[parts_us].astype(float).sum(axis=1, skipna=False) * _MS
    without_stages = table.drop(columns=of_any_stage)
    timed = without_stages.assign(phase=constant(stage, len(table)), time_ms=time_ms)
    if f"{stage}_sms" in table:
        timed["sms"] = table[f"{stage}_sms"]
    return timed


def _rows(op: str, table: pd.DataFrame) -> pd.DataFrame:
    """Return the run-table columns of an operation's table whose times are converted."""
    rows = pd.DataFrame({"kernel": _kernels(op, table)})
    rows["status"] = constant(Status.OK.value, len(table))
    for column in table:
        name = _name(column, table[column])
        if name.endswith("format"):
            rows[name] = relabel(table[column], canonical_dtype)
        elif name:
            rows[name] = table[column]
    if "message_size" in table:
        # The size counts elements.
        formats = rows["config.format"].cat.categories
        unknown = [each for each in formats if each not in BYTES]
        if unknown:
            raise RunTableError(f"{op}: bytes of number format {unknown[0]!r} are unknown")
        element_bytes = rows["config.format"].map(BYTES).astype(float)
        rows["problem.message_bytes"] = table["message_size"] * element_bytes
    if op in QUANTIZE_OPS:
        rows["problem.op"] = constant(QUANTIZE_OPS[op], len(table))
    elif op not in KERNELS and "op_name" in table:
        rows["problem.op"] = table["op_name"]
    return _attention(op, rows)


def _kernels(op: str, table: pd.DataFrame) -> "pd.Series[str]":
    """Return the kernel of every row."""
    kernel = KERNELS.get(op, op)
    if kernel:
        return constant(kernel, len(table))
    return relabel(table["op_name"], lambda name: COLLECTIVES.get(name, name))


def _name(column: str, values: "pd.Series[object]") -> str:
    """Return the run-table column of a column; empty if it is not copied."""
    if column in ("time_ms", "power_w", "device.power_limit_w"):
        return column
    if column in FORMAT_COLUMNS:
        return "config.format"
    if column in RUN_COLUMNS or column in LABEL_COLUMNS:
        return RUN_COLUMNS.get(column, "")
    is_boolean = pd.api.types.is_bool_dtype(values)
    is_number = pd.api.types.is_numeric_dtype(values) and not is_boolean
    return f"problem.{column}" if is_number else f"config.{column}"


def _attention(op: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Complete the rows of attention: heads, window, lengths; other rows are unchanged."""
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
    given_kv_heads = rows.get("problem.kv_heads", heads)
    # 0 means one per head.
    kv_heads = given_kv_heads.mask(given_kv_heads == 0, heads)
    no_window = pd.Series(0, index=rows.index)
    window = rows.get("problem.window", no_window).fillna(0)
    return {"problem.kv_heads": kv_heads, "problem.window": window.astype(np.int64)}


def _origin(table: pd.DataFrame, path: Path, request: Request) -> dict[str, "pd.Series[str]"]:
    """Return the columns that state where the rows come from."""
    labels = _labels(table, path)
    device = constant(request.device, len(table)) if request.device else labels.device
    return {
        "device": device,
        "config.backend": labels.backend,
        "source": constant(f"aiconfigurator {path.name}", len(table)),
        "environment": concatenated_text(labels.backend, labels.version),
    }


@dataclass(frozen=True)
class _Labels:
    """What ran the rows: columns of text."""

    device: "pd.Series[str]"
    backend: "pd.Series[str]"
    version: "pd.Series[str]"


def _labels(table: pd.DataFrame, path: Path) -> _Labels:
    """Read them from the columns, or from the path."""
    if {"system", "backend", "backend_version"} <= set(table):
        return _Labels(
            device=relabel(table["system"], device_of_system),
            backend=table["backend"],
            version=table["backend_version"],
        )

    folders = path.resolve().parts[:-1]
    systems = [folder for folder in folders[:-2] if folder in SYSTEMS]
    if systems:
        n_rows = len(table)
        return _Labels(
            device=constant(device_of_system(systems[-1]), n_rows),
            backend=constant(folders[-2], n_rows),
            version=constant(folders[-1], n_rows),
        )

    require(
        table,
        ["framework", "version", "device"],
        path,
        "in a folder SYSTEM/…/BACKEND/VERSION, so it needs columns for them",
    )
    return _Labels(
        device=relabel(table["device"], canonical_name),
        backend=relabel(table["framework"], str.lower),
        version=relabel(table["version"], str),
    )


def locate(source: str | os.PathLike[str]) -> Path:
    """Return the path of ``source``: a path, ``installed`` or a system.

    Raises RunTableError if there is no such path or system.
    """
    path = Path(source)
    if path.exists() or len(path.parts) != 1:
        return path
    data = installed_tables()
    if data is None and not path.suffix:
        raise RunTableError(
            f"{path} does not exist, and AIConfigurator's data is not installed: pip install "
            "aiconfigurator-core, or give a folder of its tables"
        )
    if data is None or path.name == INSTALLED:
        return data or path
    return data / path if (data / path).is_dir() else path
