"""The feature set: a run table in, named float columns out, in scikit-learn's sense."""

from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from foretune.datasets.schema import columns_of
from foretune.errors import PredictorError
from foretune.family import Family
from foretune.features.alignment import alignment
from foretune.features.arrays import Columns, as_array, as_text
from foretune.features.geometry import launch_geometry
from foretune.features.roofline import row_cost, row_roofline_ms

FEATURES_VERSION = 2
"""Changes when the same rows give other columns or values; stored with every predictor."""

GROUPS, COMPILED = ("problem", "config", "device"), "static"


class FeatureSet(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns runs of one kernel into numbers.

    Columns, in order:

    - numbers of problem, configuration and device as they are, one indicator per value of each text
      column; with ``compiled``, what the compiled code shows (``static.…``);
    - ``alignment.<name>``: log2 of the largest power of two that divides a size of the problem;
    - launch geometry (`launch_geometry`);
    - the family's own `derived` quantities and its cost: log2 of flops, bytes, intensity and
      roofline time.

    Columns that never vary in training are left out. Logarithms of sizes are not added: to a tree
    they are the same column twice.

    Args:
        family: knows cost and derived quantities; None uses the rest alone.
        compiled: use the ``static.…`` columns too; rows to predict may lack them.

    Attributes:
        columns_: names of the float columns, in order.
        numbers_: numeric run-table columns used.
        categories_: text columns used -> the values seen in training.
        specs_: device columns that training had; others would make this device unlike all known.
        roofline_known_: whether every training row had a roofline time.
    """

    def __init__(self, family: Family | None = None, compiled: bool = False) -> None:
        self.family = family
        self.compiled = compiled

    def fit(self, runs: pd.DataFrame, y: Any = None) -> Self:
        """Learn which columns vary and which values text columns take."""
        self.numbers_: list[str] = []
        self.categories_: dict[str, list[str]] = {}
        groups = (*GROUPS, "static") if self.compiled else GROUPS
        for column in [c for g in groups for c in columns_of(runs, g)]:
            values = as_array(runs[column])
            if values.dtype.kind == "U":
                self.categories_[column] = sorted(set(values.tolist()) - {""})
            else:
                self.numbers_.append(column)
        self.columns_: list[str] | None = None
        self.specs_ = columns_of(runs, "device")
        self.roofline_known_ = bool(np.isfinite(row_roofline_ms(self.family, runs)).all())
        table = self._table(runs)
        varies = [name for name, values in table.items() if _varies(values)]
        self.columns_ = varies or list(table)[:1]
        # What never varied need not be there later.
        self.numbers_ = [c for c in self.numbers_ if c in self.columns_]
        used = {name.partition("=")[0] for name in self.columns_}
        self.categories_ = {c: known for c, known in self.categories_.items() if c in used}
        return self

    def transform(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return one float32 row per run, columns `columns_`.

        Raises:
            PredictorError: a column that training had is missing.
        """
        check_is_fitted(self, "columns_")
        table = self._table(runs)
        if missing := [c for c in self.columns_ or () if c not in table]:
            name = self.family.name if self.family else "none"
            raise PredictorError(
                f"feature {missing[0]!r} cannot be computed: the predictor was trained with "
                f"another version of its kernel (here: {name}); train it again"
            )
        matrix = np.empty((len(runs), len(self.columns_ or ())), dtype=np.float32, order="F")
        with np.errstate(over="ignore"):
            for i, name in enumerate(self.columns_ or ()):
                matrix[:, i] = table[name]
                matrix[np.isinf(matrix[:, i]), i] = np.nan  # of a size of 0, say: not known
        return pd.DataFrame(matrix, columns=self.columns_, index=runs.index, copy=False)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the float columns."""
        check_is_fitted(self, "columns_")
        return np.array(self.columns_, dtype=object)

    def _table(self, runs: pd.DataFrame) -> dict[str, np.ndarray]:
        needed = [*self.numbers_, *self.categories_]
        if absent := [c for c in needed if c not in runs and not c.startswith(f"{COMPILED}.")]:
            raise PredictorError(f"the runs lack column {absent[0]!r}, which the predictor uses")
        foreign = set(columns_of(runs, "device")) - set(self.specs_)
        runs = runs.drop(columns=list(foreign)) if foreign else runs
        arrays = {group: Columns(runs, group) for group in (*GROUPS, COMPILED)}
        table = {c: _numbers(c, arrays, len(runs)) for c in self.numbers_}
        if texts := [c for c, values in table.items() if values.dtype.kind == "U"]:
            raise PredictorError(f"column {texts[0]!r} holds text, in training it held numbers")
        for column, numbers in table.items():
            if len(infinite := np.flatnonzero(np.isinf(numbers))):
                raise PredictorError(f"column {column!r} is infinite in row {infinite[0]}")
        for column, values in self.categories_.items():
            table.update(_indicators(column, runs[column], values))
        for name, sizes in arrays["problem"].items():
            if sizes.dtype.kind != "U":
                table[f"alignment.{name}"] = alignment(sizes)
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = [launch_geometry(arrays["problem"], arrays["config"], arrays["device"])]
            if self.family is not None:
                parts.append(self._physics(self.family, runs, arrays))
        for part in parts:
            table |= {
                k: np.broadcast_to(np.asarray(v, dtype=float), len(runs)) for k, v in part.items()
            }
        return table

    def _physics(
        self, family: Family, runs: pd.DataFrame, arrays: dict[str, Columns]
    ) -> dict[str, Any]:
        cost = row_cost(family, runs)
        try:
            derived = family.derived(arrays["problem"], arrays["config"], arrays["device"])
        except KeyError as e:
            raise PredictorError(f"the runs lack {e}, which kernel {family.name!r} has") from e
        flops, moved = np.maximum(cost.flops, 1.0), np.maximum(cost.bytes_moved, 1.0)
        return {
            **derived,
            "log2_flops": np.log2(flops),
            "log2_bytes": np.log2(moved),
            "log2_intensity": np.log2(flops / moved),
            "log2_roofline_ms": np.log2(row_roofline_ms(family, runs)),
        }


def _numbers(column: str, arrays: dict[str, Columns], rows: int) -> np.ndarray:
    """Return a column as an array; NaN where it is missing."""
    group, _, name = column.partition(".")
    return arrays[group][name] if name in arrays[group] else np.full(rows, np.nan)


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
