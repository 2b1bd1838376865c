"""Finds measurements of the same run in two tables, and how far repeats deviate."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import as_text, groups_of

NO_MATCH = -1
MIN_REPEATS = 30  # repeated measurements needed to estimate the noise of rows measured once


def matching_rows(known: pd.DataFrame, runs: pd.DataFrame) -> np.ndarray:
    """Return, per row of ``runs``, the index of the row of ``known`` with the same run.

    That is the same device, problem and configuration; `NO_MATCH` if there is none. Columns missing
    from one table count as empty. The last of several matches counts. Both tables must be of the
    same kernel.
    """
    parts = [table[_identity_columns(table)] for table in (known, runs)]
    both = pd.concat(parts, ignore_index=True)
    same = groups_of(both, list(both))
    row_of = np.full(len(same.names), NO_MATCH)
    row_of[same.codes[: len(known)]] = np.arange(len(known))
    return row_of[same.codes[len(known) :]]


def count_missing_runs(known: pd.DataFrame, runs: pd.DataFrame) -> int:
    """Return how many of ``runs`` are not in ``known``, kernel by kernel."""
    missing = 0
    for kernel, kernel_runs in runs.groupby("kernel", observed=True):
        match = matching_rows(known[known["kernel"] == kernel], kernel_runs)
        missing += int((match == NO_MATCH).sum())
    return missing


@dataclass(frozen=True)
class Repeats:
    """Deviations between measurements of the same run: the noise floor of predictions.

    ``first`` is the index of each row's first deviation, followed by their total number;
    ``deviations`` are logs of each measurement over its row's value.
    """

    first: np.ndarray
    deviations: np.ndarray

    @classmethod
    def from_runs(cls, rows: pd.DataFrame, measured: pd.DataFrame, target: str) -> Self:
        """Return the repeats of ``rows`` among ``measured``.

        Measurements from another environment or date do not count, because newer ones supersede
        them. ``rows`` has no duplicate runs, and all of it has the ``target``; ``measured`` adds
        older measurements.
        """
        measured = measured[(measured["status"] == "ok") & measured[target].notna()]
        if len(measured) == len(rows):
            return cls(np.arange(len(rows) + 1), np.zeros(len(rows)))
        row = matching_rows(rows, measured)
        for column in (c for c in ("environment", "recorded_at") if c in rows):
            ours, theirs = (as_text(table[column]) for table in (rows, measured))
            row = np.where(ours[row] == theirs, row, NO_MATCH)
        found = row != NO_MATCH
        values, row_values = (t[target].to_numpy(float) for t in (measured, rows))
        deviations = np.log(values[found] / row_values[row[found]])
        unrepeated = np.setdiff1d(np.arange(len(rows)), row)  # 1 and "1" are equal as text
        numbers = np.concatenate([row[found], unrepeated])
        order = np.argsort(numbers, kind="stable")
        first = np.concatenate([[0], np.cumsum(np.bincount(numbers))])
        return cls(first, np.concatenate([deviations, np.zeros(len(unrepeated))])[order])

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the deviation of a random measurement of each row in ``rows``.

        A row measured once gets the deviation of a row that was measured more often.
        """
        counts = np.diff(self.first)
        drawn: np.ndarray = self.deviations[self.first[rows] + rng.integers(counts[rows])]
        several = self.deviations[np.repeat(counts > 1, counts)]
        if len(several) >= MIN_REPEATS:
            once = counts[rows] == 1
            drawn[once] = rng.choice(several, int(once.sum()))
        return drawn


def _identity_columns(runs: pd.DataFrame) -> list[str]:
    return ["device", *columns_of(runs, "problem"), *columns_of(runs, "config")]
