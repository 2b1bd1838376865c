"""Few-shot correction on a new device."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.datasets import newest_runs, read_runs, write_runs
from foretune.datasets.schema import columns_of
from foretune.errors import PredictorError
from foretune.features.arrays import Rows, as_array
from foretune.files import read_arrays, read_json
from foretune.models.gaussian_process import (
    Posterior,
    Scaling,
    fit_process,
    posterior_arrays,
    posterior_from_arrays,
)
from foretune.models.interval import MIN_ERROR, conformal_quantile
from foretune.models.targets import MIN_ROWS, Target, present_targets, training_rows, usable_rows
from foretune.models.training_range import TrainingRange
from foretune.models.trees.boosting import BoostingModel

SETTING_PREFIXES = ("problem.", "config.", "device.")
"""Features that are read from the rows themselves, or that are the same in all."""
WORK_FEATURES = ("log2_flops", "log2_bytes", "log2_intensity", "log2_roofline_ms")
"""Features that are known of every row whose cost is known: how much work it is, of which kind."""


@dataclass(frozen=True)
class CorrectionFeatures:
    """What a predictor has found out about rows, apart from their settings.

    Attributes:
        gradual: what was predicted, by whom, and the logarithms of the work (rows, inputs).
        detail: the other features (rows, inputs). NaN is unknown in both.
    """

    gradual: np.ndarray
    detail: np.ndarray

    @classmethod
    def from_prediction(
        cls, columns: Sequence[str], X: np.ndarray, log_value: np.ndarray, differences: np.ndarray
    ) -> Self:
        """Return it.

        Args:
            columns: names of the features.
            X: the features.
            log_value: the log of what is predicted.
            differences: how far each expert is from that, a column each; NaN where one cannot tell.
        """
        derived = [i for i, name in enumerate(columns) if not name.startswith(SETTING_PREFIXES)]
        work = [i for i in derived if columns[i] in WORK_FEATURES]
        rest = [i for i in derived if columns[i] not in WORK_FEATURES]
        gradual = np.column_stack([log_value, differences, X[:, work]])
        return cls(gradual.astype(np.float64), X[:, rest].astype(np.float64))

    def __getitem__(self, rows: np.ndarray) -> "CorrectionFeatures":
        return CorrectionFeatures(self.gradual[rows], self.detail[rows])


@dataclass(frozen=True)
class Similarity:
    """Gives rows points such that those are near each other that are alike.

    Attributes:
        numbers: numeric settings that vary -> whether they count in octaves.
        texts: settings of text -> the values it has an indicator for.
        scaling: of the inputs.
    """

    numbers: dict[str, bool]
    texts: dict[str, list[str]]
    scaling: Scaling

    @classmethod
    def from_rows(cls, rows: pd.DataFrame, features: CorrectionFeatures) -> Self:
        """Return it, of what varies among ``rows``; each input gets a deviation of one."""
        numbers, texts = {}, {}
        for column in [*columns_of(rows, "problem"), *columns_of(rows, "config")]:
            values = as_array(rows[column])
            if values.dtype.kind == "U":
                distinct = sorted(set(values.tolist()))
                if len(distinct) > 1:
                    texts[column] = distinct
            elif np.nanmin(values) != np.nanmax(values):
                numbers[column] = bool(np.nanmin(values) > 0)
        return cls(numbers, texts, Scaling.fit(_inputs(numbers, texts, Rows(rows), features)))

    def points(self, rows: Rows, features: CorrectionFeatures) -> tuple[np.ndarray, int]:
        """Return the points of rows, and in how many inputs, the first ones, times are gradual.

        Raises:
            PredictorError: ``rows`` lack a setting.
        """
        inputs = _inputs(self.numbers, self.texts, rows, features)
        return self.scaling.points(inputs, inputs.shape[1] - features.detail.shape[1])


def _inputs(
    numbers: dict[str, bool], texts: dict[str, list[str]], rows: Rows, features: CorrectionFeatures
) -> np.ndarray:
    if absent := [c for c in (*numbers, *texts) if c not in rows]:
        raise PredictorError(f"the runs lack column {absent[0]!r}, calibrated with")
    columns = []
    for column, octaves in numbers.items():
        values = rows[column]
        columns.append(np.log2(np.maximum(values, 1e-30)) if octaves else values)
    for column, distinct in texts.items():
        values = rows[column]
        columns += [1.0 * (values == text) for text in distinct]
    return np.column_stack([*columns, features.gradual, features.detail])


MAX_CANDIDATES = 6000
"""So many, drawn at random, show where rows lie; the clusters of all cost much more."""


def representative_points(points: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Return the numbers, ascending, of ``count`` of ``points`` (rows, inputs) that stand for all.

    All of them where there are no more.
    """
    from sklearn.cluster import KMeans

    if len(points) <= count:
        return np.arange(len(points))
    distances = KMeans(count, n_init=1, random_state=seed).fit_transform(points)
    chosen = np.empty(count, dtype=np.int64)
    for cluster in range(count):
        chosen[cluster] = distances[:, cluster].argmin()
        distances[chosen[cluster]] = np.inf  # alike rows have one nearest centre: each once
    return np.sort(chosen)


