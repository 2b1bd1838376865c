"""Sizes that others determine: tokens are sequences times their length, say.

Rows that differ in one of these sizes differ in another as well, so that none has a neighbour along
any of them, unless the one that only repeats the others is left out of what neighbours agree in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import Rows, as_array

SAMPLE_ROWS = 16
"""So many rows, or twice as many, tell nearly all pairs that have nothing to do with each other."""
RATIO_TOLERANCE = 1e-9
"""What ratios may differ by, rounded as they are."""


@dataclass(frozen=True)
class RepeatedSize:
    """A size that is ``ratio`` times one other, or the product of two, in every training row."""

    column: str
    factors: tuple[str, ...]
    ratio: float

    def holds(self, rows: Rows | Mapping[str, np.ndarray]) -> Any:
        """Return whether it is so in each row, an array of truth values; one of `SingleRow`."""
        return np.abs(_ratio(rows, self.column, self.factors) / self.ratio - 1.0) < RATIO_TOLERANCE


def repeated_sizes(runs: pd.DataFrame) -> list[RepeatedSize]:
    """Return which sizes of the problem (positive numbers that vary) only repeat others."""
    sizes = _sizes(runs)
    sample = {name: values[:: max(1, len(runs) // SAMPLE_ROWS)] for name, values in sizes.items()}
    found: dict[str, RepeatedSize] = {}
    for column in sizes:
        others = [name for name in sizes if name != column and name not in found]
        for factors in [*combinations(others, 1), *combinations(others, 2)]:
            size = RepeatedSize(column, factors, float(_ratio(sample, column, factors)[0]))
            if size.holds(sample).all() and size.holds(sizes).all():
                found[column] = size
                break
    return list(found.values())


def _sizes(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    columns = {name: as_array(runs[name]) for name in columns_of(runs, "problem")}
    numbers = {name: values for name, values in columns.items() if values.dtype.kind != "U"}
    return {
        name: values for name, values in numbers.items() if values.min() > 0.0 and np.ptp(values)
    }


def _ratio(rows: Rows | Mapping[str, np.ndarray], column: str, factors: tuple[str, ...]) -> Any:
    """Return a size over the product of others."""
    product: Any = 1.0
    for factor in factors:
        product = product * rows[factor]
    with np.errstate(divide="ignore", invalid="ignore"):
        return rows[column] / product
