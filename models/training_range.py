"""The training range: what lies outside it, in which column, and how far."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import as_array, as_text

NEVER_SEEN = 1.0
"""Octaves that a text value nobody ran, or a number where none ever varied, counts for."""
GROUPS = ("problem", "config", "device")


@dataclass
class TrainingRange:
    """Smallest and largest value of every number, all values of every text.

    Attributes:
        numbers: column -> smallest and largest.
        texts: column -> values; ``device`` is among them.
    """

    numbers: dict[str, tuple[float, float]]
    texts: dict[str, list[str]]

    @classmethod
    def of(cls, runs: pd.DataFrame) -> Self:
        """Return the range of ``runs``."""
        numbers, texts = {}, {}
        for column in _columns(runs):
            values = as_array(runs[column])
            if values.dtype.kind == "U":
                texts[column] = sorted(set(np.unique(values).tolist()))
            elif np.isfinite(values).any():
                numbers[column] = (float(np.nanmin(values)), float(np.nanmax(values)))
        return cls(numbers, texts)

    def octaves_outside(self, rows: pd.DataFrame) -> np.ndarray:
        """Return how far each row lies outside, 0 inside: that of the farthest column.

        A positive number counts in octaves (twice the largest is one); others in parts of the
        range; a text that was never seen counts one.
        """
        farthest = np.zeros(len(rows))
        for column in [*self.numbers, *self.texts]:
            if column in rows:
                np.fmax(farthest, self._outside(column, rows), out=farthest)
        return farthest

    def explain(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return one line per row and column that lies outside: ``row, column, value, reason``."""
        lines = []
        for column in [c for c in [*self.numbers, *self.texts] if c in rows]:
            outside = self._outside(column, rows)
            values = as_array(rows[column])
            lines += [
                (i, column, values[i], self._reason(column, outside[i]), outside[i])
                for i in np.flatnonzero(outside > 0)
            ]
        table = pd.DataFrame(lines, columns=["row", "column", "value", "reason", "octaves"])
        order = table.sort_values(["row", "octaves"], ascending=[True, False], kind="stable")
        return order.drop(columns="octaves").reset_index(drop=True)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        return {"numbers": {c: list(v) for c, v in self.numbers.items()}, "texts": self.texts}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        return cls({c: (v[0], v[1]) for c, v in data["numbers"].items()}, dict(data["texts"]))

    def _outside(self, column: str, rows: pd.DataFrame) -> np.ndarray:
        values = as_array(rows[column])
        if column in self.texts:
            distinct, codes = np.unique(values, return_inverse=True)
            known = np.isin(as_text(distinct.tolist()), self.texts[column])
            return np.where(known, 0.0, NEVER_SEEN)[codes]
        if values.dtype.kind == "U":
            return np.full(len(rows), NEVER_SEEN)
        low, high = self.numbers[column]
        if not ((values < low) | (values > high)).any():
            return np.zeros(len(rows))
        with np.errstate(divide="ignore", invalid="ignore"):
            if low > 0:
                distance = np.fmax(np.log2(values / high), np.log2(low / values))
                distance = np.where(values <= 0, np.inf, distance)
            else:
                distance = np.fmax(values - high, low - values) / ((high - low) or 1.0)
        return np.nan_to_num(np.maximum(distance, 0.0), nan=0.0, posinf=64.0)

    def _reason(self, column: str, octaves: float) -> str:
        if column in self.texts:
            return f"never seen: training had {', '.join(self.texts[column][:6])}"
        low, high = self.numbers[column]
        how = f"{octaves:.1f} octaves" if low > 0 else f"{octaves:.1f} ranges"
        return f"{how} outside {low:g} … {high:g}"


def _columns(runs: pd.DataFrame) -> list[str]:
    return ["device", *(c for g in GROUPS for c in columns_of(runs, g))]
