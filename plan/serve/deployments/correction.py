"""Corrects analytic latencies with measured deployments.

Experts predict log(measured / formula). Their weights, and the interval's width, come from held-out
models for unknown models, and from held-out configurations for known ones.
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
from foretune.plan.serve.deployments.experts import EXPERTS, LatencyExperts, best_weights
from foretune.plan.serve.deployments.probability import (
    DEFAULT_MIN_PROBABILITY,
    T_QUANTILE_95,
    calibration_choices,
    required_probability,
)
from foretune.plan.serve.deployments.serving import (
    formula_latencies,
    memory_wait_ms,
    prefill_load,
    prompts_per_token,
)
from foretune.version import __version__

TARGETS = ("tpot_ms", "ttft_ms")
COVERAGE = 0.9
INNER_FOLDS = 5
FILE_FORMAT = 3
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
        experts: the correction per target.
        weights: the experts' weights, per target and whether the model is known.
        widths: half width of the interval in standard deviations, likewise.
        known_models: models in the training data.
        min_probability: minimum probability of meeting a limit, so that at most one choice in
            twenty misses it.
        origin: training data and package versions.
    """

    experts: dict[str, LatencyExperts] = field(default_factory=dict)
    weights: dict[tuple[str, bool], np.ndarray] = field(default_factory=dict)
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
            groups: label of each row's configuration, whose loads are held out together.
            file: the table's name, for the record.
        """
        rows, measured = rows.reset_index(drop=True), measured.reset_index(drop=True)
        self.fit_experts(rows, measured)
        self.origin = Origin(file, len(rows), package_versions())
        predicted = pd.DataFrame(columns=[*TARGETS, "tpot_ms_high"], dtype=float)
        for seen, split in ((False, rows["model"].to_numpy(dtype=str)), (True, groups)):
            fold = _folds(np.asarray(split))
            if fold.max() > 0:
                predicted = self._fit_held_out(rows, measured, fold, seen)
        self.min_probability = required_probability(calibration_choices(rows, measured, predicted))
        return self

    def fit_experts(self, rows: pd.DataFrame, measured: pd.DataFrame) -> Self:
        """Fit the experts, which then weigh the same, with intervals of the process."""
        analytic = formula_latencies(rows)
        features = correction_features(rows, analytic)
        self.known_models = frozenset(rows["model"])
        for target in TARGETS:
            error = _log_ratio(measured[target], analytic[target])
            self.experts[target] = LatencyExperts.fit(target, rows, features, error)
            for seen in (False, True):
                self.weights[target, seen] = np.full(len(EXPERTS), 1.0 / len(EXPERTS))
                self.widths[target, seen] = T_QUANTILE_95
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
        features, scaled = correction_features(rows, formula_latencies(rows)), {}
        for target, experts in self.experts.items():
            widths = self._row_widths(rows, target) / T_QUANTILE_95
            scaled[target] = experts.covariance(rows, features) * np.outer(widths, widths)
        return scaled

    def predict_mean(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the latencies, and the standard deviations of their logarithms."""
        mean, spread = formula_latencies(rows), pd.DataFrame(index=rows.index)
        seen, features = self._is_known(rows), correction_features(rows, mean)
        for target, experts in self.experts.items():
            opinions, spread[target] = experts.predict(rows, features)
            weights = np.where(
                seen[:, None], self.weights[target, True], self.weights[target, False]
            )
            mean[target] *= np.exp((opinions * weights).sum(axis=1))
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

    def _fit_held_out(
        self, rows: pd.DataFrame, measured: pd.DataFrame, fold: np.ndarray, seen: bool
    ) -> pd.DataFrame:
        """Fit weights and widths to rows held out in folds; return their latencies."""
        analytic = formula_latencies(rows)
        features, predicted = correction_features(rows, analytic), analytic.copy()
        for target in TARGETS:
            error = _log_ratio(measured[target], analytic[target])
            opinions, spread = np.empty((len(rows), len(EXPERTS))), np.empty(len(rows))
            for number in np.unique(fold):
                out = fold == number
                experts = LatencyExperts.fit(target, rows[~out], features[~out], error[~out])
                opinions[out], spread[out] = experts.predict(rows[out], features[out])
            weights = best_weights(opinions, error)
            value = opinions @ weights
            scores = np.abs(value - error) / spread
            level = min(COVERAGE * (1.0 + 1.0 / len(scores)), 1.0)
            width = float(np.quantile(scores, level))
            self.weights[target, seen], self.widths[target, seen] = weights, width
            predicted[target] *= np.exp(value)
            predicted[f"{target}_high"] = predicted[target] * np.exp(width * spread)
        return predicted

    def _is_known(self, rows: pd.DataFrame) -> np.ndarray:
        return rows["model"].isin(self.known_models).to_numpy()

    def _row_widths(self, rows: pd.DataFrame, target: str) -> np.ndarray:
        seen = self._is_known(rows)
        return np.where(seen, self.widths[target, True], self.widths[target, False])

    def _to_json(self) -> dict[str, Any]:
        fits = [
            {"target": target, "known": seen, "width": self.widths[target, seen],
             "weights": weights.tolist()}
            for (target, seen), weights in self.weights.items()
        ]  # fmt: skip
        return {
            "format": FILE_FORMAT,
            "origin": asdict(self.origin),
            "known": sorted(self.known_models),
            "min_probability": self.min_probability,
            "fits": fits,
            "experts": {target: experts.to_json() for target, experts in self.experts.items()},
        }

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            experts={t: LatencyExperts.from_json(e) for t, e in data["experts"].items()},
            weights={(f["target"], f["known"]): np.array(f["weights"]) for f in data["fits"]},
            widths={(f["target"], f["known"]): f["width"] for f in data["fits"]},
            known_models=frozenset(data["known"]),
            min_probability=data["min_probability"],
            origin=Origin(**data["origin"]),
        )


def _log_ratio(measured: "pd.Series[float]", analytic: "pd.Series[float]") -> np.ndarray:
    return np.log(measured.to_numpy(dtype=float) / analytic.to_numpy(dtype=float))


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
