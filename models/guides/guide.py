"""Guides of a search: a predictor, or a user's own model (estimator, function, MLflow, ONNX).

A guide knows whether its training data match the device and kernel of a search.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from foretune.device import canonical_name
from foretune.errors import ForetuneError, PredictorError, UsageError, describe_error
from foretune.support.lazy import require

if TYPE_CHECKING:
    import pandas as pd

    from foretune.device import Device
    from foretune.measurement import Measurement
    from foretune.models.predictor import Predictor
    from foretune.problem import Problem
    from foretune.space import SearchSpace

DEFAULT_LOG_SPREAD = 0.5
"""Log spread of predictions without an interval: a factor of 1.6. Measurements correct it."""
PER_CONFIGURATION = "config"
"""Name of the first parameter of a function that predicts one configuration."""
BY_TABLE = f": name its first parameter {PER_CONFIGURATION} if it takes one configuration"
ONNX_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}


class SpacePredictor(Protocol):
    """The interface of a search's guide: it predicts the configurations of one problem.

    `Predictor` implements it. Fitted scikit-learn estimators, functions, and models in MLflow or
    ONNX are converted to it wherever a predictor is accepted.
    """

    def predict_space(
        self,
        problem: "Problem",
        space: "SearchSpace",
        device: "Device",
        indices: np.ndarray | None = None,
    ) -> "pd.DataFrame":
        """Return one row per configuration of ``space``, or per index.

        The column ``time_ms`` holds milliseconds; NaN or infinity means that the configuration is
        not expected to run. Optional are the 90 % interval ``time_ms_low`` and ``time_ms_high``,
        the probability to run ``p_valid``, and ``power_w`` with its interval.
        """


@dataclass(frozen=True)
class GuideModel:
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
        try:
            predicted = self.model(problem, space, device, indices)
            return _complete_table(predicted, len(space) if indices is None else len(indices))
        except Exception as e:  # any error of users' code
            known = isinstance(e, ForetuneError)
            reason = str(e) if known else describe_error(e) + self.hint
            raise PredictorError(f"{self.name} cannot predict this space: {reason}") from e


def make_guide(model: Any, name: str = "") -> "Predictor | GuideModel":
    """Return ``model`` as a `SpacePredictor`; a `Predictor` is returned unchanged.

    ``model`` is an object with ``predict_space``; one with ``predict``, such as a scikit-learn
    estimator or pipeline; or a function. A function whose first parameter is ``config`` is called
    once per configuration, with a dictionary of its parameters and the problem's. Any other is
    called once, with a table of them. Both return milliseconds, or columns of `SpacePredictor`.
    """
    from foretune.models.predictor import Predictor

    if isinstance(model, Predictor | GuideModel):
        return model
    name = name or getattr(model, "__name__", type(model).__name__)
    if isinstance(model, type):
        raise UsageError(f"{name} is a class: give a fitted object of it")
    if hasattr(model, "predict_space"):
        return GuideModel(name, model.predict_space)
    if hasattr(model, "predict"):
        return _of_tables(name, lambda table: _estimate(model, table))
    if callable(model):
        if _is_per_configuration(model):
            return _of_tables(name, _each(model))
        return _of_tables(name, model, BY_TABLE)
    raise UsageError(
        f"predictor is {model!r}: give a Predictor, a fitted scikit-learn estimator or a function"
    )


def mlflow_guide(mlflow: Any, folder: str, name: str) -> GuideModel:
    """Return the model in MLflow's ``folder``; loading it runs its code."""
    model = mlflow.pyfunc.load_model(folder)
    schema = model.metadata.get_input_schema()
    if schema is None or not schema.has_input_names():
        estimator = model
        with suppress(NotImplementedError):  # not every kind of model has it
            raw = model.get_raw_model()
            estimator = raw if hasattr(raw, "n_features_in_") else model
        return _of_tables(name, lambda table: _estimate(estimator, table))
    kinds = {c.name: c.type.to_pandas() for c in schema.inputs if hasattr(c.type, "to_pandas")}

    def predict(table: "pd.DataFrame") -> Any:
        return model.predict(select_columns(table, schema.input_names()).astype(kinds))

    return _of_tables(name, predict)


