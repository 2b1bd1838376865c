"""In what rows are alike: the points between which a correction's process interpolates.

Two rows are alike in their error where their sizes and settings are, where the predictor says the
same of them, where its experts disagree in the same way, and where their physics is the same:
operations, bytes, waves of tiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.errors import PredictorError
from foretune.features.arrays import Rows, as_array
from foretune.models.process.scaling import Scaling

SETTING_PREFIXES = ("problem.", "config.", "device.")
"""Features that are read from the rows themselves, or that are the same in all."""
WORK_FEATURES = ("log2_flops", "log2_bytes", "log2_intensity", "log2_roofline_ms")
"""Features that are known of every row whose cost is known: how much work it is, of which kind."""


@dataclass(frozen=True)
class CorrectionFeatures:
    """What a predictor has found out about rows, apart from their settings.

    Attributes:
        gradual: what was predicted, by whom, and the logarithms of the work (rows, inputs).
        detail: the other features (rows, inputs). NaN is unknown in both.
    """

    gradual: np.ndarray
    detail: np.ndarray

    @classmethod
    def from_prediction(
        cls, columns: Sequence[str], X: np.ndarray, log_value: np.ndarray, differences: np.ndarray
    ) -> Self:
        """Return it.

        Args:
            columns: names of the features.
            X: the features.
            log_value: the log of what is predicted.
            differences: how far each expert is from that, a column each; NaN where one cannot tell.
        """
        derived = [i for i, name in enumerate(columns) if not name.startswith(SETTING_PREFIXES)]
        work = [i for i in derived if columns[i] in WORK_FEATURES]
        rest = [i for i in derived if columns[i] not in WORK_FEATURES]
        gradual = np.column_stack([log_value, differences, X[:, work]])
        return cls(gradual.astype(np.float64), X[:, rest].astype(np.float64))

    def __getitem__(self, rows: np.ndarray) -> "CorrectionFeatures":
        return CorrectionFeatures(self.gradual[rows], self.detail[rows])


@dataclass(frozen=True)
class Similarity:
    """Gives rows points such that those are near each other that are alike.

    Attributes:
        numbers: numeric settings that vary -> whether they count in octaves.
        texts: settings of text -> the values it has an indicator for.
        scaling: of the inputs.
    """

    numbers: dict[str, bool]
    texts: dict[str, list[str]]
    scaling: Scaling

    @classmethod
    def from_rows(cls, rows: pd.DataFrame, features: CorrectionFeatures) -> Self:
        """Return it, of what varies among ``rows``; each input gets a deviation of one."""
        numbers, texts = {}, {}
        for column in [*columns_of(rows, "problem"), *columns_of(rows, "config")]:
            values = as_array(rows[column])
            if values.dtype.kind == "U":
                distinct = sorted(set(values.tolist()))
                if len(distinct) > 1:
                    texts[column] = distinct
            elif np.nanmin(values) != np.nanmax(values):
                numbers[column] = bool(np.nanmin(values) > 0)
        return cls(numbers, texts, Scaling.fit(_inputs(numbers, texts, Rows(rows), features)))

    def points(self, rows: Rows, features: CorrectionFeatures) -> tuple[np.ndarray, int]:
        """Return the points of rows, and in how many inputs, the first ones, times are gradual.

        Raises:
            PredictorError: ``rows`` lack a setting.
        """
        inputs = _inputs(self.numbers, self.texts, rows, features)
        return self.scaling.points(inputs, inputs.shape[1] - features.detail.shape[1])


def _inputs(
    numbers: dict[str, bool], texts: dict[str, list[str]], rows: Rows, features: CorrectionFeatures
) -> np.ndarray:
    if absent := [c for c in (*numbers, *texts) if c not in rows]:
        raise PredictorError(f"the runs lack column {absent[0]!r}, calibrated with")
    columns = []
    for column, octaves in numbers.items():
        values = rows[column]
        columns.append(np.log2(np.maximum(values, 1e-30)) if octaves else values)
    for column, distinct in texts.items():
        values = rows[column]
        columns += [1.0 * (values == text) for text in distinct]
    return np.column_stack([*columns, features.gradual, features.detail])
