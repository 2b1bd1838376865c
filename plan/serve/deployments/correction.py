"""Corrects analytic latencies with measured deployments, and says how far off they may be.

A grouped Gaussian process predicts log(measured / formula). The width of its interval comes from
held-out models for unknown models, and from held-out configurations for known ones.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import pandas as pd

from foretune.errors import PredictorError
from foretune.plan.serve.deployments.group_process import (
    COMPONENTS,
    NOISE,
    OUTLIERS,
    GroupedGaussianProcess,
    Outliers,
    deployment_points,
)
from foretune.plan.serve.deployments.latency_formulas import formula_latencies
from foretune.plan.serve.deployments.probability import T_QUANTILE_95
from foretune.support.files import atomic_write, read_json, translate_read_errors

TARGETS = ("tpot_ms", "ttft_ms")
"""Latencies that are corrected, each by its own process."""
Metric = Literal["tokens_per_s", "tpot_ms", "ttft_ms"]
"""Metrics whose errors follow from those of `TARGETS`."""
COVERAGE = 0.9
"""Share of held-out measurements inside the intervals."""
INNER_FOLDS = 5
"""Folds that are held out to fit the widths of intervals."""
UNKNOWN_MODEL = 0
KNOWN_MODEL = 1
"""Positions in `LatencyPredictor.widths`."""


@dataclass
class LatencyPredictor:
    """Latencies of deployments: closed formulas, a learned correction, and intervals.

    Attributes:
        processes: target -> process of log(measured / formula).
        widths: target -> half width of the interval in standard deviations, of unknown and of
            known models.
        known_models: architectures that the processes have seen.
    """

    processes: dict[str, GroupedGaussianProcess] = field(default_factory=dict)
    widths: dict[str, list[float]] = field(default_factory=dict)
    known_models: frozenset[str] = frozenset()

    def fit(self, rows: pd.DataFrame, measured: pd.DataFrame, groups: np.ndarray) -> Self:
        """Fit to measured deployments; ``rows`` are from `analytic_times`.

        ``measured`` has ``tpot_ms`` and ``ttft_ms``. ``groups`` labels each row's configuration,
        whose loads are held out together.
        """
        rows = rows.reset_index(drop=True)
        measured = measured.reset_index(drop=True)
        self.fit_processes(rows, measured)

        # How far off are predictions for unknown models? Hold out whole models.
        model_fold = _folds(rows["model"].to_numpy(dtype=str))
        if model_fold.max() > 0:
            self._fit_widths(rows, measured, fold=model_fold, position=UNKNOWN_MODEL)

        # And for other configurations of known models? Hold out whole configurations.
        group_fold = _folds(np.asarray(groups))
        if group_fold.max() > 0:
            self._fit_widths(rows, measured, fold=group_fold, position=KNOWN_MODEL)
        return self

    def fit_processes(self, rows: pd.DataFrame, measured: pd.DataFrame) -> Self:
        """Fit the processes, with their own intervals."""
        self.known_models = frozenset(rows["model"])
        self.processes = fit_error_processes(
            rows,
            measured,
            predicted=formula_latencies(rows),
            targets=TARGETS,
            outliers=OUTLIERS,
        )
        self.widths = {target: [T_QUANTILE_95, T_QUANTILE_95] for target in TARGETS}
        return self

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``tpot_ms`` and ``ttft_ms``, each with ``_low`` and ``_high`` (90 %)."""
        mean, spread = self.predict_mean(rows)
        columns: dict[str, pd.Series] = {}
        for target in TARGETS:
            factor = np.exp(self._row_widths(rows, target) * spread[target])
            columns[target] = mean[target]
            columns[f"{target}_low"] = mean[target] / factor
            columns[f"{target}_high"] = mean[target] * factor
        return pd.DataFrame(columns, index=rows.index)

    def predict_mean(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the latencies, and the standard deviations of their logarithms."""
        mean = formula_latencies(rows)
        spread = pd.DataFrame(index=rows.index)
        points = deployment_points(rows)
        for target, process in self.processes.items():
            error, spread[target] = process.predict(points)
            mean[target] *= np.exp(error)
        return mean, spread

    def covariances(self, rows: pd.DataFrame) -> dict[str, np.ndarray]:
        """Return the covariance of the rows' log errors, per target (rows, rows).

        Layouts of one model on one system share most of their error. Square roots of the diagonal
        are scales of Student's t, with the 90 % interval of `predict`.
        """
        points = deployment_points(rows)
        covariances = {}
        for target, process in self.processes.items():
            widening = self._row_widths(rows, target) / T_QUANTILE_95
            covariances[target] = process.covariance(points) * np.outer(widening, widening)
        return covariances

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the correction as one JSON file."""
        content = {
            "known": sorted(self.known_models),
            "widths": self.widths,
            "processes": {target: process.to_json() for target, process in self.processes.items()},
        }
        text = json.dumps(content)
        with atomic_write(path, what="the correction ") as new:
            new.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file from `save`; raises PredictorError if it is not a correction."""
        damaged = "is not a latency correction, or is damaged ({}): train it again"
        with translate_read_errors(path, PredictorError, damaged):
            content = read_json(path)
            processes = {
                target: GroupedGaussianProcess.from_json(process)
                for target, process in content["processes"].items()
            }
            widths = {target: list(map(float, content["widths"][target])) for target in TARGETS}
            return cls(processes=processes, widths=widths, known_models=frozenset(content["known"]))

    def _fit_widths(
        self, rows: pd.DataFrame, measured: pd.DataFrame, fold: np.ndarray, position: int
    ) -> None:
        """Fit the intervals' widths at a position of `widths` to rows held out in folds."""
        # Predict each fold from the others.
        predicted = pd.DataFrame(0.0, index=rows.index, columns=list(TARGETS))
        spread = pd.DataFrame(0.0, index=rows.index, columns=list(TARGETS))
        for number in np.unique(fold):
            is_held_out = fold == number
            others = type(self)().fit_processes(rows[~is_held_out], measured[~is_held_out])
            predicted[is_held_out], spread[is_held_out] = others.predict_mean(rows[is_held_out])

        # Split conformal prediction: the quantile's level allows for the finite number of rows.
        level = min(COVERAGE * (1.0 + 1.0 / len(rows)), 1.0)
        for target in TARGETS:
            scores = np.abs(_log_ratio(measured[target], predicted[target])) / spread[target]
            self.widths[target][position] = float(np.quantile(scores, level))

    def _row_widths(self, rows: pd.DataFrame, target: str) -> np.ndarray:
        is_known = rows["model"].isin(self.known_models).to_numpy()
        position = np.where(is_known, KNOWN_MODEL, UNKNOWN_MODEL)
        return np.array(self.widths[target])[position]


def log_metric(
    correction: LatencyPredictor, rows: pd.DataFrame, metric: Metric
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log of a metric, more being better, and the covariance of its errors.

    The throughput's error combines those of TTFT and TPOT, weighted by their shares of a request
    and taken as independent.
    """
    mean, _ = correction.predict_mean(rows)
    further_tokens = np.maximum(rows["osl"].to_numpy(dtype=float) - 1.0, 0.0)
    request_parts_ms = {
        "ttft_ms": mean["ttft_ms"].to_numpy(),
        "tpot_ms": mean["tpot_ms"].to_numpy() * further_tokens,
    }
    request_ms = request_parts_ms["ttft_ms"] + request_parts_ms["tpot_ms"]

    # How much each latency's error counts in the metric's.
    if metric == "tokens_per_s":
        tokens_per_gpu = rows["concurrency"] * rows["osl"] / rows["gpus"]
        value = np.log(tokens_per_gpu.to_numpy(dtype=float) / request_ms)
        weights = {target: part_ms / request_ms for target, part_ms in request_parts_ms.items()}
    else:
        value = -np.log(mean[metric].to_numpy())
        weights = {
            target: np.full(len(rows), float(target == metric)) for target in request_parts_ms
        }

    errors = correction.covariances(rows)
    covariance = np.zeros((len(rows), len(rows)))
    for target, weight in weights.items():
        covariance = covariance + errors[target] * np.outer(weight, weight)
    return value, covariance


def fit_error_processes(
    rows: pd.DataFrame,
    measured: pd.DataFrame,
    predicted: pd.DataFrame,
    targets: Iterable[str],
    outliers: Mapping[str, Outliers],
) -> dict[str, GroupedGaussianProcess]:
    """Return the process of each target's log(measured / predicted).

    Targets that ``outliers`` leaves out have the usual ones.
    """
    points = deployment_points(rows)
    processes = {}
    for target in targets:
        process = GroupedGaussianProcess(
            COMPONENTS[target], NOISE[target], outliers.get(target, Outliers())
        )
        errors = _log_ratio(measured[target], predicted[target])
        processes[target] = process.fit(points, errors)
    return processes


def _log_ratio(measured: "pd.Series[float]", predicted: "pd.Series[float]") -> np.ndarray:
    return np.log(measured.to_numpy(dtype=float) / predicted.to_numpy(dtype=float))


def _folds(groups: np.ndarray) -> np.ndarray:
    """Return a fold per row: groups stay together, folds are of similar size."""
    names, sizes = np.unique(groups, return_counts=True)
    rows_of_fold = np.zeros(min(INNER_FOLDS, len(names)))

    # The largest group goes first, each into the fold with the fewest rows.
    fold_of_group = {}
    for i in np.argsort(-sizes, kind="stable"):
        smallest = int(np.argmin(rows_of_fold))
        fold_of_group[names[i]] = smallest
        rows_of_fold[smallest] += sizes[i]
    return np.array([fold_of_group[group] for group in groups])
