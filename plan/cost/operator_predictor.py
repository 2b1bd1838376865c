"""Predicts operators that a table lacks: boosted trees over the calibrated roofline.

Tables of operators are dense, and a plan asks for many of them at once, so this is a plainer model
than `foretune.models.Predictor`: no neighbors, no second expert, and an interval of one width. It
fits 50 times faster, with equal errors of whole plans.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.errors import OutputError, PredictorError
from foretune.family import Family
from foretune.features.featureset import FeatureSet
from foretune.files import read_json, translate_read_errors
from foretune.models.targets import Target, TargetScale, present_targets, usable_rows
from foretune.models.trees.boosting import BoostingModel
from foretune.models.validation.splits import fold_of_rows

COVERAGE = 0.9
MIN_HELD_OUT_ROWS = 50
"""Rows from which the interval comes from held-out operators, else `DEFAULT_WIDTH`."""
DEFAULT_WIDTH = 0.25
MAX_TRIAL_ROWS = 20_000
"""Maximum rows (every n-th) of the trial behind the interval."""
CARD = "operators.json"


@dataclass(frozen=True)
class _Part:
    """The model of one target; ``width`` is half its 90 % interval, of the logarithm."""

    scale: TargetScale
    model: BoostingModel
    width: float


@dataclass(frozen=True)
class OperatorPredictor:
    """Time and, if measured, power of one kernel's operators."""

    features: FeatureSet
    parts: dict[Target, _Part]

    @classmethod
    def fit(cls, runs: pd.DataFrame, family: Family | None) -> Self:
        """Fit to measured operators.

        Raises PredictorError if there are too few.
        """
        features = FeatureSet(family).fit(runs)
        parts: dict[Target, _Part] = {}
        for target in present_targets(runs) or ["time_ms"]:
            rows = usable_rows(target, runs)
            log_target = np.log(rows[target].to_numpy(dtype=float))
            scale = TargetScale.fit(target, features, rows, log_target)
            y = log_target - scale.log_scale(rows) - scale.log_unit(features, rows)
            X = features.matrix(rows)
            parts[target] = _Part(scale, BoostingModel().fit(X, y), _width(rows, X, y))
        return cls(features, parts)

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``<target>``, ``<target>_low`` and ``<target>_high`` of operators."""
        X, columns = self.features.matrix(rows), {}
        for target, part in self.parts.items():
            log_value = part.model.predict(X) + part.scale.log_unit(self.features, rows)
            log_value += part.scale.log_scale(rows)
            if (bounds := part.scale.log_range(rows)) is not None:
                log_value = np.clip(log_value, *bounds)
            for suffix, sign in (("", 0.0), ("_low", -1.0), ("_high", 1.0)):
                columns[f"{target}{suffix}"] = np.exp(log_value + sign * part.width)
        return pd.DataFrame(columns, index=rows.index)

    def save(self, folder: Path) -> None:
        """Write to ``folder``, at once; raises OutputError if it cannot be written."""
        card: dict[str, Any] = {"features": self.features.to_json(), "parts": {}}
        new = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            new.mkdir(parents=True)
            for target, part in self.parts.items():
                part.model.save(new / f"{target}{part.model.suffix}")
                card["parts"][target] = {"scale": part.scale.to_json(), "width": part.width}
            (new / CARD).write_text(json.dumps(card), encoding="utf-8")
            new.replace(folder)
        except OSError as e:
            raise OutputError(f"cannot write {folder}: {e.strerror}") from e
        finally:
            shutil.rmtree(new, ignore_errors=True)

    @classmethod
    def load(cls, folder: Path, family: Family | None) -> Self:
        """Read from ``folder``; raises PredictorError if it is damaged."""
        with translate_read_errors(folder, PredictorError, "is damaged ({})"):
            card = read_json(folder / CARD)
            parts = {
                target: _Part(
                    TargetScale.from_json(part["scale"], target),
                    BoostingModel.load(folder / f"{target}{BoostingModel.suffix}"),
                    part["width"],
                )
                for target, part in card["parts"].items()
            }
            return cls(FeatureSet.from_json(card["features"], family), parts)


def _width(rows: pd.DataFrame, X: np.ndarray, y: np.ndarray) -> float:
    """Return half the 90 % interval of operators of other sizes."""
    folds = fold_of_rows(rows, "random", 0) if len(rows) >= MIN_HELD_OUT_ROWS else None
    if folds is None:
        return DEFAULT_WIDTH
    every = slice(None, None, -(-len(rows) // MAX_TRIAL_ROWS))
    X, y, out = X[every], y[every], folds[every] == 0
    model = BoostingModel().quick().fit(X[~out], y[~out])
    return float(np.quantile(np.abs(model.predict(X[out]) - y[out]), COVERAGE))
