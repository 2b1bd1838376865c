"""Covariance terms of a Gaussian process.

A point is a row of a matrix ``X``, and each term reads some columns. Parameters are logarithms of
scales and lengths with weak hyperpriors, so that ten measurements suffice for maximum a posteriori
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 4 and 5).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

CHUNK_CELLS = 2**16
"""Covariances that fit a core's cache while means are computed."""

GradientFunction = Callable[[np.ndarray], np.ndarray]
"""Maps the loss gradient by every covariance (symmetric) to the gradient by the parameters."""
MeanFunction = Callable[[np.ndarray], np.ndarray | float]
"""Maps points to one term's contribution to their mean."""


@dataclass(frozen=True)
class Hyperprior:
    """Log-normal prior of a variance, a standard deviation or a length.

    ``width`` is the standard deviation of the logarithm; 0 fixes the median.
    """

    median: float
    width: float = 1.0
    low: float = 0.0
    high: float = np.inf

    @property
    def center(self) -> float:
        """The log of the median."""
        return float(np.log(self.median))

    @property
    def bounds(self) -> tuple[float, float]:
        """The logs of ``low`` and ``high``."""
        if self.width == 0:
            return self.center, self.center
        with np.errstate(divide="ignore"):
            return float(np.log(self.low)), float(np.log(self.high))

    def for_inputs(self, inputs: int) -> Self:
        """Return the prior of each of ``inputs`` lengths.

        Distances grow with the square root of the number of inputs, so lengths must too (Hvarfner
        et al., ICML 2024).
        """
        return replace(self, median=self.median * max(inputs, 1) ** 0.5)


class CovarianceTerm(ABC):
    """A covariance term; ``parameters`` are the logs of this term's parameters, if it has any."""

    @property
    def hyperpriors(self) -> list[Hyperprior]:
        """The prior of each parameter."""
        return []

    @abstractmethod
    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the covariances between points, in a shape that broadcasts to (X, X2)."""

    @abstractmethod
    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the diagonal of `covariance` of points with themselves."""

    def covariance_and_gradient(
        self, parameters: np.ndarray, X: np.ndarray
    ) -> tuple[np.ndarray, GradientFunction]:
        """Return the covariances of points with each other, and the gradient function."""
        return self.covariance(parameters, X, X), lambda slope: np.empty(0)

    def mean_function(
        self, parameters: np.ndarray, X: np.ndarray, weights: np.ndarray
    ) -> MeanFunction:
        """Return a function that computes ``covariance(points, X) @ weights``."""
        return lambda points: self.covariance(parameters, points, X) @ weights


