"""An ensemble: the mean of a boosted model and a forest, which make different errors."""

from pathlib import Path
from typing import Self

import numpy as np

from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.forest import ForestModel
from foretune.models.trees.regressor import Regressor


class EnsembleModel(Regressor):
    """The weighted mean of `BoostingModel` and `ForestModel`.

    Args:
        boosting_share: weight of the boosted model, 0 … 1.
        seed: random seed of both.
    """

    suffix = ".ensemble"

    def __init__(self, boosting_share: float = 0.7, seed: int = 0) -> None:
        self.boosting_share = boosting_share
        self.seed = seed

    def _fit(self, X: np.ndarray, y: np.ndarray) -> None:
        self.boosting_ = BoostingModel(seed=self.seed).fit(X, y)
        self.forest_ = ForestModel(seed=self.seed).fit(X, y)
        self.share_ = self.boosting_share

    def _predict(self, X: np.ndarray) -> np.ndarray:
        boosted, grown = self.boosting_.predict(X), self.forest_.predict(X)
        mean: np.ndarray = self.share_ * boosted + (1.0 - self.share_) * grown
        return mean

    def save(self, path: Path) -> None:
        """Write a folder with both models and the share."""
        path.mkdir()
        self.boosting_.save(path / f"boosting{BoostingModel.suffix}")
        self.forest_.save(path / f"forest{ForestModel.suffix}")
        (path / "share.txt").write_text(repr(self.share_), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read from a folder."""
        model = cls()
        model.boosting_ = BoostingModel.load(path / f"boosting{BoostingModel.suffix}")
        model.forest_ = ForestModel.load(path / f"forest{ForestModel.suffix}")
        model.share_ = float((path / "share.txt").read_text(encoding="utf-8"))
        model.n_features_in_ = model.boosting_.n_features_in_
        return model
