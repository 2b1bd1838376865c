"""What a Gaussian process says, given measurements (Rasmussen and Williams, 2006, chapter 2)."""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import Self

import numpy as np

from foretune.models.process.process import GaussianProcess, inverse_from_cholesky

PREALLOCATED_ROWS = 64
"""Measurements it has room for at first."""
CHUNK_ROWS = 4096
MIN_VARIANCE = 1e-10
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
        extra_noise: variance that each measurement has beside the process's noise.
        observation_noise: whether spreads are those of a measurement rather than of what it is of.
    """

    def __init__(
        self,
        process: GaussianProcess,
        X: np.ndarray,
        y: np.ndarray,
        candidates: np.ndarray | None = None,
        *,
        prior: np.ndarray | float = 0.0,
        scale: float = 1.0,
        extra_noise: np.ndarray | float = 0.0,
        observation_noise: bool = False,
    ) -> None:
        self.process = process
        self.prior, self.scale = prior, scale
        self.observation_noise = observation_noise
        self.candidates = X[:0] if candidates is None else candidates
        self.X = X[:0]
        self._factor = np.zeros((0, 0))
        self._buffer = np.empty(
            (PREALLOCATED_ROWS, len(self.candidates))
        )  # its first len(self) rows are in use
        self._explained = np.zeros(len(self.candidates))
        self.add(X, extra_noise)
        self.set_values(y)

    def __len__(self) -> int:
        """Return how many measurements it knows, those under way included."""
        return len(self.X)

    def add(self, X: np.ndarray, extra_noise: np.ndarray | float = 0.0) -> None:
        """Learn that there are measurements at ``X``; they are under way until `tell` is called."""
        from scipy.linalg import solve_triangular

        n, new = len(self), len(X)
        if not new:
            return
        cross = self.process.covariance(self.X, X)
        if n:
            cross = solve_triangular(self._factor, cross, lower=True, check_finite=False)
        schur = self.process.covariance(X, X) - cross.T @ cross
        schur[np.diag_indices(new)] += self.process.noise + extra_noise
        corner = np.linalg.cholesky(schur)
        factor = np.zeros((n + new, n + new))
        factor[:n, :n], factor[n:, :n], factor[n:, n:] = self._factor, cross.T, corner
        if len(self.candidates):
            rows = self.process.covariance(X, self.candidates)
            if n:
                rows -= cross.T @ self._buffer[:n]
            self._append_explained(solve_triangular(corner, rows, lower=True, check_finite=False))
        self._factor, self.X = factor, np.vstack([self.X, X])

    def drop_pending(self, n: int) -> None:
        """Forget the last ``n`` measurements, which are under way."""
        remaining = len(self) - n
        self._explained -= (self._buffer[remaining : remaining + n] ** 2).sum(axis=0)
        self._factor, self.X = self._factor[:remaining, :remaining], self.X[:remaining]

    def set_values(self, y: np.ndarray) -> None:
        """Give the first measurements their values, less what is expected there."""
        self.y = y
        self._whitened = self._solve(y)

    @property
    def mean(self) -> np.ndarray:
        """Of every candidate."""
        mean: np.ndarray = self.prior + self._whitened @ self._buffer[: len(self.y)]
        return mean

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of every candidate."""
        variance = np.maximum(
            self.process.variance(self.candidates) - self._explained, MIN_VARIANCE
        )
        return self.scale * np.sqrt(variance + self._noise)

    def covariance(self, numbers: np.ndarray) -> np.ndarray:
        """Return the covariances of the numbered candidates."""
        points, explained = self.candidates[numbers], self._buffer[: len(self), numbers]
        joint = self.process.covariance(points, points) - explained.T @ explained
        joint[np.diag_indices(len(joint))] += self._noise
        return self.scale**2 * joint

    def at(self, points: np.ndarray, prior: np.ndarray | float = 0.0) -> Self:
        """Return the posterior of other candidates, given the same measurements."""
        other = copy(self)
        other.candidates, other.prior = points, prior
        other._buffer = self._solve(self.process.covariance(self.X, points))
        other._explained = (other._buffer**2).sum(axis=0)
        return other

    def in_single_precision(self) -> Self:
        """Return it with half the digits, enough for spreads, and twice as fast at many points."""
        rounded = copy(self)
        rounded._factor = self._factor.astype(np.float32)
        rounded._whitened = self._whitened.astype(np.float32)
        return rounded

    def predict(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and spread at any number of points."""
        mean, spread = np.empty((2, len(points)))
        for start in range(0, len(points), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            at_chunk = self.at(points[chunk])
            mean[chunk], spread[chunk] = at_chunk.mean, at_chunk.spread
        return mean, spread

    def mean_function(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return what gives the mean at points: many times faster, most of all for one point."""
        known, weights = self.X[: len(self.y)], self._weights()
        terms = [
            term.mean_function(parameters, known, weights)
            for term, parameters in self.process.terms_with_parameters()
        ]

        def mean(points: np.ndarray) -> np.ndarray:
            total = np.zeros(len(points))
            for term_mean in terms:
                total += term_mean(points)
            return total

        return mean

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how far off each value is when left out, and the deviation then (ibid. 5.4.2)."""
        variance = 1.0 / np.diag(self._precision())
        return self._weights() * variance, self.scale * np.sqrt(variance)

    def leave_groups_out(
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
        return self._solve(self._whitened, "T")

    def _precision(self) -> np.ndarray:
        """Return the inverse covariance of the measurements."""
        return inverse_from_cholesky(self._factor[: len(self.y), : len(self.y)])

    def _solve(self, values: np.ndarray, transposed: str = "N") -> np.ndarray:
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

    def _append_explained(self, rows: np.ndarray) -> None:
        """Keep what more measurements explain of the candidates."""
        n, new = len(self), len(rows)
        if n + new > len(self._buffer):
            buffer = np.empty((2 * (n + new), len(self.candidates)))
            buffer[:n] = self._buffer[:n]
            self._buffer = buffer
        self._buffer[n : n + new] = rows
        self._explained += (rows * rows).sum(axis=0)