def onnx_guide(path: str) -> GuideModel:
    """Return the model in an ONNX file: one input per column, or one matrix."""
    runtime = require("onnxruntime", "onnx", "a model in ONNX")
    try:
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime's own errors have no common class
        raise PredictorError(f"ONNX cannot read {path}: {describe_error(e)}") from e
    inputs = session.get_inputs()
    matrix = len(inputs) == 1 and len(inputs[0].shape) == 2 and inputs[0].shape[1] != 1

    def predict(table: "pd.DataFrame") -> Any:
        if matrix:
            only = inputs[0]
            feeds = {only.name: _matrix(table, only.shape[1]).astype(ONNX_TYPES[only.type])}
        else:
            columns = select_columns(table, [i.name for i in inputs])
            feeds = {
                i.name: columns[i.name].to_numpy(dtype=ONNX_TYPES[i.type]).reshape(-1, 1)
                for i in inputs
            }
        return session.run(None, feeds)[0]

    return _of_tables(path, predict)


def select_columns(table: "pd.DataFrame", names: Sequence[str]) -> "pd.DataFrame":
    """Return columns by name, with or without their group, and indicators such as layout_row."""
    import pandas as pd

    found, missing = dict[str, Any](), list[str]()
    indicators, matched = dict[str, list[str]](), set[str]()
    for name in names:
        bare = name.removeprefix("problem.").removeprefix("config.")
        sources = [c for c in table if bare.startswith(f"{c}_")]
        if column := next((c for c in (name, bare) if c in table), ""):
            found[name] = table[column]
        elif sources:
            source = max(sources, key=len)
            text = bare.removeprefix(f"{source}_")
            equal = [v for v in table[source].unique() if str(v) == text]
            found[name] = table[source].isin(equal)
            indicators.setdefault(source, []).append(name)
            matched.update([source] if equal else [])
        else:
            missing.append(name)
    # Without any match, `block_log` is no indicator of `block` but a feature that users computed.
    missing += [name for c, listed in indicators.items() if c not in matched for name in listed]
    if missing:
        raise PredictorError(
            f"there is no {', '.join(missing)} among {', '.join(_parameters(table))}: give its "
            "columns these names, or give a function that computes them"
        )
    return pd.DataFrame(found, index=table.index)


def _of_tables(name: str, predict: Callable[["pd.DataFrame"], Any], hint: str = "") -> GuideModel:
    return GuideModel(name, lambda *which: predict(_parameter_table(*which)), hint)


def _parameter_table(
    problem: "Problem", space: "SearchSpace", device: "Device", indices: np.ndarray | None
) -> "pd.DataFrame":
    """Return the problem's and the configurations' parameters by bare name, then the device's.

    A name in both groups keeps its prefix: ``problem.n`` and ``config.n``.
    """
    from foretune.features.candidates import candidate_rows

    rows = candidate_rows("", problem, space, device, indices).drop(columns="kernel")
    texts = rows.select_dtypes("category").columns
    rows = rows.astype(dict.fromkeys(texts, str))
    taken = ["device", *problem, *space.names]
    bare = {f"problem.{n}": n for n in problem} | {f"config.{n}": n for n in space.names}
    return rows.rename(columns={c: n for c, n in bare.items() if taken.count(n) == 1})


def _parameters(table: "pd.DataFrame") -> list[str]:
    return [c for c in table if c != "device" and not c.startswith("device.")]


