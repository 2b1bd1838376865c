"""A Gaussian process for a few runs with many inputs, some of which may matter.

Three independent parts add up (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, chapters 2 and 5): a constant, a function of the inputs in which times change gradually, and
one of all inputs, details like how full the last wave of tiles is among them. Every variance and
every length is found by maximum a posteriori: ten runs leave nearly all of them where they are
expected, some hundred tell which inputs matter.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np

CONSTANT, PART, NOISE = np.log(0.1), np.log(0.1), np.log(0.02)
"""Where logarithms of variances are expected, errors being logarithms of a ratio."""
LENGTH = 1.3
"""Expected length, in deviations of an input; times the square root of how many inputs there are,
by which all distances grow (Hvarfner and others, ICML 2024)."""
WIDTH, WIDTH_OF_LENGTHS = 1.0, 0.8
"""How far from there they may well be (standard deviations of logarithms)."""
STEPS = 25
JITTER = 1e-8
"""Share of the variance that is added to it, or rounding makes like points contradict."""
HUGE = 1e12
CHUNK_ROWS = 4096
CHUNK_CELLS = 2**16
"""So many covariances stay in a core's cache while means are computed."""


class Process:
    """Values ``y`` at points ``X``, and what they say of other points.

    Args:
        X: points (rows, inputs), each input with a deviation of about one.
        y: their values.
        gradual: as many inputs, the first ones, are those of the gradual part.
        parameters: logarithms of the constant's variance, the noise's, and per part its variance
            and its lengths; None takes what is expected.
    """

    def __init__(
        self, X: np.ndarray, y: np.ndarray, gradual: int, parameters: np.ndarray | None = None
    ) -> None:
        from scipy.linalg import cho_solve

        self.X, self.y = X, y
        self.parts = (gradual, X.shape[1])
        self.parameters = self._expected()[0] if parameters is None else parameters
        self.factor = self._factor(self.parameters)
        self.weights = cho_solve((self.factor, True), y)

    @classmethod
    def tuned(cls, X: np.ndarray, y: np.ndarray, gradual: int) -> Self:
        """Return the process with its likeliest parameters."""
        from scipy.optimize import minimize

        process = cls(X, y, gradual)
        options = {"maxiter": STEPS}
        start = process.parameters
        best = minimize(process._loss, start, jac=True, method="L-BFGS-B", options=options).x
        return cls(X, y, gradual, best)

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how far off each value is when left out, and the deviation then (ibid. 5.4.2)."""
        variance = 1.0 / np.diag(self._inverse(self.factor))
        return self.weights * variance, np.sqrt(variance)

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean at every point, and the deviation of a measurement there."""
        from scipy.linalg import solve_triangular

        mean, variance = np.empty(len(X)), np.full(len(X), self._variance())
        for start in range(0, len(X), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            known = self._covariance(self.parameters, X[chunk])
            mean[chunk] = known @ self.weights
            explained = solve_triangular(self.factor, known.T, lower=True, check_finite=False)
            variance[chunk] -= (explained**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, np.exp(self.parameters[1])))

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Return the mean at every point: `predict` without deviations, many times faster."""
        if len(X) == 1:
            return np.array([self._mean_of_one(X[0])])
        step = max(1, min(len(X), CHUNK_CELLS // len(self.X)))
        mean = np.full(len(X), self._same)
        distance, decay = np.empty((2, len(self.parts), step, len(self.X)))
        parts = [(_augmented(X[:, :inputs] / at), *rest) for inputs, at, *rest in self._singly]
        for start in range(0, len(X), step):
            chunk = slice(start, min(start + step, len(X)))
            d, e = distance[:, : chunk.stop - start], decay[:, : chunk.stop - start]
            for own, (points, known, _) in zip(d, parts, strict=True):
                np.matmul(points[chunk], known, out=own)
            np.maximum(d, 0.0, out=d)
            np.sqrt(d, out=d)
            np.exp(np.negative(d, out=e), out=e)
            d += 1.0
            d *= e
            for own, (_, _, weights) in zip(d, parts, strict=True):
                mean[chunk] += own @ weights
        return mean

    def _mean_of_one(self, x: np.ndarray) -> float:
        """Return the mean at one point: the same with less around it."""
        mean = self._same
        for inputs, lengths, known, weights in self._singly:
            near = x[:inputs] / lengths
            d = near @ known[:inputs]
            d += known[-1]
            d += 3.0 * (near @ near)
            np.maximum(d, 0.0, out=d)
            np.sqrt(d, out=d)
            e = np.exp(-d)
            d += 1.0
            d *= e
            mean += float(d @ weights)
        return mean

    @cached_property
    def _same(self) -> float:
        """What the constant is everywhere."""
        return float(np.exp(self.parameters[0]) * self.weights.sum())

    @cached_property
    def _singly(self) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Each part's inputs, lengths, what squares of distances are made of, and weights."""
        parts = []
        for _, variance, lengths in self._terms(self.parameters):
            near = self.X[:, : len(lengths)] / lengths
            squares = (near**2).sum(axis=1)
            known = 3.0 * np.vstack([-2.0 * near.T, np.ones(len(near)), squares])
            parts.append((len(lengths), lengths, known, variance * self.weights))
        return parts

    def arrays(self) -> dict[str, Any]:
        """Return what `of_arrays` reads."""
        gradual = np.array(self.parts[0])
        return {"X": self.X, "y": self.y, "gradual": gradual, "parameters": self.parameters}

    @classmethod
    def of_arrays(cls, data: Mapping[str, np.ndarray]) -> Self:
        """Return what `arrays` returned."""
        return cls(data["X"], data["y"], int(data["gradual"]), data["parameters"])

    def _expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Return where parameters are expected, and how sure that is."""
        centre, width = [CONSTANT, NOISE], [WIDTH, WIDTH]
        for inputs in self.parts:
            length = np.log(LENGTH) + 0.5 * np.log(max(inputs, 1))
            centre += [PART] + [length] * inputs
            width += [WIDTH] + [WIDTH_OF_LENGTHS] * inputs
        return np.array(centre), np.array(width)

    def _terms(self, parameters: np.ndarray) -> Iterator[tuple[int, float, np.ndarray]]:
        """Give the place of each part's parameters, its variance and its lengths."""
        at = 2
        for inputs in self.parts:
            values = np.exp(parameters[at : at + 1 + inputs])
            yield at, float(values[0]), values[1:]
            at += 1 + inputs

    def _variance(self) -> float:
        """Return the variance of a measurement of which nothing is known."""
        parts = sum(variance for _, variance, _ in self._terms(self.parameters))
        return float(np.exp(self.parameters[:2]).sum() + parts)

    def _covariance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the covariance of points with the known ones."""
        total = np.full((len(X), len(self.X)), np.exp(parameters[0]))
        for _, variance, lengths in self._terms(parameters):
            inputs = len(lengths)
            total += variance * _matern(X[:, :inputs] / lengths, self.X[:, :inputs] / lengths)[0]
        return total

    def _factor(self, parameters: np.ndarray) -> np.ndarray:
        total = self._covariance(parameters, self.X)
        total[np.diag_indices(len(total))] += np.exp(parameters[1]) + JITTER * total[0, 0]
        factor: np.ndarray = np.linalg.cholesky(total)
        return factor

    def _inverse(self, factor: np.ndarray) -> np.ndarray:
        from scipy.linalg import cho_solve

        inverse: np.ndarray = cho_solve((factor, True), np.eye(len(factor)), check_finite=False)
        return inverse

    def _loss(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the negative log of the posterior density of parameters, and its gradient."""
        try:
            factor = self._factor(parameters)
        except np.linalg.LinAlgError:  # a step too far: back
            return HUGE, np.zeros(len(parameters))
        inverse = self._inverse(factor)
        weights = inverse @ self.y
        centre, width = self._expected()
        off = (parameters - centre) / width
        loss = 0.5 * self.y @ weights + np.log(np.diag(factor)).sum() + 0.5 * off @ off
        slope = 0.5 * (inverse - np.outer(weights, weights))  # of the loss, by the covariance
        gradient = off / width
        gradient[0] += slope.sum() * np.exp(parameters[0])
        gradient[1] += np.trace(slope) * np.exp(parameters[1])
        for at, variance, lengths in self._terms(parameters):
            points = self.X[:, : len(lengths)] / lengths
            covariance, by_square = _matern(points, points)
            gradient[at] += variance * (slope * covariance).sum()
            by_square *= 2.0 * variance * slope
            rest = by_square.sum(axis=1) @ points**2 - (points * (by_square @ points)).sum(axis=0)
            gradient[at + 1 : at + 1 + len(lengths)] += 2.0 * rest
        return float(loss), gradient


def _augmented(points: np.ndarray) -> np.ndarray:
    """Return points, their squares and ones: times `Process._singly`, squares of distances."""
    rows, inputs = points.shape
    augmented = np.ones((rows, inputs + 2))
    augmented[:, :inputs] = points
    np.einsum("ij,ij->i", points, points, out=augmented[:, inputs])
    return augmented


def _matern(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Matérn 3/2 of rows' distances, and minus its derivative by their squares."""
    squares = (A**2).sum(axis=1)[:, None] + (B**2).sum(axis=1) - 2.0 * A @ B.T
    distance = np.sqrt(3.0 * np.maximum(squares, 0.0))
    decay = np.exp(-distance)
    return (1.0 + distance) * decay, 1.5 * decay
