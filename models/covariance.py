"""What a covariance is added up from.

A point is one row of a matrix ``X``, and a term reads the columns it is told. The parameters of all
terms are logarithms of scales and of lengths, each with a weak hyperprior: so many of them can be
found by maximum a posteriori from ten measurements (Rasmussen and Williams, Gaussian Processes
for Machine Learning, 2006, chapters 4 and 5).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

CHUNK_CELLS = 2**16
"""So many covariances stay in a core's cache while means are computed."""

GradientFunction = Callable[[np.ndarray], np.ndarray]
"""Turns the slope of a loss by every covariance (symmetric) into its slopes by the parameters."""
MeanFunction = Callable[[np.ndarray], np.ndarray | float]
"""Gives points what one term adds to their mean."""


@dataclass(frozen=True)
class Hyperprior:
    """Where a variance, a standard deviation or a length is expected: log-normal.

    Attributes:
        median: of it.
        width: standard deviation of its logarithm; 0 fixes it at the median.
        low, high: it is never outside.
    """

    median: float
    width: float = 1.0
    low: float = 0.0
    high: float = np.inf

    @property
    def center(self) -> float:
        """The logarithm of the median."""
        return float(np.log(self.median))

    @property
    def bounds(self) -> tuple[float, float]:
        """The logarithms of ``low`` and ``high``."""
        if self.width == 0:
            return self.center, self.center
        with np.errstate(divide="ignore"):
            return float(np.log(self.low)), float(np.log(self.high))

    def for_inputs(self, inputs: int) -> Self:
        """Return it for one of ``inputs`` lengths.

        Distances grow with the square root of the number of inputs, and so must lengths (Hvarfner
        and others, ICML 2024).
        """
        median = self.median * max(inputs, 1) ** 0.5
        return type(self)(median, self.width, self.low, self.high)


class CovarianceTerm(ABC):
    """A covariance. ``parameters`` are always its own, as logarithms."""

    @property
    @abstractmethod
    def hyperpriors(self) -> list[Hyperprior]:
        """Where each parameter is expected."""

    @abstractmethod
    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the covariances of points with others, of a shape that broadcasts to (X, X2)."""

    @abstractmethod
    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the diagonal of `covariance` of points with themselves, likewise."""

    @abstractmethod
    def covariance_and_gradient(
        self, parameters: np.ndarray, X: np.ndarray
    ) -> tuple[np.ndarray, GradientFunction]:
        """Return the covariances of points with each other, and what their slopes mean."""

    def mean_function(
        self, parameters: np.ndarray, X: np.ndarray, weights: np.ndarray
    ) -> MeanFunction:
        """Return what gives ``covariance(points, X) @ weights`` of points."""
        return lambda points: self.covariance(parameters, points, X) @ weights


