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
from foretune.collect.probe import cache_directory
from foretune.errors import OutputError, PredictorError
from foretune.family import Family
from foretune.models import Predictor
from foretune.models.trees.regressor import side_by_side
from foretune.progress import SILENT, Progress
from foretune.source import packages_hash

Draw = Callable[[], AbstractContextManager[Progress]]
"""Begins to show progress, until the context ends."""
FOLDER = "operators"
"""Below the user's cache directory."""
KEPT = 2
"""Predictors of one name: of the newest tables, and of those before or of the user's own."""


@dataclass(frozen=True)
class Lesson:
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


class KeptPredictors:
    """Finds the predictors of operators, and trains those that are not there.

    Where the cache cannot be written, they serve this process alone.

    Args:
        draw: shows the progress of training, which takes minutes for the first plan of a system.
        folder: where they are kept; None takes the user's cache directory.
    """

    def __init__(
        self, draw: Draw = lambda: nullcontext(SILENT), folder: Path | None = None
    ) -> None:
        self._draw = draw
        self._folder = folder or cache_directory() / FOLDER

    def of(self, lessons: Sequence[Lesson]) -> list[Predictor]:
        """Return the predictor of each lesson, trained if nobody did before.

        Raises:
            PredictorError: a table cannot be learned from.
        """
        places = [self._folder / lesson.folder for lesson in lessons]
        found = [_read(*pair) for pair in zip(places, lessons, strict=True)]
        missing = [i for i, predictor in enumerate(found) if predictor is None]
        if missing:
            trained = self._train([lessons[i] for i in missing], [places[i] for i in missing])
            for i, predictor in zip(missing, trained, strict=True):
                found[i] = predictor
        return [predictor for predictor in found if predictor is not None]

    def _train(self, lessons: Sequence[Lesson], places: Sequence[Path]) -> list[Predictor]:
        def train(number: int) -> Predictor:
            predictor = Predictor(kernel=lessons[number].family).fit(lessons[number].runs)
            with suppress(OutputError, OSError):  # this plan is worth more than a quick next one
                predictor.save(places[number])
                _forget_older(places[number])
            progress.advance(lessons[number].name)
            return predictor

        rows = sum(len(lesson.runs) for lesson in lessons)
        with self._draw() as progress:
            progress.start(f"learning from {rows:,} measured operators, once", len(lessons))
            trained = side_by_side(train, range(len(lessons)))
            progress.say(f"predictors of operators: {self._folder}")
        return trained


def _read(place: Path, lesson: Lesson) -> Predictor | None:
    if not place.is_dir():
        return None
    with suppress(PredictorError):
        return Predictor.load(place, lesson.family)
    shutil.rmtree(place, ignore_errors=True)  # damaged: nothing can be saved over it
    return None


def _forget_older(place: Path) -> None:
    """Remove predictors of the same name but those trained last."""
    name = place.name.rpartition("-")[0]
    same = [path for path in place.parent.glob(f"{name}-*") if path.name.rpartition("-")[0] == name]
    for old in sorted(same, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)