def _matrix(table: "pd.DataFrame", width: Any) -> np.ndarray:
    """Return the parameters of problem and configuration as a matrix, in the space's order."""
    columns = _parameters(table)
    if isinstance(width, int) and width != len(columns):
        raise PredictorError(
            f"it takes {width} columns without names, but there are {len(columns)} "
            f"({', '.join(columns)}): fit it on a data frame, or give a function"
        )
    return table[columns].to_numpy()


def _estimate(model: Any, table: "pd.DataFrame") -> Any:
    """Return the predictions of an estimator, with intervals if it has them."""
    names = getattr(model, "feature_names_in_", None)
    width = getattr(model, "n_features_in_", None)
    X = table if names is None else select_columns(table, list(names))
    if names is None and width is not None:
        X = _matrix(table, int(width))
    if not hasattr(model, "predict_interval"):  # RuntimeRegressor
        return model.predict(X)
    low, high = np.transpose(model.predict_interval(X))
    return {"time_ms": model.predict(X), "time_ms_low": low, "time_ms_high": high}


def _is_per_configuration(function: Callable[..., Any]) -> bool:
    try:
        return next(iter(inspect.signature(function).parameters), "") == PER_CONFIGURATION
    except (TypeError, ValueError):  # some functions of C
        return False


def _each(function: Callable[..., Any]) -> Callable[["pd.DataFrame"], Any]:
    def predict(table: "pd.DataFrame") -> Any:
        import pandas as pd

        rows = [function(config) for config in table.to_dict("records")]
        return pd.DataFrame(rows) if isinstance(rows[0], dict) else rows

    return predict


def _complete_table(predicted: Any, rows: int) -> "pd.DataFrame":
    """Return the columns of `SpacePredictor`, with default intervals and probabilities to run."""
    import pandas as pd

    if isinstance(predicted, pd.DataFrame) and predicted.shape[1] == 1:
        predicted = predicted.iloc[:, 0]
    if not isinstance(predicted, pd.DataFrame | dict):
        predicted = {"time_ms": predicted}
    if "time_ms" not in predicted:
        raise PredictorError(f"it returns {', '.join(map(str, predicted))}, and no time_ms")
    table = pd.DataFrame(index=range(rows))
    targets = [target for target in ("time_ms", "power_w") if target in predicted]
    for target in targets:
        value = _numbers(predicted, target, rows)
        if (value <= 0).any():
            raise PredictorError(f"{target} is {np.nanmin(value):.4g}: return numbers above 0")
        table[target] = np.where(np.isfinite(value), value, np.nan)
        for end, sign in (("low", -1), ("high", 1)):
            column = f"{target}_{end}"
            table[column] = (
                _numbers(predicted, column, rows)
                if column in predicted
                else table[target] * np.exp(sign * 1.645 * DEFAULT_LOG_SPREAD)
            )
    valid = _numbers(predicted, "p_valid", rows) if "p_valid" in predicted else np.ones(rows)
    runs = table[targets].notna().all(axis=1)
    table["p_valid"] = np.where(runs, np.clip(np.nan_to_num(valid), 0, 1), 0.0)
    return table


def _numbers(predicted: Any, column: str, rows: int) -> np.ndarray:
    values = np.asarray(predicted[column], dtype=float)
    if values.shape not in ((rows,), (rows, 1)):
        raise PredictorError(f"{column} has shape {values.shape} for {rows:,} configurations")
    return values.reshape(rows)


@dataclass(frozen=True)
class PredictorRequest:
    """The kernel, device and targets that a predictor must have.

    ``source_hash`` identifies the kernel's code. Time must be predicted, and perhaps power.
    """

    kernel: str
    source_hash: str
    device: "Device"
    needs_power: bool = False

    def missing_targets(self, predictor: "Predictor") -> list[str]:
        """Return the targets that ``predictor`` has not learned."""
        needed = ("time_ms", "power_w") if self.needs_power else ("time_ms",)
        return [target for target in needed if target not in predictor.targets_]

    def check(self, predictor: "Predictor | GuideModel") -> None:
        """Raise `PredictorError` if ``predictor`` is of another kernel or lacks a target.

        A user's model can be checked only when it predicts.
        """
        if isinstance(predictor, GuideModel):
            return
        require_kernel(predictor, self.kernel)
        if missing := self.missing_targets(predictor):
            raise PredictorError(
                f"the predictor has not learned {', '.join(missing)}: train it on runs that have "
                "it, or choose another objective"
            )


