"""Trains predictors of measured operators once, and caches them.

They are stored in the user's cache directory under a hash of their training rows and of the code of
features and models.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import foretune.features
import foretune.models
import foretune.plan.cost
from foretune.code_hash import packages_hash
from foretune.collect.devices import cache_directory
from foretune.errors import OutputError, PredictorError
from foretune.family import Family
from foretune.models.trees.regressor import parallel_map
from foretune.plan.cost.operator_predictor import OperatorPredictor
from foretune.progress import SILENT, Progress

ShowProgress = Callable[[], AbstractContextManager[Progress]]
"""Context manager that shows progress."""
CACHE_FOLDER = "operators"
"""Folder below the user's cache directory."""
CODE_PACKAGES = (foretune.features, foretune.models, foretune.plan.cost)
MAX_PREDICTORS = 2
"""Cached predictors per name, so that two sets of tables can alternate."""


@dataclass(frozen=True)
class TrainingSet:
    """Training data of a predictor.

    ``name`` is like ``gemm-h100_sxm-vllm``; ``family`` computes the operators' work, if known.
    """

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

    If the cache cannot be written, predictors live in this process only. ``folder`` defaults to the
    user's cache directory.
    """

    def __init__(
        self, show_progress: ShowProgress = lambda: nullcontext(SILENT), folder: Path | None = None
    ) -> None:
        self._show_progress = show_progress
        self._folder = folder or cache_directory() / CACHE_FOLDER

    def load_or_train(self, training_sets: Sequence[TrainingSet]) -> list[OperatorPredictor]:
        """Return the predictor of each training set, trained if not cached."""
        folders = [self._folder / training_set.folder for training_set in training_sets]
        found = [_read(*pair) for pair in zip(folders, training_sets, strict=True)]
        missing = [i for i, predictor in enumerate(found) if predictor is None]
        if missing:
            trained = self._train(
                [training_sets[i] for i in missing], [folders[i] for i in missing]
            )
            for i, predictor in zip(missing, trained, strict=True):
                found[i] = predictor
        return [predictor for predictor in found if predictor is not None]

    def _train(
        self, training_sets: Sequence[TrainingSet], folders: Sequence[Path]
    ) -> list[OperatorPredictor]:
        def train(index: int) -> OperatorPredictor:
            training_set = training_sets[index]
            predictor = OperatorPredictor.fit(training_set.runs, training_set.family)
            with suppress(OutputError, OSError):  # a cache that fails must not stop the plan
                predictor.save(folders[index])
                _remove_older(folders[index])
            progress.advance(training_sets[index].name)
            return predictor

        rows = sum(len(training_set.runs) for training_set in training_sets)
        with self._show_progress() as progress:
            progress.start(f"training on {rows:,} measured operators (once)", len(training_sets))
            trained = parallel_map(train, range(len(training_sets)))
            progress.say(f"operator predictors saved in {self._folder}")
        return trained


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
