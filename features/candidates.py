"""Run-table rows for configurations that have not been run."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.device import Device
from foretune.problem import Problem
from foretune.space import SearchSpace
from foretune.values import FrozenParameters


def candidate_rows(
    kernel: str,
    problem: Problem,
    space: SearchSpace,
    device: Device,
    indices: np.ndarray | None = None,
) -> pd.DataFrame:
    """Return one row per configuration of ``space``, or per index, as input of a predictor.

    Text columns are categorical, to save memory.
    """
    codes = space.codes if indices is None else space.codes[indices]
    n = len(codes)
    columns: dict[str, object] = {
        "kernel": _constant(kernel, n),
        "device": _constant(device.name, n),
    }
    columns.update({f"problem.{k}": _constant(v, n) for k, v in problem.items()})
    for i, (name, values) in enumerate(space.parameters.items()):
        if any(isinstance(v, str) for v in values):
            column: object = pd.Categorical.from_codes(codes[:, i].astype(np.int32), list(values))
        else:
            column = np.array(values)[codes[:, i]]
        columns[f"config.{name}"] = column
    columns.update({f"device.{k}": _constant(v, n) for k, v in device.specs.items()})
    return pd.DataFrame(columns)


def rows_of(
    kernel: str, problem: Problem, configs: Sequence[FrozenParameters], device: Device
) -> pd.DataFrame:
    """Return one row per configuration; use it for a few only, because it is slow."""
    rows = pd.DataFrame([{f"config.{k}": v for k, v in c.items()} for c in configs])
    rows.insert(0, "kernel", kernel)
    rows.insert(1, "device", device.name)
    fixed = {f"problem.{k}": v for k, v in problem.items()}
    fixed.update({f"device.{k}": v for k, v in device.specs.items()})
    return rows.assign(**fixed)


def settings_of(rows: pd.DataFrame, device: Device | None = None) -> pd.DataFrame:
    """Return the input columns of ``rows``; ``device``, if given, replaces their device."""
    named = ["kernel", *columns_of(rows, "problem"), *columns_of(rows, "config")]
    if device is None:
        return rows[[*named[:1], "device", *named[1:], *columns_of(rows, "device")]]
    there = {f"device.{k}": _constant(v, len(rows)) for k, v in device.specs.items()}
    settings = rows[named].assign(**there)
    settings.insert(1, "device", device.name)
    return settings


def _constant(value: object, n: int) -> object:
    if isinstance(value, str):
        return pd.Categorical.from_codes(np.zeros(n, dtype=np.int8), [value])
    return np.full(n, value)
