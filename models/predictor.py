"""The predictor: runs in; time, power and energy out, each with an interval."""

import copy
import os
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from foretune.datasets import newest_runs, read_runs, write_runs
from foretune.datasets.runs import configurations_of, problems_of
from foretune.datasets.schema import columns_of, validate
from foretune.device import Device
from foretune.errors import PredictorError, UnknownName
from foretune.family import Family
from foretune.features import FeatureSet, candidate_rows, family_for, settings_of
from foretune.features.arrays import Rows, SingleRow
from foretune.features.families.user_defined import UserDefinedCost
from foretune.features.families_of_runs import find_family
from foretune.features.featureset import Estimator
from foretune.files import translate_read_errors
from foretune.models.calibration import Calibration, CorrectionFeatures, choose_rows
from foretune.models.chunks import predict_in_chunks
from foretune.models.repeats import Repeats
from foretune.models.saved.folder import RUNS_FILE, atomic_folder, read_card, require_regular_files
from foretune.models.target_model import TargetModel, share_positions
from foretune.models.targets import (
    MIN_ROWS,
    TARGETS,
    Target,
    present_targets,
    training_rows,
    usable_rows,
)
from foretune.models.training_range import TrainingRange
from foretune.models.trees.regressor import Regressor, parallel_map
from foretune.models.validation.data_checks import drop_implausible, warn_about_data
from foretune.models.validity import ValidityModel
from foretune.problem import Problem
from foretune.registry import load, registered
from foretune.space import Configuration, SearchSpace
from foretune.values import Value