class ScaledCovariance(CovarianceTerm):
    """A covariance that is known but for its scale."""

    scale: Hyperprior

    @property
    def hyperpriors(self) -> list[Hyperprior]:
        """That of the scale."""
        return [self.scale]

    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the scaled covariance."""
        return self._variance(parameters) * self._unscaled(X, X2)

    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the scale: but for multiples it is the same everywhere."""
        return np.full(len(X), self._variance(parameters))

    def covariance_and_gradient(
        self, parameters: np.ndarray, X: np.ndarray
    ) -> tuple[np.ndarray, GradientFunction]:
        """Return the covariance, and what its slopes mean."""
        scaled = self.covariance(parameters, X, X)
        return scaled, lambda slope: np.array([(slope * scaled).sum()])

    def _variance(self, parameters: np.ndarray) -> float:
        return float(np.exp(parameters[0]))

    @abstractmethod
    def _unscaled(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the covariance without its scale."""


@dataclass(frozen=True)
class ConstantCovariance(ScaledCovariance):
    """An offset that all points share, of variance ``scale``."""

    scale: Hyperprior

    def mean_function(
        self, parameters: np.ndarray, X: np.ndarray, weights: np.ndarray
    ) -> MeanFunction:
        """Return what gives the same mean to all points."""
        mean = self._variance(parameters) * float(weights.sum())
        return lambda points: mean

    def _unscaled(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        return np.ones((1, 1))


@dataclass(frozen=True)
class GroupCovariance(ScaledCovariance):
    """An offset of variance ``scale`` that points share where ``column`` has the same number."""

    column: int
    scale: Hyperprior

    def _unscaled(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        same_group: np.ndarray = X[:, self.column, None] == X2[:, self.column]
        return same_group


@dataclass(frozen=True)
class LinearCovariance(ScaledCovariance):
    """A multiple of ``column``, like a prior mean that is too steep or misleading.

    Its standard deviation is ``scale``.
    """

    column: int
    scale: Hyperprior

    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return scaled squares of the column."""
        variance: np.ndarray = self._variance(parameters) * X[:, self.column] ** 2
        return variance

    def covariance_and_gradient(
        self, parameters: np.ndarray, X: np.ndarray
    ) -> tuple[np.ndarray, GradientFunction]:
        """Return the covariance, and what its slopes mean."""
        scaled, gradient = super().covariance_and_gradient(parameters, X)
        return scaled, lambda slope: 2.0 * gradient(slope)  # a standard deviation's

    def _variance(self, parameters: np.ndarray) -> float:
        return float(np.exp(2.0 * parameters[0]))

    def _unscaled(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        return np.outer(X[:, self.column], X2[:, self.column])


@dataclass(frozen=True)
class MaternCovariance(CovarianceTerm):
    """A function that changes smoothly with some columns: Matérn, with a length for each.

    Attributes:
        inputs: the columns, from the first to before the last.
        scale: the variance.
        length: of each input, were there only one (`Hyperprior.for_inputs`).
        smoothness: 1.5 for functions with a slope, 2.5 for those with a curvature, too.
    """

    inputs: slice
    scale: Hyperprior
    length: Hyperprior
    smoothness: float

    @property
    def hyperpriors(self) -> list[Hyperprior]:
        """That of the variance, then those of the lengths."""
        inputs = self.inputs.stop - self.inputs.start
        return [self.scale, *[self.length.for_inputs(inputs)] * inputs]

    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return what fades with distance."""
        inverse_lengths = np.exp(-parameters[1:])
        near, far = X[:, self.inputs] * inverse_lengths, X2[:, self.inputs] * inverse_lengths
        covariance, _ = self._matern(self._scaled_squares(near, far))
        covariance *= np.exp(parameters[0])
        return covariance

    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the variance."""
        return np.exp(parameters[:1])

    def covariance_and_gradient(
        self, parameters: np.ndarray, X: np.ndarray
    ) -> tuple[np.ndarray, GradientFunction]:
        """Return the covariance, and what its slopes mean."""
        points, variance = X[:, self.inputs] * np.exp(-parameters[1:]), np.exp(parameters[0])
        covariance, rougher = self._matern(self._scaled_squares(points, points))
        covariance *= variance
        rougher *= variance * self.smoothness / (2.0 * self.smoothness - 2.0)

        def gradient(slope: np.ndarray) -> np.ndarray:
            # Of a log length: the sum over pairs of 2 · (−dK/d square) · (difference of inputs)².
            by_square = 2.0 * slope * rougher
            apart = by_square.sum(axis=1) @ points**2 - (points * (by_square @ points)).sum(axis=0)
            return np.append((slope * covariance).sum(), 2.0 * apart)

        return covariance, gradient

    def mean_function(
        self, parameters: np.ndarray, X: np.ndarray, weights: np.ndarray
    ) -> MeanFunction:
        """Return what gives the means of many points, or of one, many times faster."""
        inverse_lengths, twice = np.exp(-parameters[1:]), 2.0 * self.smoothness
        known, weights = X[:, self.inputs] * inverse_lengths, np.exp(parameters[0]) * weights
        products, squares = -2.0 * twice * known.T, twice * (known * known).sum(axis=1)
        augmented = np.vstack([products, np.ones(len(known)), squares])

        def of_one(x: np.ndarray) -> float:
            near = x * inverse_lengths
            cells = near @ products
            cells += squares
            cells += twice * (near @ near)
            return float(self._matern(cells)[0] @ weights)

        def of_many(points: np.ndarray) -> np.ndarray | float:
            if len(points) == 1:
                return of_one(points[0, self.inputs])
            near = points[:, self.inputs] * inverse_lengths
            near = np.column_stack([near, twice * (near * near).sum(axis=1), np.ones(len(near))])
            step = max(1, min(len(near), CHUNK_CELLS // len(known)))
            cells, work = np.empty((2, step, len(known)))
            mean = np.empty(len(near))
            for start in range(0, len(near), step):
                chunk = near[start : start + step]
                of_chunk = np.matmul(chunk, augmented, out=cells[: len(chunk)])
                self._matern(of_chunk, work[: len(chunk)])
                np.matmul(of_chunk, weights, out=mean[start : start + step])
            return mean

        return of_many

    def _scaled_squares(self, points: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return squared distances, times twice the smoothness."""
        squares = points @ (-2.0 * others.T)
        squares += (points * points).sum(axis=1)[:, None]
        squares += (others * others).sum(axis=1)
        squares *= 2.0 * self.smoothness
        return squares

    def _matern(
        self, squares: np.ndarray, work: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return Matérn's function of this smoothness, and of one less, of `_squares`.

        Works in their place, and in that of ``work``.
        """
        distance = np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares)
        decay = np.exp(np.negative(distance, out=work), out=work)
        if self.smoothness == 1.5:
            distance += 1.0
            distance *= decay
            return distance, decay
        rougher = (1.0 + distance) * decay
        distance *= distance
        distance *= decay
        distance /= 3.0
        distance += rougher
        return distance, rougher
