"""Users' own models as guides: estimators, functions, models in MLflow and ONNX.

Each gets a table with one row per configuration (`foretune.models.guides.columns`). It returns
milliseconds, or the columns of `foretune.models.guides.guide.SpacePredictor`, which `UserModel`
checks and completes.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from foretune.errors import ForetuneError, PredictorError, UsageError, describe_error
from foretune.models.guides.columns import parameter_matrix, parameter_table, select_columns
from foretune.models.guides.runs import group_by_problem, in_order_of_runs
from foretune.support.lazy import require

if TYPE_CHECKING:
    import pandas as pd

    from foretune.device import Device
    from foretune.measurement import Measurement
    from foretune.models.guides.request import PredictorRequest
    from foretune.problem import Problem
    from foretune.space import Configuration, SearchSpace

DEFAULT_LOG_SPREAD = 0.5
"""Log spread of predictions without an interval: a factor of 1.6. Measurements correct it."""
INTERVAL_DEVIATIONS = 1.645
"""Half-width of a 90 % interval of the normal distribution, in standard deviations."""
PER_CONFIGURATION = "config"
"""Name of the first parameter of a function that predicts one configuration."""
TABLE_HINT = f": name its first parameter {PER_CONFIGURATION} if it takes one configuration"
"""Appended to the error of a function that got a table."""
ONNX_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}


@dataclass(frozen=True)
class UserModel:
    """A user's model as a `SpacePredictor` that checks and completes its columns.

    ``hint`` says what to do if the model fails.
    """

    name: str
    model: Callable[["Problem", "SearchSpace", "Device", np.ndarray | None], Any]
    hint: str = ""

    def __str__(self) -> str:
        return self.name

    def predict_space(
        self,
        problem: "Problem",
        space: "SearchSpace",
        device: "Device",
        indices: np.ndarray | None = None,
    ) -> "pd.DataFrame":
        """Return the completed table; see `SpacePredictor.predict_space`."""
        n_rows = len(space) if indices is None else len(indices)
        try:
            predicted = self.model(problem, space, device, indices)
            return _complete_table(predicted, n_rows)
        except ForetuneError as e:
            raise PredictorError(f"{self.name} cannot predict this space: {e}") from e
        except Exception as e:  # any error of users' code
            reason = describe_error(e) + self.hint
            raise PredictorError(f"{self.name} cannot predict this space: {reason}") from e


@dataclass(frozen=True)
class UserGuide:
    """A `UserModel` as guide on one device; see `foretune.models.guides.guide.Guide`."""

    model: UserModel
    device: "Device"
    shipped: ClassVar[bool] = False

    def __str__(self) -> str:
        return str(self.model)

    @property
    def mismatch(self) -> str:
        """Users' models are always checked and corrected by measurements."""
        return f"{self.model} is your own model"

    def predict_space(
        self, problem: "Problem", space: "SearchSpace", indices: np.ndarray | None = None
    ) -> "pd.DataFrame":
        """Return the predictions for all (or the given) configurations."""
        return self.model.predict_space(problem, space, self.device, indices)

    def predict_runs(
        self, problems: "Sequence[Problem]", configs: "Sequence[Configuration]"
    ) -> "pd.DataFrame":
        """Return the predictions for some runs: each problem's configurations are a space."""
        import pandas as pd

        from foretune.space import Configuration, ListedSpace

        numbers_of_problem = group_by_problem(problems)
        tables = []
        for problem, numbers in numbers_of_problem.items():
            configs_of_problem = [configs[number] for number in numbers]
            space = ListedSpace(map(Configuration, configs_of_problem))
            indices = np.array([space.index(config) for config in configs_of_problem])
            tables.append(self.predict_space(problem, space, indices))
        return in_order_of_runs(pd.concat(tables, ignore_index=True), numbers_of_problem)

    def prediction_of(self, measurement: "Measurement") -> dict[str, float]:
        """Return nothing: the unit of a user's model is unknown."""
        return {}

    def log_spread(self, predicted: "pd.DataFrame | None" = None) -> float:
        """Return the standard deviation of log errors from the intervals in ``predicted``."""
        if predicted is None:
            return DEFAULT_LOG_SPREAD
        widths = np.log(predicted["time_ms_high"] / predicted["time_ms_low"]).to_numpy()
        spread = float(np.nanmedian(widths)) / (2 * INTERVAL_DEVIATIONS)
        return spread if 0 < spread < np.inf else DEFAULT_LOG_SPREAD

    def calibrated(self, runs: "pd.DataFrame") -> Self:
        """Return itself: a user's model cannot be calibrated."""
        return self

    def not_trained_on(self, measurements: "Sequence[Measurement]") -> "list[Measurement]":
        """Return all measurements: what a user's model was trained on is unknown."""
        return list(measurements)

    def training_runs(self) -> "pd.DataFrame":
        """Return an empty table with the columns that tell kernel and device."""
        import pandas as pd

        return pd.DataFrame({"kernel": [], "device": []}, dtype=str)

    def require(self, request: "PredictorRequest") -> None:
        """Accept any request: a user's model can be checked only when it predicts."""

    def check_prediction(self, log_mean: np.ndarray) -> None:
        """Raise `PredictorError` if the model predicts the same for a whole space."""
        if len(log_mean) > 1 and np.ptp(log_mean) == 0:
            raise PredictorError(
                f"{self} predicts the same for all {len(log_mean):,} configurations: "
                "give it the parameters that differ, or tune without it"
            )


