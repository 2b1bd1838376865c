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
INFINITE_OCTAVES = 64.0
"""Stands for an infinite distance."""
MAX_EXAMPLES = 6


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
        rows = Rows.from_table(runs)
        numbers: dict[str, tuple[float, float]] = {}
        texts: dict[str, list[str]] = {}
        columns = ["device"]
        for group in GROUPS:
            columns += [column for column in rows.columns if column.startswith(group)]
        for column in columns:
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
        table = Rows.from_table(rows)
        farthest = np.zeros(len(table))
        for column in self._known_columns(table):
            margin = (reach or {}).get(column, 0.0)
            np.fmax(farthest, self._outside(column, table) - margin, out=farthest)
        return farthest

    def reach(self, rows: pd.DataFrame | Rows) -> dict[str, float]:
        """Return the maximum distance of ``rows`` per column outside the range."""
        table = Rows.from_table(rows)
        reach = {}
        for column in self._known_columns(table):
            farthest = float(self._outside(column, table).max())
            if farthest > 0.0:
                reach[column] = farthest
        return reach

    def explain(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return one line per row and column outside the range: ``row, column, value, reason``."""
        table = Rows.from_table(rows)
        lines = []
        for column in self._known_columns(table):
            octaves = self._outside(column, table)
            for row in np.flatnonzero(octaves > 0):
                reason = self._reason(column, octaves[row])
                lines.append((row, column, table[column][row], reason, octaves[row]))
        explained = pd.DataFrame(lines, columns=["row", "column", "value", "reason", "octaves"])

        # Of each row, the column that is farthest outside comes first.
        order = explained.sort_values(["row", "octaves"], ascending=[True, False], kind="stable")
        return order.drop(columns="octaves").reset_index(drop=True)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        numbers = {column: [low, high] for column, (low, high) in self.numbers.items()}
        return {"numbers": numbers, "texts": self.texts}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the range that `to_json` wrote."""
        numbers = {column: (low, high) for column, (low, high) in data["numbers"].items()}
        return cls(numbers, dict(data["texts"]))

    def _known_columns(self, rows: Rows) -> list[str]:
        return [column for column in (*self.numbers, *self.texts) if column in rows]

    def _outside(self, column: str, rows: Rows) -> np.ndarray:
        """Return each row's distance from the range of one column; 0 inside, and for NaN."""
        values = rows[column]
        if column in self.texts:
            distinct, codes = rows.distinct(column)
            is_known = np.isin(distinct, self.texts[column])
            return np.where(is_known, 0.0, UNSEEN_OCTAVES)[codes]
        if values.dtype.kind == "U":  # a text where training had numbers
            return np.full(len(rows), UNSEEN_OCTAVES)

        low, high = self.numbers[column]
        with np.errstate(divide="ignore", invalid="ignore"):
            if low > 0:
                octaves = np.fmax(np.log2(values / high), np.log2(low / values))
                distance = np.where(values <= 0, np.inf, octaves)
            else:
                beyond = np.fmax(values - high, low - values)
                distance = beyond / (high - low) if high > low else beyond > 0.0
        return np.nan_to_num(np.maximum(distance, 0.0), nan=0.0, posinf=INFINITE_OCTAVES)

    def _reason(self, column: str, octaves: float) -> str:
        if column in self.texts:
            examples = ", ".join(self.texts[column][:MAX_EXAMPLES])
            return f"never seen: training had {examples}"
        low, high = self.numbers[column]
        if low == high <= 0:
            return f"never seen: training had {low:g} only"
        unit = "octaves" if low > 0 else "ranges"
        return f"{octaves:.1f} {unit} outside {low:g} … {high:g}"