class ScaledCovariance(CovarianceTerm):
    """A fixed covariance times a scale."""

    scale: Hyperprior

    @property
    def hyperpriors(self) -> list[Hyperprior]:
        """The prior of the scale."""
        return [self.scale]

    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the scaled covariance."""
        return self._variance(parameters) * self._unscaled(X, X2)

    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the scale; terms with a varying variance override this."""
        return np.full(len(X), self._variance(parameters))

    def covariance_and_gradient(
        self, parameters: np.ndarray, X: np.ndarray
    ) -> tuple[np.ndarray, GradientFunction]:
        """Return the covariance and the gradient function."""
        scaled = self.covariance(parameters, X, X)
        return scaled, lambda slope: np.array([(slope * scaled).sum()])

    def _variance(self, parameters: np.ndarray) -> float:
        return float(np.exp(parameters[0]))

    @abstractmethod
    def _unscaled(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the covariance without its scale."""


@dataclass(frozen=True)
class ConstantCovariance(ScaledCovariance):
    """An offset of variance ``scale`` that all points share."""

    scale: Hyperprior

    def mean_function(
        self, parameters: np.ndarray, X: np.ndarray, weights: np.ndarray
    ) -> MeanFunction:
        """Return a function with the same mean for all points."""
        mean = self._variance(parameters) * float(weights.sum())
        return lambda points: mean

    def _unscaled(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        return np.ones((1, 1))


@dataclass(frozen=True)
class GroupCovariance(ScaledCovariance):
    """An offset of variance ``scale`` shared by points with equal ``column``."""

    column: int
    scale: Hyperprior

    def _unscaled(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        return X[:, self.column, None] == X2[:, self.column]


@dataclass(frozen=True)
class LinearCovariance(ScaledCovariance):
    """A multiple of ``column``, e.g. a prior mean that is too steep.

    The multiple's standard deviation is ``scale``.
    """

    column: int
    scale: Hyperprior

    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the scaled squares of the column."""
        return self._variance(parameters) * X[:, self.column] ** 2

    def covariance_and_gradient(
        self, parameters: np.ndarray, X: np.ndarray
    ) -> tuple[np.ndarray, GradientFunction]:
        """Return the covariance and the gradient function."""
        scaled, gradient = super().covariance_and_gradient(parameters, X)

        # The parameter is the log of a standard deviation: the variance changes twice as fast.
        return scaled, lambda slope: 2.0 * gradient(slope)

    def _variance(self, parameters: np.ndarray) -> float:
        return float(np.exp(2.0 * parameters[0]))

    def _unscaled(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        return np.outer(X[:, self.column], X2[:, self.column])


@dataclass(frozen=True)
class MaternCovariance(CovarianceTerm):
    """A smooth function of some columns: Matérn, with one length per column.

    ``length`` is the prior of each length for one input; ``smoothness`` is 1.5 or 2.5, for
    functions differentiable once or twice.

    With r = √(2 · smoothness) · distance, the covariance is the variance times (1 + r) · exp(−r)
    for 1.5, and (1 + r + r²/3) · exp(−r) for 2.5 (Rasmussen and Williams 2006, equation 4.17).
    Inputs are divided by their lengths first.
    """

    inputs: slice
    scale: Hyperprior
    length: Hyperprior
    smoothness: float

    @property
    def hyperpriors(self) -> list[Hyperprior]:
        """The prior of the variance, then those of the lengths."""
        n_inputs = self.inputs.stop - self.inputs.start
        return [self.scale, *[self.length.for_inputs(n_inputs)] * n_inputs]

    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return covariances that decay with distance."""
        inverse_lengths = np.exp(-parameters[1:])
        scaled = X[:, self.inputs] * inverse_lengths
        scaled2 = X2[:, self.inputs] * inverse_lengths
        covariance, _ = self._matern(self._squared_distances(scaled, scaled2))
        covariance *= np.exp(parameters[0])
        return covariance

    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the variance."""
        return np.exp(parameters[:1])

    def covariance_and_gradient(
        self, parameters: np.ndarray, X: np.ndarray
    ) -> tuple[np.ndarray, GradientFunction]:
        """Return the covariance and the gradient function."""
        points = X[:, self.inputs] * np.exp(-parameters[1:])
        variance = np.exp(parameters[0])
        covariance, rougher = self._matern(self._squared_distances(points, points))
        covariance *= variance

        # dK / d distance² = −smoothness / (2 · smoothness − 2) · variance · (the Matérn function of
        # the smoothness less one, at the same r).
        decay_by_square = rougher
        decay_by_square *= variance * self.smoothness / (2.0 * self.smoothness - 2.0)

        def gradient(slope: np.ndarray) -> np.ndarray:
            # By the log of an input's length: the sum over all pairs of points of
            # 2 · slope · (−dK / d distance²) · (their difference in that input)².
            # With (a − b)² = a² + b² − 2ab and symmetric factors, the sum needs no array of
            # (points, points, inputs).
            factors = 2.0 * slope * decay_by_square
            squares = factors.sum(axis=1) @ points**2
            products = (points * (factors @ points)).sum(axis=0)
            by_log_variance = (slope * covariance).sum()
            return np.append(by_log_variance, 2.0 * (squares - products))

        return covariance, gradient

    def mean_function(
        self, parameters: np.ndarray, X: np.ndarray, weights: np.ndarray
    ) -> MeanFunction:
        """Return a function of the mean, many times faster than `covariance`."""
        inverse_lengths = np.exp(-parameters[1:])
        doubled_smoothness = 2.0 * self.smoothness
        known = X[:, self.inputs] * inverse_lengths
        scaled_weights = np.exp(parameters[0]) * weights

        # Scaled squared distances: |a − b|² = a² + b² − 2ab. The matrix below adds all three by
        # one product: of [a, a², 1] with [−2b; 1; b²].
        products = -2.0 * doubled_smoothness * known.T
        squares = doubled_smoothness * (known * known).sum(axis=1)
        augmented = np.vstack([products, np.ones(len(known)), squares])

        def mean_of_one(x: np.ndarray) -> float:
            point = x * inverse_lengths
            cells = point @ products
            cells += squares
            cells += doubled_smoothness * (point @ point)
            covariance, _ = self._matern(cells)
            return float(covariance @ scaled_weights)

        def mean_of_all(X2: np.ndarray) -> np.ndarray | float:
            if len(X2) == 1:
                return mean_of_one(X2[0, self.inputs])
            points = X2[:, self.inputs] * inverse_lengths
            point_squares = doubled_smoothness * (points * points).sum(axis=1)
            augmented_points = np.column_stack([points, point_squares, np.ones(len(points))])

            # Some points at a time, in two arrays that stay in the cache.
            n_at_once = max(1, min(len(points), CHUNK_CELLS // len(known)))
            cells, work = np.empty((2, n_at_once, len(known)))
            mean = np.empty(len(points))
            for start in range(0, len(points), n_at_once):
                chunk = augmented_points[start : start + n_at_once]
                covariance = np.matmul(chunk, augmented, out=cells[: len(chunk)])
                self._matern(covariance, work[: len(chunk)])
                np.matmul(covariance, scaled_weights, out=mean[start : start + n_at_once])
            return mean

        return mean_of_all

    def _squared_distances(self, points: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return squared distances, times twice the smoothness: (points, others)."""
        squares = points @ (-2.0 * others.T)
        squares += (points * points).sum(axis=1)[:, None]
        squares += (others * others).sum(axis=1)
        squares *= 2.0 * self.smoothness
        return squares

    def _matern(
        self, squares: np.ndarray, work: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the Matérn function of this smoothness, and of the smoothness less one.

        ``squares`` are r², and may be slightly negative by rounding. The steps work in place,
        because new arrays would cost more than the arithmetic: the result overwrites ``squares``
        and ``work``.
        """
        r = np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares)
        decay = np.exp(np.negative(r, out=work), out=work)
        if self.smoothness == 1.5:
            # (1 + r) · exp(−r)
            r += 1.0
            r *= decay
            return r, decay

        # (1 + r + r²/3) · exp(−r)
        rougher = (1.0 + r) * decay
        r *= r
        r *= decay
        r /= 3.0
        r += rougher
        return r, rougher
