"""The correction of one target on one device: log(measured / predicted), learned from few runs.

A Gaussian process learns it on the settings of runs and on the prediction's features; with more
runs, boosted trees get a share. Leave-one-out errors give the interval.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.errors import PredictorError
from foretune.features.arrays import Rows, as_array
from foretune.models.conformal import conformal_quantile
from foretune.models.error_model import MIN_ERROR
from foretune.models.feature_process import WORK_FEATURES, Scaling, fit_process
from foretune.models.gaussian_process import Posterior
from foretune.models.gp_files import process_arrays, process_from_arrays
from foretune.models.target_model import TargetPrediction
from foretune.models.trees.boosting import BoostingModel
from foretune.support.files import read_arrays, read_json

SETTING_PREFIXES = ("problem.", "config.", "device.")
"""Prefixes of features read directly from the rows."""
MAX_ROWS = 1500
"""Maximum rows of a Gaussian process, which has cubic cost."""
MAX_TUNING_ROWS = 512
"""Rows used to fit hyperparameters; more rows find the same."""
MIN_TREE_ROWS = 64
"""Minimum rows for trees to be tried."""
FOLDS = 5
"""Folds in which the trees' errors are measured."""
TREE_SHARES = (0.25, 0.5, 0.75)
"""Candidate weights of the trees; below 1, because the process gives the interval."""
TREE_PARAMETERS: dict[str, Any] = {
    "rounds": 125,
    "depth": 5,
    "rate": 0.1,
    "rows": 0.7,
    "columns": 0.6,
    "min_child_weight": 3.0,
    "objective": "reg:absoluteerror",
}


@dataclass(frozen=True, eq=False)
class CorrectionFeatures:
    """Features of rows besides their settings; NaN is unknown.

    ``gradual`` has the prediction, each expert's difference and logs of the work, ``detail`` the
    other features (rows, inputs).
    """

    gradual: np.ndarray
    detail: np.ndarray

    @classmethod
    def from_prediction(
        cls, columns: Sequence[str], X: np.ndarray, predicted: TargetPrediction
    ) -> Self:
        """Build from features ``X``, called ``columns``, and the uncorrected prediction."""
        derived = [i for i, name in enumerate(columns) if not name.startswith(SETTING_PREFIXES)]
        work = [i for i in derived if columns[i] in WORK_FEATURES]
        details = [i for i in derived if columns[i] not in WORK_FEATURES]
        gradual = np.column_stack([predicted.log_value, predicted.expert_differences, X[:, work]])
        return cls(gradual.astype(np.float64), X[:, details].astype(np.float64))

    def __getitem__(self, rows: np.ndarray) -> "CorrectionFeatures":
        return CorrectionFeatures(self.gradual[rows], self.detail[rows])


@dataclass(frozen=True)
class Similarity:
    """Maps rows to points such that similar rows are close.

    ``numbers`` are the varying numeric settings, and whether they are on a log2 scale; ``texts``
    the text settings and their values, one indicator each.
    """

    numbers: dict[str, bool]
    texts: dict[str, list[str]]
    scaling: Scaling

    @classmethod
    def from_rows(cls, rows: pd.DataFrame, features: CorrectionFeatures) -> Self:
        """Return the similarity of the varying settings, each scaled to deviation 1."""
        numbers: dict[str, bool] = {}
        texts: dict[str, list[str]] = {}
        for column in [*columns_of(rows, "problem"), *columns_of(rows, "config")]:
            values = as_array(rows[column])
            if values.dtype.kind == "U":
                distinct_texts = sorted(set(values.tolist()))
                if len(distinct_texts) > 1:
                    texts[column] = distinct_texts
            else:
                distinct_numbers = np.unique(values[~np.isnan(values)])
                if len(distinct_numbers) > 1:
                    all_positive = bool(distinct_numbers[0] > 0)
                    numbers[column] = all_positive
        inputs = _inputs(numbers, texts, Rows(rows), features)
        return cls(numbers, texts, Scaling.fit(inputs))

    def points(self, rows: Rows, features: CorrectionFeatures) -> tuple[np.ndarray, int]:
        """Return the points of rows, and the number of leading inputs in which times are gradual.

        Raises PredictorError if ``rows`` lack a setting.
        """
        inputs = _inputs(self.numbers, self.texts, rows, features)
        n_details = features.detail.shape[1]
        return self.scaling.points(inputs, gradual_count=inputs.shape[1] - n_details)