class Predictor(Estimator):
    """Predicts time and power of configurations of one kernel, a scikit-learn estimator.

    Args:
        model: name of a registered model: ``xgboost``, ``random_forest`` or ``ensemble``.
        targets: of ``time_ms`` and ``power_w``; None learns those the runs have.
        seed: of everything random.
        kernel: knows cost and derived features (`UserDefinedCost` where you say the work); None
            takes the registered kernel or family of the runs' name, if there is one.
        compiled: learn from ``static.…`` columns too.
        parameters: of the model, in place of its defaults.

    Attributes:
        kernel_name_: the kernel it knows.
        features_: the fitted `FeatureSet`.
        targets_: target -> its fitted `TargetModel`.
        calibration_: what `calibrate` learned on other devices.
        validity_: the model of which configurations run at all.
        range_: what was run and, if it succeeded, has the first target: to say what lies outside.
        runs_: the rows it was trained on, older measurements of the same runs among them; saved
            with it, so that training can go on.
        training_: where it was trained: rows, problems, devices.
    """

    def __init__(
        self,
        model: str = "xgboost",
        targets: tuple[Target, ...] | None = None,
        seed: int = 0,
        kernel: Family | None = None,
        compiled: bool = False,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.targets = targets
        self.seed = seed
        self.kernel = kernel
        self.compiled = compiled
        self.parameters = parameters

    def fit(self, runs: pd.DataFrame, y: Any = None) -> Self:
        """Learn from a run table of one kernel.

        Warns (`DataWarning`) of rows that are hard to believe; the few that no device can have
        measured are left out.

        Raises:
            RunTableError: a row is impossible.
            PredictorError: several kernels, too few successful runs, or many rows that are
                impossible or in another unit.
        """
        runs = validate(runs).reset_index(drop=True)
        self.kernel_name_ = require_single_kernel(runs)
        family = family_for(self.kernel_name_, runs, self.kernel)
        kept = drop_implausible(family, runs)
        newest = newest_runs(kept)
        wanted = self._targets_to_learn(newest)
        self.runs_, runs = kept.reset_index(drop=True), newest.reset_index(drop=True)
        self.features_ = FeatureSet(family, self.compiled).fit(runs)
        warn_about_data(family, newest, wanted, self.compiled)
        self.validity_ = ValidityModel.fit(self.features_, runs, self.seed)
        self.calibration_ = Calibration()

        def learn(target: Target) -> TargetModel:
            rows = usable_rows(target, runs)
            X = self.features_.matrix(rows)
            model = TargetModel(target, self.make_regressor, self.seed)
            return model.fit(self.features_, rows, X, Repeats.from_runs(rows, self.runs_, target))

        self.range_ = TrainingRange.from_runs(training_rows(wanted[0], runs))
        with threadpool_limits(1, user_api="blas"):  # its threads wait for each other on few rows
            models = parallel_map(learn, wanted)
        self.targets_: dict[Target, TargetModel] = dict(zip(wanted, models, strict=True))
        share_positions(self.targets_.values())
        self.training_ = {
            "rows": len(runs),
            "problems": len(set(problems_of(runs))),
            "devices": sorted(map(str, runs["device"].unique())),
        }
        return self

    def predict(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return time, its 90 % interval, validity, and power where it was learned, per row.

        Columns: ``<target>``, ``<target>_low``, ``<target>_high`` per target, ``energy_mj``
        (power × time) with power, ``p_valid``, and ``outside``: how many octaves the row lies
        outside the training range (`TrainingRange.explain` says in which column).

        Raises:
            PredictorError: the rows are of another kernel, or lack what training had.
        """
        if not hasattr(self, "targets_"):
            check_is_fitted(self, "targets_")  # which takes its time
        rows = SingleRow.read(runs) if len(runs) == 1 else Rows(runs)
        if "kernel" in rows and len(rows):
            names, codes = rows.distinct("kernel")
            if set(names[np.unique(codes)]) != {self.kernel_name_}:
                self.require_same_kernel(runs)

        def predict(chunk: slice) -> np.ndarray:
            is_everything = chunk.stop - chunk.start == len(rows)
            return self._predict_rows(rows if is_everything else Rows(runs.iloc[chunk]))

        return self._table(predict_in_chunks(len(rows), predict), runs.index)

    def predict_one(
        self, problem: Mapping[str, Value], config: Mapping[str, Value], device: Device
    ) -> dict[str, float]:
        """Return what `predict` does of one configuration, column -> value, in less time.

        The first one in a process loads compiled code where Numba is installed (the first one on
        a machine makes it, which takes seconds).

        Raises:
            PredictorError: there is less of it than training had, or a number is too large.
        """
        if not hasattr(self, "targets_"):
            check_is_fitted(self, "targets_")  # which takes its time
        cells: dict[str, Value] = {"device": device.name}
        for group, values in (("problem", problem), ("config", config), ("device", device.specs)):
            cells |= {f"{group}.{name}": value for name, value in values.items()}
        try:
            row = SingleRow(cells)
        except OverflowError:
            raise PredictorError("a number is too large to compute with") from None
        predicted = self._predict_rows(row)
        return dict(
            zip(_prediction_columns(tuple(self.targets_)), predicted[:, 0].tolist(), strict=True)
        )

    def predict_space(
        self,
        problem: Problem,
        space: SearchSpace,
        device: Device,
        indices: np.ndarray | None = None,
    ) -> pd.DataFrame:
        """Return `predict` for every configuration of ``space`` (or the numbered ones)."""
        check_is_fitted(self, "targets_")
        selected = np.arange(len(space.codes)) if indices is None else np.asarray(indices)

        def predict(chunk: slice) -> np.ndarray:
            rows = candidate_rows(self.kernel_name_, problem, space, device, selected[chunk])
            return self._predict_rows(Rows(rows))

        return self._table(predict_in_chunks(len(selected), predict))

    def measured_configurations(self, device: str | None = None) -> list[Configuration]:
        """Return the different configurations that were trained on, of ``device`` if it has any."""
        rows = self.measured_runs()
        if device is not None and (rows["device"] == device).any():
            rows = rows[rows["device"] == device]
        columns = columns_of(rows, "config")
        return configurations_of(rows[columns].drop_duplicates() if columns else rows.iloc[:1, :0])

    def score(self, runs: pd.DataFrame, y: Any = None) -> float:
        """Return R² of the logarithm of the first target on ``runs``: larger is better."""
        target = next(iter(self.targets_))
        rows = usable_rows(target, newest_runs(validate(runs)))
        return float(r2_score(np.log(rows[target]), np.log(self.predict(rows)[target])))

    def calibrate(self, runs: pd.DataFrame) -> "Predictor":
        """Return this predictor, corrected for the devices of ``runs`` by what was measured there.

        Ten runs find the scale, some hundred also how it depends on sizes and formats; `choose`
        says which, else draw them at random from what is to be predicted. Runs it was calibrated
        with before still count, and other devices are predicted as before.

        Raises:
            RunTableError, PredictorError: a row is impossible, of another kernel, or a device has
                fewer than five runs.
        """
        check_is_fitted(self, "targets_")
        runs = validate(runs).reset_index(drop=True)
        self.require_same_kernel(runs)
        runs = drop_implausible(self.features_.family, runs).reset_index(drop=True)
        calibrated = copy.copy(self)
        calibrated.calibration_ = self.calibration_.with_runs(
            runs, self.runs_, tuple(self.targets_), self._correction_inputs, self.seed
        )
        calibrated.training_ = {**self.training_, "calibrated": calibrated.calibration_.devices}
        return calibrated

    def measured_runs(self) -> pd.DataFrame:
        """Return every run that it has learned from, those it was calibrated with among them."""
        return pd.concat([self.runs_, self.calibration_.runs], ignore_index=True)

    def explain_outside(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return `TrainingRange.explain` of rows, each by what is known of its device."""
        rows = rows.reset_index(drop=True)
        parts = []
        for device, device_rows in rows.groupby("device", observed=True, sort=False):
            known = self.calibration_.ranges.get(str(device), self.range_)
            lines = known.explain(device_rows)
            if len(lines):
                row_numbers = device_rows.index.to_numpy()[lines["row"].to_numpy(dtype=int)]
                parts.append(lines.assign(row=row_numbers))
        found = pd.concat(parts or [self.range_.explain(rows.iloc[:0])], ignore_index=True)
        return found.sort_values("row", kind="stable")

    def choose(
        self,
        count: int,
        rows: pd.DataFrame | None = None,
        device: Device | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Return those of ``rows`` whose measurements tell `calibrate` most about all of them.

        Args:
            count: how many per device; where there are no more, all.
            rows: what is to be predicted; None: what was learned, each run once.
            device: where they are to be measured; None: the device of ``rows``.
            seed: of which of many rows are looked at.

        Returns:
            Their settings: the columns ``kernel``, ``device``, ``problem.…``, ``config.…`` and
            ``device.…``, one device after the other.

        Raises:
            PredictorError: fewer are asked for than can be learned from, or there are no rows.
        """
        check_is_fitted(self, "targets_")
        if count < MIN_ROWS:
            raise PredictorError(f"{count} runs teach nothing: choose at least {MIN_ROWS}")
        target = next(iter(self.targets_))
        wanted = usable_rows(target, self.runs_) if rows is None else rows
        wanted = settings_of(wanted, device).drop_duplicates(ignore_index=True)
        if not len(wanted):
            raise PredictorError("there are no rows to choose from")
        return choose_rows(wanted, count, partial(self._correction_inputs, target), seed)

    def log_spread(self, target: Target = "time_ms", device: str = "") -> float:
        """Return the standard deviation of log errors that the typical 90 % interval stands for.

        Args:
            target: which quantity's.
            device: where; it matters if it was calibrated for.
        """
        correction = self.calibration_.corrections.get((target, device))
        half_width = (
            self.targets_[target].interval.median_half_width
            if correction is None
            else correction.median_half_width
        )
        return half_width / 1.645

    def device(self, name: str | None = None) -> Device:
        """Return a device as it was measured: its name and what the runs say of it.

        Args:
            name: of one that there are runs of; None where there is only one.

        Raises:
            PredictorError: there are several.
            UnknownName: there are no runs of it.
        """
        runs = self.measured_runs()
        known = sorted(map(str, runs["device"].unique()))
        if name is None and len(known) > 1:
            raise PredictorError(
                f"there are runs of several devices: give one of {', '.join(known)}"
            )
        if name is not None and name not in known:
            raise UnknownName("device", name, known)
        row = runs[runs["device"] == (name or known[0])].iloc[-1]
        # Of a device in question only name and specs are read, not the kind.
        specs = {c.removeprefix("device."): float(row[c]) for c in columns_of(runs, "device")}
        return Device(str(row["device"]), "gpu", specs={k: v for k, v in specs.items() if v == v})

    def _targets_to_learn(self, runs: pd.DataFrame) -> tuple[Target, ...]:
        if isinstance(self.targets, str):
            raise PredictorError(f"targets are several: write ({self.targets!r},)")
        return tuple(self.targets or present_targets(runs) or ("time_ms",))

    def make_regressor(self) -> Regressor:
        """Return a new, unfitted regressor of the kind this predictor uses."""
        kind = load("models", self.model)
        parameters = {"seed": self.seed, **(self.parameters or {})}
        for name in parameters:
            if name not in (known := kind().get_params()):
                raise UnknownName(f"parameter of {self.model}", name, known)
        regressor: Regressor = kind(**parameters)
        return regressor

    def require_same_kernel(self, runs: pd.DataFrame) -> None:
        """Do nothing if all ``runs`` are of the kernel it knows.

        Raises:
            PredictorError: they are of another, or several.
        """
        if (name := require_single_kernel(runs)) != self.kernel_name_:
            raise PredictorError(f"the predictor knows {self.kernel_name_!r}, not {name!r}")

    def _correction_inputs(
        self, target: Target, rows: pd.DataFrame
    ) -> tuple[np.ndarray, CorrectionFeatures]:
        """Return the logarithm of what is predicted without corrections, and what is known."""
        X = self.features_.matrix(rows)
        inside = np.zeros(len(rows))
        model = self.targets_[target]
        plain, _, differences = model.predict(self.features_, rows, X, inside, inside)
        return plain, CorrectionFeatures.from_prediction(
            self.features_.columns_ or (), X, plain, differences
        )

    def _predict_rows(self, rows: Rows) -> np.ndarray:
        """Return what `predict` does of a chunk, as an array (columns, rows)."""
        X = self.features_.matrix(rows)
        calibration, known = self.calibration_, self.range_
        outside = calibration.octaves_outside(rows, known)
        cells: dict[str, np.ndarray] = {}
        for target, model in self.targets_.items():
            beyond = outside
            if outside.any():
                beyond = calibration.octaves_outside(rows, known, model.reach)
            log_value, width, differences = model.predict(self.features_, rows, X, outside, beyond)
            if calibration.ranges:
                features = CorrectionFeatures.from_prediction(
                    self.features_.columns_ or (), X, log_value, differences
                )
                calibration.correct(target, rows, features, log_value, width)
            log_values = np.array([log_value, log_value - width, log_value + width])
            if (log_range := model.scale.log_range(rows)) is not None:
                log_values = np.clip(log_values, *log_range)
            names = (target, f"{target}_low", f"{target}_high")
            cells |= dict(zip(names, np.exp(log_values), strict=True))
        if "power_w" in cells and "time_ms" in cells:
            cells["energy_mj"] = cells["power_w"] * cells["time_ms"]
        return np.array([*cells.values(), self.validity_.probability(X), outside])

    def _table(self, cells: np.ndarray, index: pd.Index | None = None) -> pd.DataFrame:
        return pd.DataFrame(
            cells.T, columns=_prediction_index(tuple(self.targets_)).view(), index=index
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the predictor to ``folder``: JSON and models in formats that run no code.

        Raises:
            OutputError: the folder cannot be written.
        """
        check_is_fitted(self, "targets_")
        features = self.features_
        card = {
            "kernel": self.kernel_name_,
            "kernel_source": features.family and features.family.source_hash,
            "family": type(features.family).__name__ if features.family else None,
            "work": features.family.to_json()
            if isinstance(features.family, UserDefinedCost)
            else None,
            "model": self.model,
            "seed": self.seed,
            "compiled": self.compiled,
            "parameters": dict(self.parameters or {}),
            **features.to_json(),
            "targets": list(self.targets_),
            "range": self.range_.to_json(),
            "training": self.training_,
        }
        with atomic_folder(Path(folder), card) as new:
            for target, model in self.targets_.items():
                model.save(new / target)
            self.validity_.save(new)
            self.calibration_.save(new)
            write_runs(new / RUNS_FILE, self.runs_)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], kernel: Family | None = None) -> "Predictor":
        """Read what `save` wrote.

        Args:
            folder: where it was saved.
            kernel: the one it was trained for, where that is not registered.

        Raises:
            PredictorError: there is no predictor, or it was made by another version.
        """
        folder = Path(folder)
        card = read_card(folder)
        with translate_read_errors(folder, PredictorError, "is damaged ({}): train it again"):
            require_regular_files(folder)
            if card["model"] not in registered("models"):
                raise PredictorError(
                    f"{folder} uses model {card['model']!r}, which is not installed"
                )
            if unknown := [target for target in card["targets"] if target not in TARGETS]:
                raise ValueError(f"target {unknown[0]!r} is not known")
            if kernel is None and card["work"] is not None:
                kernel = UserDefinedCost(card["kernel"], **card["work"])
            predictor = cls(
                card["model"], tuple(card["targets"]), card["seed"], kernel,
                card["compiled"], card["parameters"] or None,
            )  # fmt: skip
            predictor._restore(folder, card)
            predictor._table(predictor._predict_rows(Rows(predictor.runs_.head(2))))  # parts fit
        return predictor

    def _restore(self, folder: Path, card: dict[str, Any]) -> None:
        self.kernel_name_ = card["kernel"]
        self.training_ = card["training"]
        self.range_ = TrainingRange.from_json(card["range"])
        self.runs_ = read_runs(folder / RUNS_FILE)
        found = find_family(self.kernel_name_, card["family"], self.kernel)
        if found is not None and card["kernel_source"] not in (None, found.source_hash):
            raise PredictorError(
                f"the code of {found.name} has changed since {folder} was trained: train it again"
            )
        self.features_ = FeatureSet.from_json(card, found, self.compiled)
        self.targets_ = {
            target: TargetModel.load(folder / target, target, self.make_regressor)
            for target in card["targets"]
        }
        share_positions(self.targets_.values())
        self.calibration_ = Calibration.load(folder)
        self.validity_ = ValidityModel.load(folder)


@cache
def _prediction_columns(targets: tuple[Target, ...]) -> list[str]:
    """Return the names of a prediction's columns."""
    names = [f"{t}{part}" for t in targets for part in ("", "_low", "_high")]
    energy = ["energy_mj"] if {"power_w", "time_ms"} <= set(targets) else []
    return [*names, *energy, "p_valid", "outside"]


@cache
def _prediction_index(targets: tuple[Target, ...]) -> pd.Index:
    return pd.Index(_prediction_columns(targets))


def require_single_kernel(runs: pd.DataFrame) -> str:
    """Return the one kernel of ``runs``.

    Raises:
        PredictorError: there are none or several.
    """
    names = sorted(map(str, runs["kernel"].unique()))
    if len(names) != 1:
        raise PredictorError(
            f"the runs hold {len(names)} kernels ({', '.join(names)}): a predictor knows one; "
            "choose with --kernel"
        )
    return names[0]
