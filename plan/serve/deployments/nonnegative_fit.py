"""Non-negative least squares on the logarithm of times, robust, shrunk towards a prior."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

ITERATIONS = 25
"""Each solves a linear problem; the factors of the next one's errors follow from it."""
MIN_TIME = 1e-9


@dataclass
class NonnegativeFit:
    """Coefficients of terms whose sum is a time, per group of rows.

    What is minimised is the error of the logarithm, outliers counting little: times of a hundred
    milliseconds and of ten seconds weigh the same. A group is shrunk towards all rows together.

    Attributes:
        prior: coefficients before any row was seen.
        outlier_scale: log error beyond which a row counts less and less.
        shrinkage: how strongly all rows are shrunk towards ``prior``.
        group_shrinkage: how strongly a group is shrunk towards all rows.
        pooled: the coefficients of all rows together.
        by_group: those of each group.
    """

    prior: np.ndarray
    outlier_scale: float
    shrinkage: float
    group_shrinkage: float
    pooled: np.ndarray | None = None
    by_group: dict[str, np.ndarray] | None = None

    def fit(
        self, terms: np.ndarray, times: np.ndarray, offset: np.ndarray, groups: np.ndarray
    ) -> Self:
        """Fit to measurements.

        Args:
            terms: (rows, coefficients).
            times: what was measured.
            offset: a part of each time that has no coefficient.
            groups: the name of each row's group.
        """
        self.pooled = self._solve(terms, times, offset, self.prior, self.shrinkage)
        start = np.maximum(self.pooled, 0.02)
        self.by_group = {}
        for name in np.unique(groups):
            rows = groups == name
            self.by_group[str(name)] = self._solve(
                terms[rows], times[rows], offset[rows], start, self.group_shrinkage
            )
        return self

    def predict(self, terms: np.ndarray, offset: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Return the times of rows.

        Groups that were never seen get the common coefficients; before any fit, all get the prior.
        """
        pooled, by_group = (
            (self.prior, {}) if self.pooled is None else (self.pooled, self.by_group or {})
        )
        coefficients = np.array([by_group.get(str(name), pooled) for name in groups])
        total: np.ndarray = (terms * coefficients.reshape(terms.shape)).sum(axis=1) + offset
        return np.maximum(total, MIN_TIME)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        assert self.pooled is not None
        assert self.by_group is not None
        return {
            "prior": self.prior.tolist(), "spread": self.outlier_scale, "shrinkage": self.shrinkage,
            "group_shrinkage": self.group_shrinkage, "common": self.pooled.tolist(),
            "own": {name: values.tolist() for name, values in self.by_group.items()},
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        by_group = {name: np.array(values) for name, values in data["own"].items()}
        return cls(
            np.array(data["prior"]), data["spread"], data["shrinkage"], data["group_shrinkage"],
            np.array(data["common"]), by_group,
        )  # fmt: skip

    def _solve(
        self,
        terms: np.ndarray,
        times: np.ndarray,
        offset: np.ndarray,
        prior: np.ndarray,
        shrinkage: float,
    ) -> np.ndarray:
        from scipy.optimize import nnls

        penalty = np.sqrt(shrinkage) * np.diag(1.0 / (prior + 1e-3))
        coefficients = prior.astype(float).copy()
        for _ in range(ITERATIONS):
            total = np.maximum(terms @ coefficients + offset, MIN_TIME)
            error = np.log(total / times)
            weight = (1.0 + (error / self.outlier_scale) ** 2) ** -0.25
            # log(total) is linear around where it is; far from it a step of one is enough.
            target = (terms @ coefficients) / total - np.clip(error, -1.0, 1.0)
            matrix = np.vstack([weight[:, None] * terms / total[:, None], penalty])
            solution, _ = nnls(matrix, np.r_[weight * target, penalty @ prior])
            coefficients = 0.5 * (coefficients + solution) + MIN_TIME
        return coefficients
