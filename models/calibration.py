"""Few-shot correction of a predictor on a new device."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.datasets.runs import newest_runs, read_runs, write_runs
from foretune.datasets.schema import columns_of
from foretune.errors import PredictorError
from foretune.features.arrays import Rows, as_array
from foretune.models import gaussian_process as gp
from foretune.models.conformal import conformal_quantile
from foretune.models.error_model import MIN_ERROR
from foretune.models.targets import MIN_ROWS, Target, present_targets, training_rows, usable_rows
from foretune.models.training_range import TrainingRange
from foretune.models.trees.boosting import BoostingModel
from foretune.support.files import read_arrays, read_json

SETTING_PREFIXES = ("problem.", "config.", "device.")
"""Prefixes of features read directly from the rows."""
WORK_FEATURES = ("log2_flops", "log2_bytes", "log2_intensity", "log2_roofline_ms")
"""Features of the amount and kind of work, present if the cost is known."""


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
        cls, columns: Sequence[str], X: np.ndarray, log_value: np.ndarray, differences: np.ndarray
    ) -> Self:
        """Build from features, the predicted log, and the experts' differences from it."""
        derived = [i for i, name in enumerate(columns) if not name.startswith(SETTING_PREFIXES)]
        work = [i for i in derived if columns[i] in WORK_FEATURES]
        rest = [i for i in derived if columns[i] not in WORK_FEATURES]
        gradual = np.column_stack([log_value, differences, X[:, work]])
        return cls(gradual.astype(np.float64), X[:, rest].astype(np.float64))

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
    scaling: gp.Scaling

    @classmethod
    def from_rows(cls, rows: pd.DataFrame, features: CorrectionFeatures) -> Self:
        """Return the similarity of the varying settings, each scaled to deviation 1."""
        numbers, texts = {}, {}
        for column in [*columns_of(rows, "problem"), *columns_of(rows, "config")]:
            values = as_array(rows[column])
            if values.dtype.kind == "U":
                distinct = sorted(set(values.tolist()))
                if len(distinct) > 1:
                    texts[column] = distinct
            elif len(known := np.unique(values[~np.isnan(values)])) > 1:
                numbers[column] = bool(known[0] > 0)
        return cls(numbers, texts, gp.Scaling.fit(_inputs(numbers, texts, Rows(rows), features)))

    def points(self, rows: Rows, features: CorrectionFeatures) -> tuple[np.ndarray, int]:
        """Return the points of rows, and the number of leading inputs in which times are gradual.

        Raises PredictorError if ``rows`` lack a setting.
        """
        inputs = _inputs(self.numbers, self.texts, rows, features)
        return self.scaling.points(inputs, inputs.shape[1] - features.detail.shape[1])


def _inputs(
    numbers: dict[str, bool], texts: dict[str, list[str]], rows: Rows, features: CorrectionFeatures
) -> np.ndarray:
    if absent := [c for c in (*numbers, *texts) if c not in rows]:
        raise PredictorError(f"the calibration needs column {absent[0]!r}, which the runs lack")
    columns = []
    for column, octaves in numbers.items():
        values = rows[column]
        columns.append(np.log2(np.maximum(values, 1e-30)) if octaves else values)
    for column, distinct in texts.items():
        columns += rows.text_masks(column, distinct)
    return np.column_stack([*columns, features.gradual, features.detail])


MAX_CANDIDATES = 6000  # rows sampled for clustering, which is much slower on all


