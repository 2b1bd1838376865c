"""What the experts predict for some rows, and what tells how far to trust each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.models.neighbors import INTERPOLATION

NEW_DEVICE = -1
"""The kind of rows of an unknown device; other kinds count axes with neighbors on both sides."""
BEYOND_FRONTIER = -2
"""The kind of rows beyond all measured problems, see `foretune.models.frontier`."""


@dataclass(frozen=True)
class ExpertPredictions:
    """The predictions of all experts for some rows.

    Attributes:
        values: what each expert predicts, on the scale that is learned (rows, experts).
        error_features: features that distinguish rows with large errors (rows, features), float32.
        row_kind: `NEW_DEVICE`, `BEYOND_FRONTIER`, or the number of axes with neighbors on both
            sides (rows).
    """

    values: np.ndarray
    error_features: np.ndarray
    row_kind: np.ndarray

    @classmethod
    def from_experts(
        cls,
        values: np.ndarray,
        X: np.ndarray,
        neighbors: np.ndarray | None,
        row_kind: np.ndarray,
        octaves_beyond_frontier: np.ndarray | None = None,
    ) -> Self:
        """Return the predictions ``values`` of rows with features ``X`` and their neighbors.

        Errors depend on the neighbors (on the features, if there are none), and are large where
        experts differ, or beyond the frontier, if there is a learned law.
        """
        inputs = X if neighbors is None else np.delete(neighbors, INTERPOLATION, axis=1)
        differences = values[:, 1:] - values[:, :1]
        parts = [inputs, differences]
        if octaves_beyond_frontier is not None:
            parts.append(octaves_beyond_frontier[:, None])
        error_features = np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")
        return cls(values, error_features, row_kind)

    @property
    def is_new_device(self) -> np.ndarray:
        """Which rows are of a device that was not in training."""
        return self.row_kind == NEW_DEVICE

    @property
    def is_beyond_frontier(self) -> np.ndarray:
        """Which rows are beyond all measured problems."""
        return self.row_kind == BEYOND_FRONTIER

    @property
    def disagreement(self) -> np.ndarray:
        """The mean distance of the experts from their mean, per row."""
        from_mean = self.values - self.values.mean(axis=1, keepdims=True)
        return np.asarray(np.abs(from_mean).mean(axis=1))

    def __getitem__(self, rows: np.ndarray) -> "ExpertPredictions":
        return ExpertPredictions(self.values[rows], self.error_features[rows], self.row_kind[rows])


@dataclass(frozen=True)
class HeldOutPredictions:
    """The predictions of held-out rows by experts that did not learn from them.

    Attributes:
        predictions: of the held-out rows.
        rows: their numbers in the table (`foretune.models.target_table.TargetTable`).
        holdout_numbers: the number of the hold-out of each row.
        octaves_beyond_frontier: how far it is beyond the frontier of the rows that were not held
            out; 0 without a learned law.
    """

    predictions: ExpertPredictions
    rows: np.ndarray
    holdout_numbers: np.ndarray
    octaves_beyond_frontier: np.ndarray

    @classmethod
    def concatenate(cls, holdouts: "Sequence[HeldOutPredictions]") -> Self:
        """Return the rows of several hold-outs, in this order."""
        # In C order, as all its subsets will be: so BLAS adds in the same order.
        values = np.concatenate([holdout.predictions.values for holdout in holdouts])
        predictions = ExpertPredictions(
            values=np.ascontiguousarray(values),
            error_features=np.concatenate([h.predictions.error_features for h in holdouts]),
            row_kind=np.concatenate([h.predictions.row_kind for h in holdouts]),
        )
        return cls(
            predictions,
            rows=np.concatenate([holdout.rows for holdout in holdouts]),
            holdout_numbers=np.concatenate([holdout.holdout_numbers for holdout in holdouts]),
            octaves_beyond_frontier=np.concatenate([h.octaves_beyond_frontier for h in holdouts]),
        )
