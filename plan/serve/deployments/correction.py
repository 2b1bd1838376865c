"""Corrects analytic latencies with measured deployments.

A grouped Gaussian process predicts log(measured / analytic). For models outside the training data,
its mean is blended with a boosted model on model-independent features. Interval widths are
conformal: from held-out models for unknown models, from held-out configurations for known ones.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.errors import PredictorError
from foretune.files import atomic_write, read_json, translate_read_errors
from foretune.plan.serve.deployments.deployment import ENGINES
from foretune.plan.serve.deployments.group_process import (
    COMPONENTS,
    NOISE,
    GroupedGaussianProcess,
    group_coordinates,
    group_labels,
)
from foretune.plan.serve.deployments.probability import (
    DEFAULT_MIN_PROBABILITY,
    T_QUANTILE_95,
    calibration_choices,
    required_probability,
)
from foretune.plan.serve.deployments.serving import (
    ServingModel,
    memory_wait_ms,
    prefill_load,
    prompts_per_token,
)
from foretune.version import __version__

TARGETS = ("tpot_ms", "ttft_ms")
COVERAGE = 0.9
BOOSTER_PARAMETERS: dict[str, Any] = {
    "n_estimators": 200,
    "max_depth": 2,
    "learning_rate": 0.05,
    "reg_lambda": 10.0,
    "min_child_weight": 5.0,
    "subsample": 0.7,
    "colsample_bytree": 0.5,
    "objective": "reg:pseudohubererror",
    "huber_slope": 0.15,
    "n_jobs": 1,
    "random_state": 0,
}
"""Settings of the boosted model; it is kept simple because it extrapolates to other models."""
BOOSTER_WEIGHTS = {"tpot_ms": 0.4}
"""Its weight for models outside the training data. For known models and for TTFT, the process alone
is more accurate."""
INNER_FOLDS = 5
FILE_FORMAT = 2
PACKAGES = ("aiconfigurator-core", "aisimulate", "xgboost", "xgboost-cpu")
"""Packages that determine a correction: measured operators and boosted trees."""


def package_versions() -> dict[str, str]:
    """Return the versions of Foretune and of those `PACKAGES` that are installed."""
    versions = {"foretune": __version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


@dataclass(frozen=True)
class Origin:
    """Name of a correction's training table, number of its rows, and package versions."""

    file: str = ""
    rows: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass
