"""Gaussian processes and their posteriors (Rasmussen and Williams, 2006, chapters 2 and 5).

``X`` are points (points, inputs), ``y`` the values measured there, less their prior mean. The
Cholesky factor ``L`` of the covariance K of measurements gives everything: the weights of the mean
K⁻¹y, the whitened values L⁻¹y, and the variance that measurements explain at other points.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from foretune.models.covariance import CovarianceTerm, GradientFunction, Hyperprior

JITTER = 1e-8
"""Added to the noise; without it, rounding makes equal points contradict each other."""
INVALID_LOSS = 1e12
"""Loss of parameters whose covariance is not positive definite."""
PREALLOCATED_ROWS = 64
"""Initial capacity of a posterior, in measurements."""
CHUNK_ROWS = 4096
"""Points that `Posterior.predict` computes at once."""
MIN_VARIANCE = 1e-10
"""Lower bound of variances."""


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """A zero-mean process over points, the rows of a matrix.

    ``parameters`` are the logs of the terms' parameters in order, then of the noise variance.
    """

    terms: Sequence[CovarianceTerm]
    noise_prior: Hyperprior
    parameters: np.ndarray

    @classmethod
    def from_prior(cls, terms: Sequence[CovarianceTerm], noise: Hyperprior) -> Self:
        """Return a process with its parameters at their prior medians."""
        process = cls(terms, noise, np.empty(0))
        return replace(process, parameters=process._prior[0])

    @property
    def noise(self) -> float:
        """The noise variance."""
        return float(np.exp(self.parameters[-1])) + JITTER

    def fitted(self, X: np.ndarray, y: np.ndarray, steps: int) -> Self:
        """Return the process with maximum a posteriori parameters, starting from its own.

        ``steps`` limits the optimizer's iterations.
        """
        from scipy.optimize import minimize

        optimum = minimize(
            self._loss,
            self.parameters,
            (X, y),
            jac=True,
            method="L-BFGS-B",
            bounds=[hyperprior.bounds for hyperprior in self._hyperpriors],
            options={"maxiter": steps},
        )
        return replace(self, parameters=optimum.x)

    def covariance(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the covariances of values without noise (X, X2)."""
        total = np.zeros((len(X), len(X2)))
        for term, parameters in self.terms_with_parameters():
            total += term.covariance(parameters, X, X2)
        return total

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Return the diagonal of `covariance` of points with themselves."""
        total = np.zeros(len(X))
        for term, parameters in self.terms_with_parameters():
            total += term.variance(parameters, X)
        return total

    def terms_with_parameters(
        self, parameters: np.ndarray | None = None
    ) -> Iterator[tuple[CovarianceTerm, np.ndarray]]:
        """Return each term with its parameters."""
        parameters = self.parameters if parameters is None else parameters
        return zip(self.terms, np.split(parameters, self._ends), strict=False)

    @cached_property
    def _hyperpriors(self) -> list[Hyperprior]:
        return [*(h for term in self.terms for h in term.hyperpriors), self.noise_prior]

    @cached_property
    def _prior(self) -> tuple[np.ndarray, np.ndarray]:
        """Centers and widths of the parameters' priors; fixed parameters have infinite width."""
        centers = np.array([h.center for h in self._hyperpriors])
        return centers, np.array([h.width or np.inf for h in self._hyperpriors])

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(term.hyperpriors) for term in self.terms])

    def _loss(
        self, parameters: np.ndarray, X: np.ndarray, y: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Return the negative log posterior of the parameters, and its gradient."""
        from scipy.linalg import cho_solve

        # The covariance of the measurements, and how each term's part depends on its parameters.
        covariance = np.zeros((len(X), len(X)))
        gradient_functions: list[GradientFunction] = []
        for term, term_parameters in self.terms_with_parameters(parameters):
            term_covariance, gradient_function = term.covariance_and_gradient(term_parameters, X)
            covariance += term_covariance
            gradient_functions.append(gradient_function)
        noise = np.exp(parameters[-1])
        covariance[np.diag_indices(len(covariance))] += noise + JITTER

        try:
            factor = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:  # the step was too long
            return INVALID_LOSS, np.zeros(len(parameters))

        # Loss: the negative log likelihood, and the prior of the parameters.
        weights = cho_solve((factor, True), y, check_finite=False)
        centers, widths = self._prior
        standardized = (parameters - centers) / widths
        log_determinant = np.log(np.diag(factor)).sum()
        loss = 0.5 * y @ weights + log_determinant + 0.5 * standardized @ standardized

        # Gradient: by the covariance first (Rasmussen and Williams, 5.9), then by each parameter.
        precision = inverse_from_cholesky(factor)
        by_covariance = 0.5 * (precision - np.outer(weights, weights))
        by_term = [gradient_function(by_covariance) for gradient_function in gradient_functions]
        by_noise = np.trace(by_covariance) * noise
        by_parameters = np.concatenate([*by_term, [by_noise]])
        return float(loss), by_parameters + standardized / widths


def inverse_from_cholesky(factor: np.ndarray) -> np.ndarray:
    """Return the inverse of a matrix, given its Cholesky factor."""
    from scipy.linalg.lapack import dpotri

    lower = np.tril(dpotri(factor, lower=True)[0])
    return lower + np.tril(lower, -1).T


class Posterior:
    """A process conditioned on measurements, at candidates or any other points.

    The part of the candidates' variance that measurements explain is cached, so another measurement
    costs one row of a triangular system. A pending measurement is assumed to turn out as expected:
    means stay, spreads shrink.

    ``process`` is not changed. ``y`` are the values at the points ``X``, less their prior mean;
    measurements without a value are pending and come last. ``prior`` is the prior mean of the
    ``candidates`` to track. ``scale`` multiplies all spreads; it is the unit of the process in
    units of ``y``. ``extra_noise`` is a variance of each measurement on top of the process' noise,
    and with ``observation_noise`` spreads include the noise of a measurement.
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
        self.prior = prior
        self.scale = scale
        self.observation_noise = observation_noise
        self.candidates = X[:0] if candidates is None else candidates
        self.X = X[:0]
        self._factor = np.zeros((0, 0))
        self._buffer = np.empty((PREALLOCATED_ROWS, len(self.candidates)))  # len(self) rows used
        self._explained = np.zeros(len(self.candidates))
        self.add(X, extra_noise)
        self.set_values(y)

    def __len__(self) -> int:
        """Return the number of measurements, including pending ones."""
        return len(self.X)

    def add(self, X: np.ndarray, extra_noise: np.ndarray | float = 0.0) -> None:
        """Add pending measurements at ``X``; `set_values` gives them values."""
        from scipy.linalg import solve_triangular

        n_old = len(self)
        n_new = len(X)
        if not n_new:
            return

        # The factor grows by a block of rows: those of the new measurements' covariance with the
        # old ones, and the factor of what the old ones do not explain (the Schur complement).
        cross = self.process.covariance(self.X, X)
        if n_old:
            cross = solve_triangular(self._factor, cross, lower=True, check_finite=False)
        schur = self.process.covariance(X, X) - cross.T @ cross
        schur[np.diag_indices(n_new)] += self.process.noise + extra_noise
        corner = np.linalg.cholesky(schur)
        factor = np.zeros((n_old + n_new, n_old + n_new))
        factor[:n_old, :n_old] = self._factor
        factor[n_old:, :n_old] = cross.T
        factor[n_old:, n_old:] = corner

        # What the new measurements explain of the candidates.
        if len(self.candidates):
            rows = self.process.covariance(X, self.candidates)
            if n_old:
                rows -= cross.T @ self._buffer[:n_old]
            self._append_explained(solve_triangular(corner, rows, lower=True, check_finite=False))
        self._factor = factor
        self.X = np.vstack([self.X, X])

    def drop_pending(self, n: int) -> None:
        """Remove the last ``n`` measurements, which must be pending."""
        remaining = len(self) - n
        self._explained -= (self._buffer[remaining : remaining + n] ** 2).sum(axis=0)
        self._factor = self._factor[:remaining, :remaining]
        self.X = self.X[:remaining]

    def set_values(self, y: np.ndarray) -> None:
        """Set the values of the first measurements, less their prior mean."""
        self.y = y
        self._whitened = self._solve(y)

    @property
    def mean(self) -> np.ndarray:
        """Mean of every candidate."""
        return self.prior + self._whitened @ self._buffer[: len(self.y)]

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of every candidate."""
        variance = self.process.variance(self.candidates) - self._explained
        return self.scale * np.sqrt(np.maximum(variance, MIN_VARIANCE) + self._noise)

    @property
    def squared_errors(self) -> float:
        """Sum of the squared errors of the values, each relative to its expected size."""
        return float(self._whitened @ self._whitened)

    def covariance(self, numbers: np.ndarray) -> np.ndarray:
        """Return the covariances of the candidates at indices ``numbers``."""
        points = self.candidates[numbers]
        explained = self._buffer[: len(self), numbers]
        joint = self.process.covariance(points, points) - explained.T @ explained
        joint[np.diag_indices(len(joint))] += self._noise
        return self.scale**2 * joint

    def at(self, points: np.ndarray, prior: np.ndarray | float = 0.0) -> Self:
        """Return the posterior of other candidates, given the same measurements."""
        other = copy(self)
        other.candidates = points
        other.prior = prior
        other._buffer = self._solve(self.process.covariance(self.X, points))
        other._explained = (other._buffer**2).sum(axis=0)
        return other

    def in_single_precision(self) -> Self:
        """Return a float32 copy: enough for spreads, and twice as fast at many points."""
        rounded = copy(self)
        rounded._factor = self._factor.astype(np.float32)
        rounded._whitened = self._whitened.astype(np.float32)
        return rounded

    def predict(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and spread at any number of points."""
        mean = np.empty(len(points))
        spread = np.empty(len(points))
        for start in range(0, len(points), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            at_chunk = self.at(points[chunk])
            mean[chunk] = at_chunk.mean
            spread[chunk] = at_chunk.spread
        return mean, spread

    def mean_function(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return a fast function of the mean, fastest for single points."""
        known = self.X[: len(self.y)]
        weights = self._weights()
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
        """Return each value's leave-one-out error and deviation (Rasmussen and Williams, 5.4.2)."""
        n = len(self.y)
        variance = 1.0 / np.diag(inverse_from_cholesky(self._factor[:n, :n]))
        return self._weights() * variance, self.scale * np.sqrt(variance)

    @property
    def _noise(self) -> float:
        return self.process.noise if self.observation_noise else 0.0

    def _weights(self) -> np.ndarray:
        """Return the inverse covariance of the measurements times their values."""
        return self._solve(self._whitened, "T")

    def _solve(self, values: np.ndarray, transposed: str = "N") -> np.ndarray:
        """Return ``values`` divided by the Cholesky factor of equally many measurements."""
        from scipy.linalg import solve_triangular

        n = len(values)
        if not n:
            return values
        factor = self._factor[:n, :n]
        values = values.astype(factor.dtype, copy=False)
        return solve_triangular(factor, values, trans=transposed, lower=True, check_finite=False)

    def _append_explained(self, rows: np.ndarray) -> None:
        """Append rows to the buffer, which doubles when it is full."""
        n_old = len(self)
        n_all = n_old + len(rows)
        if n_all > len(self._buffer):
            buffer = np.empty((2 * n_all, len(self.candidates)))
            buffer[:n_old] = self._buffer[:n_old]
            self._buffer = buffer
        self._buffer[n_old:n_all] = rows
        self._explained += (rows * rows).sum(axis=0)
