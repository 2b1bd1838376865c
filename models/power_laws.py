"""Time as a sum of power laws: what a roofline is, with exponents that are learned.

::

    t^s = overhead^s + Σ_i exp(intercept_i + exponents_i · inputs)^s

With a sharpness s of 1, the terms add up, as if one ran after the other. With a large one, the
longest counts alone, because all run at the same time: a GPU computes while the next launch is
prepared, and reads while it multiplies.

``inputs`` are octaves of sizes and indicators of texts (`foretune.features.families.learned_work`).
Every term is a separate power law, so one may describe operations and one traffic. The parameters
have the least robust squares of log errors (Levenberg and Marquardt). All terms are pulled towards
the one power law that fits best, so that few rows do not invent differences.
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
EXCESS = 0.4
EXCESS_DEVIATION = 1.0
"""Usual excess of the sharpness over 1, and the prior deviation of its log."""
LONG_QUANTILE = 0.8
HIDING_EXCESS = 4.0
"""The quantile from which times count as long, and the excess, at the start with hidden work."""
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
        log_excess: log of s - 1. So s is above 1: nothing takes longer than all terms in turn.
        coefficients: intercept and exponents of each term (terms, 1 + inputs).
    """

    log_overhead: float
    log_excess: float
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

        Several ``starts`` differ in their exponents, and one assumes that most work hides behind
        the overhead; ``first``, a fit to similar rows, replaces them.
        """
        rng = np.random.default_rng(0)
        problem = _LeastSquares(inputs, log_ms, np.sqrt(row_weight), terms)
        if first is not None:
            return cls._from_parameters(problem.solve(first._parameters)[0], terms)

        first_guesses = [problem.center.copy() for _ in range(starts if terms > 1 else 1)]
        first_guesses.append(problem.hidden_work())
        solutions = []
        for parameters in first_guesses:
            if terms > 1:
                # Exponents differ between terms; the times of mean inputs stay the same.
                coefficients = parameters[2:].reshape(terms, -1)
                change = rng.normal(0.0, START_DEVIATION, (terms, inputs.shape[1]))
                coefficients[:, 1:] += change
                coefficients[:, 0] -= change @ inputs.mean(axis=0)
            solutions.append(problem.solve(parameters))
        best, _ = min(solutions, key=lambda solution: solution[1])
        return cls._from_parameters(best, terms)

    @classmethod
    def _from_parameters(cls, parameters: np.ndarray, terms: int) -> Self:
        coefficients = parameters[2:].reshape(terms, -1)
        return cls(float(parameters[0]), float(parameters[1]), coefficients)

    @property
    def _parameters(self) -> np.ndarray:
        return np.array([self.log_overhead, self.log_excess, *self.coefficients.ravel()])

    def log_value(self, inputs: np.ndarray) -> np.ndarray:
        """Return the log of each row's time in ms."""
        log_terms = _log_terms(self._parameters, _with_ones(inputs), len(self.coefficients))
        return _log_sum(log_terms, self.log_excess)[0]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        return {
            "overhead": self.log_overhead,
            "excess": self.log_excess,
            "coefficients": self.coefficients.tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the laws that `to_json` wrote."""
        coefficients = np.array(data["coefficients"], dtype=float)
        return cls(float(data["overhead"]), float(data["excess"]), coefficients)


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
        single = self._single_law(np.ones(len(log_ms), dtype=bool))
        self.lowest = float(np.quantile(log_ms, OVERHEAD_QUANTILE))
        overhead = self.lowest - OVERHEAD_MARGIN
        self.center = self._with_equal_terms(overhead, EXCESS, single)

        deviations = np.full(len(self.center), EXPONENT_DEVIATION)
        deviations[0] = INTERCEPT_DEVIATION
        deviations[1] = EXCESS_DEVIATION
        deviations[2 :: len(single)] = INTERCEPT_DEVIATION
        self.prior_precision = deviations**-2.0
        self._single = single

    def hidden_work(self) -> np.ndarray:
        """Return parameters at which only the longest times are longer than the overhead."""
        is_long = self.log_ms >= np.quantile(self.log_ms, LONG_QUANTILE)
        return self._with_equal_terms(self.lowest, HIDING_EXCESS, self._single_law(is_long))

    def _single_law(self, used: np.ndarray) -> np.ndarray:
        """Return intercept and exponents of the power law that fits the rows ``used`` best."""
        weighted = self.A[used] * self.root_weight[used, None]
        gram = weighted.T @ weighted + RIDGE * np.eye(self.A.shape[1])
        coefficients: np.ndarray = np.linalg.solve(
            gram, weighted.T @ (self.root_weight[used] * self.log_ms[used])
        )
        return coefficients

    def _with_equal_terms(
        self, log_overhead: float, excess: float, coefficients: np.ndarray
    ) -> np.ndarray:
        """Return parameters whose terms are equal, and together one power law."""
        of_term = coefficients.copy()
        of_term[0] -= np.log(self.terms)
        return np.array([log_overhead, np.log(excess), *np.tile(of_term, self.terms)])

    def solve(self, parameters: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the parameters of the nearest minimum, and the loss there."""
        self.noise = _deviation(self.A @ self._single - self.log_ms)
        for _ in range(NOISE_PASSES):
            parameters, loss = self._descend(parameters)
            log_value, _, _ = _log_sum(_log_terms(parameters, self.A, self.terms), parameters[1])
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
        log_value, shares, by_excess = _log_sum(log_terms, parameters[1])
        errors = self.root_weight * (log_value - self.log_ms)

        # Robust: squares of small errors, about the absolute value of large ones ("soft l1").
        ratio = np.sqrt(1.0 + (errors / SOFT_ERROR) ** 2)
        loss = float((2.0 * SOFT_ERROR**2 * (ratio - 1.0)).sum())
        row_factor = self.root_weight / np.sqrt(ratio)
        errors = errors / np.sqrt(ratio)

        # The log of a sum depends on each term by the term's share.
        by_term = [shares[:, i + 1 : i + 2] * self.A for i in range(self.terms)]
        jacobian = np.hstack([shares[:, :1], by_excess[:, None], *by_term]) * row_factor[:, None]

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
    coefficients = parameters[2:].reshape(terms, -1)
    return np.column_stack([np.full(len(A), parameters[0]), A @ coefficients.T])


def _log_sum(log_terms: np.ndarray, log_excess: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the log of each row's sum, its slope by the log of each term, and by ``log_excess``.

    The slope by a term is the share of the term.
    """
    excess = np.exp(log_excess)
    sharpness = 1.0 + excess

    largest = log_terms.max(axis=1, keepdims=True)
    log_relative = sharpness * (log_terms - largest)
    relative = np.exp(log_relative)
    total = relative.sum(axis=1, keepdims=True)
    log_total = np.log(total)
    log_sum = (largest + log_total / sharpness)[:, 0]

    shares = relative / total
    by_sharpness = ((shares * log_relative).sum(axis=1) - log_total[:, 0]) / sharpness**2
    return log_sum, shares, by_sharpness * excess
