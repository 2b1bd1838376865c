"""A Gaussian process for errors that deployments share: by engine, system, model and load.

Two deployments' errors go together as far as they agree in labels (the same engine, the same model
on the same system, …), by a constant and by smooth functions of sizes and loads. What was never
seen agrees in fewer labels, so its error is drawn to zero and its interval is wide.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.models.covariance import CovarianceTerm, GradientFunction, Hyperprior
from foretune.models.gaussian_process import GaussianProcess, Posterior

LENGTH_SCALES = {
    "running": 3.0, "isl": 3.0, "osl": 3.0, "ranks": 3.0, "moe_ep": 3.0, "prompts": 3.0,
    "prefill": 4.5, "step": 4.5, "slot": 6.0, "communication": 3.0, "attention": 3.0,
}  # fmt: skip
"""Sizes that errors change with -> over what distance, in octaves or as `group_coordinates`
scales.
"""
SLOW_LENGTH_RATIO = 3.0
"""How much longer the lengths of the slow functions are than those of the fast."""
NU = 3.0
"""Degrees of freedom of the noise: measurements with labels that lie are many."""
REWEIGHTINGS = 3


@dataclass(frozen=True)
class VarianceComponent:
    """Variance that agreeing in one label stands for.

    Attributes:
        constant: of an offset.
        slow, fast: of functions of sizes and loads.
    """

    constant: float = 0.0
    slow: float = 0.0
    fast: float = 0.0


LABELS = ("use", "load", "system", "generation", "formats", "kind", "model", "layout", "version")


@dataclass(frozen=True)
class GroupedCovariance(CovarianceTerm):
    """Offsets and functions that rows share as far as they agree in labels; nothing is to find.

    The columns of a point are its scaled places, then the number of each label.

    Attributes:
        components: what agreeing in each label is worth.
    """

    components: tuple[VarianceComponent, ...]

    @property
    def hyperpriors(self) -> list[Hyperprior]:
        """None: all variances and lengths are known."""
        return []

    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the covariances, of single precision."""
        slow, fast = _similarities(X[:, : len(LENGTH_SCALES)], X2[:, : len(LENGTH_SCALES)])
        total = np.zeros_like(slow)
        for i, component in enumerate(self.components, len(LENGTH_SCALES)):
            values: np.ndarray = np.full((1, 1), component.constant, dtype=np.float32)
            for size, similarity in ((component.slow, slow), (component.fast, fast)):
                if size > 0:
                    values = values + np.float32(size) * similarity
            total += values * (X[:, i, None] == X2[:, i])
        return total

    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return what all components add up to."""
        return np.full(len(X), sum(s.constant + s.slow + s.fast for s in self.components))

    def covariance_and_gradient(
        self, parameters: np.ndarray, X: np.ndarray
    ) -> tuple[np.ndarray, GradientFunction]:
        """Return the covariances, and no slopes."""
        return self.covariance(parameters, X, X), lambda slope: np.empty(0)


@dataclass
class GroupedGaussianProcess:
    """Log errors of deployments, learned from some.

    Attributes:
        components: columns of labels, joined by blanks -> what agreeing in all of them is worth.
        noise: variance of a repeated measurement.
    """

    components: Mapping[str, VarianceComponent]
    noise: float = 0.01

    def fit(self, labels: pd.DataFrame, coordinates: pd.DataFrame, errors: np.ndarray) -> Self:
        """Learn from deployments.

        Args:
            labels: text columns, those of `LABELS`.
            coordinates: numbers, those of `LENGTHS`.
            errors: log errors (rows).
        """
        self._store(labels, coordinates)
        extra_noise = np.zeros(len(errors))
        for _ in range(REWEIGHTINGS):
            self._extra_noise, posterior = extra_noise, self._condition(errors, extra_noise)
            # Rows that all others contradict are noisier: Student's t as a scale mixture.
            residual, deviation = posterior.leave_one_out()
            spread = np.maximum(deviation**2 - extra_noise, self.noise)
            extra_noise = self.noise * (
                np.maximum(1.0, (NU + residual**2 / spread) / (NU + 1.0)) ** 2 - 1.0
            )
        self._posterior = (
            posterior.in_single_precision()
        )  # thousands of candidates are asked about at once
        return self

    def predict(
        self, labels: pd.DataFrame, coordinates: pd.DataFrame
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the log errors of deployments."""
        return self._posterior.predict(self._points(labels, coordinates))

    def covariance(self, labels: pd.DataFrame, coordinates: pd.DataFrame) -> np.ndarray:
        """Return how the log errors of some deployments go together (rows, rows).

        What `predict` says of each is the diagonal's root.
        """
        return self._posterior.at(self._points(labels, coordinates)).covariance(
            np.arange(len(labels))
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        return {
            "components": {
                columns: asdict(component) for columns, component in self.components.items()
            },
            "noise": self.noise,
            "labels": {name: self._labels[name].tolist() for name in LABELS},
            "places": {name: self._coordinates[name].tolist() for name in LENGTH_SCALES},
            "errors": self._posterior.y.tolist(),
            "row_noise": (self.noise + self._extra_noise).tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        components = {
            columns: VarianceComponent(**component)
            for columns, component in data["components"].items()
        }
        process = cls(components, data["noise"])
        process._store(pd.DataFrame(data["labels"]), pd.DataFrame(data["places"]))
        process._extra_noise = np.array(data["row_noise"], dtype=float) - process.noise
        errors = np.array(data["errors"], dtype=float)
        process._posterior = process._condition(errors, process._extra_noise).in_single_precision()
        return process

    def _store(self, labels: pd.DataFrame, coordinates: pd.DataFrame) -> None:
        self._labels = labels[list(LABELS)].astype(str).reset_index(drop=True)
        self._coordinates = coordinates[list(LENGTH_SCALES)].reset_index(drop=True)
        self._known_labels = [
            pd.Index(_joined_labels(self._labels, columns)).unique() for columns in self.components
        ]

    def _condition(self, errors: np.ndarray, extra_noise: np.ndarray) -> Posterior:
        """Return what ``errors`` of the deployments that are kept say."""
        term = GroupedCovariance(tuple(self.components.values()))
        process = GaussianProcess.from_prior([term], Hyperprior(self.noise, 0.0))
        X = self._points(self._labels, self._coordinates)
        errors = np.asarray(errors, dtype=float)
        return Posterior(process, X, errors, extra_noise=extra_noise, observation_noise=True)

    def _points(self, labels: pd.DataFrame, coordinates: pd.DataFrame) -> np.ndarray:
        """Return deployments as the process sees them; labels that are new count on."""
        scaled = [coordinates[name].to_numpy() / length for name, length in LENGTH_SCALES.items()]
        numbers = []
        for columns, known in zip(self.components, self._known_labels, strict=True):
            texts = pd.Index(_joined_labels(labels, columns))
            numbers.append(known.append(texts.difference(known)).get_indexer(texts))
        return np.column_stack([*scaled, *numbers])


def group_labels(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the labels of deployments, of what `physics.physics` says."""
    kind = np.where(rows["is_latent"] > 0, "latent", np.where(rows["is_moe"] > 0, "moe", "dense"))
    return pd.DataFrame({name: kind if name == "kind" else rows[name] for name in LABELS})


def group_coordinates(rows: pd.DataFrame, tpot_ms: np.ndarray) -> pd.DataFrame:
    """Return where deployments lie, of what `physics.physics` says."""
    prompts = np.clip(rows["running"] / rows["osl"] * rows["prefill"] / tpot_ms, 0.0, 1.0)
    octaves = {
        "running": rows["running"], "isl": rows["isl"], "osl": rows["osl"],
        "ranks": rows["tp"] * rows["dp"], "moe_ep": rows["moe_ep"], "prefill": rows["prefill"],
        "step": tpot_ms, "slot": (rows["osl"] * tpot_ms / rows["running"]) ** 0.7,
    }  # fmt: skip
    shares = {
        "prompts": 3.0 * np.sqrt(prompts),
        "communication": 4.0 * rows["share_communication"],
        "attention": 4.0 * rows["share_attention"],
    }
    table = {name: np.log2(np.asarray(v, dtype=float)) for name, v in octaves.items()}
    return pd.DataFrame(table | {name: np.asarray(v) for name, v in shares.items()})


def _similarities(points: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how alike places are, over long and over short distances."""
    squared = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :]
    distance = np.maximum(squared - 2.0 * points @ others.T, 0.0).astype(np.float32)
    return np.exp(-0.5 / SLOW_LENGTH_RATIO**2 * distance), np.exp(-0.5 * distance)


def _joined_labels(labels: pd.DataFrame, columns: str) -> np.ndarray:
    """Return the text of some columns, the same where all of them agree."""
    empty = pd.Series("", index=labels.index, dtype=object)
    texts = (labels[column].astype(str).astype(object) for column in columns.split())
    return reduce(lambda left, right: left + "\t" + right, texts, empty).to_numpy()
