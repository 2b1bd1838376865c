"""Joins a model with measured rows: log(measured / predicted), interpolated between sizes.

A Gaussian process with three parts: an error of the whole device, an error that varies with the
sizes, and noise. Only the nearest rows count, so tables of any length answer at once. Its constants
were chosen by hand before ``benchmarks/operators.py`` scored them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MAX_NEIGHBORS = 64
"""Measured rows that an answer reads."""
DEVICE_ERROR = 0.5
"""Standard deviation of the log error of a whole device."""
SIZE_ERROR = 0.2
"""Standard deviation of the log error that varies with the sizes."""
OCTAVES = 1.5
"""Distance of sizes within which errors are alike."""
OTHER_FORMAT_OCTAVES = 1.0
"""Distance that another format or engine counts."""
NOISE = 0.03
"""Standard deviation of the log of a measured time."""
LEVEL = 0.9
"""Share of the measurements that an interval should hold."""
NORMAL_QUANTILE = 1.645
"""Standard deviations of the same share of a normal distribution."""
MIN_ROWS_FOR_ERRORS = 16
"""Rows whose own errors say how wide an interval must be."""


class Corrected(NamedTuple):
    """A correction at one operator."""

    log_ratio: float  # to add to the model's log time
    half_width: float  # half of the interval in log time
    nearest: float  # octaves to the nearest measured row


@dataclass(frozen=True)
class Correction:
    """Errors of a model on measured rows.

    Attributes:
        coordinates: (rows, sizes) in octaves.
        groups: (rows,) number of each row's format and engine.
        log_ratio: (rows,) log(measured / predicted).
    """

    coordinates: np.ndarray
    groups: np.ndarray
    log_ratio: np.ndarray

    def at(self, coordinates: np.ndarray, group: int) -> Corrected:
        """Return the correction of one operator, given by its sizes in octaves and its group."""
        error = self.log_ratio
        apart = _distance(self.coordinates, self.groups, coordinates[None], np.array([group]))[:, 0]
        to_rows = _covariance(apart)
        covariance = _covariance(
            _distance(self.coordinates, self.groups, self.coordinates, self.groups)
        )
        inverse = np.linalg.inv(covariance + NOISE**2 * np.eye(len(error)))
        weights = inverse @ to_rows
        variance = DEVICE_ERROR**2 + SIZE_ERROR**2 - to_rows @ weights
        spread = float(np.sqrt(max(variance, 0.0) + NOISE**2))

        # How far off each row is from what the others say, in standard deviations: exactly, from
        # the inverse (Rasmussen and Williams, Gaussian Processes, 2006, equation 5.12).
        diagonal = np.diag(inverse)
        standardized = np.abs(inverse @ error / diagonal) * np.sqrt(diagonal)
        factor = NORMAL_QUANTILE
        if len(error) >= MIN_ROWS_FOR_ERRORS:
            level = min(LEVEL * (len(error) + 1) / len(error), 1.0)
            factor = float(np.quantile(standardized, level))
        return Corrected(
            log_ratio=float(weights @ error),
            half_width=factor * spread,
            nearest=float(apart.min()),
        )


def nearest_rows(
    coordinates: np.ndarray, groups: np.ndarray, at: np.ndarray, group: int
) -> np.ndarray:
    """Return the indices of the rows nearest to an operator, at most `MAX_NEIGHBORS`."""
    apart = _distance(coordinates, groups, at[None], np.array([group]))[:, 0]
    if len(apart) <= MAX_NEIGHBORS:
        return np.arange(len(apart))
    return np.sort(np.argpartition(apart, MAX_NEIGHBORS)[:MAX_NEIGHBORS])


def _distance(
    coordinates: np.ndarray, groups: np.ndarray, others: np.ndarray, other_groups: np.ndarray
) -> np.ndarray:
    """Return the octaves between rows (rows, others)."""
    squared = ((coordinates[:, None, :] - others[None, :, :]) ** 2).sum(axis=2)
    differ = groups[:, None] != other_groups[None, :]
    return np.asarray(np.sqrt(squared + OTHER_FORMAT_OCTAVES**2 * differ))


def _covariance(octaves: np.ndarray) -> np.ndarray:
    """Return the covariance of errors by distance in octaves: Matérn 3/2 and a shared part."""
    scaled = np.sqrt(3.0) * octaves / OCTAVES
    return np.asarray(DEVICE_ERROR**2 + SIZE_ERROR**2 * (1.0 + scaled) * np.exp(-scaled))
