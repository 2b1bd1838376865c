"""Time as a sum of power laws: what a roofline is, with exponents that are learned.

::

    t = overhead + Σ_i exp(intercept_i + exponents_i · inputs)

``inputs`` are octaves of sizes and indicators of texts (`foretune.features.families.learned_work`).
Every term is a separate power law, so one may describe operations and one for traffic. The
parameters have the least robust squares of log errors (Levenberg and Marquardt). All terms are
pulled towards the one power law that fits best, so that few rows do not invent differences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

RIDGE = 1e-2
"""Strength of the pull of the single power law towards zero."""
EXPONENT_DEVIATION = 0.7
"""Prior deviation of an exponent from that of the single power law."""
INTERCEPT_DEVIATION = 3.0
"""The same of the overhead and the intercepts, which are logs."""
MIN_NOISE = 0.01
"""Minimum deviation of log errors."""
NOISE_PASSES = 2
"""The prior counts relative to the noise, which is that of the fit before."""
OVERHEAD_QUANTILE = 0.02
OVERHEAD_MARGIN = 0.5
"""The overhead is pulled towards this log below this quantile of the times."""
SOFT_ERROR = 0.1
"""Errors above this log count less than their square."""
START_DEVIATION = 0.25
"""Deviation of the exponents at the start: equal terms would stay equal."""
NORMAL_QUARTILE = 0.6745
"""Half of the errors of a normal distribution are within this many deviations."""
MAX_STEPS = 40
MIN_GAIN = 1e-4
"""Steps end when the loss falls by less than this share."""
START_DAMPING = 1e-2
MAX_DAMPING = 1e6


@dataclass(frozen=True)
class PowerLaws:
    """A fitted sum.

    Attributes:
        log_overhead: log of the overhead in ms.
        coefficients: intercept and exponents of each term (terms, 1 + inputs).
    """

    log_overhead: float
    coefficients: np.ndarray

    @classmethod
    def fit(
        cls,
        inputs: np.ndarray,
        log_ms: np.ndarray,
        row_weight: np.ndarray,
        *,
        terms: int,
        starts: int = 1,
        first: "PowerLaws | None" = None,
    ) -> Self:
        """Fit to rows: ``inputs`` (rows, inputs), ``log_ms`` (rows).

        Several ``starts`` differ in their exponents; ``first``, a fit to similar rows, replaces
        them.
        """
        rng = np.random.default_rng(0)
        problem = _LeastSquares(inputs, log_ms, np.sqrt(row_weight), terms)
        if first is not None:
            return cls._from_parameters(problem.solve(first._parameters)[0], terms)

        solutions = []
        for _ in range(starts if terms > 1 else 1):
            parameters = problem.center.copy()
            if terms > 1:
                # Exponents differ between terms; the times of mean inputs stay the same.
                coefficients = parameters[1:].reshape(terms, -1)
                change = rng.normal(0.0, START_DEVIATION, (terms, inputs.shape[1]))
                coefficients[:, 1:] += change
                coefficients[:, 0] -= change @ inputs.mean(axis=0)
            solutions.append(problem.solve(parameters))
        best, _ = min(solutions, key=lambda solution: solution[1])
        return cls._from_parameters(best, terms)

    @classmethod
    def _from_parameters(cls, parameters: np.ndarray, terms: int) -> Self:
        return cls(float(parameters[0]), parameters[1:].reshape(terms, -1))

    @property
    def _parameters(self) -> np.ndarray:
        return np.concatenate([[self.log_overhead], self.coefficients.ravel()])

    def log_value(self, inputs: np.ndarray) -> np.ndarray:
        """Return the log of each row's time in ms."""
        return _log_sum(_log_terms(self._parameters, _with_ones(inputs), len(self.coefficients)))[0]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        return {"overhead": self.log_overhead, "coefficients": self.coefficients.tolist()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the laws that `to_json` wrote."""
        return cls(float(data["overhead"]), np.array(data["coefficients"], dtype=float))


class _LeastSquares:
    """The fit of one table: robust squares of log errors, and the pull towards ``center``."""

    def __init__(
        self, inputs: np.ndarray, log_ms: np.ndarray, root_weight: np.ndarray, terms: int
    ) -> None:
        self.A = _with_ones(inputs)
        self.log_ms = log_ms
        self.root_weight = root_weight
        self.terms = terms

        # The single power law that fits best is the center of all terms.
        weighted = self.A * root_weight[:, None]
        gram = weighted.T @ weighted + RIDGE * np.eye(self.A.shape[1])
        single = np.linalg.solve(gram, weighted.T @ (root_weight * log_ms))
        of_term = single.copy()
        of_term[0] -= np.log(terms)
        overhead = np.quantile(log_ms, OVERHEAD_QUANTILE) - OVERHEAD_MARGIN
        self.center = np.concatenate([[overhead], np.tile(of_term, terms)])

        deviations = np.full(len(self.center), EXPONENT_DEVIATION)
        deviations[0] = INTERCEPT_DEVIATION
        deviations[1 :: len(single)] = INTERCEPT_DEVIATION
        self.prior_precision = deviations**-2.0
        self._single = single

    def solve(self, parameters: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the parameters of the nearest minimum, and the loss there."""
        self.noise = _deviation(self.A @ self._single - self.log_ms)
        for _ in range(NOISE_PASSES):
            parameters, loss = self._descend(parameters)
            log_value, _ = _log_sum(_log_terms(parameters, self.A, self.terms))
            self.noise = _deviation(log_value - self.log_ms)
        return parameters, loss

    def _descend(self, parameters: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the parameters of the nearest minimum for this noise, and the loss there."""
        loss, gradient, curvature = self._expand(parameters)
        damping = START_DAMPING
        for _ in range(MAX_STEPS):
            # A step of Levenberg and Marquardt: shorter if the last one was too long.
            damped = curvature + damping * np.diag(np.diag(curvature))
            candidate = parameters - np.linalg.solve(damped, gradient)
            candidate_loss, *expansion = self._expand(candidate)
            if not candidate_loss < loss:
                damping *= 4.0
                if damping > MAX_DAMPING:
                    break
                continue
            gain = (loss - candidate_loss) / loss
            parameters = candidate
            loss = candidate_loss
            gradient, curvature = expansion
            damping /= 3.0
            if gain < MIN_GAIN:
                break
        return parameters, loss

    def _expand(self, parameters: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the loss, its gradient, and its curvature by Gauss and Newton (halves)."""
        log_terms = _log_terms(parameters, self.A, self.terms)
        log_value, shares = _log_sum(log_terms)
        errors = self.root_weight * (log_value - self.log_ms)

        # Robust: squares of small errors, about the absolute value of large ones ("soft l1").
        ratio = np.sqrt(1.0 + (errors / SOFT_ERROR) ** 2)
        loss = float((2.0 * SOFT_ERROR**2 * (ratio - 1.0)).sum())
        row_factor = self.root_weight / np.sqrt(ratio)
        errors = errors / np.sqrt(ratio)

        # The log of a sum depends on each term by the term's share.
        by_term = [shares[:, i + 1 : i + 2] * self.A for i in range(self.terms)]
        jacobian = np.hstack([shares[:, :1], *by_term]) * row_factor[:, None]

        distance = parameters - self.center
        pull = self.noise**2 * self.prior_precision
        loss += float(pull @ distance**2)
        gradient = jacobian.T @ errors + pull * distance
        curvature = jacobian.T @ jacobian + np.diag(pull)
        return loss, gradient, curvature


def _deviation(errors: np.ndarray) -> float:
    """Return the deviation of log errors, robustly."""
    return max(float(np.median(np.abs(errors))) / NORMAL_QUARTILE, MIN_NOISE)


def _with_ones(inputs: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(inputs)), inputs])


def _log_terms(parameters: np.ndarray, A: np.ndarray, terms: int) -> np.ndarray:
    """Return the logs of overhead and terms (rows, 1 + terms)."""
    coefficients = parameters[1:].reshape(terms, -1)
    return np.column_stack([np.full(len(A), parameters[0]), A @ coefficients.T])


def _log_sum(log_terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the log of the sum of each row's terms, and the share of each term."""
    largest = log_terms.max(axis=1, keepdims=True)
    relative = np.exp(log_terms - largest)
    total = relative.sum(axis=1, keepdims=True)
    return (largest + np.log(total))[:, 0], relative / total
