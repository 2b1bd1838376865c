"""Finds measurements of the same run in two tables, and how far repeats deviate."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.features.arrays import as_text, groups_of

NO_MATCH = -1
"""Index of a row without a match."""
MIN_REPEATS = 30
"""Repeated measurements needed to estimate the noise of rows measured once."""


def matching_rows(known: pd.DataFrame, runs: pd.DataFrame) -> np.ndarray:
    """Return, per row of ``runs``, the index of the row of ``known`` with the same run.

    That is the same device, problem and configuration; `NO_MATCH` if there is none. Columns missing
    from one table count as empty. The last of several matches counts. Both tables must be of the
    same kernel.
    """
    both = pd.concat(
        [known[_identity_columns(known)], runs[_identity_columns(runs)]], ignore_index=True
    )
    groups = groups_of(both, list(both))
    known_row_of_group = np.full(len(groups.names), NO_MATCH)
    known_row_of_group[groups.codes[: len(known)]] = np.arange(len(known))  # the last one counts
    return known_row_of_group[groups.codes[len(known) :]]


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
        n_rows = len(rows)
        if len(measured) == n_rows:
            return cls(first=np.arange(n_rows + 1), deviations=np.zeros(n_rows))

        # The row of each measurement; those of another environment or date have none.
        row = matching_rows(rows, measured)
        for column in ("environment", "recorded_at"):
            if column in rows:
                of_row = as_text(rows[column])[row]
                of_measurement = as_text(measured[column])
                row = np.where(of_row == of_measurement, row, NO_MATCH)

        has_row = row != NO_MATCH
        values = measured[target].to_numpy(float)[has_row]
        row_values = rows[target].to_numpy(float)[row[has_row]]
        deviations = np.log(values / row_values)

        # A row without a measurement deviates by 0 (1 and "1" are equal as text).
        unmatched = np.setdiff1d(np.arange(n_rows), row)
        row_of_deviation = np.concatenate([row[has_row], unmatched])
        deviations = np.concatenate([deviations, np.zeros(len(unmatched))])
        by_row = np.argsort(row_of_deviation, kind="stable")
        counts = np.bincount(row_of_deviation)
        return cls(first=np.concatenate([[0], np.cumsum(counts)]), deviations=deviations[by_row])

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the deviation of a random measurement of each row in ``rows``.

        A row measured once gets the deviation of a row that was measured more often.
        """
        counts = np.diff(self.first)
        chosen = rng.integers(counts[rows])
        drawn: np.ndarray = self.deviations[self.first[rows] + chosen]

        is_repeated = np.repeat(counts > 1, counts)
        deviations_of_repeated = self.deviations[is_repeated]
        if len(deviations_of_repeated) >= MIN_REPEATS:
            measured_once = counts[rows] == 1
            drawn[measured_once] = rng.choice(deviations_of_repeated, int(measured_once.sum()))
        return drawn


def _identity_columns(runs: pd.DataFrame) -> list[str]:
    return ["device", *columns_of(runs, "problem"), *columns_of(runs, "config")]
