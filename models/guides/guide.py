"""Guides: a predictor or a user's own model, for the search of one kernel on one device.

The words of this package and of its callers:

- a *source* is what the user named: a model, a folder, a file, ``auto``;
- a *predictor* is ours, trained on a run table (`foretune.models.predictor.Predictor`);
- a *guide* predicts the configurations of a search, and knows how far to trust itself there;
- a *prior* is a guide's numbers for one search space (`foretune.search.prior`).

`make_guide` is the only place that asks which kind of model it got.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from foretune.device import Device, canonical_name
from foretune.models.guides.runs import group_by_problem, in_order_of_runs
from foretune.models.guides.user_guide import UserGuide, UserModel, as_user_model

if TYPE_CHECKING:
    import pandas as pd

    from foretune.measurement import Measurement
    from foretune.models.guides.request import PredictorRequest
    from foretune.models.predictor import Predictor
    from foretune.problem import Problem
    from foretune.space import Configuration, SearchSpace

ANY_DEVICE = Device("any", "cpu")
"""The device that users' models get if none is given."""


class SpacePredictor(Protocol):
    """The interface of users' own models: predicts the configurations of one problem.

    `Predictor` implements it. Fitted scikit-learn estimators, functions, and models in MLflow or
    ONNX are converted to it wherever a predictor is accepted.
    """

    def predict_space(
        self,
        problem: "Problem",
        space: "SearchSpace",
        device: Device,
        indices: np.ndarray | None = None,
    ) -> "pd.DataFrame":
        """Return one row per configuration of ``space``, or per index.

        The column ``time_ms`` holds milliseconds; NaN or infinity means that the configuration is
        not expected to run. Optional are the 90 % interval ``time_ms_low`` and ``time_ms_high``,
        the probability to run ``p_valid``, and ``power_w`` with its interval.
        """


class Guide(Protocol):
    """Predicts the configurations of one search, and knows how far to trust itself there."""

    @property
    def mismatch(self) -> str:
        """Why measurements check and correct it early: other device, other code, a user's model."""

    @property
    def shipped(self) -> bool:
        """Whether it comes with Foretune and was not named by the user."""

    def predict_space(
        self, problem: "Problem", space: "SearchSpace", indices: np.ndarray | None = None
    ) -> "pd.DataFrame":
        """Return the columns of `SpacePredictor` for all (or the given) configurations."""

    def predict_runs(
        self, problems: "Sequence[Problem]", configs: "Sequence[Configuration]"
    ) -> "pd.DataFrame":
        """Return the same columns for some runs: a problem and a configuration each."""

    def prediction_of(self, measurement: "Measurement") -> dict[str, float]:
        """Return ``predicted_ms`` for the trace, with ``low_ms`` and ``high_ms`` if they hold.

        Empty if the unit of the predictions is unknown.
        """

    def log_spread(self, predicted: "pd.DataFrame | None" = None) -> float:
        """Return the standard deviation of log errors, perhaps from a table of predictions."""

    def calibrated(self, runs: "pd.DataFrame") -> Self:
        """Return the guide calibrated with ``runs`` on its device; itself if it cannot be."""

    def not_trained_on(self, measurements: "Sequence[Measurement]") -> "list[Measurement]":
        """Return the measurements that it was not trained on."""

    def training_runs(self) -> "pd.DataFrame":
        """Return the runs that it was trained on or calibrated with; none of a user's model."""

    def require(self, request: "PredictorRequest") -> None:
        """Raise `PredictorError` if it cannot serve ``request``, saying what to do."""

    def check_prediction(self, log_mean: np.ndarray) -> None:
        """Raise `PredictorError` if predictions of a whole space cannot rank it."""


def make_guide(model: Any, device: Device | None = None) -> Guide:
    """Return ``model`` as guide of a search on ``device``; a guide is returned unchanged.

    ``model`` is a `Predictor`, or whatever `as_user_model` accepts. A predictor has a mismatch if
    it has no runs on the device; the kernel's code is assumed to match. Without ``device``, a
    predictor's is the only one in its runs, and a user's model gets `ANY_DEVICE`.
    """
    from foretune.models.predictor import Predictor

    if isinstance(model, TrainedGuide | UserGuide):
        return model
    if not isinstance(model, Predictor):
        return UserGuide(as_user_model(model), device or ANY_DEVICE)

    device = device or model.device()
    measured_devices = sorted(set(model.measured_runs()["device"].astype(str)))
    if canonical_name(device.name) in map(canonical_name, measured_devices):
        return TrainedGuide(model, device)
    mismatch = f"it was trained on {', '.join(measured_devices)}, this is {device.name}"
    return TrainedGuide(model, device, mismatch)