class LatencyPredictor:
    """Latencies of deployments: closed formulas, a learned correction, and intervals.

    Attributes:
        serving: the formulas.
        processes, boosters: the correction per target.
        widths: half width of the interval in standard deviations, per target and whether the model
            is known.
        known_models: models in the training data.
        min_probability: minimum probability of meeting a limit, so that at most one choice in
            twenty misses it.
        origin: training data and package versions.
    """

    serving: ServingModel = field(default_factory=ServingModel)
    processes: dict[str, GroupedGaussianProcess] = field(default_factory=dict)
    boosters: dict[str, Any] = field(default_factory=dict)
    widths: dict[tuple[str, bool], float] = field(default_factory=dict)
    known_models: frozenset[str] = frozenset()
    min_probability: float = DEFAULT_MIN_PROBABILITY
    origin: Origin = field(default_factory=Origin)

    def fit(
        self, rows: pd.DataFrame, measured: pd.DataFrame, groups: np.ndarray, file: str = ""
    ) -> Self:
        """Fit to measured deployments.

        Args:
            rows: from `analytic_times`.
            measured: ``tpot_ms`` and ``ttft_ms``.
            groups: label of each row's configuration; loads of one configuration share it and are
                down-weighted.
            file: the table's name, for the record.
        """
        rows, measured = rows.reset_index(drop=True), measured.reset_index(drop=True)
        self.fit_mean(rows, measured, groups)
        self.origin = Origin(file, len(rows), package_versions())
        for seen, split in ((False, rows["model"].to_numpy(dtype=str)), (True, groups)):
            predicted, spread = _predict_held_out(rows, measured, groups, _folds(np.asarray(split)))
            for target in TARGETS:
                self.widths[target, seen] = _interval_width(predicted, spread, measured, target)
        factor = np.exp(self.widths["tpot_ms", True] * spread["tpot_ms"])
        predicted = predicted.assign(tpot_ms_high=predicted["tpot_ms"] * factor)
        self.min_probability = required_probability(calibration_choices(rows, measured, predicted))
        return self

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``tpot_ms`` and ``ttft_ms``, each with ``_low`` and ``_high`` (90 %)."""
        mean, spread = self.predict_mean(rows)
        columns: dict[str, pd.Series] = {}
        for target in TARGETS:
            factor = np.exp(self._row_widths(rows, target) * spread[target])
            columns |= {
                target: mean[target],
                f"{target}_low": mean[target] / factor,
                f"{target}_high": mean[target] * factor,
            }
        return pd.DataFrame(columns, index=rows.index)

    def covariances(self, rows: pd.DataFrame) -> dict[str, np.ndarray]:
        """Return the covariance of the rows' log errors, per target (rows, rows).

        Layouts of one model on one system share most of their error. Square roots of the diagonal
        are scales of Student's t, with the 90 % interval of `predict`.
        """
        labels, coordinates, _ = self._inputs(rows)
        scaled = {}
        for target, process in self.processes.items():
            widths = self._row_widths(rows, target) / T_QUANTILE_95
            scaled[target] = process.covariance(labels, coordinates) * np.outer(widths, widths)
        return scaled

    def fit_mean(self, rows: pd.DataFrame, measured: pd.DataFrame, groups: np.ndarray) -> Self:
        """Fit everything except the intervals."""
        import xgboost as xgb

        times = {t: measured[t].to_numpy(dtype=float) for t in TARGETS}
        self.serving.fit(rows, times["tpot_ms"], times["ttft_ms"])
        labels, coordinates, analytic = self._inputs(rows)
        X = correction_features(rows, analytic)
        self.known_models = frozenset(rows["model"])
        sizes = pd.Series(groups).groupby(groups).transform("size").to_numpy(dtype=float)
        for target in TARGETS:
            error = np.log(times[target] / analytic[target].to_numpy())
            process = GroupedGaussianProcess(COMPONENTS[target], NOISE[target])
            self.processes[target] = process.fit(labels, coordinates, error)
            if target in BOOSTER_WEIGHTS:
                booster = xgb.XGBRegressor(**BOOSTER_PARAMETERS, base_score=float(np.median(error)))
                self.boosters[target] = booster.fit(X, error, sample_weight=sizes**-0.5)
        return self

    def predict_mean(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the latencies, and the standard deviations of their logarithms."""
        labels, coordinates, analytic = self._inputs(rows)
        mean, spread = analytic.copy(), analytic.copy()
        unseen = ~rows["model"].isin(self.known_models).to_numpy()
        for target in TARGETS:
            error, spread[target] = self.processes[target].predict(labels, coordinates)
            if target in BOOSTER_WEIGHTS and unseen.any():
                X = correction_features(rows[unseen], analytic[unseen])
                boosted = self.boosters[target].predict(X)
                error[unseen] += BOOSTER_WEIGHTS[target] * (boosted - error[unseen])
            mean[target] = analytic[target] * np.exp(error)
        return mean, spread

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the correction as one JSON file."""
        text = json.dumps(self._to_json())
        with atomic_write(path, what="the correction ") as new:
            new.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file from `save`.

        Raises PredictorError if it is not a correction of this version.
        """
        says = "is not a latency correction ({}): train one with --measured TABLE"
        with translate_read_errors(path, PredictorError, says):
            data = read_json(path)
            if "format" not in data:
                raise ValueError("not a correction file")
        if data["format"] != FILE_FORMAT:
            raise PredictorError(
                f"{path} was made by another version of Foretune: train it again from its table"
            )
        says = "is damaged ({}): train it again from its table"
        with translate_read_errors(path, PredictorError, says):
            return cls._from_json(data)

    def _inputs(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Return labels and coordinates for the process, and the formulas' latencies."""
        analytic = self.serving.predict(rows)
        return group_labels(rows), group_coordinates(rows, analytic["tpot_ms"].to_numpy()), analytic

    def _row_widths(self, rows: pd.DataFrame, target: str) -> np.ndarray:
        seen = rows["model"].isin(self.known_models)
        return np.where(seen, self.widths[target, True], self.widths[target, False])

    def _to_json(self) -> dict[str, Any]:
        widths = [
            {"target": target, "known": seen, "width": width}
            for (target, seen), width in self.widths.items()
        ]
        return {
            "format": FILE_FORMAT,
            "origin": asdict(self.origin),
            "known": sorted(self.known_models),
            "sure": self.min_probability,
            "widths": widths,
            "serving": self.serving.to_json(),
            "processes": {target: p.to_json() for target, p in self.processes.items()},
            "boosters": {
                target: json.loads(booster.get_booster().save_raw("json"))
                for target, booster in self.boosters.items()
            },
        }

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            serving=ServingModel.from_json(data["serving"]),
            boosters={t: _booster_from_json(b) for t, b in data["boosters"].items()},
            processes={
                t: GroupedGaussianProcess.from_json(p) for t, p in data["processes"].items()
            },
            widths={(w["target"], w["known"]): w["width"] for w in data["widths"]},
            known_models=frozenset(data["known"]),
            min_probability=data["sure"],
            origin=Origin(**data["origin"]),
        )


