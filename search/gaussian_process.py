"""A Gaussian process for a few hundred measurements of one space.

Residuals of a prior are modelled as a constant, a multiple of the prior itself and a function that
is smooth in the coordinates (Matérn 5/2 with a length per axis; Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, chapters 2 and 5). Everything that has a scale is given a
weak prior and found by maximum a posteriori, so that twenty lengths can be had from ten points; the
one on lengths grows with the number of axes as Hvarfner et al. (ICML 2024) propose.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize
from scipy.special import erfcx, ndtr
from threadpoolctl import ThreadpoolController

STEPS = 15
"""Steps of the optimiser per fit: it starts from the last result, which is seldom far."""
REFIT = 1.15
"""A process is worth fitting anew when it has this many times the measurements it had."""
MOST = 400
"""Measurements it is fitted to at most."""
CONSTANT = 1.0
"""Standard deviation of the residuals' common offset."""
JITTER = 1e-8
ROOM = 64
"""Measurements a posterior has room for at first."""


@dataclass
class GaussianProcess:
    """Covariance of residuals, in units of their scale.

    Args:
        axes: dimensions of a point.
        amplitude: expected standard deviation of the smooth part.
    """

    axes: int
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        length = np.log(0.5) + 0.5 * np.log(max(self.axes, 1))
        rest = [2 * np.log(self.amplitude), np.log(1e-2), np.log(0.5)]
        self._centre = np.concatenate([np.full(self.axes, length), rest])
        self._width = np.concatenate([np.ones(self.axes), [1.5, 1.5, 0.7]])
        self._bounds = [(-4.0, 4.0)] * self.axes + [(-8.0, 3.0), (np.log(1e-5), 0.0), (-5.0, 2.0)]
        self.parameters = self._centre.copy()
        """Logarithms of: the lengths, the smooth part's variance, the noise's, the multiple."""

    @property
    def noise(self) -> float:
        """Variance of one measurement."""
        return float(np.exp(self.parameters[self.axes + 1])) + JITTER

    def fit(self, X: np.ndarray, prior: np.ndarray, y: np.ndarray) -> None:
        """Find the likeliest scales of residuals ``y`` at ``X``, where the prior was ``prior``."""
        points = self._points(X)
        squares = np.ascontiguousarray(((points[:, None] - points) ** 2).transpose(2, 0, 1))
        squares = squares.reshape(self.axes, len(X) ** 2)
        self.parameters = minimize(
            self._loss,
            self.parameters,
            (squares, np.outer(prior, prior), self._common(X, X), y),
            jac=True,
            method="L-BFGS-B",
            bounds=self._bounds,
            options={"maxiter": STEPS},
        ).x

    def covariance(
        self, X: np.ndarray, prior: np.ndarray, X2: np.ndarray, prior2: np.ndarray
    ) -> np.ndarray:
        """Return the covariance of noiseless residuals, shape (X, X2)."""
        shrink = np.exp(-self.parameters[: self.axes])
        a, b = self._points(X) * shrink, self._points(X2) * shrink
        squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * a @ b.T
        smooth, _ = _matern(np.maximum(squares, 0, out=squares))
        smooth *= np.exp(self.parameters[self.axes])
        return smooth + np.outer(self._multiple * prior, prior2) + self._common(X, X2)

    def _points(self, X: np.ndarray) -> np.ndarray:
        """Return where rows of ``X`` lie along the axes."""
        return X

    def _common(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray | float:
        """Return the covariance of the offsets of residuals, shape (X, X2): one for all."""
        return CONSTANT**2

    def variance(self, prior: np.ndarray) -> np.ndarray:
        """Return the diagonal of `covariance`."""
        return np.exp(self.parameters[self.axes]) + self._multiple * prior**2 + CONSTANT**2

    @property
    def _multiple(self) -> float:
        return float(np.exp(2 * self.parameters[self.axes + 2]))

    def _loss(
        self,
        parameters: np.ndarray,
        squares: np.ndarray,
        priors: np.ndarray,
        common: np.ndarray | float,
        y: np.ndarray,
    ) -> tuple[float, np.ndarray]:
        """Return the negative log posterior density of the scales, and its gradient."""
        axes, n = self.axes, len(y)
        shrink = np.exp(-2 * parameters[:axes])
        variance, noise = np.exp(parameters[axes : axes + 2])
        multiple = np.exp(2 * parameters[axes + 2])
        smooth, slope = _matern((shrink @ squares).reshape(n, n))
        smooth *= variance
        K = smooth + multiple * priors + common
        K[np.diag_indices(n)] += noise + JITTER
        try:
            L = np.linalg.cholesky(K)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(parameters)
        solved = cho_solve((L, True), y, check_finite=False)
        lower, _ = dpotri(L, lower=1)
        inverse = np.tril(lower) + np.tril(lower, -1).T
        off = (parameters - self._centre) / self._width
        loss = 0.5 * y @ solved + np.log(np.diag(L)).sum() + 0.5 * off @ off
        W = inverse - np.outer(solved, solved)
        gradient = off / self._width
        gradient[:axes] += 0.5 * (squares @ (W * (variance * slope)).ravel()) * shrink
        gradient[axes] += 0.5 * (W * smooth).sum()
        gradient[axes + 1] += 0.5 * np.trace(W) * noise
        gradient[axes + 2] += (W * priors).sum() * multiple
        return float(loss), gradient


class Posterior:
    """Mean and spread of the residuals of many candidates, kept up as measurements come in.

    One more measurement costs one more row of a triangular system, not a new one.

    Args:
        process: its scales are taken as they are.
        candidates: points, shape (candidates, axes).
        prior: at the candidates.
    """

    def __init__(self, process: GaussianProcess, candidates: np.ndarray, prior: np.ndarray) -> None:
        self._process = process
        self._candidates, self._candidates_prior = candidates, prior
        self._X = np.empty((0, candidates.shape[1]))
        self._prior = np.empty(0)
        self._L = np.zeros((0, 0))
        self._room = np.empty((ROOM, len(candidates)))  # its first len(self) rows are in use
        self._explained = np.zeros(len(candidates))

    def __len__(self) -> int:
        """Return how many measurements it knows."""
        return len(self._X)

    def add(self, X: np.ndarray, prior: np.ndarray) -> None:
        """Learn that residuals will be known at ``X``."""
        process, n, new = self._process, len(self), len(X)
        known = self._room[:n]
        cross = process.covariance(self._X, self._prior, X, prior)
        if n:
            cross = solve_triangular(self._L, cross, lower=True, check_finite=False)
        own = process.covariance(X, prior, X, prior) - cross.T @ cross
        own[np.diag_indices(new)] += process.noise
        corner = np.linalg.cholesky(own)
        L = np.zeros((n + new, n + new))
        L[:n, :n], L[n:, :n], L[n:, n:] = self._L, cross.T, corner
        rest = process.covariance(X, prior, self._candidates, self._candidates_prior)
        rest -= cross.T @ known
        rest = solve_triangular(corner, rest, lower=True, check_finite=False, overwrite_b=True)
        if n + new > len(self._room):
            self._room = np.empty((2 * (n + new), len(self._candidates)))
            self._room[:n] = known
        self._room[n : n + new] = rest
        self._explained += (rest * rest).sum(axis=0)
        self._L = L
        self._X, self._prior = np.vstack([self._X, X]), np.concatenate([self._prior, prior])

    def forget(self, n: int) -> None:
        """Forget the last ``n`` additions."""
        left = len(self) - n
        self._explained -= (self._room[left : left + n] ** 2).sum(axis=0)
        self._L = self._L[:left, :left]
        self._X, self._prior = self._X[:left], self._prior[:left]

    def moments(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of every candidate, given residuals ``y``."""
        weights = solve_triangular(self._L, y, lower=True, check_finite=False)
        left = self._process.variance(self._candidates_prior) - self._explained
        return weights @ self._room[: len(self)], np.sqrt(np.maximum(left, 1e-10))


def one_thread() -> AbstractContextManager[Any]:
    """Within, linear algebra runs on one thread: matrices this small only lose by more."""
    limits: AbstractContextManager[Any] = _threads().limit(limits=1, user_api="blas")
    return limits


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries: once


def most_telling(losses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return which of many measurements to fit to: the best `MOST` / 2, and random others."""
    if len(losses) <= MOST:
        return np.arange(len(losses))
    order = np.argsort(losses, kind="stable")
    rest = rng.choice(order[MOST // 2 :], MOST // 2, replace=False)
    return np.concatenate([order[: MOST // 2], rest])


def log_expected_improvement(gain: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return the logarithm of the expected improvement, where the mean is ``gain`` below the best.

    The improvement is that of Jones, Schonlau and Welch (Journal of Global Optimization 13, 1998).
    Far from any improvement the plain formula is zero everywhere (Ament et al., NeurIPS 2023).
    """
    z = gain / spread
    density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    near = np.log(np.maximum(density + z * ndtr(z), 1e-300))
    low = np.minimum(z, -1)
    rest = 1 + low * np.sqrt(np.pi / 2) * erfcx(-low / np.sqrt(2))
    far = -0.5 * low * low - 0.5 * np.log(2 * np.pi) + np.log(np.maximum(rest, 1e-300))
    return np.log(spread) + np.where(z > -1, near, far)


def _matern(squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Matérn 5/2 of squared distances, and −2 times its derivative by them."""
    r = np.sqrt(5 * squares)
    decay = np.exp(-r)
    slope = (1 + r) * decay
    return slope + decay * r * r / 3, 5 / 3 * slope
