"""Predictors of measured operators: trained when first needed, and kept for the next plan.

They lie in the user's cache directory, named after all that they follow from: the rows they were
trained on and the code of features and models. When either changes, another one is trained.
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
from foretune.code_hash import packages_hash
from foretune.collect.devices import cache_directory
from foretune.errors import OutputError, PredictorError
from foretune.family import Family
from foretune.models import Predictor
from foretune.models.trees.regressor import parallel_map
from foretune.progress import SILENT, Progress

ShowProgress = Callable[[], AbstractContextManager[Progress]]
"""Begins to show progress, until the context ends."""
CACHE_FOLDER = "operators"
"""Below the user's cache directory."""
MAX_PREDICTORS = 2
"""Predictors of one name: of the newest tables, and of those before or of the user's own."""


@dataclass(frozen=True)
class TrainingSet:
    """What a predictor is trained on.

    Attributes:
        name: of what it predicts: ``gemm-h100_sxm-vllm``.
        runs: a run table of one kernel.
        family: knows the work of its operators; None where nobody does.
    """

    name: str
    runs: pd.DataFrame
    family: Family | None = None

    @property
    def folder(self) -> str:
        """Where the predictor is kept: changes with the rows and with the code."""
        digest = hashlib.sha256(packages_hash(foretune.features, foretune.models).encode())
        digest.update(repr(list(self.runs)).encode())
        digest.update(pd.util.hash_pandas_object(self.runs, index=False).to_numpy().tobytes())
        return f"{_file_name(self.name)}-{digest.hexdigest()[:16]}"


class TrainedPredictorCache:
    """Finds the predictors of operators, and trains those that are not there.

    Where the cache cannot be written, they serve this process alone.

    Args:
        show_progress: shows the progress of training, which takes minutes for the first plan of a
            system.
        folder: where they are kept; None takes the user's cache directory.
    """

    def __init__(
        self, show_progress: ShowProgress = lambda: nullcontext(SILENT), folder: Path | None = None
    ) -> None:
        self._show_progress = show_progress
        self._folder = folder or cache_directory() / CACHE_FOLDER

    def load_or_train(self, training_sets: Sequence[TrainingSet]) -> list[Predictor]:
        """Return the predictor of each lesson, trained if nobody did before.

        Raises:
            PredictorError: a table cannot be learned from.
        """
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
    ) -> list[Predictor]:
        def train(index: int) -> Predictor:
            predictor = Predictor(kernel=training_sets[index].family).fit(training_sets[index].runs)
            with suppress(OutputError, OSError):  # this plan is worth more than a quick next one
                predictor.save(folders[index])
                _remove_older(folders[index])
            progress.advance(training_sets[index].name)
            return predictor

        rows = sum(len(training_set.runs) for training_set in training_sets)
        with self._show_progress() as progress:
            progress.start(f"learning from {rows:,} measured operators, once", len(training_sets))
            trained = parallel_map(train, range(len(training_sets)))
            progress.say(f"predictors of operators: {self._folder}")
        return trained


def _read(folder: Path, training_set: TrainingSet) -> Predictor | None:
    if not folder.is_dir():
        return None
    with suppress(PredictorError):
        return Predictor.load(folder, training_set.family)
    shutil.rmtree(folder, ignore_errors=True)  # damaged: nothing can be saved over it
    return None


def _remove_older(folder: Path) -> None:
    """Remove predictors of the same name but those trained last."""
    name = folder.name.rpartition("-")[0]
    same = [
        path for path in folder.parent.glob(f"{name}-*") if path.name.rpartition("-")[0] == name
    ]
    for old in sorted(same, key=lambda path: path.stat().st_mtime)[:-MAX_PREDICTORS]:
        shutil.rmtree(old, ignore_errors=True)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)
