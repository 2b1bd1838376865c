"""Interpolation of operator times: planes through the nearest measurements, in logarithms.

What is interpolated is log(time / calibrated roofline), a factor near one that changes slowly with
every size, so it also carries some way beyond the measured sizes. Tens of thousands of operators
take a second: one nearest-neighbour query and a batch of small linear systems.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.features.arrays import Groups
from foretune.models.experts.calibrated_roofline import CalibratedRoofline

NEIGHBOURS = 32
RIDGE = 0.01
"""Holds the slope along axes on which all neighbours agree."""
EXACT = 1e-6
"""Octaves within which a measurement is of the operator itself."""
SMOOTHING = 1e-4
LEAST_WIDTH = 0.03
"""Half a 90 % interval in logarithms, at a measurement: what repeating it would change."""
PER_OCTAVE = 0.10
"""How fast the interval widens where measurements end."""


@dataclass(frozen=True)
class Reading:
    """What measurements say of operators, one entry each.

    Attributes:
        log_ms: logarithm of the time.
        width: half the 90 % interval of ``log_ms``.
        distance: to the nearest measurement, in octaves.
    """

    log_ms: np.ndarray
    width: np.ndarray
    distance: np.ndarray


class Interpolation:
    """Measured times of one operator in one format on one system.

    Args:
        places: where the measurements lie, in octaves (rows, axes).
        limits: log compute time and log memory time of each at the device's rates (rows, 2).
        log_ms: log of the measured milliseconds (rows).
    """

    def __init__(self, places: np.ndarray, limits: np.ndarray, log_ms: np.ndarray) -> None:
        from scipy.spatial import KDTree

        self._places = places
        self._unit = CalibratedRoofline().fit(limits, log_ms, _one_group(len(log_ms)))
        self._rest = log_ms - self._unit_log_ms(limits)
        self._tree = KDTree(places)

    @classmethod
    def of_distinct(cls, places: np.ndarray, limits: np.ndarray, log_ms: np.ndarray) -> Self:
        """Return the interpolation of the fastest measurement at every place.

        Several implementations may have been measured; an engine picks the fastest.
        """
        order = np.lexsort([log_ms, *places.T])
        sorted_places = places[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = (np.diff(sorted_places, axis=0) != 0).any(axis=1)
        kept = order[first]
        return cls(places[kept], limits[kept], log_ms[kept])

    def read(self, places: np.ndarray, limits: np.ndarray) -> Reading:
        """Return the times of operators at ``places`` with the given ``limits``."""
        count = min(NEIGHBOURS, len(self._rest))
        distance, index = self._tree.query(places, k=list(range(1, count + 1)))
        rest, spread = self._planes(places, distance, index)
        nearest = distance[:, 0]
        exact = nearest < EXACT
        rest = np.where(exact, self._rest[index[:, 0]], rest)
        width = np.where(exact, LEAST_WIDTH, LEAST_WIDTH + 1.645 * spread + PER_OCTAVE * nearest)
        return Reading(self._unit_log_ms(limits) + rest, width, nearest)

    def _planes(
        self, places: np.ndarray, distance: np.ndarray, index: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the value at ``places`` of planes through their neighbours, and their misfit."""
        farthest = distance[:, -1:] + 1e-9
        weight = np.maximum(1.0 - distance / farthest, 1e-3) ** 2 / (distance**2 + SMOOTHING)
        weight /= weight.sum(axis=1, keepdims=True)
        values = self._rest[index]
        offsets = self._places[index] - places[:, None, :]
        centre = np.einsum("nk,nka->na", weight, offsets)
        mean = (weight * values).sum(axis=1)
        offsets = offsets - centre[:, None, :]
        residuals = values - mean[:, None]
        matrix = np.einsum("nk,nka,nkb->nab", weight, offsets, offsets)
        matrix += RIDGE * np.eye(offsets.shape[2]) * np.minimum(1.0, farthest[:, :, None] ** 2)
        right = np.einsum("nk,nka,nk->na", weight, offsets, residuals)
        slope = np.linalg.solve(matrix, right[..., None])[..., 0]
        # A plane may leave its neighbours' values only where there are none beyond it.
        value = np.clip(mean - (centre * slope).sum(axis=1), values.min(axis=1), values.max(axis=1))
        misfit = residuals - np.einsum("nka,na->nk", offsets, slope)
        return value, np.sqrt((weight * misfit**2).sum(axis=1))

    def _unit_log_ms(self, limits: np.ndarray) -> np.ndarray:
        return self._unit.log_ms(limits, _one_group(len(limits)))


def _one_group(rows: int) -> Groups:
    return Groups(codes=np.zeros(rows, dtype=np.int64), names=["all"])