@dataclass(frozen=True)
class SearchPredictor:
    """A predictor that guides a search.

    ``mismatch`` says how its training differs (device or kernel code). With a mismatch, and for
    every user's model, measurements check and correct the predictor. ``shipped``: it comes with
    Foretune and was not named by the user.
    """

    predictor: "Predictor | GuideModel"
    mismatch: str = ""
    shipped: bool = False

    def __str__(self) -> str:
        if isinstance(self.predictor, GuideModel):
            return str(self.predictor)
        runs = self.predictor.runs_
        devices = ", ".join(sorted(set(runs["device"].astype(str))))
        return f"trained on {len(runs)} runs of {devices}"

    @classmethod
    def for_device(cls, model: Any, device: "Device") -> Self:
        """Return a model (`make_guide`) as guide for ``device``.

        It has a mismatch if it has no runs on that device, or is a user's model. The kernel's code
        is assumed to match.
        """
        predictor = make_guide(model)
        if isinstance(predictor, GuideModel):
            return cls(predictor, f"{predictor} is your own model")
        names = sorted(set(predictor.measured_runs()["device"].astype(str)))
        if canonical_name(device.name) in map(canonical_name, names):
            return cls(predictor)
        return cls(predictor, f"it was trained on {', '.join(names)}, this is {device.name}")

    def has_valid_interval(self, device: "Device") -> bool:
        """Whether its intervals hold on ``device``: it was trained or calibrated there."""
        if isinstance(self.predictor, GuideModel):
            return False
        return not self.mismatch or device.name in self.predictor.calibration_.devices

    def calibrated(self, runs: "pd.DataFrame") -> Self:
        """Return the guide, calibrated with ``runs``; a user's model is returned unchanged."""
        if isinstance(self.predictor, GuideModel):
            return self
        return replace(self, predictor=self.predictor.calibrate(runs))

    def unlearned(self, measurements: "Sequence[Measurement]") -> "list[Measurement]":
        """Return the measurements that are not among the predictor's training runs.

        A predictor errs less on its own runs than elsewhere: a search that learned the errors from
        them would trust it too much.
        """
        if isinstance(self.predictor, GuideModel) or not measurements:
            return list(measurements)
        from foretune.datasets.runs import configurations_of, problems_of

        runs = self.predictor.runs_
        runs = runs[runs["device"] == measurements[0].device]
        learned = set(zip(problems_of(runs), configurations_of(runs), strict=True))
        return [m for m in measurements if (m.problem, m.config) not in learned]

    def log_spread(self, device: "Device", predicted: "pd.DataFrame | None" = None) -> float:
        """Return the standard deviation of log errors.

        A user's model has only the intervals in the table ``predicted``.
        """
        if not isinstance(self.predictor, GuideModel):
            return self.predictor.log_spread(device=device.name)
        if predicted is None:
            return DEFAULT_LOG_SPREAD
        widths = np.log(predicted["time_ms_high"] / predicted["time_ms_low"]).to_numpy()
        spread = float(np.nanmedian(widths)) / (2 * 1.645)
        return spread if 0 < spread < np.inf else DEFAULT_LOG_SPREAD


def require_kernel(predictor: "Predictor", kernel: str) -> None:
    """Raise `PredictorError` unless ``predictor`` is of ``kernel``."""
    if predictor.kernel_name_ != kernel:
        raise PredictorError(
            f"the predictor knows {predictor.kernel_name_!r}, not {kernel!r}: name one that was "
            f"trained on runs of {kernel}"
        )
