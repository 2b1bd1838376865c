"""The Gaussian process: what values are expected to be, and how they go together.

Independent parts add up (`terms`), and a measurement has noise. Every variance and every length is
found by maximum a posteriori (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, chapter 5): ten measurements leave nearly all of them where they are expected, some hundred
tell which inputs matter. What it says after measurements is a `Posterior`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from foretune.models.process.terms import Hyperprior, Slopes, Term

JITTER = 1e-8
"""Added to the noise, or rounding makes like points contradict each other."""
HUGE = 1e12
"""Loss where a step went too far for a covariance to be one."""


@dataclass(frozen=True, eq=False)
class Process:
    """Values of mean zero at points, rows of a matrix.

    Attributes:
        terms: what the covariance is the sum of.
        noise_prior: of the noise's variance.
        parameters: logarithms: those of the terms, one after the other, then the noise's variance.
    """

    terms: Sequence[Term]
    noise_prior: Hyperprior
    parameters: np.ndarray

    @classmethod
    def expected(cls, terms: Sequence[Term], noise: Hyperprior) -> Self:
        """Return one with all parameters where they are expected."""
        process = cls(terms, noise, np.empty(0))
        return replace(process, parameters=np.array([h.center for h in process._hyperpriors]))

    @property
    def noise(self) -> float:
        """Variance of a measurement."""
        return float(np.exp(self.parameters[-1])) + JITTER

    def fitted(self, X: np.ndarray, y: np.ndarray, steps: int) -> Self:
        """Return it with the likeliest parameters, looked for from its own.

        Args:
            X: points (rows, columns).
            y: measured there.
            steps: of the optimiser, at most.
        """
        from scipy.optimize import minimize

        bounds = [h.bounds for h in self._hyperpriors]
        found = minimize(
            self._loss, self.parameters, (X, y), jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": steps},
        )  # fmt: skip
        return replace(self, parameters=found.x)

    def covariance(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the covariances of values without noise (X, X2)."""
        total = np.zeros((len(X), len(X2)))
        for term, parameters in self.parts():
            total += term.covariance(parameters, X, X2)
        return total

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Return the diagonal of `covariance` of points with themselves."""
        total = np.zeros(len(X))
        for term, parameters in self.parts():
            total += term.variance(parameters, X)
        return total

    def parts(self, parameters: np.ndarray | None = None) -> Iterator[tuple[Term, np.ndarray]]:
        """Give each term with its parameters."""
        at, parameters = 0, self.parameters if parameters is None else parameters
        for term in self.terms:
            size = len(term.hyperpriors)
            yield term, parameters[at : at + size]
            at += size

    @property
    def _hyperpriors(self) -> list[Hyperprior]:
        return [*(h for term in self.terms for h in term.hyperpriors), self.noise_prior]

    def _loss(
        self, parameters: np.ndarray, X: np.ndarray, y: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Return the negative log of the posterior density of parameters, and its gradient."""
        from scipy.linalg import cho_solve

        total, slopes = np.zeros((len(X), len(X))), list[Slopes]()
        for term, own in self.parts(parameters):
            covariance, by_term = term.differentiated(own, X)
            total += covariance
            slopes.append(by_term)
        noise = np.exp(parameters[-1])
        total[np.diag_indices(len(total))] += noise + JITTER
        try:
            factor = np.linalg.cholesky(total)
        except np.linalg.LinAlgError:  # a step too far: back
            return HUGE, np.zeros(len(parameters))
        weights = cho_solve((factor, True), y, check_finite=False)
        slope = 0.5 * (
            inverse_of(factor) - np.outer(weights, weights)
        )  # of the loss, by the covariance
        off, by_hyperpriors = self._off(parameters)
        loss = 0.5 * y @ weights + np.log(np.diag(factor)).sum() + off
        by_terms = [by_term(slope) for by_term in slopes]
        return float(loss), np.concatenate([*by_terms, [np.trace(slope) * noise]]) + by_hyperpriors

    def _off(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Return how unexpected parameters are, and its gradient; fixed ones never are."""
        centers = np.array([h.center for h in self._hyperpriors])
        widths = np.array([h.width or np.inf for h in self._hyperpriors])
        off = (parameters - centers) / widths
        return float(0.5 * off @ off), off / widths


def inverse_of(factor: np.ndarray) -> np.ndarray:
    """Return the inverse of a matrix, given its Cholesky factor."""
    from scipy.linalg.lapack import dpotri

    lower = np.tril(dpotri(factor, lower=True)[0])
    inverse: np.ndarray = lower + np.tril(lower, -1).T
    return inverse
