"""NeuSight's data sets of single operators as a run table.

    python benchmarks/neusight.py CSV [CSV …] --out runs.parquet

There is one CSV per operator, device or data set. Its columns are ``OPName, Latency, Device, …``
and either ``B, M, N, K`` or ``B, H``. All is in single precision. Latencies are milliseconds.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from foretune.datasets import write_runs
from foretune.datasets.importers import ImportResult
from foretune.datasets.importers.columns import (
    concatenated_rows,
    concatenated_text,
    constant,
    relabel,
)
from foretune.datasets.importers.files import read_table, require
from foretune.datasets.runs import with_specs
from foretune.datasets.schema import valid_rows
from foretune.device import canonical_name
from foretune.measurement import Status

KERNELS = {"bmm": "gemm", "linear": "gemm", "ln": "norm", "softmax": "softmax", "conv": "conv"}
"""Operator -> kernel; all others are elementwise."""

OPS = {"ln": "layer_norm"}
"""Operator -> ``problem.op`` where the names differ."""

_NEEDED = ("OPName", "Latency", "Device", "B")
_CONVOLUTION = {
    "Input_Channel": "problem.in_channels",
    "Output_Channel": "problem.out_channels",
    "Kernel_Szie": "problem.filter",  # as the data sets spell it
    "Kernel_Size": "problem.filter",
    "Input_Size": "problem.size",
    "Stride": "problem.stride",
    "Padding": "problem.padding",
}
_LAUNCH = {
    f"{part} {axis}": f"static.{part.lower()}_{axis}"
    for part in ("Grid", "Block")
    for axis in "xyz"
}


def main(argv: Sequence[str] | None = None) -> None:
    """Convert files and print which rows were left out."""
    parser = argparse.ArgumentParser(description="NeuSight's data sets as a run table.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="run table to write")
    options = parser.parse_args(argv)
    found = convert(options.files)
    write_runs(options.out, found.runs)
    print(f"{options.out}: {len(found.runs):,} runs of {', '.join(found.kernels)}")
    for reason, count in found.rejected.items():
        print(f"{count:,} rows left out: {reason}")


def convert(files: Sequence[Path]) -> ImportResult:
    """Return the rows of data sets as a run table, and why others are not in it.

    Raises:
        RunTableError: a file is damaged or no data set of NeuSight.
    """
    return ImportResult(*valid_rows(with_specs(concatenated_rows([read(file) for file in files]))))


def read(path: Path) -> pd.DataFrame:
    """Return one row per operator measured.

    NeuSight multiplies B × (M × N) by (N × K): its N is our K and its K our N. A linear layer
    sees the batch as further rows.

    Raises:
        WrongFile: it is no data set of NeuSight.
        RunTableError: it is damaged.
    """
    table = read_table(path, _NEEDED)
    require(table, _NEEDED, path, "a data set of NeuSight")
    table = table.assign(OPName=relabel(table["OPName"], str.lower))
    parts = [
        _rows(op, part.reset_index(drop=True), path)
        for op, part in table.groupby("OPName", observed=True, sort=False)
    ]
    return concatenated_rows(parts) if parts else pd.DataFrame()


def _rows(op: str, table: pd.DataFrame, path: Path) -> pd.DataFrame:
    count = len(table)
    kernel = KERNELS.get(op, "elementwise")
    rows = pd.DataFrame(
        {
            "kernel": constant(kernel, count),
            "device": relabel(table["Device"], canonical_name),
            "status": constant(Status.OK.value, count),
            **_problem(op, kernel, table, path),
            "config.format": constant("fp32", count),
            "config.backend": constant("torch", count),
            "config.implementation": constant(op, count),
            "time_ms": pd.to_numeric(table["Latency"], errors="coerce").astype(float),
            "source": constant(f"neusight {path.name}", count),
        }
    )
    for column, name in _LAUNCH.items():
        if column in table:
            rows[name] = pd.to_numeric(table[column], errors="coerce").astype(float)
    if {"Torch Version", "CUDA Version"} <= set(table):
        rows["environment"] = concatenated_text(
            relabel(table["Torch Version"], lambda v: f"torch {v.removeprefix('p')}"),
            relabel(table["CUDA Version"], str),
        )
    return rows


def _problem(op: str, kernel: str, table: pd.DataFrame, path: Path) -> dict[str, object]:
    what = f"a data set of NeuSight's {op}"
    if kernel == "gemm":
        require(table, ("M", "N", "K"), path, what)
        batched = op == "bmm"
        return {
            "problem.batch": table["B"] if batched else 1,
            "problem.M": table["M"] if batched else table["B"] * table["M"],
            "problem.N": table["K"],
            "problem.K": table["N"],
        }
    if kernel == "conv":
        sizes = {name: table[c] for c, name in _CONVOLUTION.items() if c in table}
        return {"problem.batch": table["B"], **sizes}
    require(table, ("H",), path, what)
    sizes = {"problem.rows": table["B"], "problem.columns": table["H"]}
    if kernel == "softmax":
        return sizes
    return {**sizes, "problem.op": constant(OPS.get(op, op), len(table))}


if __name__ == "__main__":
    main()
