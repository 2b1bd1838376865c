"""The feature set: a transformer from runs to float columns."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from foretune.errors import PredictorError, UnknownName
from foretune.family import Family, Quantity
from foretune.features.arrays import Rows, short_names
from foretune.features.geometry import CACHE_SUFFIX, alignment, cache_features, launch_geometry
from foretune.features.roofline import quantities, row_cost, row_roofline_ms, with_rates

if TYPE_CHECKING:

    class Estimator:
        """Type stub of scikit-learn's ``BaseEstimator``."""

        n_features_in_: int

        get_params: Callable[..., dict[str, Any]]
        set_params: Callable[..., Any]

        def __sklearn_tags__(self) -> Any: ...

    class RegressorMixin:
        """Type stub of scikit-learn's class."""

    class TransformerMixin:
        """Type stub of scikit-learn's class."""

else:
    from sklearn.base import BaseEstimator as Estimator
    from sklearn.base import RegressorMixin as RegressorMixin
    from sklearn.base import TransformerMixin

GROUPS = ("problem", "config", "device")
EXTRA_GROUPS = {
    "static": "compiled code",
    "counter": "profiler counters",
    "simulated": "figures of a simulator",
}
"""Column groups that are known only after compiling or running -> their contents."""
CACHES = frozenset({"device.l2_kib", "device.l3_kib"})
FITTED_STATE = {
    "columns": list,
    "numbers": list,
    "categories": dict,
    "specs": list,
    "roofline_known": bool,
}
OPTIONAL_PREFIX = "device."
"""Prefix of columns that may be missing at prediction time."""


