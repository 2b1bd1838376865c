"""The table that a user's model gets: one row per configuration, columns by the model's names."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretune.errors import PredictorError

if TYPE_CHECKING:
    import pandas as pd

    from foretune.device import Device
    from foretune.problem import Problem
    from foretune.space import SearchSpace

GROUPS = ("problem.", "config.")
"""Prefixes that a model may leave out of the names of its columns."""


def parameter_table(
    problem: "Problem", space: "SearchSpace", device: "Device", indices: np.ndarray | None
) -> "pd.DataFrame":
    """Return the problem's and the configurations' parameters by bare name, then the device's.

    A name in both groups keeps its prefix: ``problem.n`` and ``config.n``.
    """
    from foretune.features.candidates import candidate_rows

    rows = candidate_rows("", problem, space, device, indices).drop(columns="kernel")
    text_columns = rows.select_dtypes("category").columns
    rows = rows.astype(dict.fromkeys(text_columns, str))

    bare_names = {f"problem.{name}": name for name in problem}
    bare_names |= {f"config.{name}": name for name in space.names}
    taken = ["device", *problem, *space.names]
    unique_names = {column: name for column, name in bare_names.items() if taken.count(name) == 1}
    return rows.rename(columns=unique_names)


def parameter_columns(table: "pd.DataFrame") -> list[str]:
    """Return the columns of a `parameter_table` without those of the device."""
    return [column for column in table if column != "device" and not column.startswith("device.")]


def parameter_matrix(table: "pd.DataFrame", width: Any) -> np.ndarray:
    """Return the parameters of problem and configuration as a matrix, in the space's order."""
    columns = parameter_columns(table)
    if isinstance(width, int) and width != len(columns):
        raise PredictorError(
            f"it takes {width} columns without names, but there are {len(columns)} "
            f"({', '.join(columns)}): fit it on a data frame, or give a function"
        )
    return table[columns].to_numpy()


def select_columns(table: "pd.DataFrame", names: Sequence[str]) -> "pd.DataFrame":
    """Return the columns ``names`` of a `parameter_table`.

    A name may have its group as a prefix, or not. ``layout_row`` is an indicator of the text column
    ``layout`` if no column has that name. Raises PredictorError if there is no such column.
    """
    import pandas as pd

    selected: dict[str, Any] = {}
    missing: list[str] = []
    indicators: dict[str, list[str]] = {}  # text column -> the indicators of its values
    matched: set[str] = set()  # text columns with an indicator of one of their values
    for name in names:
        bare_name = _without_group(name)

        # 1. The name of a column.
        column = next((option for option in (name, bare_name) if option in table), None)
        if column is not None:
            selected[name] = table[column]
            continue

        # 2. An indicator: the name of a column, then one of its values.
        prefixes = [column for column in table if bare_name.startswith(f"{column}_")]
        if not prefixes:
            missing.append(name)
            continue
        text_column = max(prefixes, key=len)
        text = bare_name.removeprefix(f"{text_column}_")
        equal_values = [value for value in table[text_column].unique() if str(value) == text]
        selected[name] = table[text_column].isin(equal_values)
        indicators.setdefault(text_column, []).append(name)
        if equal_values:
            matched.add(text_column)

    # Without any match, `block_log` is no indicator of `block` but a feature that users computed.
    for text_column, indicator_names in indicators.items():
        if text_column not in matched:
            missing += indicator_names
    if missing:
        raise PredictorError(
            f"there is no {', '.join(missing)} among {', '.join(parameter_columns(table))}: give "
            "its columns these names, or give a function that computes them"
        )
    return pd.DataFrame(selected, index=table.index)


def _without_group(name: str) -> str:
    for prefix in GROUPS:
        name = name.removeprefix(prefix)
    return name
