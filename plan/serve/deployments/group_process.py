"""Gaussian process with grouped errors (engine, system, model, load).

Two deployments' errors are correlated if their labels agree (same engine, same model on the
same system, …), through a constant and smooth functions of sizes and loads. A new label shares
fewer components, so its mean shrinks to zero and its interval widens.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.models.covariance import CovarianceTerm, Hyperprior
from foretune.models.gaussian_process import GaussianProcess, Posterior
from foretune.plan.describe import shipped_rows
from foretune.plan.serve.deployments.latency_formulas import formula_latencies

LENGTH_SCALES = {
    "running": 3.0,
    "isl": 3.0,
    "osl": 3.0,
    "ranks": 3.0,
    "moe_ep": 3.0,
    "prompts": 3.0,
    "prefill": 4.5,
    "step": 4.5,
    "slot": 6.0,
    "communication": 3.0,
    "attention": 3.0,
}
"""Coordinate -> length scale, in octaves or in the units of `deployment_points`."""
SLOW_LENGTH_RATIO = 3.0
"""Ratio of the length scale of the slow functions to that of the fast ones."""
NU = 3.0
"""Degrees of freedom of the noise; heavy tails, because many measurements are mislabeled."""
REWEIGHTINGS = 3


@dataclass(frozen=True)
class VarianceComponent:
    """Variance shared by rows that agree in a label."""

    constant: float = 0.0  # of an offset
    slow: float = 0.0  # of a function with long length scales
    fast: float = 0.0  # of a function with short length scales


COMPONENTS: dict[str, dict[str, VarianceComponent]] = {}
"""Target -> label columns -> variance components."""
for _row in shipped_rows("variances.csv", "foretune.plan.serve.deployments"):
    _sizes = (float(_row[size]) for size in ("constant", "slow", "fast"))
    COMPONENTS.setdefault(_row["target"], {})[_row["labels"]] = VarianceComponent(*_sizes)
NOISE = {"tpot_ms": 0.02, "ttft_ms": 0.04}
"""Variance of the logarithm of a repeated measurement."""
LABELS = ("use", "load", "system", "generation", "formats", "kind", "model", "layout", "version")


@dataclass(frozen=True)
class GroupedCovariance(CovarianceTerm):
    """Covariance of rows by the labels they share; it has no hyperparameters.

    The columns of a point are its scaled coordinates, then one number per label.
    """

    components: tuple[VarianceComponent, ...]

    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the covariances in single precision."""
        points, others = (x[:, : len(LENGTH_SCALES)] for x in (X, X2))
        squared = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :]
        distance = np.maximum(squared - 2.0 * points @ others.T, 0.0).astype(np.float32)
        slow, fast = np.exp(-0.5 / SLOW_LENGTH_RATIO**2 * distance), np.exp(-0.5 * distance)
        total = np.zeros_like(slow)
        for i, component in enumerate(self.components, len(LENGTH_SCALES)):
            values: np.ndarray = np.full((1, 1), component.constant, dtype=np.float32)
            for size, similarity in ((component.slow, slow), (component.fast, fast)):
                if size > 0:
                    values = values + np.float32(size) * similarity
            total += values * (X[:, i, None] == X2[:, i])
        return total

    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the sum of all components."""
        return np.full(len(X), sum(s.constant + s.slow + s.fast for s in self.components))


@dataclass
class GroupedGaussianProcess:
    """Posterior of the deployments' log errors.

    Attributes:
        components: label columns, joined by spaces -> variance shared by rows that agree in all.
        noise: variance of a repeated measurement.
    """

    components: Mapping[str, VarianceComponent]
    noise: float = 0.01

    def fit(self, points: pd.DataFrame, errors: np.ndarray) -> Self:
        """Condition on log errors of deployments; ``points`` are from `deployment_points`."""
        self._store(points)
        extra_noise = np.zeros(len(errors))
        for _ in range(REWEIGHTINGS):
            self._extra_noise, posterior = extra_noise, self._condition(errors, extra_noise)
            # Outliers get more noise: Student's t as a scale mixture.
            residual, deviation = posterior.leave_one_out()
            spread = np.maximum(deviation**2 - extra_noise, self.noise)
            factor = np.maximum(1.0, (NU + residual**2 / spread) / (NU + 1.0))
            extra_noise = self.noise * (factor**2 - 1.0)
        # Single precision is enough, and plans predict thousands of candidates at once.
        self._posterior = posterior.in_single_precision()
        return self

    def predict(self, points: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the log errors of deployments."""
        return self._posterior.predict(self._numbers(points))

    def covariance(self, points: pd.DataFrame) -> np.ndarray:
        """Return the covariance of the log errors of deployments (rows, rows)."""
        return self._posterior.at(self._numbers(points)).covariance(np.arange(len(points)))

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        return {
            "components": {name: asdict(part) for name, part in self.components.items()},
            "noise": self.noise,
            "points": self._points.to_dict("list"),
            "errors": self._posterior.y.tolist(),
            "row_noise": (self.noise + self._extra_noise).tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the process from `to_json`'s values."""
        parts = data["components"].items()
        components = {name: VarianceComponent(**part) for name, part in parts}
        process = cls(components, data["noise"])
        process._store(pd.DataFrame(data["points"]))
        process._extra_noise = np.array(data["row_noise"], dtype=float) - process.noise
        errors = np.array(data["errors"], dtype=float)
        process._posterior = process._condition(errors, process._extra_noise).in_single_precision()
        return process

    def _store(self, points: pd.DataFrame) -> None:
        self._points = points[[*LABELS, *LENGTH_SCALES]].reset_index(drop=True)
        self._known_labels = [
            pd.Index(_joined_labels(self._points, columns)).unique() for columns in self.components
        ]

    def _condition(self, errors: np.ndarray, extra_noise: np.ndarray) -> Posterior:
        """Return the posterior given the ``errors`` of the training deployments."""
        term = GroupedCovariance(tuple(self.components.values()))
        process = GaussianProcess.from_prior([term], Hyperprior(self.noise, 0.0))
        X = self._numbers(self._points)
        errors = np.asarray(errors, dtype=float)
        return Posterior(process, X, errors, extra_noise=extra_noise, observation_noise=True)

    def _numbers(self, points: pd.DataFrame) -> np.ndarray:
        """Return the points of `GroupedCovariance`; new labels get new numbers."""
        scaled = [points[name].to_numpy() / length for name, length in LENGTH_SCALES.items()]
        numbers = []
        for columns, known in zip(self.components, self._known_labels, strict=True):
            texts = pd.Index(_joined_labels(points, columns))
            numbers.append(known.append(texts.difference(known)).get_indexer(texts))
        return np.column_stack([*scaled, *numbers])


def deployment_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `LABELS` and `LENGTH_SCALES` of rows from `analytic_times`."""
    tpot_ms = formula_latencies(rows)["tpot_ms"].to_numpy()
    kind = np.where(rows["is_latent"] > 0, "latent", np.where(rows["is_moe"] > 0, "moe", "dense"))
    labels = {name: kind if name == "kind" else rows[name].to_numpy(dtype=str) for name in LABELS}
    prompts = np.clip(rows["running"] / rows["osl"] * rows["prefill"] / tpot_ms, 0.0, 1.0)
    octaves = {
        "running": rows["running"],
        "isl": rows["isl"],
        "osl": rows["osl"],
        "ranks": rows["tp"] * rows["dp"],
        "moe_ep": rows["moe_ep"],
        "prefill": rows["prefill"],
        "step": tpot_ms,
        "slot": (rows["osl"] * tpot_ms / rows["running"]) ** 0.7,
    }
    shares = {
        "prompts": 3.0 * np.sqrt(prompts),
        "communication": 4.0 * rows["share_communication"],
        "attention": 4.0 * rows["share_attention"],
    }
    logs = {name: np.log2(np.asarray(v, dtype=float)) for name, v in octaves.items()}
    return pd.DataFrame(labels | logs | {name: np.asarray(v) for name, v in shares.items()})


def _joined_labels(labels: pd.DataFrame, columns: str) -> np.ndarray:
    empty = pd.Series("", index=labels.index, dtype=object)
    texts = (labels[column].astype(str).astype(object) for column in columns.split())
    return reduce(lambda left, right: left + "\t" + right, texts, empty).to_numpy()