@dataclass(frozen=True)
class Correction:
    """Learns log(measured / predicted) from runs, to be added to predictions of similar rows.

    ``trees`` are fitted to the same errors as the process; None if their share of the correction,
    ``tree_share``, is 0. ``interval_factor`` times the process' deviation is a 90 % interval.
    """

    similarity: Similarity
    posterior: Posterior
    trees: BoostingModel | None
    tree_share: float
    interval_factor: float

    @classmethod
    def fit(
        cls, runs: pd.DataFrame, features: CorrectionFeatures, errors: np.ndarray, seed: int = 0
    ) -> Self:
        """Fit to the ``errors`` of at most `MAX_ROWS` of the ``runs``."""
        sampled = np.random.default_rng(seed).permutation(len(runs))[:MAX_ROWS]
        runs = runs.iloc[sampled]
        features = features[sampled]
        y = errors[sampled]

        # 1. The process.
        similarity = Similarity.from_rows(runs, features)
        X, gradual_count = similarity.points(Rows(runs), features)
        process = fit_process(X[:MAX_TUNING_ROWS], y[:MAX_TUNING_ROWS], gradual_count)
        posterior = Posterior(process, X, y, observation_noise=True)
        residuals = _left_out_errors(posterior, gradual_count)

        # 2. The trees, if they make the errors of left-out runs smaller.
        trees = None
        tree_share = 0.0
        if len(y) >= MIN_TREE_ROWS:
            tree_share, residuals = _best_share(residuals, _left_out_tree_errors(X, y))
        if tree_share:
            trees = BoostingModel(**TREE_PARAMETERS).fit(X.astype(np.float32), y)

        # 3. The interval covers the errors of left-out runs.
        sizes = np.maximum(np.abs(residuals), MIN_ERROR)
        _, deviations = posterior.leave_one_out()
        interval_factor = conformal_quantile(sizes / deviations)
        return cls(similarity, posterior, trees, tree_share, interval_factor)

    def predict(
        self, rows: pd.DataFrame | Rows, features: CorrectionFeatures
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the correction of the log prediction, and the half-width of the interval."""
        points, _ = self.similarity.points(Rows.from_table(rows), features)
        mean, deviation = self.posterior.predict(points)
        if self.trees is not None:
            mean += self.tree_share * (self.trees.predict(points.astype(np.float32)) - mean)
        return mean, self.interval_factor * deviation

    @property
    def median_half_width(self) -> float:
        """Median leave-one-out half-width of the interval over the runs."""
        _, deviations = self.posterior.leave_one_out()
        return float(self.interval_factor * np.median(deviations))

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``."""
        card = {
            "numbers": self.similarity.numbers,
            "texts": self.similarity.texts,
            "share": self.tree_share,
            "widening": self.interval_factor,
        }
        (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")
        if self.trees is not None:
            self.trees.save(folder / f"{name}{BoostingModel.suffix}")
        arrays = process_arrays(self.similarity.scaling, self.posterior)
        np.savez_compressed(folder / f"{name}.npz", **arrays)

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Read from ``folder``."""
        card = read_json(folder / f"{name}.json")
        scaling, posterior = process_from_arrays(read_arrays(folder / f"{name}.npz"))
        similarity = Similarity(card["numbers"], card["texts"], scaling)
        trees = None
        if card["share"]:
            trees = BoostingModel.load(folder / f"{name}{BoostingModel.suffix}")
        return cls(similarity, posterior, trees, card["share"], card["widening"])


def _inputs(
    numbers: dict[str, bool], texts: dict[str, list[str]], rows: Rows, features: CorrectionFeatures
) -> np.ndarray:
    """Return the inputs of the process: settings, then features; the details come last."""
    absent = [column for column in (*numbers, *texts) if column not in rows]
    if absent:
        raise PredictorError(f"the calibration needs column {absent[0]!r}, which the runs lack")
    columns = []
    for column, in_octaves in numbers.items():
        values = rows[column]
        columns.append(np.log2(np.maximum(values, 1e-30)) if in_octaves else values)
    for column, distinct in texts.items():
        columns += rows.text_masks(column, distinct)
    return np.column_stack([*columns, features.gradual, features.detail])


def _left_out_errors(posterior: Posterior, gradual_count: int) -> np.ndarray:
    """Return the process' leave-one-out error on each run.

    Hyperparameters that were fitted to a run make its error too small. So each half of the runs is
    predicted with the hyperparameters of the other half.
    """
    X = posterior.X
    y = posterior.y
    is_even = np.arange(len(y)) % 2 == 0
    errors = np.empty(len(y))
    for is_tuning in (is_even, ~is_even):
        tuning_rows = np.flatnonzero(is_tuning)[:MAX_TUNING_ROWS]
        process = fit_process(X[tuning_rows], y[tuning_rows], gradual_count)
        left_out_errors, _ = Posterior(process, X, y).leave_one_out()
        errors[~is_tuning] = left_out_errors[~is_tuning]
    return errors


def _left_out_tree_errors(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the error of trees on each run, fitted to the other folds."""
    X = X.astype(np.float32)
    fold = np.arange(len(y)) % FOLDS
    errors = np.empty(len(y))
    for number in range(FOLDS):
        is_out = fold == number
        trees = BoostingModel(**TREE_PARAMETERS).fit(X[~is_out], y[~is_out])
        errors[is_out] = y[is_out] - trees.predict(X[is_out])
    return errors


def _best_share(errors: np.ndarray, tree_errors: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the share of the trees, and each run's error with it.

    The share is 0 unless it gains more than one standard error, because the best of several shares
    is biased with few runs.
    """
    mixed = {share: errors + share * (tree_errors - errors) for share in TREE_SHARES}
    best = min(TREE_SHARES, key=lambda share: np.abs(mixed[share]).mean())
    gain = np.abs(errors) - np.abs(mixed[best])
    standard_error = gain.std(ddof=1) / len(gain) ** 0.5
    if gain.mean() > standard_error:
        return best, mixed[best]
    return 0.0, errors