def representative_points(points: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Return the sorted indices of ``count`` representative points (rows, inputs), or of all."""
    from sklearn.cluster import KMeans

    if len(points) <= count:
        return np.arange(len(points))
    distances = KMeans(count, n_init=1, random_state=seed).fit_transform(points)
    chosen = np.empty(count, dtype=np.int64)
    for cluster in range(count):
        chosen[cluster] = distances[:, cluster].argmin()
        distances[chosen[cluster]] = np.inf  # no row is chosen twice
    return np.sort(chosen)


def choose_rows(
    rows: pd.DataFrame,
    count: int,
    predict_uncorrected: Callable[[pd.DataFrame], tuple[Any, CorrectionFeatures]],
    seed: int,
) -> pd.DataFrame:
    """Return ``count`` representative rows per device, grouped by device."""
    chosen = []
    for _, device_rows in rows.groupby("device", observed=True, sort=True):
        order = np.random.default_rng(seed).permutation(len(device_rows))
        device_rows = device_rows.iloc[order[: max(MAX_CANDIDATES, count)]]
        _, features = predict_uncorrected(device_rows)
        points, _ = Similarity.from_rows(device_rows, features).points(Rows(device_rows), features)
        chosen.append(device_rows.iloc[representative_points(points, count, seed)].sort_index())
    return pd.concat(chosen, ignore_index=True)


MAX_ROWS = 1500  # maximum rows of a Gaussian process, which has cubic cost
MAX_TUNING_ROWS = 512  # rows used to fit hyperparameters; more rows find the same
MIN_TREE_ROWS, FOLDS = 64, 5
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


@dataclass(frozen=True)
class Correction:
    """Learns log(measured / predicted) from runs, to be added to predictions of similar rows.

    ``trees`` are fitted to the same errors as the process; None if their share of the correction,
    ``tree_share``, is 0. ``interval_factor`` times the process' deviation is a 90 % interval.
    """

    similarity: Similarity
    posterior: gp.Posterior
    trees: BoostingModel | None
    tree_share: float
    interval_factor: float

    @classmethod
    def fit(
        cls, runs: pd.DataFrame, features: CorrectionFeatures, errors: np.ndarray, seed: int = 0
    ) -> Self:
        """Fit to the ``errors`` of at most `MAX_ROWS` of the ``runs``."""
        sampled = np.random.default_rng(seed).permutation(len(runs))[:MAX_ROWS]
        runs, features, y = runs.iloc[sampled], features[sampled], errors[sampled]
        similarity = Similarity.from_rows(runs, features)
        X, gradual_count = similarity.points(Rows(runs), features)
        process = gp.fit_process(X[:MAX_TUNING_ROWS], y[:MAX_TUNING_ROWS], gradual_count)
        posterior = gp.Posterior(process, X, y, observation_noise=True)
        residuals, trees, share = _left_out_errors(posterior, gradual_count), None, 0.0
        if len(y) >= MIN_TREE_ROWS:
            share, residuals = _best_share(residuals, _left_out_tree_errors(X, y))
        if share:
            trees = BoostingModel(**TREE_PARAMETERS).fit(X.astype(np.float32), y)
        sizes = np.maximum(np.abs(residuals), MIN_ERROR)
        factor = conformal_quantile(sizes / posterior.leave_one_out()[1])
        return cls(similarity, posterior, trees, share, factor)

    def predict(
        self, rows: pd.DataFrame | Rows, features: CorrectionFeatures
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the correction of the log prediction, and the half-width of the interval."""
        points = self.similarity.points(Rows.from_table(rows), features)[0]
        mean, deviation = self.posterior.predict(points)
        if self.trees is not None:
            mean += self.tree_share * (self.trees.predict(points.astype(np.float32)) - mean)
        return mean, self.interval_factor * deviation

    @property
    def median_half_width(self) -> float:
        """Median leave-one-out half-width of the interval over the runs."""
        return float(self.interval_factor * np.median(self.posterior.leave_one_out()[1]))

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``."""
        similarity = self.similarity
        scalars = {"share": self.tree_share, "widening": self.interval_factor}
        card = {"numbers": similarity.numbers, "texts": similarity.texts, **scalars}
        if self.trees is not None:
            self.trees.save(folder / f"{name}{BoostingModel.suffix}")
        (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")
        arrays = gp.process_arrays(similarity.scaling, self.posterior)
        np.savez_compressed(folder / f"{name}.npz", **arrays)

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Read from ``folder``."""
        card, data = read_json(folder / f"{name}.json"), read_arrays(folder / f"{name}.npz")
        trees = None
        if share := card["share"]:
            trees = BoostingModel.load(folder / f"{name}{BoostingModel.suffix}")
        scaling, posterior = gp.process_from_arrays(data)
        similarity = Similarity(card["numbers"], card["texts"], scaling)
        return cls(similarity, posterior, trees, share, card["widening"])


def _left_out_errors(posterior: gp.Posterior, gradual_count: int) -> np.ndarray:
    """Return the process' leave-one-out error on each run.

    Hyperparameters that were fitted to a run make its error too small. So each half of the runs is
    predicted with the hyperparameters of the other half.
    """
    X, y = posterior.X, posterior.y
    half = np.arange(len(y)) % 2 == 0
    errors = np.empty(len(y))
    for known in (half, ~half):
        some = np.flatnonzero(known)[:MAX_TUNING_ROWS]
        process = gp.fit_process(X[some], y[some], gradual_count)
        errors[~known] = gp.Posterior(process, X, y).leave_one_out()[0][~known]
    return errors


def _left_out_tree_errors(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    X, fold, errors = X.astype(np.float32), np.arange(len(y)) % FOLDS, np.empty(len(y))
    for number in range(FOLDS):
        out = fold == number
        trees = BoostingModel(**TREE_PARAMETERS).fit(X[~out], y[~out])
        errors[out] = y[out] - trees.predict(X[out])
    return errors


def _best_share(errors: np.ndarray, tree_errors: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the share of the trees, and each run's error with it.

    The share is 0 unless it gains more than one standard error, because the best of several shares
    is biased with few runs.
    """
    mixed = {share: errors + share * (tree_errors - errors) for share in TREE_SHARES}
    best = min(TREE_SHARES, key=lambda share: np.abs(mixed[share]).mean())
    gain = np.abs(errors) - np.abs(mixed[best])
    if gain.mean() > gain.std(ddof=1) / len(gain) ** 0.5:
        return best, mixed[best]
    return 0.0, errors


CARD, RUNS_FILE = "calibration.json", "calibration.parquet"
MAX_ERROR_FACTOR = 100.0
"""Larger errors mean a wrong unit; a wrong device descriptor causes smaller ones."""

PredictUncorrected = Callable[[Target, pd.DataFrame], tuple[np.ndarray, CorrectionFeatures]]
"""Returns the log of the uncorrected prediction of rows, and their correction features."""


@dataclass(frozen=True)
class Calibration:
    """Corrections for the devices that a predictor was calibrated for; empty initially.

    ``corrections`` are by target and device, ``ranges`` by device: the training range, extended by
    its ``runs``.
    """

    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    corrections: Mapping[tuple[Target, str], Correction] = field(default_factory=dict)
    ranges: Mapping[str, TrainingRange] = field(default_factory=dict)

    @property
    def devices(self) -> list[str]:
        """The calibrated devices."""
        return sorted(self.ranges)

    def with_runs(
        self,
        runs: pd.DataFrame,
        training_runs: pd.DataFrame,
        targets: Sequence[Target],
        predict_uncorrected: PredictUncorrected,
        seed: int,
    ) -> Self:
        """Return the calibration with more runs, added to the earlier ones.

        ``runs`` are of one or more devices; the first of the predictor's ``targets`` determines the
        ranges; ``seed`` is for sampling from many rows. Raises PredictorError if a device has fewer
        than five runs, or its errors are implausibly large.
        """
        all_runs = pd.concat([self.runs, runs], ignore_index=True)
        newest = newest_runs(all_runs)
        corrections, ranges = dict(self.corrections), dict(self.ranges)
        for device in sorted(runs["device"].astype(str).unique()):
            device_runs = newest[newest["device"] == device].reset_index(drop=True)
            present = [t for t in targets if t in present_targets(device_runs)]
            if not present:
                raise PredictorError(
                    f"{device} has fewer than {MIN_ROWS} successful runs to calibrate with"
                )
            for target in present:
                rows = usable_rows(target, device_runs)
                found = _fit_correction(target, rows, predict_uncorrected, seed)
                corrections[target, device] = found
            known = pd.concat([training_runs, device_runs], ignore_index=True)
            ranges[device] = TrainingRange.from_runs(training_rows(targets[0], known))
        return type(self)(all_runs, corrections, ranges)

    def octaves_outside(
        self, rows: Rows, training_range: TrainingRange, reach: Mapping[str, float] | None = None
    ) -> np.ndarray:
        """Return `TrainingRange.octaves_outside`, using the range of each row's device.

        ``training_range`` is for devices that were not calibrated.
        """
        outside = training_range.octaves_outside(rows, reach)
        for device, indices, device_rows in self._calibrated_devices(rows):
            outside[indices] = self.ranges[device].octaves_outside(device_rows, reach)
        return outside

    def correct(
        self,
        target: Target,
        rows: Rows,
        features: CorrectionFeatures,
        log_value: np.ndarray,
        width: np.ndarray,
    ) -> None:
        """Correct ``log_value`` and ``width`` in place for calibrated devices."""
        for device, indices, device_rows in self._calibrated_devices(rows):
            if (correction := self.corrections.get((target, device))) is not None:
                shift, width[indices] = correction.predict(device_rows, features[indices])
                log_value[indices] += shift

    def _calibrated_devices(self, rows: Rows) -> Iterator[tuple[str, np.ndarray, Rows]]:
        """Yield each calibrated device among ``rows``, the indices of its rows, and the rows."""
        if not self.ranges:
            return
        names, codes = rows.distinct("device")
        for device in self.ranges:
            indices = np.flatnonzero((names == device)[codes])
            if len(indices):
                is_everything = len(indices) == len(rows)
                yield device, indices, rows if is_everything else Rows(rows.frame.iloc[indices])

    def save(self, folder: Path) -> None:
        """Write to ``folder``; nothing if empty."""
        if not self.ranges:
            return
        for i, correction in enumerate(self.corrections.values()):
            correction.save(folder, f"correction{i}")
        ranges = {device: known.to_json() for device, known in self.ranges.items()}
        card = {"corrections": list(self.corrections), "ranges": ranges}
        (folder / CARD).write_text(json.dumps(card), encoding="utf-8")
        write_runs(folder / RUNS_FILE, self.runs)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read from ``folder``."""
        if not (folder / CARD).exists():
            return cls()
        card = read_json(folder / CARD)
        corrections = {
            (target, device): Correction.load(folder, f"correction{i}")
            for i, (target, device) in enumerate(card["corrections"])
        }
        ranges = {device: TrainingRange.from_json(data) for device, data in card["ranges"].items()}
        return cls(read_runs(folder / RUNS_FILE), corrections, ranges)


def _fit_correction(
    target: Target, rows: pd.DataFrame, predict_uncorrected: PredictUncorrected, seed: int
) -> Correction:
    uncorrected, features = predict_uncorrected(target, rows)
    errors = np.log(rows[target].to_numpy(dtype=float)) - uncorrected
    if (factor := float(np.exp(abs(np.median(errors))))) > MAX_ERROR_FACTOR:
        raise PredictorError(
            f"half of the {len(rows)} runs differ from the prediction by a factor of over "
            f"{factor:,.0f}: check the unit of {target} and the device's name"
        )
    return Correction.fit(rows, features, errors, seed)
