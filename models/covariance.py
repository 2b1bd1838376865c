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

CHUNK_CELLS = 2**16  # covariances that fit a core's cache while means are computed

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
        return scaled, lambda slope: 2.0 * gradient(slope)  # the parameter is a standard deviation

    def _variance(self, parameters: np.ndarray) -> float:
        return float(np.exp(2.0 * parameters[0]))

    def _unscaled(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        return np.outer(X[:, self.column], X2[:, self.column])


@dataclass(frozen=True)
class MaternCovariance(CovarianceTerm):
    """A smooth function of some columns: Matérn, with one length per column.

    ``length`` is the prior of each length for one input; ``smoothness`` is 1.5 or 2.5, for
    functions differentiable once or twice.
    """

    inputs: slice
    scale: Hyperprior
    length: Hyperprior
    smoothness: float

    @property
    def hyperpriors(self) -> list[Hyperprior]:
        """The prior of the variance, then those of the lengths."""
        inputs = self.inputs.stop - self.inputs.start
        return [self.scale, *[self.length.for_inputs(inputs)] * inputs]

    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return covariances that decay with distance."""
        inverse_lengths = np.exp(-parameters[1:])
        near = X[:, self.inputs] * inverse_lengths
        far = X2[:, self.inputs] * inverse_lengths
        covariance, _ = self._matern(self._scaled_squares(near, far))
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
        covariance, rougher = self._matern(self._scaled_squares(points, points))
        covariance *= variance
        rougher *= variance * self.smoothness / (2.0 * self.smoothness - 2.0)

        def gradient(slope: np.ndarray) -> np.ndarray:
            # By a log length: sum over pairs of 2 · (−dK/d square) · (difference of inputs)².
            by_square = 2.0 * slope * rougher
            apart = by_square.sum(axis=1) @ points**2 - (points * (by_square @ points)).sum(axis=0)
            return np.append((slope * covariance).sum(), 2.0 * apart)

        return covariance, gradient

    def mean_function(
        self, parameters: np.ndarray, X: np.ndarray, weights: np.ndarray
    ) -> MeanFunction:
        """Return a function of the mean, many times faster than `covariance`."""
        inverse_lengths = np.exp(-parameters[1:])
        twice = 2.0 * self.smoothness
        known, weights = X[:, self.inputs] * inverse_lengths, np.exp(parameters[0]) * weights
        products = -2.0 * twice * known.T
        squares = twice * (known * known).sum(axis=1)
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
        """Return the Matérn function of this smoothness, and of the smoothness less one.

        Overwrites ``squares`` and ``work``.
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
