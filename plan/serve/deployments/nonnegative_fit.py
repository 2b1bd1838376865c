"""Non-negative least squares on the logarithm of times, robust, shrunk towards a prior."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

ROUNDS = 25
"""Each solves a linear problem; the factors of the next one's errors follow from it."""
SMALLEST = 1e-9


@dataclass
class NonnegativeFit:
    """Coefficients of terms whose sum is a time, per group of rows.

    What is minimised is the error of the logarithm, outliers counting little: times of a hundred
    milliseconds and of ten seconds weigh the same. A group is shrunk towards all rows together.

    Attributes:
        prior: coefficients before any row was seen.
        spread: log error beyond which a row counts less and less.
        shrinkage: how strongly all rows are shrunk towards ``prior``.
        group_shrinkage: how strongly a group is shrunk towards all rows.
        common: the coefficients of all rows together.
        own: those of each group.
    """

    prior: np.ndarray
    spread: float
    shrinkage: float
    group_shrinkage: float
    common: np.ndarray | None = None
    own: dict[str, np.ndarray] | None = None

    def fit(
        self, terms: np.ndarray, times: np.ndarray, known: np.ndarray, groups: np.ndarray
    ) -> Self:
        """Fit to measurements.

        Args:
            terms: (rows, coefficients).
            times: what was measured.
            known: a part of each time that has no coefficient.
            groups: the name of each row's group.
        """
        self.common = self._solve(terms, times, known, self.prior, self.shrinkage)
        start = np.maximum(self.common, 0.02)
        self.own = {}
        for name in np.unique(groups):
            rows = groups == name
            self.own[str(name)] = self._solve(
                terms[rows], times[rows], known[rows], start, self.group_shrinkage
            )
        return self

    def predict(self, terms: np.ndarray, known: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Return the times of rows.

        Groups that were never seen get the common coefficients; before any fit, all get the prior.
        """
        common, own = (self.prior, {}) if self.common is None else (self.common, self.own or {})
        coefficients = np.array([own.get(str(name), common) for name in groups])
        total: np.ndarray = (terms * coefficients.reshape(terms.shape)).sum(axis=1) + known
        return np.maximum(total, SMALLEST)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        assert self.common is not None
        assert self.own is not None
        return {
            "prior": self.prior.tolist(), "spread": self.spread, "shrinkage": self.shrinkage,
            "group_shrinkage": self.group_shrinkage, "common": self.common.tolist(),
            "own": {name: values.tolist() for name, values in self.own.items()},
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        own = {name: np.array(values) for name, values in data["own"].items()}
        return cls(
            np.array(data["prior"]), data["spread"], data["shrinkage"], data["group_shrinkage"],
            np.array(data["common"]), own,
        )  # fmt: skip

    def _solve(
        self,
        terms: np.ndarray,
        times: np.ndarray,
        known: np.ndarray,
        prior: np.ndarray,
        shrinkage: float,
    ) -> np.ndarray:
        from scipy.optimize import nnls

        held = np.sqrt(shrinkage) * np.diag(1.0 / (prior + 1e-3))
        coefficients = prior.astype(float).copy()
        for _ in range(ROUNDS):
            total = np.maximum(terms @ coefficients + known, SMALLEST)
            error = np.log(total / times)
            weight = (1.0 + (error / self.spread) ** 2) ** -0.25
            # log(total) is linear around where it is; far from it a step of one is enough.
            wanted = (terms @ coefficients) / total - np.clip(error, -1.0, 1.0)
            matrix = np.vstack([weight[:, None] * terms / total[:, None], held])
            solution, _ = nnls(matrix, np.r_[weight * wanted, held @ prior])
            coefficients = 0.5 * (coefficients + solution) + SMALLEST
        return coefficients
