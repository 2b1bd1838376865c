"""A scikit-learn regressor of runtimes for tables with arbitrary columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from foretune.datasets.plain_tables import UNNAMED, run_columns
from foretune.errors import UsageError
from foretune.features.families.user_defined import UserDefinedCost
from foretune.features.featureset import Estimator, RegressorMixin
from foretune.measurement import Status
from foretune.models.predictor import Predictor
from foretune.models.target_names import MIN_ROWS


@dataclass(eq=False, repr=False)
class RuntimeRegressor(RegressorMixin, Estimator):
    """Predicts runtimes, or any other positive quantity, with intervals.

    It wraps a `Predictor` for arbitrary ``X`` and ``y``. In data frames, text columns are
    categories, a column ``device`` names the device of each row, and columns such as
    ``device.memory_gbps`` describe it.

    ``model`` is the name of a registered model, ``xgboost`` or ``random_forest``, and
    ``parameters`` replace its defaults. The columns ``problem`` describe the problem, the others
    are configuration; intervals are calibrated to cover unseen problems. With None, each row is a
    separate problem. ``flops``, ``bytes_moved`` and ``blocks`` (empty if unknown) are operations,
    bytes and blocks per launch as expressions over columns, e.g. ``2*M*N*K``; with them, ``y`` is
    in milliseconds. After fitting, ``predictor_`` is the `Predictor`.
    """

    model: str = "xgboost"
    problem: Sequence[str] | None = None
    flops: str = ""
    bytes_moved: str = ""
    blocks: str = ""
    seed: int = 0
    parameters: Mapping[str, Any] | None = None

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to ``X`` (rows, columns; an array or a data frame) and positive ``y`` (rows).

        Raises UsageError if a value of ``y`` is not positive, or a column is missing or has gaps;
        ValueError if scikit-learn rejects ``X`` or ``y``; ForetuneError (see `Predictor.fit`).
        """
        # Scikit-learn would convert a data frame with text to objects: check only its `y`.
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, y, skip_check_array=True)
            y = column_or_1d(check_array(y, ensure_2d=False, dtype="numeric"), warn=True)
        else:
            X, y = validate_data(self, X, y, y_numeric=True, ensure_min_samples=MIN_ROWS)
        if not (y > 0).all():
            raise UsageError("y must be positive: drop or fix the rows with y <= 0")

        runs = self._run_table(X).assign(time_ms=np.asarray(y, dtype=float))
        work = UserDefinedCost.from_expressions(UNNAMED, self.flops, self.bytes_moved, self.blocks)
        predictor = Predictor(
            self.model,
            targets=("time_ms",),
            seed=self.seed,
            kernel=work,
            parameters=self.parameters,
        )
        self.predictor_ = predictor.fit(runs)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted ``y`` of each row of ``X``."""
        return self._predict(X)["time_ms"].to_numpy()

    def predict_interval(self, X: Any) -> np.ndarray:
        """Return the 90 % interval of ``y`` for each row of ``X``: (rows, 2), low and high."""
        return self._predict(X)[["time_ms_low", "time_ms_high"]].to_numpy()

    def _predict(self, X: Any) -> pd.DataFrame:
        check_is_fitted(self)
        is_frame = isinstance(X, pd.DataFrame)
        X = validate_data(self, X, reset=False, skip_check_array=is_frame)
        return self.predictor_.predict(self._run_table(X))

    def _run_table(self, X: Any) -> pd.DataFrame:
        """Return ``X`` as rows of a run table without measurements."""
        if not isinstance(X, pd.DataFrame):
            X = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
        columns_with_gaps = [column for column in X.columns if X[column].isna().any()]
        if columns_with_gaps:
            raise UsageError(
                f"column {columns_with_gaps[0]!r} has gaps: fill them, or leave those rows out"
            )

        # Names of the user's columns get a group, except for those that run tables know.
        run_names = run_columns(map(str, X.columns), self.problem or ())
        reserved = [name for name in run_names if "." not in name and name != "device"]
        if reserved:
            raise UsageError(f"column {reserved[0]!r} has another meaning in run tables: rename it")
        rows = X.reset_index(drop=True).set_axis(list(run_names), axis=1)

        # A table without devices is of a single, unnamed one.
        texts = {name: v.astype(str) for name, v in rows.items() if not is_numeric_dtype(v)}
        table = pd.DataFrame({"device": UNNAMED, **dict(rows), **texts})
        return table.assign(kernel=UNNAMED, status=Status.OK.value)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
