"""The correction: what measured deployments say about the errors of the physics.

Two opinions of log(measured / physics): a boosted model from quantities that mean something on any
system and for any model, and a Gaussian process that knows which deployments share their errors.
Intervals come from models left out of the training, and for models that are known from their
configurations left out (conformal prediction by groups).
"""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.tune.plan.group_process import GroupProcess, group_labels, group_places
from foretune.tune.plan.serving import (
    ServingModel,
    memory_wait_ms,
    prefill_load,
    prompts_per_token,
)

TARGETS = ("tpot_ms", "ttft_ms")
COVERAGE = 0.9
BACKENDS = ("vllm", "sglang", "trtllm")
PARAMETERS: dict[str, Any] = {
    "n_estimators": 300,
    "max_depth": 4,
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


SIMPLE = {"max_depth": 2, "n_estimators": 200}
"""What a boosted model may learn that is asked about other models than it was trained on."""
BOOSTED = {"tpot_ms": 0.5, "ttft_ms": 0.0}
"""Weight of the boosted model beside the Gaussian process, which is better on queueing."""
BOOSTED_UNKNOWN = {"tpot_ms": 1.0, "ttft_ms": 0.0}
"""The same for models that were not trained on; the boosted model is then a simple one."""
PROCESSES = {"tpot_ms": (0.5, 0.01), "ttft_ms": (2.0, 0.04)}
"""Scale and noise of the Gaussian process: a queue's errors are several times larger."""
INNER_FOLDS = 5
NORMAL = 1.645
"""Standard deviations of half a 90 % interval, where there is nothing to learn it from."""


@dataclass
class ServingCorrection:
    """Latencies of deployments: closed formulas, what they miss, and intervals.

    Attributes:
        serving: the formulas.
        boosters, processes: what they miss, per target; boosters also per whether the model was
            trained on.
        known: the models that were.
        widths: how many standard deviations of the process half an interval has, per target and
            whether the model was trained on.
    """

    serving: ServingModel = field(default_factory=ServingModel)
    boosters: dict[tuple[str, bool], Any] = field(default_factory=dict)
    processes: dict[str, GroupProcess] = field(default_factory=dict)
    widths: dict[tuple[str, bool], float] = field(default_factory=dict)
    known: frozenset[str] = frozenset()

    def fit(self, rows: pd.DataFrame, measured: pd.DataFrame, groups: np.ndarray) -> Self:
        """Learn from measured deployments, intervals from models and configurations left out.

        Args:
            rows: what `foretune.tune.plan.physics.physics` says of them.
            measured: their ``tpot_ms`` and ``ttft_ms``.
            groups: numbers of rows of one configuration at different loads; they count as fewer.
        """
        rows, measured = rows.reset_index(drop=True), measured.reset_index(drop=True)
        self.fit_mean(rows, measured, groups)
        models = rows["model"].to_numpy(dtype=str)
        for known, parts in ((False, models), (True, np.asarray(groups))):
            misses = _misses(rows, measured, groups, _folds(parts))
            for target, found in misses.items():
                level = min(COVERAGE * (1.0 + 1.0 / len(found)), 1.0)
                self.widths[target, known] = float(np.quantile(found, level))
        return self

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``tpot_ms`` and ``ttft_ms``, each with ``_low`` and ``_high`` (90 %)."""
        mean, spread = self.predict_mean(rows)
        seen = rows["model"].isin(self.known)
        columns: dict[str, pd.Series] = {}
        for target in TARGETS:
            widths = np.where(seen, self.widths[target, True], self.widths[target, False])
            factor = np.exp(widths * spread[target])
            columns |= {
                target: mean[target],
                f"{target}_low": mean[target] / factor,
                f"{target}_high": mean[target] * factor,
            }
        return pd.DataFrame(columns, index=rows.index)

    def fit_mean(self, rows: pd.DataFrame, measured: pd.DataFrame, groups: np.ndarray) -> Self:
        """Learn all but the intervals."""
        import xgboost as xgb

        times = {t: measured[t].to_numpy(dtype=float) for t in TARGETS}
        self.serving.fit(rows, times["tpot_ms"], times["ttft_ms"])
        physics = self.serving.predict(rows)
        labels, places = group_labels(rows), group_places(rows, physics["tpot_ms"].to_numpy())
        X = correction_features(rows, physics)
        self.known = frozenset(rows["model"])
        sizes = pd.Series(groups).groupby(groups).transform("size").to_numpy(dtype=float)
        for target in TARGETS:
            error = np.log(times[target] / physics[target].to_numpy())
            process = GroupProcess(*PROCESSES[target])
            self.processes[target] = process.fit(labels, places, error)
            for known, share in _shares(target):
                parameters = PARAMETERS if known else PARAMETERS | SIMPLE
                booster = xgb.XGBRegressor(**parameters, base_score=float(np.median(error)))
                if share > 0:
                    booster.fit(X, error, sample_weight=sizes**-0.5)
                    self.boosters[target, known] = booster
        return self

    def predict_mean(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the latencies, and the standard deviations of their logarithms."""
        physics = self.serving.predict(rows)
        labels, places = group_labels(rows), group_places(rows, physics["tpot_ms"].to_numpy())
        X = correction_features(rows, physics)
        mean, spread = physics.copy(), physics.copy()
        for target in TARGETS:
            error, spread[target] = self.processes[target].predict(labels, places)
            for known, share in _shares(target):
                here = rows["model"].isin(self.known).to_numpy() == known
                if share > 0 and here.any():
                    boosted = self.boosters[target, known].predict(X[here])
                    error[here] = (1.0 - share) * error[here] + share * boosted
            mean[target] = physics[target] * np.exp(error)
        return mean, spread


def _shares(target: str) -> tuple[tuple[bool, float], tuple[bool, float]]:
    """Return the boosted models' weights, for known models and for others."""
    return (True, BOOSTED[target]), (False, BOOSTED_UNKNOWN[target])


def _misses(
    rows: pd.DataFrame, measured: pd.DataFrame, groups: np.ndarray, fold: np.ndarray
) -> dict[str, np.ndarray]:
    """Return log errors of rows left out, in standard deviations, per target."""
    found: dict[str, list[np.ndarray]] = {target: [] for target in TARGETS}
    for number in np.unique(fold) if fold.max() > 0 else ():
        out = fold == number
        others = ServingCorrection().fit_mean(rows[~out], measured[~out], groups[~out])
        guess, spread = others.predict_mean(rows[out])
        for target in TARGETS:
            error = np.abs(np.log(guess[target] / measured[target][out])).to_numpy()
            found[target].append(error / spread[target].to_numpy())
    return {t: np.concatenate(parts) if parts else np.array([NORMAL]) for t, parts in found.items()}


def _folds(parts: np.ndarray) -> np.ndarray:
    """Return a fold per row, all rows of a part in one, the folds about equally large."""
    names, sizes = np.unique(parts, return_counts=True)
    fold_of, filled = {}, np.zeros(min(INNER_FOLDS, len(names)))
    for i in np.argsort(-sizes, kind="stable"):
        fold_of[names[i]] = smallest = int(np.argmin(filled))
        filled[smallest] += sizes[i]
    return np.array([fold_of[model] for model in parts])


def correction_features(rows: pd.DataFrame, physics: pd.DataFrame) -> pd.DataFrame:
    """Return what the correction looks at: loads, shares and lengths, no names of models.

    Args:
        rows: what `foretune.tune.plan.physics.physics` says.
        physics: the formulas' ``tpot_ms`` and ``ttft_ms``.
    """
    tpot, ttft = physics["tpot_ms"].to_numpy(), physics["ttft_ms"].to_numpy()
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
    engines = {f"is_{name}": (rows["backend"] == name).astype(float) for name in BACKENDS}
    table = {name: np.log(np.asarray(v, dtype=float)) for name, v in logs.items()}
    table |= {name: np.asarray(v, dtype=float) for name, v in (plain | engines).items()}
    return pd.DataFrame(table, index=rows.index)