def choose_rows(
    rows: pd.DataFrame,
    count: int,
    predict_uncorrected: Callable[[pd.DataFrame], tuple[Any, CorrectionFeatures]],
    seed: int,
) -> pd.DataFrame:
    """Return ``count`` of the rows per device that stand for all there, one device after the other.

    Args:
        rows: to choose from.
        count: how many per device; where there are no more, all.
        predict_uncorrected: the log of what is predicted of rows, and what is known of them.
        seed: of which of many rows are looked at.
    """
    chosen = []
    for _, device_rows in rows.groupby("device", observed=True, sort=True):
        sampled = np.random.default_rng(seed).permutation(len(device_rows))[
            : max(MAX_CANDIDATES, count)
        ]
        device_rows = device_rows.iloc[sampled]
        _, features = predict_uncorrected(device_rows)
        points, _ = Similarity.from_rows(device_rows, features).points(Rows(device_rows), features)
        chosen.append(device_rows.iloc[representative_points(points, count, seed)].sort_index())
    return pd.concat(chosen, ignore_index=True)


MAX_ROWS = 1500
"""A Gaussian process costs the cube of its rows."""
MAX_TUNING_ROWS = 512
"""Scales are found on so many: more find the same, and the cost of finding them is a cube too."""
MIN_TREE_ROWS, FOLDS = 64, 5
TREE_SHARES = (0.25, 0.5, 0.75)
"""Of the trees: the process always has its say, for the interval is its own."""
TREE_PARAMETERS: dict[str, Any] = {
    "rounds": 125, "depth": 5, "rate": 0.1, "rows": 0.7, "columns": 0.6, "min_child_weight": 3.0,
    "objective": "reg:absoluteerror",
}  # fmt: skip