def as_user_model(model: Any, name: str = "") -> UserModel:
    """Return a user's model in one form; a `UserModel` is returned unchanged.

    ``model`` is an object with ``predict_space``; one with ``predict``, such as a scikit-learn
    estimator or pipeline; or a function. A function whose first parameter is ``config`` is called
    once per configuration, with a dictionary of its parameters and the problem's. Any other is
    called once, with a table of them. Both return milliseconds, or columns of `SpacePredictor`.
    Raises UsageError if it is none of these.
    """
    if isinstance(model, UserModel):
        return model
    name = name or getattr(model, "__name__", type(model).__name__)
    if isinstance(model, type):
        raise UsageError(f"{name} is a class: give a fitted object of it")
    if hasattr(model, "predict_space"):
        return UserModel(name, model.predict_space)
    if hasattr(model, "predict"):
        return _model_of_tables(name, lambda table: _estimate(model, table))
    if callable(model):
        if _is_per_configuration(model):
            return _model_of_tables(name, _each_configuration(model))
        return _model_of_tables(name, model, hint=TABLE_HINT)
    raise UsageError(
        f"predictor is {model!r}: give a Predictor, a fitted scikit-learn estimator or a function"
    )


def mlflow_model(mlflow: Any, folder: str, name: str) -> UserModel:
    """Return the model in MLflow's ``folder``; loading it runs its code."""
    model = mlflow.pyfunc.load_model(folder)
    schema = model.metadata.get_input_schema()
    if schema is None or not schema.has_input_names():
        estimator = model
        with suppress(NotImplementedError):  # not every kind of model has it
            raw = model.get_raw_model()
            if hasattr(raw, "n_features_in_"):
                estimator = raw
        return _model_of_tables(name, lambda table: _estimate(estimator, table))

    names = schema.input_names()
    dtypes = {
        column.name: column.type.to_pandas()
        for column in schema.inputs
        if hasattr(column.type, "to_pandas")
    }

    def predict(table: "pd.DataFrame") -> Any:
        return model.predict(select_columns(table, names).astype(dtypes))

    return _model_of_tables(name, predict)


def onnx_model(path: str) -> UserModel:
    """Return the model in an ONNX file: one input per column, or one matrix."""
    runtime = require("onnxruntime", "onnx", "a model in ONNX")
    try:
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime's own errors have no common class
        raise PredictorError(f"ONNX cannot read {path}: {describe_error(e)}") from e
    inputs = session.get_inputs()

    def predict_matrix(table: "pd.DataFrame") -> Any:
        (matrix,) = inputs
        width = matrix.shape[1]
        values = parameter_matrix(table, width).astype(ONNX_TYPES[matrix.type])
        return session.run(None, {matrix.name: values})[0]

    def predict_columns(table: "pd.DataFrame") -> Any:
        columns = select_columns(table, [column.name for column in inputs])
        feeds = {}
        for column in inputs:
            values = columns[column.name].to_numpy(dtype=ONNX_TYPES[column.type])
            feeds[column.name] = values.reshape(-1, 1)
        return session.run(None, feeds)[0]

    takes_matrix = len(inputs) == 1 and len(inputs[0].shape) == 2 and inputs[0].shape[1] != 1
    return _model_of_tables(path, predict_matrix if takes_matrix else predict_columns)


