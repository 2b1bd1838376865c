"""The predictor: runs in; time, power and energy out, each with an interval."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from foretune.datasets import latest
from foretune.datasets.runs import problems_of
from foretune.datasets.schema import validate
from foretune.device import Device
from foretune.errors import ForetuneError, OutputError, PredictorError
from foretune.features import FEATURES_VERSION, FeatureSet, candidate_rows
from foretune.kernel import Kernel
from foretune.models.calibration import cross_half_widths, half_width
from foretune.models.regressor import Regressor
from foretune.models.splits import fold_of_rows, out_of_fold
from foretune.models.targets import Target, log_unit, present_targets, usable_rows
from foretune.models.validity import ValidityModel
from foretune.problem import Problem
from foretune.registry import get_kernel, load, registered
from foretune.space import SearchSpace

FORMAT_VERSION = 1
CHUNK_ROWS = 65_536
"""Rows predicted at a time: features of a million rows never are in memory together."""


@dataclass(frozen=True)
class _Fitted:
    regressor: Regressor
    half_width: float


class Predictor(BaseEstimator):  # type: ignore[misc]
    """Predicts time and power of configurations of one kernel, a scikit-learn estimator.

    Args:
        model: name of a registered model: ``xgboost`` or ``random_forest``.
        targets: of ``time_ms`` and ``power_w``; None learns those the runs have.
        seed: of everything random.
        kernel: knows cost and derived features; None takes the registered one of the runs' name,
            if there is one.

    Attributes:
        kernel_name_: the kernel it knows.
        features_: the fitted `FeatureSet`.
        targets_: target -> fitted regressor and half-width of its 90 % interval on the log scale.
        validity_: the model of which configurations run at all.
        held_out_: per target, what was predicted for training rows by models that did not see their
            problem (``problem, truth, prediction, low, high``); not saved.
        training_: where it was trained: rows, problems, devices, how intervals were calibrated.
    """

    def __init__(
        self,
        model: str = "xgboost",
        targets: tuple[Target, ...] | None = None,
        seed: int = 0,
        kernel: Kernel | None = None,
    ) -> None:
        self.model = model
        self.targets = targets
        self.seed = seed
        self.kernel = kernel

    def fit(self, runs: pd.DataFrame, y: Any = None) -> Self:
        """Learn from a run table of one kernel.

        Raises:
            RunTableError: a row is impossible.
            PredictorError: several kernels, or too few successful runs.
        """
        runs = latest(validate(runs))
        self.kernel_name_ = only_kernel(runs)
        self.features_ = FeatureSet(self.kernel_for(self.kernel_name_)).fit(runs)
        self.validity_ = ValidityModel.fit(self.features_, runs, self.seed)
        self.targets_: dict[Target, _Fitted] = {}
        self.held_out_: dict[Target, pd.DataFrame] = {}
        for target in self.targets or present_targets(runs) or ("time_ms",):
            rows = usable_rows(target, runs)
            X, y_log = self.learning_rows(target, rows)
            folds, calibration = self._calibration_folds(rows)
            held_out = out_of_fold(self.learn, X, y_log, folds)
            width = half_width(y_log - held_out)
            self.targets_[target] = _Fitted(self.make_regressor().fit(X, y_log), width)
            widths = cross_half_widths(y_log - held_out, folds)
            self.held_out_[target] = self._held_out_table(target, rows, held_out, widths)
        self.training_ = {
            "rows": len(runs),
            "problems": len(set(problems_of(runs))),
            "devices": sorted(map(str, runs["device"].unique())),
            "calibration": calibration,
        }
        return self

    def predict(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return time, its 90 % interval, validity, and power where it was learned, per row.

        Columns: ``<target>``, ``<target>_low``, ``<target>_high`` per target, ``energy_mj``
        (power × time) with power, and ``p_valid``.
        """
        check_is_fitted(self, "targets_")
        parts = [
            self._predict_chunk(runs.iloc[start : start + CHUNK_ROWS])
            for start in range(0, max(len(runs), 1), CHUNK_ROWS)
        ]
        return pd.concat(parts) if len(parts) > 1 else parts[0]

    def predict_space(
        self,
        problem: Problem,
        space: SearchSpace,
        device: Device,
        indices: np.ndarray | None = None,
    ) -> pd.DataFrame:
        """Return `predict` for every configuration of ``space`` (or the numbered ones)."""
        check_is_fitted(self, "targets_")
        every = np.arange(len(space)) if indices is None else np.asarray(indices)
        parts = [
            self._predict_chunk(
                candidate_rows(
                    self.kernel_name_, problem, space, device, every[start : start + CHUNK_ROWS]
                )
            )
            for start in range(0, max(len(every), 1), CHUNK_ROWS)
        ]
        return pd.concat(parts, ignore_index=True)

    def predict_valid(self, runs: pd.DataFrame) -> np.ndarray:
        """Return the probability that each row's configuration runs and is right."""
        return self.validity_.probability(self.features_.transform(runs).to_numpy())

    def log_spread(self, target: Target = "time_ms") -> float:
        """Return the standard deviation of log errors that the 90 % interval stands for."""
        return self.targets_[target].half_width / 1.645

    def learning_rows(self, target: Target, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return features and learned values of ``rows``."""
        X = self.features_.transform(rows).to_numpy()
        return X, np.log(rows[target].to_numpy(dtype=float)) - log_unit(
            target, self.features_, rows
        )

    def kernel_for(self, name: str) -> Kernel | None:
        """Return the kernel that knows runs of ``name``: ours, or the registered one, or None."""
        if self.kernel is not None and self.kernel.name == name:
            return self.kernel
        return get_kernel(name) if name in registered("kernels") else None

    def make_regressor(self) -> Regressor:
        """Return a new, unfitted regressor of the kind this predictor uses."""
        regressor: Regressor = load("models", self.model)(seed=self.seed)
        return regressor

    def learn(self, X: np.ndarray, y: np.ndarray, X_new: np.ndarray) -> np.ndarray:
        """Fit a new regressor on ``X, y`` and return its prediction of ``X_new``."""
        return self.make_regressor().fit(X, y).predict(X_new)

    def _calibration_folds(self, rows: pd.DataFrame) -> tuple[np.ndarray, str]:
        """Return which rows are predicted together without having been seen, and in words."""
        folds = fold_of_rows(rows, "grouped", self.seed)
        if folds is not None:
            return folds, "problems held out"
        folds = fold_of_rows(rows, "random", self.seed)
        assert folds is not None  # five rows at least
        return folds, "rows held out: one problem only"

    def _held_out_table(
        self, target: Target, rows: pd.DataFrame, log_value: np.ndarray, widths: np.ndarray
    ) -> pd.DataFrame:
        prediction = np.exp(log_value + log_unit(target, self.features_, rows))
        return pd.DataFrame(
            {
                "problem": list(map(str, problems_of(rows))),
                "truth": rows[target].to_numpy(dtype=float),
                "prediction": prediction,
                "low": prediction / np.exp(widths),
                "high": prediction * np.exp(widths),
            }
        )

    def _predict_chunk(self, rows: pd.DataFrame) -> pd.DataFrame:
        X = self.features_.transform(rows).to_numpy()
        result: dict[str, np.ndarray] = {}
        for target, fitted in self.targets_.items():
            log_value = fitted.regressor.predict(X) + log_unit(target, self.features_, rows)
            value, factor = np.exp(log_value), np.exp(fitted.half_width)
            result |= {
                target: value,
                f"{target}_low": value / factor,
                f"{target}_high": value * factor,
            }
        if "power_w" in result and "time_ms" in result:
            result["energy_mj"] = result["power_w"] * result["time_ms"]
        result["p_valid"] = self.validity_.probability(X)
        return pd.DataFrame(result, index=rows.index)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the predictor to ``folder``: JSON and models in formats that run no code.

        Raises:
            OutputError: the folder cannot be written.
        """
        check_is_fitted(self, "targets_")
        folder = Path(folder)
        card = {
            "format": FORMAT_VERSION,
            "features_version": FEATURES_VERSION,
            "kernel": self.kernel_name_,
            "kernel_source": self.features_.kernel and self.features_.kernel.source_hash,
            "model": self.model,
            "seed": self.seed,
            "columns": self.features_.columns_,
            "numbers": self.features_.numbers_,
            "categories": self.features_.categories_,
            "roofline_known": self.features_.roofline_known_,
            "targets": {t: {"half_width": f.half_width} for t, f in self.targets_.items()},
            "training": self.training_,
        }
        new = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            new.mkdir(parents=True)
            for target, fitted in self.targets_.items():
                fitted.regressor.save(new / f"{target}{fitted.regressor.suffix}")
            self.validity_.save(new)
            (new / "predictor.json").write_text(json.dumps(card, indent=1), encoding="utf-8")
            if (folder / "predictor.json").exists():  # never anything but a predictor
                shutil.rmtree(folder)
            new.replace(folder)
        except (OSError, ValueError) as e:  # XGBoost's errors are ValueErrors
            shutil.rmtree(new, ignore_errors=True)
            reason = getattr(e, "strerror", None) or str(e).partition("\n")[0]
            raise OutputError(f"cannot write the predictor to {folder}: {reason}") from e

    @classmethod
    def load(cls, folder: str | os.PathLike[str], kernel: Kernel | None = None) -> "Predictor":
        """Read what `save` wrote.

        Args:
            folder: where it was saved.
            kernel: the one it was trained for, where that is not registered.

        Raises:
            PredictorError: there is no predictor, or it was made by another version.
        """
        folder = Path(folder)
        try:
            card = json.loads((folder / "predictor.json").read_text(encoding="utf-8"))
            if not isinstance(card, dict):
                raise ValueError("predictor.json is no object")
        except (OSError, ValueError) as e:
            raise PredictorError(
                f"{folder} holds no predictor ({e}): train one with 'foretune train'"
            ) from e
        if (card.get("format"), card.get("features_version")) != (FORMAT_VERSION, FEATURES_VERSION):
            raise PredictorError(
                f"{folder} was made by another version of Foretune: train it again from its runs"
            )
        try:
            if card["model"] not in registered("models"):
                raise PredictorError(
                    f"{folder} uses model {card['model']!r}, which is not installed"
                )
            predictor = cls(card["model"], tuple(card["targets"]), card["seed"], kernel)
            predictor._restore(folder, card)
        except ForetuneError:
            raise
        except Exception as e:  # whatever the files' own readers raise
            reason = str(e).splitlines()[0] if str(e) else type(e).__name__
            raise PredictorError(f"{folder} is damaged ({reason}): train it again") from e
        return predictor

    def _restore(self, folder: Path, card: dict[str, Any]) -> None:
        kind: type[Regressor] = load("models", self.model)
        self.kernel_name_ = card["kernel"]
        self.training_ = card["training"]
        found = self.kernel_for(self.kernel_name_)
        if found is not None and card["kernel_source"] not in (None, found.source_hash):
            raise PredictorError(
                f"the code of {found.name} has changed since {folder} was trained: train it again"
            )
        self.features_ = FeatureSet(found)
        self.features_.columns_ = list(card["columns"])
        self.features_.numbers_ = list(card["numbers"])
        self.features_.categories_ = dict(card["categories"])
        self.features_.roofline_known_ = bool(card["roofline_known"])
        self.targets_ = {
            target: _Fitted(kind.load(folder / f"{target}{kind.suffix}"), entry["half_width"])
            for target, entry in card["targets"].items()
        }
        self.validity_ = ValidityModel.load(folder)


def only_kernel(runs: pd.DataFrame) -> str:
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
