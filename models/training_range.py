"""The training range: which rows are outside, in which column, and how far."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.features.arrays import Rows

UNSEEN_OCTAVES = 1.0
"""Distance in octaves of an unseen text value, or of a new number in a constant column."""
GROUPS = ("problem.", "config.", "device.")


@dataclass
class TrainingRange:
    """Minimum and maximum of every numeric column, all values of every text column.

    ``texts`` includes ``device``.
    """

    numbers: dict[str, tuple[float, float]]
    texts: dict[str, list[str]]

    @classmethod
    def from_runs(cls, runs: pd.DataFrame | Rows) -> Self:
        """Return the range of ``runs``."""
        numbers, texts, rows = {}, {}, Rows.from_table(runs)
        for column in ["device", *(c for g in GROUPS for c in rows.columns if c.startswith(g))]:
            values = rows[column]
            if values.dtype.kind == "U":
                texts[column] = sorted(set(np.unique(values).tolist()))
            elif np.isfinite(values).any():
                numbers[column] = (float(np.nanmin(values)), float(np.nanmax(values)))
        return cls(numbers, texts)

    def octaves_outside(
        self, rows: pd.DataFrame | Rows, reach: Mapping[str, float] | None = None
    ) -> np.ndarray:
        """Return each row's distance from the range, that of its farthest column; 0 inside.

        Positive numbers count in octaves (twice the maximum is one), others as a fraction of the
        range. An unseen text, or a new number in a constant column, counts one. ``reach`` is
        subtracted per column.
        """
        rows = Rows.from_table(rows)
        farthest = np.zeros(len(rows))
        for column in self._known_columns(rows):
            margin = reach.get(column, 0.0) if reach else 0.0
            np.fmax(farthest, self._outside(column, rows) - margin, out=farthest)
        return farthest

    def reach(self, rows: pd.DataFrame | Rows) -> dict[str, float]:
        """Return the maximum distance of ``rows`` per column outside the range."""
        rows = Rows.from_table(rows)
        farthest = {c: float(self._outside(c, rows).max()) for c in self._known_columns(rows)}
        return {column: far for column, far in farthest.items() if far > 0.0}

    def explain(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return one line per row and column outside the range: ``row, column, value, reason``."""
        lines, known = [], Rows.from_table(rows)
        for column in self._known_columns(known):
            outside, values = self._outside(column, known), known[column]
            lines += [
                (i, column, values[i], self._reason(column, outside[i]), outside[i])
                for i in np.flatnonzero(outside > 0)
            ]
        table = pd.DataFrame(lines, columns=["row", "column", "value", "reason", "octaves"])
        order = table.sort_values(["row", "octaves"], ascending=[True, False], kind="stable")
        return order.drop(columns="octaves").reset_index(drop=True)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        return {"numbers": {c: list(v) for c, v in self.numbers.items()}, "texts": self.texts}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the range that `to_json` wrote."""
        return cls({c: (v[0], v[1]) for c, v in data["numbers"].items()}, dict(data["texts"]))

    def _known_columns(self, rows: Rows) -> list[str]:
        return [c for c in (*self.numbers, *self.texts) if c in rows]

    def _outside(self, column: str, rows: Rows) -> np.ndarray:
        values = rows[column]
        if column in self.texts:
            distinct, codes = rows.distinct(column)
            known = set(self.texts[column])
            far = np.array([0.0 if text in known else UNSEEN_OCTAVES for text in distinct.tolist()])
            return far[codes]
        if values.dtype.kind == "U":
            return np.full(len(rows), UNSEEN_OCTAVES)
        low, high = self.numbers[column]
        with np.errstate(divide="ignore", invalid="ignore"):
            if low > 0:
                distance = np.fmax(np.log2(values / high), np.log2(low / values))
                distance = np.where(values <= 0, np.inf, distance)
            else:
                distance = np.fmax(values - high, low - values)
                distance = distance / (high - low) if high > low else distance > 0.0
        return np.nan_to_num(np.maximum(distance, 0.0), nan=0.0, posinf=64.0)

    def _reason(self, column: str, octaves: float) -> str:
        if column in self.texts:
            return f"never seen: training had {', '.join(self.texts[column][:6])}"
        low, high = self.numbers[column]
        if low == high <= 0:
            return f"never seen: training had {low:g} only"
        how = f"{octaves:.1f} octaves" if low > 0 else f"{octaves:.1f} ranges"
        return f"{how} outside {low:g} … {high:g}"
