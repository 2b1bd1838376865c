"""The predictor of one kernel: time, power and energy, each with an interval."""

import copy
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from foretune.datasets.runs import configurations_of, device_of, newest_runs, read_runs, write_runs
from foretune.datasets.schema import columns_of, validate
from foretune.device import Device
from foretune.errors import PredictorError, require_known
from foretune.family import Family
from foretune.features.arrays import Rows
from foretune.features.candidates import candidate_rows, settings_of
from foretune.features.families.user_defined import UserDefinedCost
from foretune.features.families_of_runs import family_for, find_family
from foretune.features.featureset import Estimator, FeatureSet
from foretune.features.reading_templates import ANY_READING, NO_READING, READINGS
from foretune.features.readings import RenamedFamily
from foretune.models.calibration import Calibration
from foretune.models.card import RUNS_FILE, atomic_folder, read_card, require_regular_files
from foretune.models.chosen_reading import choose_reading
from foretune.models.correction import CorrectionFeatures
from foretune.models.distinct_problems import distinct_problems, exact_problems
from foretune.models.learned_law import LearnedLaw, learn_law
from foretune.models.objectives import product_interval
from foretune.models.plausibility import drop_implausible
from foretune.models.repeats import Repeats
from foretune.models.representative_rows import choose_rows
from foretune.models.suspicions import warn_about_data
from foretune.models.target_model import TargetModel
from foretune.models.target_names import MIN_ROWS, TARGETS, Target
from foretune.models.targets import attempted_rows, present_targets, usable_rows
from foretune.models.training_range import TrainingRange
from foretune.models.trees.regressor import Regressor, parallel_map, predict_in_chunks
from foretune.models.validity import ValidityModel
from foretune.problem import Problem
from foretune.registry import load, registered
from foretune.space import Configuration, SearchSpace
from foretune.support.files import translate_read_errors
from foretune.values import Value

WEAKNESS = "weakness"
"""Key of `Predictor.training_`: what validation found wrong with it."""
INTERVAL_DEVIATIONS = 1.645
"""Half-width of a 90 % interval of the normal distribution, in standard deviations."""