class Correction:
    """Learns log(measured / predicted) from runs, to be added to predictions of their like.

    Attributes:
        similarity: which rows are alike.
        posterior: what the Gaussian process says.
        trees: learned from the same; None where they have no share.
        tree_share: of the trees in the correction.
        interval_factor: what its deviation is multiplied with for a 90 % interval.
    """

    similarity: Similarity
    posterior: Posterior
    trees: BoostingModel | None
    tree_share: float
    interval_factor: float

    def fit(
        self, runs: pd.DataFrame, features: CorrectionFeatures, errors: np.ndarray, seed: int = 0
    ) -> Self:
        """Learn from ``errors`` of ``runs``, of which `MOST_ROWS` are used."""
        sampled = np.random.default_rng(seed).permutation(len(runs))[:MAX_ROWS]
        runs, features, y = runs.iloc[sampled], features[sampled], errors[sampled]
        self.similarity = Similarity.from_rows(runs, features)
        X, gradual_count = self.similarity.points(Rows(runs), features)
        process = fit_process(X[:MAX_TUNING_ROWS], y[:MAX_TUNING_ROWS], gradual_count)
        self.posterior = Posterior(process, X, y, observation_noise=True)
        residuals, self.trees, self.tree_share = (
            _left_out_errors(self.posterior, gradual_count),
            None,
            0.0,
        )
        if len(y) >= MIN_TREE_ROWS:
            self.tree_share, residuals = _best_share(residuals, _left_out_tree_errors(X, y))
        if self.tree_share:
            self.trees = BoostingModel(**TREE_PARAMETERS).fit(X.astype(np.float32), y)
        sizes = np.maximum(np.abs(residuals), MIN_ERROR)
        self.interval_factor = conformal_quantile(sizes / self.posterior.leave_one_out()[1])
        return self

    def predict(
        self, rows: pd.DataFrame | Rows, features: CorrectionFeatures
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the correction of the log prediction and the half-width of the interval."""
        points = self.similarity.points(Rows.from_table(rows), features)[0]
        mean, deviation = self.posterior.predict(points)
        if self.trees is not None:
            mean += self.tree_share * (self.trees.predict(points.astype(np.float32)) - mean)
        return mean, self.interval_factor * deviation

    @property
    def median_half_width(self) -> float:
        """The half-width of the interval of a typical run it was learned from, left out."""
        return float(self.interval_factor * np.median(self.posterior.leave_one_out()[1]))

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``: plain numbers and texts."""
        similarity, arrays = self.similarity, posterior_arrays(self.posterior)
        scalars = {"share": self.tree_share, "widening": self.interval_factor}
        card = {"numbers": similarity.numbers, "texts": similarity.texts, **scalars}
        if self.trees is not None:
            self.trees.save(folder / f"{name}{BoostingModel.suffix}")
        (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")
        np.savez_compressed(folder / f"{name}.npz", **similarity.scaling.arrays(), **arrays)

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Read what `save` wrote."""
        correction = cls()
        card, data = read_json(folder / f"{name}.json"), read_arrays(folder / f"{name}.npz")
        correction.tree_share, correction.interval_factor = card["share"], card["widening"]
        file = folder / f"{name}{BoostingModel.suffix}"
        correction.trees = BoostingModel.load(file) if correction.tree_share else None
        correction.similarity = Similarity(
            card["numbers"], card["texts"], Scaling.from_arrays(data)
        )
        correction.posterior = posterior_from_arrays(data)
        return correction


def _left_out_errors(posterior: Posterior, gradual_count: int) -> np.ndarray:
    """Return by how much the process misses each run, left out.

    Scales that were found with a run in sight make it seem better known than it was: with those of
    one half of the runs the other half is predicted.
    """
    X, y = posterior.X, posterior.y
    half = np.arange(len(y)) % 2 == 0
    errors = np.empty(len(y))
    for known in (half, ~half):
        process = fit_process(X[known][:MAX_TUNING_ROWS], y[known][:MAX_TUNING_ROWS], gradual_count)
        errors[~known] = Posterior(process, X, y).leave_one_out()[0][~known]
    return errors


def _left_out_tree_errors(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return by how much trees miss each run that others taught."""
    X, fold, errors = X.astype(np.float32), np.arange(len(y)) % FOLDS, np.empty(len(y))
    for number in range(FOLDS):
        out = fold == number
        errors[out] = y[out] - BoostingModel(**TREE_PARAMETERS).fit(X[~out], y[~out]).predict(
            X[out]
        )
    return errors


def _best_share(errors: np.ndarray, tree_errors: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the trees' share, and by how much runs are missed with it.

    It is none unless they gain more than a standard error: few runs favor one of several by chance.
    """
    mixed = {share: errors + share * (tree_errors - errors) for share in TREE_SHARES}
    best = min(TREE_SHARES, key=lambda share: np.abs(mixed[share]).mean())
    gain = np.abs(errors) - np.abs(mixed[best])
    if gain.mean() > gain.std(ddof=1) / len(gain) ** 0.5:
        return best, mixed[best]
    return 0.0, errors


CARD, RUNS_FILE = "calibration.json", "calibration.parquet"
MAX_ERROR_FACTOR = 100.0
"""No descriptor leads so far astray: measurements off by this factor are in other units."""

PredictUncorrected = Callable[[Target, pd.DataFrame], tuple[np.ndarray, CorrectionFeatures]]
"""Returns the log of what is predicted of rows without corrections, and what is known of them."""


@dataclass(frozen=True)
class Calibration:
    """What is known of devices that a predictor was calibrated for; at first of none.

    Attributes:
        runs: all that it was learned from.
        corrections: (target, device) -> what to add to predictions there.
        ranges: device -> the training range, widened by its runs.
    """

    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    corrections: Mapping[tuple[Target, str], Correction] = field(default_factory=dict)
    ranges: Mapping[str, TrainingRange] = field(default_factory=dict)

    @property
    def devices(self) -> list[str]:
        """The devices it is for."""
        return sorted(self.ranges)

    def with_runs(
        self,
        runs: pd.DataFrame,
        training_runs: pd.DataFrame,
        targets: Sequence[Target],
        predict_uncorrected: PredictUncorrected,
        seed: int,
    ) -> Self:
        """Return what is known with more runs, beside those that it was learned from.

        Args:
            runs: of one or several devices, valid.
            training_runs: what the predictor was trained on.
            targets: of the predictor, the first one first.
            predict_uncorrected: what it says of rows.
            seed: which rows are used where they are many.

        Raises:
            PredictorError: a device has fewer than five runs, or they are far off.
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
                corrections[target, device] = _fit_correction(
                    target, rows, predict_uncorrected, seed
                )
            known = pd.concat([training_runs, device_runs], ignore_index=True)
            ranges[device] = TrainingRange.from_runs(training_rows(targets[0], known))
        return type(self)(all_runs, corrections, ranges)

    def octaves_outside(
        self, rows: Rows, training_range: TrainingRange, reach: Mapping[str, float] | None = None
    ) -> np.ndarray:
        """Return `TrainingRange.octaves_outside` of what each row's device was calibrated with.

        Args:
            rows: in question.
            training_range: the training range, for all other devices.
            reach: column -> how far outside does not count.
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
        """Correct ``log_value`` and ``width`` in place where a device was calibrated."""
        for device, indices, device_rows in self._calibrated_devices(rows):
            if (correction := self.corrections.get((target, device))) is not None:
                shift, width[indices] = correction.predict(device_rows, features[indices])
                log_value[indices] += shift

    def _calibrated_devices(self, rows: Rows) -> Iterator[tuple[str, np.ndarray, Rows]]:
        """Yield every calibrated device among ``rows``, the numbers of its rows, and them."""
        if not self.ranges:
            return
        names, codes = rows.distinct("device")
        for device in self.ranges:
            indices = np.flatnonzero((names == device)[codes])
            if len(indices):
                is_everything = len(indices) == len(rows)
                yield device, indices, rows if is_everything else Rows(rows.frame.iloc[indices])

    def save(self, folder: Path) -> None:
        """Write to ``folder``; nothing if there is nothing."""
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
        """Read what `save` wrote."""
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
            f"half of the {len(rows)} runs are over {factor:,.0f} times off what is predicted: "
            f"is their {target} in the right unit, and is this the device?"
        )
    return Correction().fit(rows, features, errors, seed)
