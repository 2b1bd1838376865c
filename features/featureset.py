"""The feature set: a run table in, named float columns out, in scikit-learn's sense."""

from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from foretune.datasets.schema import columns_of
from foretune.errors import PredictorError
from foretune.features.arrays import as_array, as_text, group_arrays
from foretune.features.roofline import row_cost, row_roofline_ms
from foretune.kernel import Kernel

FEATURES_VERSION = 1
"""Changes when the same rows give other columns or values; stored with every predictor."""


class FeatureSet(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns runs of one kernel into numbers.

    Columns: the problem's and configuration's numbers as they are, one indicator per value of each
    text column, the kernel's own `derived` quantities, its cost (log2 of flops, bytes, intensity
    and roofline time), and those device specs that differ between rows. Columns that never vary in
    training are left out.

    Args:
        kernel: knows cost and derived quantities; None uses the raw columns alone.

    Attributes:
        columns_: names of the float columns, in order.
        numbers_: numeric run-table columns used.
        categories_: text columns used -> the values seen in training.
        roofline_known_: whether every training row had a roofline time.
    """

    def __init__(self, kernel: Kernel | None = None) -> None:
        self.kernel = kernel

    def fit(self, runs: pd.DataFrame, y: Any = None) -> Self:
        """Learn which columns vary and which values text columns take."""
        self.numbers_: list[str] = []
        self.categories_: dict[str, list[str]] = {}
        for column in [c for g in ("problem", "config", "device") for c in columns_of(runs, g)]:
            values = as_array(runs[column])
            if values.dtype.kind == "U":
                self.categories_[column] = sorted(set(values.tolist()) - {""})
            else:
                self.numbers_.append(column)
        self.columns_: list[str] | None = None
        self.roofline_known_ = bool(np.isfinite(row_roofline_ms(self.kernel, runs)).all())
        table = self._table(runs)
        varies = [name for name, values in table.items() if _varies(values)]
        self.columns_ = varies or list(table)[:1]
        # What never varied need not be there later.
        self.numbers_ = [c for c in self.numbers_ if c in self.columns_]
        used = {name.partition("=")[0] for name in self.columns_}
        self.categories_ = {c: known for c, known in self.categories_.items() if c in used}
        return self

    def unit_ms(self, runs: pd.DataFrame) -> np.ndarray:
        """Return what the time of every row is measured against: its roofline time.

        1 ms for all rows if training had rows whose roofline is not known.

        Raises:
            PredictorError: training knew the rooflines of all its rows, and here one is missing.
        """
        check_is_fitted(self, "roofline_known_")
        if not self.roofline_known_:
            return np.ones(len(runs))
        unit = row_roofline_ms(self.kernel, runs)
        if not np.isfinite(unit).all():
            row = int(np.flatnonzero(~np.isfinite(unit))[0])
            raise PredictorError(
                f"row {row} lacks its device's peak rates (device.fp32_gflops, device.memory_gbps),"
                " which the predictor was trained with"
            )
        return unit

    def transform(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return one float32 row per run, columns `columns_`.

        Raises:
            PredictorError: a column that training had is missing.
        """
        check_is_fitted(self, "columns_")
        table = self._table(runs)
        if missing := [c for c in self.columns_ or () if c not in table]:
            name = self.kernel.name if self.kernel else "none"
            raise PredictorError(
                f"feature {missing[0]!r} cannot be computed: the predictor was trained with "
                f"another version of its kernel (here: {name}); train it again"
            )
        matrix = np.empty((len(runs), len(self.columns_ or ())), dtype=np.float32, order="F")
        for i, name in enumerate(self.columns_ or ()):
            matrix[:, i] = table[name]
        return pd.DataFrame(matrix, columns=self.columns_, index=runs.index, copy=False)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the float columns."""
        check_is_fitted(self, "columns_")
        return np.array(self.columns_, dtype=object)

    def _table(self, runs: pd.DataFrame) -> dict[str, np.ndarray]:
        needed = [*self.numbers_, *self.categories_]
        if missing := [c for c in needed if c not in runs]:
            raise PredictorError(f"the runs lack column {missing[0]!r}, which the predictor uses")
        table = {c: as_array(runs[c]) for c in self.numbers_}
        if texts := [c for c, values in table.items() if values.dtype.kind == "U"]:
            raise PredictorError(f"column {texts[0]!r} holds text, in training it held numbers")
        for column, values in self.categories_.items():
            table.update(_indicators(column, runs[column], values))
        if self.kernel is not None:
            table.update(self._physics(self.kernel, runs))
        return table

    def _physics(self, kernel: Kernel, runs: pd.DataFrame) -> dict[str, np.ndarray]:
        cost = row_cost(kernel, runs)
        try:
            derived = kernel.derived(group_arrays(runs, "problem"), group_arrays(runs, "config"))
        except KeyError as e:
            raise PredictorError(f"the runs lack {e}, which kernel {kernel.name!r} has") from e
        flops, moved = np.asarray(cost.flops), np.asarray(cost.bytes_moved)
        physics = {
            "log2_flops": np.log2(np.maximum(flops, 1.0)),
            "log2_bytes": np.log2(np.maximum(moved, 1.0)),
            "log2_intensity": np.log2(np.maximum(flops, 1.0) / np.maximum(moved, 1.0)),
            "log2_roofline_ms": np.log2(self.unit_ms(runs)),
        }
        wide = {
            k: np.broadcast_to(np.asarray(v, dtype=float), len(runs)) for k, v in derived.items()
        }
        return {**wide, **physics}


def _varies(values: np.ndarray) -> bool:
    finite = values[~np.isnan(values)]
    return len(finite) > 0 and (finite.min() != finite.max() or len(finite) < len(values))


def _indicators(column: str, values: "pd.Series[Any]", known: list[str]) -> dict[str, np.ndarray]:
    if isinstance(values.dtype, pd.CategoricalDtype):  # no million strings to compare
        codes = values.cat.codes.to_numpy()
        position = {v: i for i, v in enumerate(as_text(values.cat.categories))}
        return {f"{column}={v}": codes == position.get(v, -2) for v in known}
    text = as_text(values)
    return {f"{column}={v}": text == v for v in known}
