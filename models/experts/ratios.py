"""The expert on ratios: boosting on features that have no size, for tables of few problems.

What a law misses depends on how a tile fits and how full a wave is. A tree that sees sizes instead
learns which problem a row is of, and of a new problem it then says what it knows of another.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.decoding import read_json
from foretune.models.trees.boosting import BoostingModel

MODEL_PARAMETERS: dict[str, Any] = {
    "rounds": 250, "depth": 6, "rate": 0.06, "rows": 0.7, "columns": 0.6, "min_child_weight": 3.0,
    "objective": "reg:absoluteerror",
}  # fmt: skip
"""Parameters of the model, chosen on products in tiles on an A100."""
FILE = "ratios"


@dataclass(frozen=True)
class ScaleFreeExpert:
    """The fitted model.

    Attributes:
        columns: numbers of the features that it reads.
        model: of the log of the target over its unit.
    """

    columns: np.ndarray
    model: BoostingModel

    @classmethod
    def fit(cls, columns: np.ndarray, X: np.ndarray, y: np.ndarray, quick: bool = False) -> Self:
        """Learn from features (rows, features) and values, reading some of the features."""
        model = BoostingModel(**MODEL_PARAMETERS)
        return cls(columns, (model.quick() if quick else model).fit(X[:, columns], y))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return one value per row of all features."""
        return self.model.predict(X[:, self.columns])

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        self.model.save(folder / f"{FILE}{self.model.suffix}")
        text = json.dumps(self.columns.tolist())
        (folder / f"{FILE}.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read what `save` wrote; None if there is none."""
        file = folder / f"{FILE}.json"
        if not file.exists():
            return None
        model = BoostingModel.load(folder / f"{FILE}{BoostingModel.suffix}")
        return cls(np.array(read_json(file, list)), model)


def scale_free_features(names: Sequence[str], X: np.ndarray, problems: np.ndarray) -> np.ndarray:
    """Return the numbers of the features that have no size; at least one.

    Sizes are a problem's numbers, a device's, and logarithms (``log2_…``) that only the problem
    decides; the intensity, a ratio, is none.

    Args:
        names: of the features.
        X: rows to learn from (rows, features).
        problems: which problem each is of.
    """
    _, first = np.unique(problems, return_index=True)
    same = X[first][np.unique(problems, return_inverse=True)[1]]
    decided = ((same == X) | np.isnan(X)).all(axis=0)
    kept = [
        i for i, name in enumerate(names)
        if not (
            (name.startswith(("problem.", "device.")) and "=" not in name)
            or (name.startswith("log2_") and decided[i] and name != "log2_intensity")
        )
    ]  # fmt: skip
    return np.array(kept or [0])
