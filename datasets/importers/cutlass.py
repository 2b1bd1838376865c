"""CUTLASS: the CSV of ``cutlass_profiler``, from a file or with the profiler's output around it."""

import io
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.columns import as_categories, concatenated_rows, constant, relabel
from foretune.datasets.importers.files import WrongFile, read_text, require
from foretune.datasets.importers.precision import canonical_dtype
from foretune.datasets.importers.request import Request
from foretune.errors import RunTableError
from foretune.measurement import Status

STATUSES = {
    "passed": Status.OK,
    "not_verified": Status.OK,
    "not_run": Status.OK,  # not checked; without a time it is rejected
    "incorrect": Status.WRONG_RESULT,
    "failed": Status.RUNTIME_ERROR,
    "invalid_problem": Status.INVALID,
    "not_supported": Status.INVALID,
}
"""Disposition -> how the run ended; others are runtime errors."""

CONFIG = ("gemm_kind", "op_class", "accum", "split_k_mode", "split_k_slices", "iterator_algorithm",
          "eq_gemm_provider", "raster_order", "swizzle_size", "stages", "use_pdl")  # fmt: skip
"""Arguments that choose an implementation, beside those that start with `CONFIG_PREFIXES`."""

CONFIG_PREFIXES = ("cta_", "cluster_", "warps_", "inst_")

_WHAT = "an output of cutlass_profiler"
_NEEDED = ("Provider", "OperationKind", "Operation", "Disposition", "Status", "Runtime")
_OURS = ("Problem", *_NEEDED, "Bytes", "Flops", "Flops/Byte", "GB/s", "GFLOPs", "min_cc", "max_cc")
_GEMM = {"m": "problem.M", "n": "problem.N", "k": "problem.K", "batch_count": "problem.batch"}
_OPERANDS = ("A", "B", "C", "D", "E", "Activation", "Filter", "Output")


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per operation profiled: ``gemm`` and whatever else the profiler ran.

    Raises:
        WrongFile: there is no header of the profiler in it.
        RunTableError: it is damaged.
        UsageError: the device was not given; the profiler does not write it down.
    """
    parts = [_rows(table, path, request) for table in _tables(path)]
    rows = concatenated_rows(parts) if parts else pd.DataFrame()
    if request.kernel and len(rows):
        rows = rows[rows["kernel"] == request.kernel].reset_index(drop=True)
    return rows


def _rows(table: pd.DataFrame, path: Path, request: Request) -> pd.DataFrame:
    rows = pd.DataFrame(
        {
            "kernel": relabel(table["OperationKind"], lambda name: name.lower()),
            "device": constant(request.named_device(path), len(table)),
            "status": _status(table),
            "time_ms": pd.to_numeric(table["Runtime"], errors="coerce").astype(float),
            "config.backend": relabel(table["Provider"], str.lower),
            "config.implementation": relabel(table["Operation"], str),
            "source": constant(f"cutlass {path.name}", len(table)),
        }
    )
    gemm = (rows["kernel"] == "gemm").all()
    for column in table:
        if column in _OPERANDS or column in _OURS:
            continue
        chosen = column in CONFIG or column.startswith(CONFIG_PREFIXES)
        name = f"{'config' if chosen else 'problem'}.{column}"
        rows[_GEMM.get(column, name) if gemm else name] = table[column]
    rows = rows.assign(**_operands(table))
    if gemm and "problem.batch" in rows and (rows["problem.batch"] == 1).all():
        rows = rows.drop(columns="problem.batch")
    rows.loc[rows["status"] != Status.OK.value, "time_ms"] = np.nan
    return rows


def _tables(path: Path) -> Iterator[pd.DataFrame]:
    """Give the tables in the profiler's output: from a header to the next one or an empty line."""
    lines = read_text(path, _WHAT, _NEEDED).splitlines()
    heads = [i for i, line in enumerate(lines) if "Provider,OperationKind,Operation," in line]
    if not heads:
        raise WrongFile(f"{path} is not {_WHAT}: it has no header with {', '.join(_NEEDED)}")
    for head, following in pairwise([*heads, len(lines)]):
        section = list(takewhile(str.strip, lines[head:following]))
        width = section[0].count(",")
        for number, line in enumerate(section, start=head + 1):
            if line.count(",") != width:
                raise RunTableError(
                    f"{path}, line {number} is damaged: {line.count(',') + 1} cells, "
                    f"the header has {width + 1}"
                )
        table = as_categories(pd.read_csv(io.StringIO("\n".join(section))))
        require(table, _NEEDED, path, _WHAT)
        if len(table):
            yield table


def _status(table: pd.DataFrame) -> "pd.Series[str]":
    ended = relabel(table["Disposition"], lambda d: STATUSES.get(d, Status.RUNTIME_ERROR).value)
    succeeded = table["Status"] == "success"
    good = ended.astype(str).where(succeeded | (ended != Status.OK.value), Status.INVALID.value)
    return good.astype("category")


def _operands(table: pd.DataFrame) -> dict[str, "pd.Series[str]"]:
    """Return format and layouts of the operands: ``f16:column`` is fp16, stored by columns."""
    given = [c for c in ("A", "B", "Activation", "Filter") if c in table]
    if not given:
        return {}
    columns = {"config.format": relabel(table[given[0]], _format)}
    for operand in given:
        columns[f"problem.layout_{operand.lower()}"] = relabel(
            table[operand], lambda text: text.partition(":")[2]
        )
    return columns


def _format(operand: str) -> str:
    return canonical_dtype(operand.partition(":")[0])
