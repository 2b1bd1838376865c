"""What a Gaussian process says, given measurements (Rasmussen and Williams, 2006, chapter 2)."""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import Self

import numpy as np

from foretune.models.process.process import Process, inverse_of

ROOM = 64
"""Measurements it has room for at first."""
CHUNK_ROWS = 4096
LEAST = 1e-10
"""No variance is smaller."""


class Posterior:
    """A process, told of measurements: of some candidates, and of any other points.

    What the measurements explain of the candidates is kept, so that one more of them costs one
    more row of a triangular system. A measurement without a value is one under way: it is believed
    to turn out as expected, so that means stay and spreads shrink.

    Args:
        process: its parameters are taken as they are.
        X: where was measured (measurements, columns).
        y: what, less what is expected there; of the first ones, the others are under way.
        candidates: points to keep up (candidates, columns); none by default.
        prior: what is expected of the candidates; added to their mean.
        scale: what all spreads are multiplied with: the unit of the process in that of ``y``.
        more_noise: variance that each measurement has beside the process's noise.
        observation_noise: whether spreads are those of a measurement rather than of what it is of.
    """

    def __init__(
        self,
        process: Process,
        X: np.ndarray,
        y: np.ndarray,
        candidates: np.ndarray | None = None,
        *,
        prior: np.ndarray | float = 0.0,
        scale: float = 1.0,
        more_noise: np.ndarray | float = 0.0,
        observation_noise: bool = False,
    ) -> None:
        self.process = process
        self.prior, self.scale = prior, scale
        self.observation_noise = observation_noise
        self.candidates = X[:0] if candidates is None else candidates
        self.X = X[:0]
        self._factor = np.zeros((0, 0))
        self._room = np.empty((ROOM, len(self.candidates)))  # its first len(self) rows are in use
        self._explained = np.zeros(len(self.candidates))
        self.add(X, more_noise)
        self.tell(y)

    def __len__(self) -> int:
        """Return how many measurements it knows, those under way included."""
        return len(self.X)

    def add(self, X: np.ndarray, more_noise: np.ndarray | float = 0.0) -> None:
        """Learn that there are measurements at ``X``; they are under way until `tell` is called."""
        from scipy.linalg import solve_triangular

        n, new = len(self), len(X)
        if not new:
            return
        cross = self.process.covariance(self.X, X)
        if n:
            cross = solve_triangular(self._factor, cross, lower=True, check_finite=False)
        own = self.process.covariance(X, X) - cross.T @ cross
        own[np.diag_indices(new)] += self.process.noise + more_noise
        corner = np.linalg.cholesky(own)
        factor = np.zeros((n + new, n + new))
        factor[:n, :n], factor[n:, :n], factor[n:, n:] = self._factor, cross.T, corner
        if len(self.candidates):
            rows = self.process.covariance(X, self.candidates)
            if n:
                rows -= cross.T @ self._room[:n]
            self._explain(solve_triangular(corner, rows, lower=True, check_finite=False))
        self._factor, self.X = factor, np.vstack([self.X, X])

    def forget(self, n: int) -> None:
        """Forget the last ``n`` measurements, which are under way."""
        left = len(self) - n
        self._explained -= (self._room[left : left + n] ** 2).sum(axis=0)
        self._factor, self.X = self._factor[:left, :left], self.X[:left]

    def tell(self, y: np.ndarray) -> None:
        """Give the first measurements their values, less what is expected there."""
        self.y = y
        self._whitened = self._solved(y)

    @property
    def mean(self) -> np.ndarray:
        """Of every candidate."""
        mean: np.ndarray = self.prior + self._whitened @ self._room[: len(self.y)]
        return mean

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of every candidate."""
        left = np.maximum(self.process.variance(self.candidates) - self._explained, LEAST)
        return self.scale * np.sqrt(left + self._noise)

    def covariance(self, numbers: np.ndarray) -> np.ndarray:
        """Return the covariances of the numbered candidates."""
        points, explained = self.candidates[numbers], self._room[: len(self), numbers]
        joint = self.process.covariance(points, points) - explained.T @ explained
        joint[np.diag_indices(len(joint))] += self._noise
        return self.scale**2 * joint

    def at(self, points: np.ndarray, prior: np.ndarray | float = 0.0) -> Self:
        """Return the posterior of other candidates, given the same measurements."""
        there = copy(self)
        there.candidates, there.prior = points, prior
        there._room = self._solved(self.process.covariance(self.X, points))
        there._explained = (there._room**2).sum(axis=0)
        return there

    def rounded(self) -> Self:
        """Return it with half the digits, enough for spreads, and twice as fast at many points."""
        there = copy(self)
        there._factor = self._factor.astype(np.float32)
        there._whitened = self._whitened.astype(np.float32)
        return there

    def predict(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and spread at any number of points."""
        mean, spread = np.empty((2, len(points)))
        for start in range(0, len(points), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            there = self.at(points[chunk])
            mean[chunk], spread[chunk] = there.mean, there.spread
        return mean, spread

    def mean_function(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return what gives the mean at points: many times faster, most of all for one point."""
        known, weights = self.X[: len(self.y)], self._weights()
        terms = [term.means(own, known, weights) for term, own in self.process.parts()]

        def mean(points: np.ndarray) -> np.ndarray:
            total = np.zeros(len(points))
            for of_term in terms:
                total += of_term(points)
            return total

        return mean

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how far off each value is when left out, and the deviation then (ibid. 5.4.2)."""
        variance = 1.0 / np.diag(self._precision())
        return self._weights() * variance, self.scale * np.sqrt(variance)

    def groups_left_out(
        self, groups: Iterable[np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Give how far off the values of each group are when left out, and their covariance then.

        Of one value it is `left_out` (Sundararajan and Keerthi, Neural Computation 13, 2001).
        """
        weights, precision = self._weights(), self._precision()
        for group in groups:
            covariance = np.linalg.inv(precision[np.ix_(group, group)])
            yield covariance @ weights[group], self.scale**2 * covariance

    @property
    def _noise(self) -> float:
        return self.process.noise if self.observation_noise else 0.0

    def _weights(self) -> np.ndarray:
        """Return the inverse covariance of the measurements times their values."""
        return self._solved(self._whitened, "T")

    def _precision(self) -> np.ndarray:
        """Return the inverse covariance of the measurements."""
        return inverse_of(self._factor[: len(self.y), : len(self.y)])

    def _solved(self, values: np.ndarray, transposed: str = "N") -> np.ndarray:
        """Return the inverse of the factor of as many measurements, times ``values``."""
        from scipy.linalg import solve_triangular

        n = len(values)
        if not n:
            return values
        factor = self._factor[:n, :n]
        values = values.astype(factor.dtype, copy=False)
        solved: np.ndarray = solve_triangular(
            factor, values, trans=transposed, lower=True, check_finite=False
        )
        return solved

    def _explain(self, rows: np.ndarray) -> None:
        """Keep what more measurements explain of the candidates."""
        n, new = len(self), len(rows)
        if n + new > len(self._room):
            room = np.empty((2 * (n + new), len(self.candidates)))
            room[:n] = self._room[:n]
            self._room = room
        self._room[n : n + new] = rows
        self._explained += (rows * rows).sum(axis=0)