def _model_of_tables(
    name: str, predict: Callable[["pd.DataFrame"], Any], hint: str = ""
) -> UserModel:
    """Return a model that gets one table for all configurations."""

    def predict_space(*which: Any) -> Any:
        return predict(parameter_table(*which))

    return UserModel(name, predict_space, hint)


def _estimate(model: Any, table: "pd.DataFrame") -> Any:
    """Return the predictions of an estimator, with intervals if it has them."""
    names = getattr(model, "feature_names_in_", None)
    width = getattr(model, "n_features_in_", None)
    X = table if names is None else select_columns(table, list(names))
    if names is None and width is not None:
        X = parameter_matrix(table, int(width))
    if not hasattr(model, "predict_interval"):  # RuntimeRegressor
        return model.predict(X)
    low, high = np.transpose(model.predict_interval(X))
    return {"time_ms": model.predict(X), "time_ms_low": low, "time_ms_high": high}


def _is_per_configuration(function: Callable[..., Any]) -> bool:
    try:
        return next(iter(inspect.signature(function).parameters), "") == PER_CONFIGURATION
    except (TypeError, ValueError):  # some functions of C
        return False


def _each_configuration(function: Callable[..., Any]) -> Callable[["pd.DataFrame"], Any]:
    def predict(table: "pd.DataFrame") -> Any:
        import pandas as pd

        rows = [function(config) for config in table.to_dict("records")]
        return pd.DataFrame(rows) if isinstance(rows[0], dict) else rows

    return predict


def _complete_table(predicted: Any, n_rows: int) -> "pd.DataFrame":
    """Return the columns of `SpacePredictor`, with default intervals and probabilities to run."""
    import pandas as pd

    # One column or a bare array is the time.
    if isinstance(predicted, pd.DataFrame) and predicted.shape[1] == 1:
        predicted = predicted.iloc[:, 0]
    if not isinstance(predicted, pd.DataFrame | dict):
        predicted = {"time_ms": predicted}
    if "time_ms" not in predicted:
        raise PredictorError(f"it returns {', '.join(map(str, predicted))}, and no time_ms")

    table = pd.DataFrame(index=range(n_rows))
    targets = [target for target in ("time_ms", "power_w") if target in predicted]
    for target in targets:
        values = _numbers(predicted, target, n_rows)
        if (values <= 0).any():
            raise PredictorError(f"{target} is {np.nanmin(values):.4g}: return numbers above 0")
        table[target] = np.where(np.isfinite(values), values, np.nan)
        for end, sign in (("low", -1), ("high", 1)):
            column = f"{target}_{end}"
            if column in predicted:
                table[column] = _numbers(predicted, column, n_rows)
            else:
                log_width = sign * INTERVAL_DEVIATIONS * DEFAULT_LOG_SPREAD
                table[column] = table[target] * np.exp(log_width)

    # A configuration without a number is not expected to run.
    p_valid = np.ones(n_rows)
    if "p_valid" in predicted:
        p_valid = np.clip(np.nan_to_num(_numbers(predicted, "p_valid", n_rows)), 0, 1)
    is_predicted = table[targets].notna().all(axis=1)
    table["p_valid"] = np.where(is_predicted, p_valid, 0.0)
    return table


def _numbers(predicted: Any, column: str, n_rows: int) -> np.ndarray:
    values = np.asarray(predicted[column], dtype=float)
    if values.shape not in ((n_rows,), (n_rows, 1)):
        raise PredictorError(f"{column} has shape {values.shape} for {n_rows:,} configurations")
    return values.reshape(n_rows)