class FeatureSet(TransformerMixin, Estimator):
    """Turns runs of one kernel into numbers.

    Columns are, in order: the numbers of problem, configuration and device, one indicator per value
    of each text column, and the groups of ``extra_columns`` (`EXTRA_GROUPS`), which are then
    required for prediction; ``alignment.<name>``, log2 of the largest power of two that divides a
    size of the problem; launch geometry (`launch_geometry`); the `derived` quantities of the
    ``family``, if there is one, and its cost: log2 of flops, bytes, intensity and roofline time.

    Columns that are constant in training are dropped. Logarithms of sizes are not added, because
    trees split them in the same way as the sizes.

    The fitted attributes are the names of the float columns (``columns_``), numeric run-table
    columns (``numbers_``), text columns with the values seen in training (``categories_``), device
    columns in training (``specs_``; others are ignored), and whether any training row had a
    roofline time (``roofline_known_``).
    """

    def __init__(self, family: Family | None = None, extra_columns: Sequence[str] = ()) -> None:
        self.family = family
        self.extra_columns = extra_columns

    def fit(self, runs: pd.DataFrame, y: Any = None) -> Self:
        """Learn which columns vary and which values text columns take.

        Raises PredictorError if a number is infinite, or a row has negative work, and UnknownName
        if there is no such group of columns.
        """
        for group in self.extra_columns:
            if group not in EXTRA_GROUPS:
                raise UnknownName("group of columns", group, EXTRA_GROUPS)

        # Columns of numbers, and of texts with their values.
        rows = with_rates(self.family, Rows(runs))
        self.numbers_: list[str] = []
        self.categories_: dict[str, list[str]] = {}
        for group in (*GROUPS, *self.extra_columns):
            for column in short_names(rows.columns, group).values():
                values = rows[column]
                if values.dtype.kind == "U":
                    self.categories_[column] = sorted(set(values.tolist()) - {""})
                else:
                    self.numbers_.append(column)
        self.columns_: list[str] | None = None
        self.specs_ = list(short_names(rows.columns, "device").values())
        self.roofline_known_ = bool(np.isfinite(row_roofline_ms(self.family, rows)).any())

        # The features that vary. Those of caches are redundant if all caches are equal.
        table = self._table(rows)
        self._check_finite(table)
        self._check_nonnegative(rows)
        varying = [name for name, values in table.items() if _varies(values)]
        if not CACHES.intersection(varying):
            varying = [name for name in varying if not name.endswith(CACHE_SUFFIX)]
        self.columns_ = varying or list(table)[:1]

        # Constant columns are not needed for prediction.
        used = set(self.columns_)
        self.numbers_ = [column for column in self.numbers_ if column in used]
        for column in list(self.categories_):
            indicators = {_indicator(column, value) for value in self.categories_[column]}
            if used.isdisjoint(indicators):
                del self.categories_[column]
        return self

    def transform(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return one float32 row per run, with columns `columns_`.

        Raises PredictorError if a column of the training runs is missing.
        """
        check_is_fitted(self, "columns_")
        matrix = self.matrix(runs)
        return pd.DataFrame(matrix, columns=self.columns_, index=runs.index, copy=False)

    def matrix(self, runs: pd.DataFrame | Rows) -> np.ndarray:
        """Return the values of `transform` as an array."""
        rows = Rows.from_table(runs)
        columns = self.columns_ or ()
        table = self._table(rows)
        for column in columns:
            if column not in table:
                name = self.family.name if self.family else "none"
                raise PredictorError(
                    f"feature {column!r} cannot be computed: the predictor was trained with "
                    f"another version of its kernel (here: {name}); train it again"
                )
        matrix = np.empty((len(rows), len(columns)), dtype=np.float32, order="F")
        with np.errstate(over="ignore"):
            for i, name in enumerate(columns):
                matrix[:, i] = table[name]
        is_infinite = np.isinf(matrix)
        if is_infinite.any():
            self._check_finite(table)
            matrix[is_infinite] = np.nan  # unknown, e.g. log2 of a size of 0
        return matrix

    def described(self, rows: Rows) -> Rows:
        """Return ``rows`` `with_rates`, without device columns unseen in training."""
        with_specs = with_rates(self.family, rows)
        device_columns = short_names(with_specs.columns, "device").values()
        return with_specs.without(set(device_columns) - set(self.specs_))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the float columns."""
        check_is_fitted(self, "columns_")
        return np.array(self.columns_, dtype=object)

    def to_json(self) -> dict[str, Any]:
        """Return the fitted state as plain values for `from_json`."""
        return {name: getattr(self, f"{name}_") for name in FITTED_STATE}

    @classmethod
    def from_json(
        cls,
        data: Mapping[str, Any],
        family: Family | None = None,
        extra_columns: Sequence[str] = (),
    ) -> Self:
        """Return the feature set that `to_json` wrote; other keys are ignored."""
        features = cls(family, extra_columns)
        for name, kind in FITTED_STATE.items():
            setattr(features, f"{name}_", kind(data[name]))
        return features

    def _table(self, runs: Rows) -> dict[str, Quantity]:
        """Return every feature as an array, or as one number if it is equal in all rows."""
        rows = self.described(runs)
        available = frozenset(rows.columns)
        self._check_columns(available)

        # Numbers; an unknown spec of the device is NaN. Texts have an indicator per value.
        table: dict[str, Quantity] = {}
        for column in self.numbers_:
            table[column] = np.nan
            if column in available:
                values = rows[column]
                if values.dtype.kind == "U":
                    raise PredictorError(
                        f"column {column!r} holds text, but in training it held numbers"
                    )
                table[column] = values
        for column, known_values in self.categories_.items():
            table |= _indicators(column, rows, known_values)

        # Powers of two in the sizes, the launch, and the family's physics.
        problem = rows.group("problem")
        sizes = {name: values for name, values in problem.items() if values.dtype.kind != "U"}
        if sizes:
            powers = alignment(np.array(list(sizes.values())))
            for name, power in zip(sizes, powers, strict=True):
                table[f"alignment.{name}"] = power
        with np.errstate(divide="ignore", invalid="ignore"):
            table |= launch_geometry(problem, rows.group("config"), rows.group("device"))
            if self.family is not None:
                table |= self._physics(self.family, rows)
        return table

    def _check_columns(self, available: Collection[str]) -> None:
        """Raise PredictorError if a column is missing that is not optional."""
        for column in (*self.numbers_, *self.categories_):
            if column in available or column.startswith(OPTIONAL_PREFIX):
                continue
            advice = ""
            group, _, _ = column.partition(".")
            if group in EXTRA_GROUPS:
                advice = (
                    f": candidates have no {EXTRA_GROUPS[group]}; to predict them, train without "
                    f"--extra-columns {group}"
                )
            raise PredictorError(
                f"the runs lack column {column!r}, which the predictor uses{advice}"
            )

    def _check_finite(self, table: dict[str, Quantity]) -> None:
        for column in self.numbers_:
            infinite_rows = np.flatnonzero(np.isinf(table[column]))
            if len(infinite_rows):
                raise PredictorError(f"column {column!r} is infinite in row {infinite_rows[0]}")

    def _check_nonnegative(self, rows: Rows) -> None:
        if self.family is None:
            return
        cost = row_cost(self.family, rows)
        negative_rows = np.flatnonzero(np.minimum(cost.flops, cost.bytes_moved) < 0)
        if len(negative_rows):
            raise PredictorError(f"row {negative_rows[0]} has negative work: is a size negative?")

    def _physics(self, family: Family, rows: Rows) -> dict[str, Quantity]:
        """Return the family's own quantities, and the logarithms of its work."""
        cost = row_cost(family, rows)
        flops = np.maximum(cost.flops, 1.0)
        moved_bytes = np.maximum(cost.bytes_moved, 1.0)
        return {
            **quantities(family, rows, "derived"),
            **cache_features("bytes", moved_bytes, rows.group("device")),
            "log2_flops": np.log2(flops),
            "log2_bytes": np.log2(moved_bytes),
            "log2_intensity": np.log2(flops / moved_bytes),
            "log2_roofline_ms": np.log2(row_roofline_ms(family, rows)),
        }


def _varies(values: Quantity) -> bool:
    """Return whether a feature has several values, or one that only some rows have."""
    array = np.atleast_1d(values)
    known = array[~np.isnan(array)]
    if not len(known):
        return False
    return bool(known.min() != known.max()) or len(known) < len(array)


def _indicators(column: str, rows: Rows, known_values: list[str]) -> dict[str, Quantity]:
    """Return an indicator per value of a text column; zeros if the rows lack the column."""
    names = [_indicator(column, value) for value in known_values]
    if column not in rows:
        return dict.fromkeys(names, 0.0)
    return dict(zip(names, rows.text_masks(column, known_values), strict=True))


def _indicator(column: str, value: str) -> str:
    return f"{column}={value}"
