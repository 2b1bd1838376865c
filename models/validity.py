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
_LOGISTIC: dict[str, Any] = {"objective": "binary:logistic", "depth": 4, "rate": 0.1, "rounds": 100}
_FILE, _RATE_FILE = f"valid{BoostingModel.suffix}", "valid.json"


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
        ok = (runs["status"] == "ok").to_numpy()
        failures = int((~ok).sum())
        model = cls(rate=1.0 if failures == 0 else float((ok.sum() + 1) / (len(ok) + 2)))
        if min(failures, int(ok.sum())) >= MIN_FAILURES:
            X = features.transform(runs).to_numpy()
            model.classifier = BoostingModel(seed=seed, **_LOGISTIC).fit(X, ok.astype(float))
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
