"""The Gaussian process: what values are expected to be, and how they go together.

Independent parts add up (`terms`), and a measurement has noise. Every variance and every length is
found by maximum a posteriori (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, chapter 5): ten measurements leave nearly all of them where they are expected, some hundred
tell which inputs matter. What it says after measurements is a `Posterior`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Self

import numpy as np

from foretune.models.process.terms import CovarianceTerm, GradientFunction, Hyperprior

JITTER = 1e-8
"""Added to the noise, or rounding makes like points contradict each other."""
INVALID_LOSS = 1e12
"""Loss where a step went too far for a covariance to be one."""


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """Values of mean zero at points, rows of a matrix.

    Attributes:
        terms: what the covariance is the sum of.
        noise_prior: of the noise's variance.
        parameters: logarithms: those of the terms, one after the other, then the noise's variance.
    """

    terms: Sequence[CovarianceTerm]
    noise_prior: Hyperprior
    parameters: np.ndarray

    @classmethod
    def from_prior(cls, terms: Sequence[CovarianceTerm], noise: Hyperprior) -> Self:
        """Return one with all parameters where they are expected."""
        process = cls(terms, noise, np.empty(0))
        return replace(process, parameters=process._prior[0])

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
        """Give each term with its parameters."""
        parameters = self.parameters if parameters is None else parameters
        for term, indices in self._parameter_slices:
            yield term, parameters[indices]

    @cached_property
    def _hyperpriors(self) -> list[Hyperprior]:
        return [*(h for term in self.terms for h in term.hyperpriors), self.noise_prior]

    @cached_property
    def _prior(self) -> tuple[np.ndarray, np.ndarray]:
        """Where parameters are expected, and how far from there they may be: fixed ones are not."""
        centers = np.array([h.center for h in self._hyperpriors])
        return centers, np.array([h.width or np.inf for h in self._hyperpriors])

    @cached_property
    def _parameter_slices(self) -> list[tuple[CovarianceTerm, slice]]:
        ends = np.cumsum([len(term.hyperpriors) for term in self.terms]).tolist()
        return [
            (t, slice(*bounds)) for t, bounds in zip(self.terms, pairwise([0, *ends]), strict=True)
        ]

    def _loss(
        self, parameters: np.ndarray, X: np.ndarray, y: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Return the negative log of the posterior density of parameters, and its gradient."""
        from scipy.linalg import cho_solve

        total, gradient_functions = np.zeros((len(X), len(X))), list[GradientFunction]()
        for term, term_parameters in self.terms_with_parameters(parameters):
            covariance, gradient_function = term.covariance_and_gradient(term_parameters, X)
            total += covariance
            gradient_functions.append(gradient_function)
        noise = np.exp(parameters[-1])
        total[np.diag_indices(len(total))] += noise + JITTER
        try:
            factor = np.linalg.cholesky(total)
        except np.linalg.LinAlgError:  # a step too far: back
            return INVALID_LOSS, np.zeros(len(parameters))
        weights = cho_solve((factor, True), y, check_finite=False)
        gradient = 0.5 * (
            inverse_from_cholesky(factor) - np.outer(weights, weights)
        )  # by the covariance
        centers, widths = self._prior
        standardized = (parameters - centers) / widths
        loss = 0.5 * y @ weights + np.log(np.diag(factor)).sum() + 0.5 * standardized @ standardized
        term_gradients = [gradient_function(gradient) for gradient_function in gradient_functions]
        return float(loss), np.concatenate(
            [*term_gradients, [np.trace(gradient) * noise]]
        ) + standardized / widths


def inverse_from_cholesky(factor: np.ndarray) -> np.ndarray:
    """Return the inverse of a matrix, given its Cholesky factor."""
    from scipy.linalg.lapack import dpotri

    lower = np.tril(dpotri(factor, lower=True)[0])
    inverse: np.ndarray = lower + np.tril(lower, -1).T
    return inverse
