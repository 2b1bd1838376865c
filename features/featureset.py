"""The feature set: a transformer from runs to float columns."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
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

FEATURES_VERSION = 6
"""Incremented when the same rows give other columns or values; stored with every predictor."""

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
OPTIONAL_PREFIX = "device."  # prefix of columns that may be missing at prediction time


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
        if unknown := [name for name in self.extra_columns if name not in EXTRA_GROUPS]:
            raise UnknownName("group of columns", unknown[0], EXTRA_GROUPS)
        self.numbers_: list[str] = []
        self.categories_: dict[str, list[str]] = {}
        rows = with_rates(self.family, Rows(runs))
        groups = (short_names(rows.columns, group) for group in (*GROUPS, *self.extra_columns))
        for column in chain.from_iterable(named.values() for named in groups):
            values = rows[column]
            if values.dtype.kind == "U":
                self.categories_[column] = sorted(set(values.tolist()) - {""})
            else:
                self.numbers_.append(column)
        self.columns_: list[str] | None = None
        self.specs_ = list(short_names(rows.columns, "device").values())
        self.roofline_known_ = bool(np.isfinite(row_roofline_ms(self.family, rows)).any())
        table = self._table(rows)
        self._check_finite(table)
        self._check_nonnegative(rows)
        varies = [name for name, values in table.items() if _varies(values)]
        if not CACHES.intersection(varies):
            varies = [name for name in varies if not name.endswith(CACHE_SUFFIX)]
        self.columns_ = varies or list(table)[:1]
        # constant columns are not needed for prediction
        self.numbers_ = [c for c in self.numbers_ if c in self.columns_]
        used = set(self.columns_)
        texts = self.categories_.items()
        self.categories_ = {c: v for c, v in texts if not used.isdisjoint(f"{c}={x}" for x in v)}
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
        rows, columns = Rows.from_table(runs), self.columns_ or ()
        table = self._table(rows)
        if missing := [c for c in columns if c not in table]:
            name = self.family.name if self.family else "none"
            raise PredictorError(
                f"feature {missing[0]!r} cannot be computed: the predictor was trained with "
                f"another version of its kernel (here: {name}); train it again"
            )
        matrix = np.empty((len(rows), len(columns)), dtype=np.float32, order="F")
        with np.errstate(over="ignore"):
            for i, name in enumerate(columns):
                matrix[:, i] = table[name]
        if (infinite := np.isinf(matrix)).any():
            self._check_finite(table)
            matrix[infinite] = np.nan  # unknown, e.g. log2 of a size of 0
        return matrix

    def described(self, rows: Rows) -> Rows:
        """Return ``rows`` `with_rates`, without device columns unseen in training."""
        rows = with_rates(self.family, rows)
        return rows.without(set(short_names(rows.columns, "device").values()) - set(self.specs_))

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

    def _table(self, rows: Rows) -> dict[str, Quantity]:
        """Return every feature as an array, or as one number if it is equal in all rows."""
        rows = self.described(rows)
        needed, available = [*self.numbers_, *self.categories_], frozenset(rows.columns)
        if absent := [c for c in needed if not (c in available or c.startswith(OPTIONAL_PREFIX))]:
            how = ""
            if (group := absent[0].partition(".")[0]) in EXTRA_GROUPS:
                how = (
                    f": candidates have no {EXTRA_GROUPS[group]}; to predict them, train without "
                    f"--extra-columns {group}"
                )
            raise PredictorError(
                f"the runs lack column {absent[0]!r}, which the predictor uses{how}"
            )
        table: dict[str, Quantity] = dict.fromkeys(self.numbers_, np.nan)
        table |= {c: rows[c] for c in self.numbers_ if c in available}
        if texts := [c for c, v in table.items() if hasattr(v, "dtype") and v.dtype.kind == "U"]:
            raise PredictorError(f"column {texts[0]!r} holds text, but in training it held numbers")
        for column, values in self.categories_.items():
            table |= _indicators(column, rows, values)
        arrays = {group: rows.group(group) for group in GROUPS}
        sizes = {name: v for name, v in arrays["problem"].items() if v.dtype.kind != "U"}
        if sizes:
            powers = alignment(np.array(list(sizes.values())))
            table |= {f"alignment.{name}": p for name, p in zip(sizes, powers, strict=True)}
        with np.errstate(divide="ignore", invalid="ignore"):
            table |= launch_geometry(arrays["problem"], arrays["config"], arrays["device"])
            if self.family is not None:
                table |= self._physics(self.family, rows)
        return table

    def _check_finite(self, table: dict[str, Quantity]) -> None:
        for column in self.numbers_:
            if len(infinite := np.flatnonzero(np.isinf(table[column]))):
                raise PredictorError(f"column {column!r} is infinite in row {infinite[0]}")

    def _check_nonnegative(self, rows: Rows) -> None:
        if self.family is not None:
            cost = row_cost(self.family, rows)
            if len(less := np.flatnonzero(np.minimum(cost.flops, cost.bytes_moved) < 0)):
                raise PredictorError(f"row {less[0]} has negative work: is a size negative?")

    def _physics(self, family: Family, rows: Rows) -> dict[str, Quantity]:
        cost = row_cost(family, rows)
        flops, moved = np.maximum(cost.flops, 1.0), np.maximum(cost.bytes_moved, 1.0)
        return {
            **quantities(family, rows, "derived"),
            **cache_features("bytes", moved, rows.group("device")),
            "log2_flops": np.log2(flops),
            "log2_bytes": np.log2(moved),
            "log2_intensity": np.log2(flops / moved),
            "log2_roofline_ms": np.log2(row_roofline_ms(family, rows)),
        }


def _varies(values: Quantity) -> bool:
    finite = np.atleast_1d(values)[~np.isnan(np.atleast_1d(values))]
    return len(finite) > 0 and (finite.min() != finite.max() or len(finite) < np.size(values))


def _indicators(column: str, rows: Rows, known: list[str]) -> dict[str, Quantity]:
    if column not in rows:
        return {f"{column}={v}": 0.0 for v in known}
    names = [f"{column}={v}" for v in known]
    return dict(zip(names, rows.text_masks(column, known), strict=True))
