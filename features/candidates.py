"""Run-table rows for configurations that have not been run."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.device import Device
from foretune.problem import Problem
from foretune.space import SearchSpace
from foretune.values import FrozenParameters, Value


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
    n_rows = len(codes)
    columns = {
        "kernel": _constant(kernel, n_rows),
        "device": _constant(device.name, n_rows),
        **_constants("problem", problem, n_rows),
    }
    for i, (name, values) in enumerate(space.parameters.items()):
        columns[f"config.{name}"] = _parameter_column(values, codes[:, i])
    columns |= _constants("device", device.specs, n_rows)
    return pd.DataFrame(columns)


def rows_of(
    kernel: str, problem: Problem, configs: Sequence[FrozenParameters], device: Device
) -> pd.DataFrame:
    """Return one row per configuration; use it for a few only, because it is slow."""
    rows = pd.DataFrame([_prefixed("config", config) for config in configs])
    rows.insert(0, "kernel", kernel)
    rows.insert(1, "device", device.name)
    return rows.assign(**_prefixed("problem", problem), **_prefixed("device", device.specs))


def settings_of(rows: pd.DataFrame, device: Device | None = None) -> pd.DataFrame:
    """Return the input columns of ``rows``; ``device``, if given, replaces their device."""
    inputs = [*columns_of(rows, "problem"), *columns_of(rows, "config")]
    if device is None:
        return rows[["kernel", "device", *inputs, *columns_of(rows, "device")]]
    specs = _constants("device", device.specs, len(rows))
    settings = rows[["kernel", *inputs]].assign(**specs)
    settings.insert(1, "device", device.name)
    return settings


def _prefixed(group: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return values by the names of their columns."""
    return {f"{group}.{name}": value for name, value in values.items()}


def _constants(group: str, values: Mapping[str, Value], n_rows: int) -> dict[str, object]:
    """Return columns of a group that are the same in every row."""
    return {name: _constant(v, n_rows) for name, v in _prefixed(group, values).items()}


def _constant(value: object, n_rows: int) -> object:
    if isinstance(value, str):
        return pd.Categorical.from_codes(np.zeros(n_rows, dtype=np.int8), [value])
    return np.full(n_rows, value)


def _parameter_column(values: Sequence[Value], codes: np.ndarray) -> object:
    """Return the values with these codes, which are positions in ``values``."""
    if any(isinstance(value, str) for value in values):
        return pd.Categorical.from_codes(codes.astype(np.int32), list(values))
    return np.array(values)[codes]
