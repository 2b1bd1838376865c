"""Robust non-negative least squares on log times, shrunk towards a prior."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

ITERATIONS = 25
"""Gauss-Newton iterations, each a linear problem."""
MIN_TIME = 1e-9


@dataclass
class NonnegativeFit:
    """Non-negative coefficients of terms that add up to a time, per group of rows.

    It minimizes the robust error of the logarithm, so 100 ms and 10 s weigh the same. Groups are
    shrunk towards all rows together.

    Attributes:
        prior: coefficients before fitting.
        outlier_scale: log error beyond which a row is down-weighted.
        shrinkage: penalty that pulls all rows to ``prior``.
        group_shrinkage: penalty that pulls a group to all rows.
        pooled: coefficients of all rows together.
        by_group: coefficients of each group.
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
        """Fit to measured times.

        ``terms`` has shape (rows, coefficients); ``offset`` is a part of each time without a
        coefficient.
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

        New groups get the pooled coefficients; before fitting, all get the prior.
        """
        pooled = self.prior if self.pooled is None else self.pooled
        coefficients = np.array([(self.by_group or {}).get(str(n), pooled) for n in groups])
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
        """Return the fit from `to_json`'s values."""
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
            # Linearize log(total), and clip large steps.
            target = (terms @ coefficients) / total - np.clip(error, -1.0, 1.0)
            matrix = np.vstack([weight[:, None] * terms / total[:, None], penalty])
            solution, _ = nnls(matrix, np.r_[weight * target, penalty @ prior])
            coefficients = 0.5 * (coefficients + solution) + MIN_TIME
        return coefficients
