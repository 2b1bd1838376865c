"""Sizes that follow from others: multiples of one size, or of a product of two."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import Rows, as_array

SAMPLE_ROWS = 16
"""Rows (up to twice as many) that rule out nearly all unrelated pairs."""
RATIO_TOLERANCE = 1e-9
"""Rounding tolerance of ratios."""


@dataclass(frozen=True)
class RepeatedSize:
    """A size that is ``ratio`` times another, or times a product of two, in every training row."""

    column: str
    factors: tuple[str, ...]
    ratio: float

    def holds(self, rows: Rows | Mapping[str, np.ndarray]) -> Any:
        """Return whether each row has this relation."""
        relative = _ratio(rows, self.column, self.factors) / self.ratio
        return np.abs(relative - 1.0) < RATIO_TOLERANCE


def repeated_sizes(runs: pd.DataFrame) -> list[RepeatedSize]:
    """Return the problem sizes (positive numbers that vary) that are multiples of others."""
    sizes = _sizes(runs)
    step = max(1, len(runs) // SAMPLE_ROWS)
    sample = {name: values[::step] for name, values in sizes.items()}
    repeated: dict[str, RepeatedSize] = {}
    for column in sizes:
        others = [name for name in sizes if name != column and name not in repeated]
        for factors in [*combinations(others, 1), *combinations(others, 2)]:
            ratio = float(_ratio(sample, column, factors)[0])
            size = RepeatedSize(column, factors, ratio)
            # The sample first: it is quick, and most pairs fail there.
            if size.holds(sample).all() and size.holds(sizes).all():
                repeated[column] = size
                break
    return list(repeated.values())


def _sizes(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    sizes = {}
    for name in columns_of(runs, "problem"):
        values = as_array(runs[name])
        is_number = values.dtype.kind != "U"
        if is_number and values.min() > 0.0 and np.ptp(values):
            sizes[name] = values
    return sizes


def _ratio(rows: Rows | Mapping[str, np.ndarray], column: str, factors: tuple[str, ...]) -> Any:
    product: Any = 1.0
    for factor in factors:
        product = product * rows[factor]
    with np.errstate(divide="ignore", invalid="ignore"):
        return rows[column] / product