def _booster_from_json(data: Any) -> Any:
    import xgboost as xgb

    booster = xgb.XGBRegressor(n_jobs=1)
    booster.load_model(bytearray(json.dumps(data), "utf-8"))
    return booster


def _predict_held_out(
    rows: pd.DataFrame, measured: pd.DataFrame, groups: np.ndarray, fold: np.ndarray
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return out-of-fold predictions and standard deviations; empty with a single fold."""
    found = []
    for fold_number in np.unique(fold) if fold.max() > 0 else ():
        held_out = fold == fold_number
        predictor = LatencyPredictor().fit_mean(
            rows[~held_out], measured[~held_out], groups[~held_out]
        )
        found.append(predictor.predict_mean(rows[held_out]))
    if not found:
        empty = pd.DataFrame(columns=TARGETS, dtype=float)
        return empty, empty
    predicted, spread = (pd.concat(parts).sort_index() for parts in zip(*found, strict=True))
    return predicted, spread


def _interval_width(
    predicted: pd.DataFrame, spread: pd.DataFrame, measured: pd.DataFrame, target: str
) -> float:
    """Return how many standard deviations cover `COVERAGE` of the held-out errors."""
    if predicted.empty:
        return T_QUANTILE_95
    scores = np.abs(np.log(predicted[target] / measured[target])) / spread[target]
    return float(np.quantile(scores, min(COVERAGE * (1.0 + 1.0 / len(scores)), 1.0)))


def _folds(groups: np.ndarray) -> np.ndarray:
    """Return a fold per row: groups stay together, folds are of similar size."""
    names, sizes = np.unique(groups, return_counts=True)
    fold_of, filled = {}, np.zeros(min(INNER_FOLDS, len(names)))
    for i in np.argsort(-sizes, kind="stable"):
        fold_of[names[i]] = smallest = int(np.argmin(filled))
        filled[smallest] += sizes[i]
    return np.array([fold_of[group] for group in groups])


def correction_features(rows: pd.DataFrame, analytic: pd.DataFrame) -> pd.DataFrame:
    """Return model-independent features of deployments.

    ``rows`` come from `analytic_times`; ``analytic`` has the formulas' ``tpot_ms`` and ``ttft_ms``.
    """
    tpot, ttft = analytic["tpot_ms"].to_numpy(), analytic["ttft_ms"].to_numpy()
    logs = {
        "running": rows["running"], "concurrency": rows["concurrency"], "isl": rows["isl"],
        "osl": rows["osl"], "tp": rows["tp"], "dp": rows["dp"], "moe_tp": rows["moe_tp"],
        "moe_ep": rows["moe_ep"], "tpot": tpot, "ttft": ttft, "prefill": rows["prefill"],
        "prompt": rows["prompt"], "burst": rows["running"] * rows["prefill"],
        "slot": rows["osl"] * tpot / rows["running"], "full": rows["batch"] / rows["most"],
        "growth": rows["decode"] / rows["alone"], "bandwidth": rows["bandwidth"],
    }  # fmt: skip
    plain = {
        "share_projections": rows["share_projections"],
        "share_attention": rows["share_attention"],
        "share_experts": rows["share_experts"],
        "share_communication": rows["share_communication"],
        "share_rest": rows["share_rest"],
        "prompts": prompts_per_token(rows) * rows["prefill"] / tpot,
        "prefill_load": prefill_load(rows, tpot),
        "waits": memory_wait_ms(rows, tpot) / ttft,
        "weights_share": rows["weights_share"],
        "weight_bits": rows["weight_bits"],
        "is_moe": rows["is_moe"],
        "is_latent": rows["is_latent"],
        "apart": rows["apart"],
        "speculative": rows["speculative"],
        "burst_load": (rows["load"] == "burst").astype(float),
    }
    engines = {f"is_{name}": (rows["backend"] == name).astype(float) for name in ENGINES}
    table = {name: np.log(np.asarray(v, dtype=float)) for name, v in logs.items()}
    table |= {name: np.asarray(v, dtype=float) for name, v in (plain | engines).items()}
    return pd.DataFrame(table, index=rows.index)