class Predictor(Estimator):
    """Predicts time and power of configurations of one kernel, a scikit-learn estimator.

    Args:
        model: name of a registered model: ``xgboost`` or ``random_forest``.
        targets: from ``time_ms`` and ``power_w``; None learns those that the runs have.
        seed: random seed.
        kernel: the `Family` of the kernel: what work a launch is, and features derived from sizes
            (`UserDefinedCost` for your own). None uses the registered kernel or family of that
            name, if there is one.
        extra_columns: column groups to learn from too: ``static`` (compiled code) and ``counter``
            (profiler counters, e.g. of another device). Rows to predict need them.
        parameters: model parameters that replace the defaults.
        read_as: what an unknown kernel is, one of
            `foretune.features.reading_templates.READINGS`: a family, ``any`` that fits the runs, or
            ``none``. A kernel that has a family cannot be read as another one.

    Attributes:
        kernel_name_: the kernel's name.
        features_: the fitted `FeatureSet`.
        targets_: target -> its fitted `TargetModel`.
        calibration_: corrections for other devices, from `calibrate`.
        validity_: the model of p(valid).
        range_: training range of the attempted runs.
        runs_: the training rows, including superseded measurements; saved to continue training.
        training_: training summary: rows, problems, devices, and maybe the predictor's weakness.
    """

    def __init__(
        self,
        model: str = "xgboost",
        targets: tuple[Target, ...] | None = None,
        seed: int = 0,
        kernel: Family | None = None,
        extra_columns: Sequence[str] = (),
        parameters: Mapping[str, Any] | None = None,
        read_as: str = ANY_READING,
    ) -> None:
        self.model = model
        self.targets = targets
        self.seed = seed
        self.kernel = kernel
        self.extra_columns = extra_columns
        self.parameters = parameters
        self.read_as = read_as

    def fit(self, runs: pd.DataFrame, y: Any = None) -> Self:
        """Fit to a run table of one kernel.

        Warns (`DataWarning`) about suspect rows. Drops the few that are faster than any device
        allows, and power that was sampled on an idle board. Raises RunTableError if a row is
        impossible, PredictorError if there are several kernels, or too few successful runs.
        """
        runs = validate(runs).reset_index(drop=True)
        self.kernel_name_ = require_single_kernel(runs)
        if isinstance(self.targets, str):
            raise PredictorError(f"targets must be a tuple: write ({self.targets!r},)")
        require_known("reading", self.read_as, READINGS)

        # 1. Of repeated measurements, the newest is learned; the others widen the intervals.
        # `newest` keeps the numbers that rows have in the table: warnings name them.
        declared_family = family_for(self.kernel_name_, runs, self.kernel)
        if declared_family is not None and self.read_as not in (ANY_READING, NO_READING):
            raise PredictorError(
                f"{self.kernel_name_} is known as {declared_family.name}, so it is not read as "
                f"{self.read_as}: leave --read-as out, or rename the kernel"
            )
        plausible = drop_implausible(declared_family, runs)
        self.runs_ = plausible.reset_index(drop=True)
        newest = newest_runs(plausible)
        learned = newest.reset_index(drop=True)
        targets: tuple[Target, ...] = tuple(self.targets or present_targets(newest) or ["time_ms"])

        # 2. Without a declared family, a law is learned, and names of columns may hint at a family.
        law = None
        guessed_family = None
        if declared_family is None and "time_ms" in targets:
            timed = usable_rows("time_ms", learned)
            law, guessed_family = _learn_work(self.kernel_name_, timed, self.read_as)
        family = declared_family or guessed_family
        self.features_ = FeatureSet(family, self.extra_columns).fit(learned)
        warn_about_data(declared_family, newest, targets, self.extra_columns)

        # 3. Failed runs tell what will not run, and widen the training range.
        self.validity_ = ValidityModel.fit(self.features_, learned, self.seed)
        self.range_ = TrainingRange.from_runs(attempted_rows(targets[0], learned))
        self.calibration_ = Calibration()

        # 4. One model per target.
        def fit_target(target: Target) -> TargetModel:
            rows = usable_rows(target, learned)
            model = TargetModel(target, self.make_regressor, self.seed)
            return model.fit(
                self.features_,
                rows,
                X=self.features_.matrix(rows),
                repeats=Repeats.from_runs(rows, self.runs_, target),
                law=law if target == "time_ms" else None,
            )

        with threadpool_limits(1, user_api="blas"):  # with few rows, BLAS threads only wait
            models = parallel_map(fit_target, targets)
        self.targets_: dict[Target, TargetModel] = dict(zip(targets, models, strict=True))
        self.training_ = {
            "rows": len(learned),
            "problems": int(exact_problems(learned).max(initial=-1)) + 1,
            "devices": sorted(map(str, learned["device"].unique())),
        }
        return self

    def predict(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return time, its 90 % interval, validity and, if learned, power of each row.

        Columns: ``<target>``, ``<target>_low``, ``<target>_high`` per target, the same of
        ``energy_mj`` (power × time) with power, ``p_valid``, and ``outside``: the distance from the
        training range in octaves (`explain_outside` names the columns). Raises PredictorError if
        the rows are of another kernel, or lack a training column.
        """
        check_is_fitted(self, "targets_")
        rows = Rows(runs)
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
        """Return `predict` for one configuration as column -> value.

        Raises PredictorError if a training column is missing, or a number is too large.
        """
        check_is_fitted(self, "targets_")
        cells: dict[str, Value] = {"kernel": self.kernel_name_, "device": device.name}
        for group, values in (("problem", problem), ("config", config), ("device", device.specs)):
            cells |= {f"{group}.{name}": value for name, value in values.items()}
        try:
            predicted = self._predict_rows(Rows.from_cells(cells))
        except OverflowError:
            raise PredictorError("a number is too large to compute with") from None
        columns = _prediction_columns(tuple(self.targets_))
        return dict(zip(columns, predicted[:, 0].tolist(), strict=True))

    def predict_space(
        self,
        problem: Problem,
        space: SearchSpace,
        device: Device,
        indices: np.ndarray | None = None,
    ) -> pd.DataFrame:
        """Return `predict` for every configuration of ``space``, or for ``indices``."""
        check_is_fitted(self, "targets_")
        selected = np.arange(len(space.codes)) if indices is None else np.asarray(indices)

        def predict(chunk: slice) -> np.ndarray:
            rows = candidate_rows(self.kernel_name_, problem, space, device, selected[chunk])
            return self._predict_rows(Rows(rows))

        return self._table(predict_in_chunks(len(selected), predict))

    def measured_configurations(self, device: str | None = None) -> list[Configuration]:
        """Return the distinct training configurations, on ``device`` if it has any."""
        rows = self.measured_runs()
        if device is not None and (rows["device"] == device).any():
            rows = rows[rows["device"] == device]
        columns = columns_of(rows, "config")
        if not columns:
            return [Configuration({})]  # the only one
        return configurations_of(rows[columns].drop_duplicates())

    def score(self, runs: pd.DataFrame, y: Any = None) -> float:
        """Return R² of the log of the first target on ``runs``."""
        target = next(iter(self.targets_))
        rows = usable_rows(target, newest_runs(validate(runs)))
        from sklearn.metrics import r2_score  # imports much that predictions do not need

        return float(r2_score(np.log(rows[target]), np.log(self.predict(rows)[target])))

    def calibrate(self, runs: pd.DataFrame) -> "Predictor":
        """Return this predictor corrected with ``runs`` measured on one or more devices.

        Ten runs correct the scale; some hundred also correct how it depends on sizes and formats.
        `choose` selects the rows to measure; otherwise draw them at random from the rows to
        predict. Earlier calibration runs still count. Predictions for other devices do not change.
        Raises RunTableError if a row is impossible; PredictorError if a row is of another kernel,
        or a device has fewer than five runs.
        """
        check_is_fitted(self, "targets_")
        runs = validate(runs).reset_index(drop=True)
        self.require_same_kernel(runs)
        runs = drop_implausible(self.declared_family, runs).reset_index(drop=True)
        calibrated = copy.copy(self)
        calibrated.calibration_ = self.calibration_.with_runs(
            runs,
            training_runs=self.runs_,
            targets=tuple(self.targets_),
            predict_uncorrected=self._correction_inputs,
            seed=self.seed,
        )
        calibrated.training_ = {**self.training_, "calibrated": calibrated.calibration_.devices}
        return calibrated

    def measured_runs(self) -> pd.DataFrame:
        """Return all training and calibration runs."""
        return pd.concat([self.runs_, self.calibration_.runs], ignore_index=True)

    def explain_outside(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return `TrainingRange.explain` for ``rows``; calibrated devices use their own range."""
        rows = rows.reset_index(drop=True)
        tables = []
        for device, device_rows in rows.groupby("device", observed=True, sort=False):
            known_range = self.calibration_.ranges.get(str(device), self.range_)
            lines = known_range.explain(device_rows)
            if len(lines):
                # The lines count the rows of this device.
                row_numbers = device_rows.index.to_numpy()[lines["row"].to_numpy(dtype=int)]
                tables.append(lines.assign(row=row_numbers))
        if not tables:
            return self.range_.explain(rows.iloc[:0])  # the columns alone
        return pd.concat(tables, ignore_index=True).sort_values("row", kind="stable")

    def choose(
        self,
        count: int,
        rows: pd.DataFrame | None = None,
        device: Device | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Return the rows whose measurement is most informative for `calibrate`.

        They are ``count`` per device of ``rows``, by default the training rows, each run once; they
        will be measured on ``device`` if given. Large tables are sampled. Columns are the input
        columns, and rows are grouped by device. Raises PredictorError if ``count`` is below the
        minimum, or there are no rows.
        """
        check_is_fitted(self, "targets_")
        if count < MIN_ROWS:
            raise PredictorError(f"{count} are too few runs to calibrate: use at least {MIN_ROWS}")
        target = next(iter(self.targets_))
        if rows is None:
            rows = usable_rows(target, self.runs_)
        candidates = settings_of(rows, device).drop_duplicates(ignore_index=True)
        if not len(candidates):
            raise PredictorError("there are no rows to choose from")
        return choose_rows(candidates, count, partial(self._correction_inputs, target), seed)

    @property
    def declared_family(self) -> Family | None:
        """The kernel's family, unless it was only guessed from the names of columns."""
        family = self.features_.family
        return None if isinstance(family, RenamedFamily) else family

    @property
    def weakness(self) -> str:
        """Sentences that say that simple models are as good, if validation found so; else empty."""
        return str(self.training_.get(WEAKNESS, ""))

    def log_spread(self, target: Target = "time_ms", device: str = "") -> float:
        """Return the standard deviation of log errors, from the median 90 % interval.

        Calibrated devices have their own.
        """
        correction = self.calibration_.corrections.get((target, device))
        interval = self.targets_[target].interval
        half_width = (
            interval.median_half_width if correction is None else correction.median_half_width
        )
        return half_width / INTERVAL_DEVIATIONS

    def device(self, name: str | None = None) -> Device:
        """Return a measured device with the specs in its runs.

        Raises PredictorError if ``name`` is None and there are several; UnknownName if there are no
        runs of it.
        """
        runs = self.measured_runs()
        known_devices = sorted(map(str, runs["device"].unique()))
        if name is None:
            if len(known_devices) > 1:
                raise PredictorError(
                    "several devices were measured: name one (--device): "
                    f"{', '.join(known_devices)}"
                )
            name = known_devices[0]
        require_known("device", name, known_devices)
        return device_of(runs[runs["device"] == name].tail(1))

    def make_regressor(self) -> Regressor:
        """Return a new, unfitted regressor of this predictor's kind."""
        regressor_class = load("models", self.model)
        parameters = {"seed": self.seed, **(self.parameters or {})}
        require_known(f"parameter of {self.model}", parameters, regressor_class().get_params())
        return regressor_class(**parameters)

    def require_same_kernel(self, runs: pd.DataFrame) -> None:
        """Raise `PredictorError` unless all ``runs`` are of this predictor's kernel."""
        name = require_single_kernel(runs)
        if name != self.kernel_name_:
            raise PredictorError(f"the predictor knows {self.kernel_name_!r}, not {name!r}")

    def _correction_inputs(
        self, target: Target, rows: pd.DataFrame
    ) -> tuple[np.ndarray, CorrectionFeatures]:
        """Return the log of the uncorrected prediction, and the correction's features."""
        # Distances from the training range change the interval alone, which is not used here.
        X = self.features_.matrix(rows)
        no_distance = np.zeros(len(rows))
        predicted = self.targets_[target].predict(
            self.features_, rows, X, octaves_outside=no_distance, octaves_beyond_reach=no_distance
        )
        columns = self.features_.columns_ or ()
        return predicted.log_value, CorrectionFeatures.from_prediction(columns, X, predicted)

    def _predict_rows(self, rows: Rows) -> np.ndarray:
        """Return `predict` for one chunk as an array (columns, rows)."""
        X = self.features_.matrix(rows)
        octaves_outside = self.calibration_.octaves_outside(rows, self.range_)
        logs = {
            target: self._log_prediction(target, model, rows, X, octaves_outside)
            for target, model in self.targets_.items()
        }
        columns = [*logs.values()]
        if _has_energy(logs):
            columns.append(product_interval(*logs.values()))
        cells = np.exp(np.concatenate(columns))
        return np.array([*cells, self.validity_.probability(X), octaves_outside])

    def _log_prediction(
        self,
        target: Target,
        model: TargetModel,
        rows: Rows,
        X: np.ndarray,
        octaves_outside: np.ndarray,
    ) -> np.ndarray:
        """Return the logs of a target and of its interval's ends (3, rows).

        ``X`` are the features of the rows, ``octaves_outside`` their distance from the training
        range.
        """
        # The errors of held-out rows are known up to the model's reach. Most rows are in the range,
        # so its second distance is computed only if one is not.
        octaves_beyond_reach = octaves_outside
        if octaves_outside.any():
            octaves_beyond_reach = self.calibration_.octaves_outside(rows, self.range_, model.reach)
        predicted = model.predict(
            self.features_,
            rows,
            X,
            octaves_outside=octaves_outside,
            octaves_beyond_reach=octaves_beyond_reach,
        )

        log_value = predicted.log_value
        half_width = predicted.half_width
        if self.calibration_.ranges:
            columns = self.features_.columns_ or ()
            log_value, half_width = self.calibration_.correct(
                target,
                rows,
                CorrectionFeatures.from_prediction(columns, X, predicted),
                log_value=log_value,
                half_width=half_width,
            )

        log_values = np.array([log_value, log_value - half_width, log_value + half_width])
        log_range = model.scale.log_range(rows)
        if log_range is None:
            return log_values
        lowest, highest = log_range
        return np.clip(log_values, lowest, highest)

    def _table(self, cells: np.ndarray, index: pd.Index | None = None) -> pd.DataFrame:
        return pd.DataFrame(cells.T, columns=_prediction_columns(tuple(self.targets_)), index=index)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the predictor to ``folder``: JSON and model files that run no code when loaded.

        Raises OutputError if the folder cannot be written.
        """
        check_is_fitted(self, "targets_")
        features = self.features_
        family = features.family
        card = {
            "kernel": self.kernel_name_,
            "kernel_source": family and family.source_hash,
            "family": type(family).__name__ if family else None,
            "work": family.to_json() if isinstance(family, UserDefinedCost) else None,
            "reading": family.to_json() if isinstance(family, RenamedFamily) else None,
            "model": self.model,
            "seed": self.seed,
            "extra_columns": list(self.extra_columns),
            "read_as": self.read_as,
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
        """Read a saved predictor; give the ``kernel`` it was trained for if that is not registered.

        Raises PredictorError if there is no predictor, or another version wrote it.
        """
        folder = Path(folder)
        card = read_card(folder)
        with translate_read_errors(folder, PredictorError, "is damaged ({}): train it again"):
            require_regular_files(folder)
            if card["model"] not in registered("models"):
                raise PredictorError(
                    f"{folder} uses model {card['model']!r}, which is not installed"
                )
            unknown_targets = [target for target in card["targets"] if target not in TARGETS]
            if unknown_targets:
                raise ValueError(f"target {unknown_targets[0]!r} is not known")
            if kernel is None and card["work"] is not None:
                kernel = UserDefinedCost(card["kernel"], **card["work"])
            predictor = cls(
                model=card["model"],
                targets=tuple(card["targets"]),
                seed=card["seed"],
                kernel=kernel,
                extra_columns=tuple(card["extra_columns"]),
                parameters=card["parameters"] or None,
                read_as=card.get("read_as", ANY_READING),
            )
            predictor._restore(folder, card)
            # Check that the parts fit together.
            predictor._table(predictor._predict_rows(Rows(predictor.runs_.head(2))))
        return predictor

    def _restore(self, folder: Path, card: dict[str, Any]) -> None:
        self.kernel_name_ = card["kernel"]
        self.training_ = card["training"]
        self.range_ = TrainingRange.from_json(card["range"])
        self.runs_ = read_runs(folder / RUNS_FILE)
        source = card["kernel_source"]
        reading = card.get("reading")
        if reading is not None:
            family: Family | None = RenamedFamily.from_json(self.kernel_name_, reading)
        else:
            family = find_family(self.kernel_name_, card["family"], self.kernel, source)
        if family is not None and source not in (None, family.source_hash):
            raise PredictorError(
                f"the code of {family.name} has changed since {folder} was trained: train it again"
            )
        self.features_ = FeatureSet.from_json(card, family, self.extra_columns)
        self.targets_ = {
            target: TargetModel.load(folder / target, target, self.make_regressor)
            for target in card["targets"]
        }
        self.calibration_ = Calibration.load(folder)
        self.validity_ = ValidityModel.load(folder)


def _learn_work(
    name: str, rows: pd.DataFrame, read_as: str
) -> tuple[LearnedLaw | None, RenamedFamily | None]:
    """Return the law of an unknown kernel's times, and the family that its columns' names hint at.

    A kernel with a family's name is read as that family, or not at all.
    """
    log_ms = np.log(rows["time_ms"].to_numpy(dtype=float))
    problems = distinct_problems(rows)
    with threadpool_limits(1, user_api="blas"):
        law = learn_law(rows, log_ms, problems)
        family = choose_reading(name, rows, log_ms, problems, law, read_as)
    return law, family


def _has_energy(targets: Collection[str]) -> bool:
    """Return whether energy, the product of time and power, is predicted."""
    return set(targets) == set(TARGETS)


@cache
def _prediction_columns(targets: tuple[Target, ...]) -> list[str]:
    """Return the columns of `Predictor.predict`, in order."""
    values: list[str] = [*targets]
    if _has_energy(targets):
        values.append("energy_mj")
    names = [f"{value}{part}" for value in values for part in ("", "_low", "_high")]
    return [*names, "p_valid", "outside"]


def require_single_kernel(runs: pd.DataFrame) -> str:
    """Return the one kernel of ``runs``, or raise `PredictorError`."""
    names = sorted(map(str, runs["kernel"].unique()))
    if not names:
        raise PredictorError(
            "no rows are left to train on: give more, or see the warnings about excluded rows"
        )
    if len(names) != 1:
        raise PredictorError(
            f"the runs hold {len(names)} kernels ({', '.join(names)}): a predictor knows one; "
            "choose with --kernel"
        )
    return names[0]
