"""The rows of one target, in all forms that the experts need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from foretune.models.axis_positions import AxisPositions
from foretune.models.learned_law import LearnedLaw
from foretune.models.neighbors import NeighborIndex


@dataclass(frozen=True)
class TargetTable:
    """Training rows of one target.

    Attributes:
        columns: names of the features.
        X: features (rows, columns).
        y: log of the target over its divisor (rows).
        log_divisor: log of the divisor, scale times unit, see `foretune.models.targets` (rows).
        has_roofline: whether the unit is a calibrated roofline; else it is 1.
        rows: the run table.
        problems: number of each row's problem (rows); nearly equal problems share one.
        neighbor_index: finds neighbors by position.
        positions: of the rows in ``neighbor_index``.
        holdout_axes: sets of axes whose combinations of values are held out together.
        law: the learned law, if the kernel's work is unknown, or only guessed from names.
        law_inputs: its inputs (rows, inputs); no columns without a law.
        octaves_of_sizes: log2 of the problem's sizes (rows, sizes); no columns without a law.
    """

    columns: Sequence[str]
    X: np.ndarray
    y: np.ndarray
    log_divisor: np.ndarray
    has_roofline: bool
    rows: pd.DataFrame
    problems: np.ndarray
    neighbor_index: NeighborIndex
    positions: AxisPositions
    holdout_axes: list[tuple[int, ...]]
    law: LearnedLaw | None
    law_inputs: np.ndarray
    octaves_of_sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, numbers: np.ndarray) -> "TargetTable":
        """Return the table of the rows with these numbers."""
        return replace(
            self,
            X=self.X[numbers],
            y=self.y[numbers],
            log_divisor=self.log_divisor[numbers],
            rows=self.rows.iloc[numbers].reset_index(drop=True),
            problems=self.problems[numbers],
            positions=self.positions[numbers],
            law_inputs=self.law_inputs[numbers],
            octaves_of_sizes=self.octaves_of_sizes[numbers],
        )

    def neighbor_features(
        self, known: np.ndarray, wanted: np.ndarray, one_sided: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the neighbor features of the rows ``wanted`` among the rows ``known``.

        Of rows that are ``one_sided``, the upper neighbors are hidden.
        """
        return self.neighbor_index.neighbor_features(
            self.positions[known], self.y[known], self.positions[wanted], one_sided
        )
