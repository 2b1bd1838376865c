"""Predicts operators that a table lacks: boosted trees over the calibrated roofline.

Tables of operators are dense, and a plan needs many of them at once, so this is a simpler model
than `foretune.models.Predictor`: no neighbors, no second expert and no interval. It fits 50 times
faster, and the errors of whole plans are equal. Trained predictors are cached in the user's cache
directory under a hash of their training rows and of the code of features and models.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

import foretune.features
import foretune.models
import foretune.plan.cost
from foretune.collect.devices import cache_directory
from foretune.errors import OutputError, PredictorError
from foretune.family import Family
from foretune.features.featureset import FeatureSet
from foretune.models.target_names import Target
from foretune.models.targets import TargetScale, present_targets, usable_rows
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.regressor import parallel_map
from foretune.support.code_hash import packages_hash
from foretune.support.files import read_json, translate_read_errors
from foretune.support.progress import SILENT, Progress

CARD = "operators.json"
ShowProgress = Callable[[], AbstractContextManager[Progress]]
CACHE_FOLDER = "operators"
CODE_PACKAGES = (foretune.features, foretune.models, foretune.plan.cost)
MAX_PREDICTORS = 2
"""Cached predictors per name, so that two sets of tables can alternate."""


@dataclass(frozen=True)
class OperatorPredictor:
    """Time and, if measured, power of one kernel's operators."""

    features: FeatureSet
    parts: dict[Target, tuple[TargetScale, BoostingModel]]
    """The unit and the model of each target."""

    @classmethod
    def fit(cls, runs: pd.DataFrame, family: Family | None) -> Self:
        """Fit to measured operators; raises PredictorError if there are too few."""
        features = FeatureSet(family).fit(runs)
        parts = {}
        for target in present_targets(runs) or ["time_ms"]:
            rows = usable_rows(target, runs)
            log_target = np.log(rows[target].to_numpy(dtype=float))
            scale = TargetScale.fit(target, features, rows, log_target)
            y = log_target - scale.log_scale(rows) - scale.log_unit(features, rows)
            parts[target] = scale, BoostingModel().fit(features.matrix(rows), y)
        return cls(features, parts)

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the targets of operators, one column per target."""
        X = self.features.matrix(rows)
        columns = {}
        for target, (scale, model) in self.parts.items():
            log_value = model.predict(X) + scale.log_unit(self.features, rows)
            log_value += scale.log_scale(rows)
            if (bounds := scale.log_range(rows)) is not None:
                log_value = np.clip(log_value, *bounds)
            columns[target] = np.exp(log_value)
        return pd.DataFrame(columns, index=rows.index)

    def save(self, folder: Path) -> None:
        """Write to ``folder`` atomically; raises OutputError if it cannot be written."""
        card: dict[str, Any] = {"features": self.features.to_json(), "parts": {}}
        new = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            new.mkdir(parents=True)
            for target, (scale, model) in self.parts.items():
                model.save(new / f"{target}{model.suffix}")
                card["parts"][target] = scale.to_json()
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
                target: (
                    TargetScale.from_json(scale, target),
                    BoostingModel.load(folder / f"{target}{BoostingModel.suffix}"),
                )
                for target, scale in card["parts"].items()
            }
            return cls(FeatureSet.from_json(card["features"], family), parts)


@dataclass(frozen=True)
class TrainingSet:
    """Training data of a predictor, with a name like ``gemm-h100_sxm-vllm``."""

    name: str
    runs: pd.DataFrame
    family: Family | None = None

    @property
    def folder(self) -> str:
        """Cache folder of the predictor; changes with the rows and the code."""
        digest = hashlib.sha256(packages_hash(*CODE_PACKAGES).encode())
        digest.update(repr(list(self.runs)).encode())
        digest.update(pd.util.hash_pandas_object(self.runs, index=False).to_numpy().tobytes())
        name = re.sub(r"[^\w.-]+", "_", self.name)
        return f"{name}-{digest.hexdigest()[:16]}"


class TrainedPredictorCache:
    """Loads the predictors of operators, and trains missing ones.

    If the cache cannot be written, predictors exist in this process only. ``folder`` defaults to
    the user's cache directory.
    """

    def __init__(
        self, show_progress: ShowProgress = lambda: nullcontext(SILENT), folder: Path | None = None
    ) -> None:
        self._show_progress = show_progress
        self._folder = folder or cache_directory() / CACHE_FOLDER

    def load_or_train(self, training_sets: Sequence[TrainingSet]) -> list[OperatorPredictor]:
        """Return the predictor of each training set, trained if not cached."""
        folders = [self._folder / training_set.folder for training_set in training_sets]
        found = dict(enumerate(map(_read, folders, training_sets)))
        missing = [i for i, predictor in found.items() if predictor is None]

        def train(index: int) -> OperatorPredictor:
            training_set = training_sets[index]
            predictor = OperatorPredictor.fit(training_set.runs, training_set.family)
            with suppress(OutputError, OSError):  # a cache that fails must not stop the plan
                predictor.save(folders[index])
                _remove_older(folders[index])
            progress.advance(training_set.name)
            return predictor

        if missing:
            rows = sum(len(training_sets[i].runs) for i in missing)
            with self._show_progress() as progress:
                progress.start(f"training on {rows:,} measured operators (once)", len(missing))
                found |= dict(zip(missing, parallel_map(train, missing), strict=True))
                progress.say(f"operator predictors saved in {self._folder}")
        return [predictor for predictor in found.values() if predictor is not None]


def _read(folder: Path, training_set: TrainingSet) -> OperatorPredictor | None:
    if not folder.is_dir():
        return None
    with suppress(PredictorError):
        return OperatorPredictor.load(folder, training_set.family)
    shutil.rmtree(folder, ignore_errors=True)  # a damaged folder could not be overwritten
    return None


def _remove_older(folder: Path) -> None:
    """Remove all but the newest predictors of the same name."""
    name = folder.name.rpartition("-")[0]
    same = [
        path for path in folder.parent.glob(f"{name}-*") if path.name.rpartition("-")[0] == name
    ]
    for old in sorted(same, key=lambda path: path.stat().st_mtime)[:-MAX_PREDICTORS]:
        shutil.rmtree(old, ignore_errors=True)
