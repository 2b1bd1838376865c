"""The probability that a configuration works."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.features.featureset import FeatureSet
from foretune.models.trees.boosting import BoostingModel
from foretune.support.files import read_json

MIN_FAILURES = 5
"""Minimum failures, and successes, to learn from."""
_LOGISTIC: dict[str, Any] = {"objective": "binary:logistic", "depth": 4, "rate": 0.1, "rounds": 100}
_FILE = f"valid{BoostingModel.suffix}"
_RATE_FILE = "valid.json"


@dataclass
class ValidityModel:
    """A classifier of ``status == ok``; with few failures, the success rate.

    ``rate`` is the share of successes in training, smoothed by one of each.
    """

    rate: float
    classifier: BoostingModel | None = None

    @classmethod
    def fit(cls, features: FeatureSet, runs: pd.DataFrame, seed: int = 0) -> Self:
        """Fit to all rows, failures included."""
        is_ok = (runs["status"] == "ok").to_numpy()
        n_ok = int(is_ok.sum())
        n_failures = len(is_ok) - n_ok
        if n_failures == 0:
            return cls(rate=1.0)
        model = cls(rate=float((n_ok + 1) / (len(is_ok) + 2)))
        if min(n_failures, n_ok) >= MIN_FAILURES:
            X = features.transform(runs).to_numpy()
            classifier = BoostingModel(seed=seed, **_LOGISTIC)
            model.classifier = classifier.fit(X, is_ok.astype(float))
        return model

    def probability(self, X: np.ndarray) -> np.ndarray:
        """Return the probability of success of every row."""
        if self.classifier is None:
            return np.full(len(X), self.rate)
        return self.classifier.predict(X)

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        (folder / _RATE_FILE).write_text(json.dumps({"rate": self.rate}), encoding="utf-8")
        if self.classifier is not None:
            self.classifier.save(folder / _FILE)
        else:
            (folder / _FILE).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read from ``folder``."""
        rate = read_json(folder / _RATE_FILE)["rate"]
        if not (folder / _FILE).exists():
            return cls(rate)
        return cls(rate, BoostingModel.load(folder / _FILE))