def as_space_predictor(model: Any, name: str = "") -> "Predictor | UserModel":
    """Return ``model`` for any device: a `Predictor` unchanged, else see `as_user_model`."""
    from foretune.models.predictor import Predictor

    return model if isinstance(model, Predictor) else as_user_model(model, name)


@dataclass(frozen=True)
class TrainedGuide:
    """A `Predictor` as guide on one device; see `Guide`."""

    predictor: "Predictor"
    device: Device
    mismatch: str = ""
    shipped: bool = False

    def __str__(self) -> str:
        return describe_training(self.predictor)

    @property
    def has_valid_interval(self) -> bool:
        """Whether its intervals hold on the device: it was trained or calibrated there."""
        return not self.mismatch or self.device.name in self.predictor.calibration_.devices

    def predict_space(
        self, problem: "Problem", space: "SearchSpace", indices: np.ndarray | None = None
    ) -> "pd.DataFrame":
        """Return the predictions for all (or the given) configurations."""
        return self.predictor.predict_space(problem, space, self.device, indices)

    def predict_runs(
        self, problems: "Sequence[Problem]", configs: "Sequence[Configuration]"
    ) -> "pd.DataFrame":
        """Return the predictions for some runs."""
        import pandas as pd

        from foretune.features.candidates import rows_of

        numbers_of_problem = group_by_problem(problems)
        tables = [
            rows_of(self.predictor.kernel_name_, problem, [configs[i] for i in rows], self.device)
            for problem, rows in numbers_of_problem.items()
        ]
        predicted = self.predictor.predict(pd.concat(tables, ignore_index=True))
        return in_order_of_runs(predicted, numbers_of_problem)

    def prediction_of(self, measurement: "Measurement") -> dict[str, float]:
        """Return the predicted time, with its interval if it is valid here."""
        row = self.predictor.predict_one(measurement.problem, measurement.config, self.device)
        predicted = {"predicted_ms": row["time_ms"]}
        if self.has_valid_interval:
            predicted["low_ms"] = row["time_ms_low"]
            predicted["high_ms"] = row["time_ms_high"]
        return predicted

    def log_spread(self, predicted: "pd.DataFrame | None" = None) -> float:
        """Return the standard deviation of log errors; calibrated devices have their own."""
        return self.predictor.log_spread(device=self.device.name)

    def calibrated(self, runs: "pd.DataFrame") -> Self:
        """Return the guide with its predictor calibrated."""
        return replace(self, predictor=self.predictor.calibrate(runs))

    def not_trained_on(self, measurements: "Sequence[Measurement]") -> "list[Measurement]":
        """Return the measurements that are not among the predictor's training runs.

        A predictor errs less on its own runs than elsewhere: a search that learned the errors from
        them would trust it too much.
        """
        if not measurements:
            return []
        from foretune.datasets.runs import configurations_of, problems_of

        runs = self.predictor.runs_
        runs_here = runs[runs["device"] == measurements[0].device]
        learned = set(zip(problems_of(runs_here), configurations_of(runs_here), strict=True))
        return [m for m in measurements if (m.problem, m.config) not in learned]

    def training_runs(self) -> "pd.DataFrame":
        """Return all training and calibration runs."""
        return self.predictor.measured_runs()

    def require(self, request: "PredictorRequest") -> None:
        """Raise `PredictorError` if the predictor is of another kernel or lacks a target."""
        request.check(self.predictor)

    def check_prediction(self, log_mean: np.ndarray) -> None:
        """Accept any prediction: only users' models are checked."""


def describe_training(predictor: "Predictor") -> str:
    """Return what a predictor was trained on, in words."""
    runs = predictor.runs_
    devices = ", ".join(sorted(set(runs["device"].astype(str))))
    return f"trained on {len(runs)} runs of {devices}"
