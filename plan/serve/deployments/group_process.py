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

from foretune.models.process.posterior import Posterior
from foretune.models.process.process import Process
from foretune.models.process.terms import Hyperprior, Slopes, Term

LENGTHS = {
    "running": 3.0, "isl": 3.0, "osl": 3.0, "ranks": 3.0, "moe_ep": 3.0, "prompts": 3.0,
    "prefill": 4.5, "step": 4.5, "slot": 6.0, "communication": 3.0, "attention": 3.0,
}  # fmt: skip
"""Sizes that errors change with -> over what distance, in octaves or as `group_places` scales."""
FAR = 3.0
"""How much longer the lengths of the slow functions are than those of the fast."""
NU = 3.0
"""Degrees of freedom of the noise: measurements with labels that lie are many."""
ROUNDS = 3


@dataclass(frozen=True)
class Shares:
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
class SharedErrors(Term):
    """Offsets and functions that rows share as far as they agree in labels; nothing is to find.

    The columns of a point are its scaled places, then the number of each label.

    Attributes:
        shares: what agreeing in each label is worth.
    """

    shares: tuple[Shares, ...]

    @property
    def hyperpriors(self) -> list[Hyperprior]:
        """None: all variances and lengths are known."""
        return []

    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the covariances, of single precision."""
        slow, fast = _near(X[:, : len(LENGTHS)], X2[:, : len(LENGTHS)])
        total = np.zeros_like(slow)
        for i, share in enumerate(self.shares, len(LENGTHS)):
            values: np.ndarray = np.full((1, 1), share.constant, dtype=np.float32)
            for size, near in ((share.slow, slow), (share.fast, fast)):
                if size > 0:
                    values = values + np.float32(size) * near
            total += values * (X[:, i, None] == X2[:, i])
        return total

    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return what all shares add up to."""
        return np.full(len(X), sum(s.constant + s.slow + s.fast for s in self.shares))

    def differentiated(self, parameters: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, Slopes]:
        """Return the covariances, and no slopes."""
        return self.covariance(parameters, X, X), lambda slope: np.empty(0)


@dataclass
class GroupProcess:
    """Log errors of deployments, learned from some.

    Attributes:
        shares: columns of labels, joined by blanks -> what agreeing in all of them is worth.
        noise: variance of a repeated measurement.
    """

    shares: Mapping[str, Shares]
    noise: float = 0.01

    def fit(self, labels: pd.DataFrame, places: pd.DataFrame, errors: np.ndarray) -> Self:
        """Learn from deployments.

        Args:
            labels: text columns, those of `LABELS`.
            places: numbers, those of `LENGTHS`.
            errors: log errors (rows).
        """
        self._keep(labels, places)
        more = np.zeros(len(errors))
        for _ in range(ROUNDS):
            self._more_noise, posterior = more, self._given(errors, more)
            # Rows that all others contradict are noisier: Student's t as a scale mixture.
            off, deviation = posterior.left_out()
            spread = np.maximum(deviation**2 - more, self.noise)
            more = self.noise * (np.maximum(1.0, (NU + off**2 / spread) / (NU + 1.0)) ** 2 - 1.0)
        self._posterior = posterior.rounded()  # thousands of candidates are asked about at once
        return self

    def predict(self, labels: pd.DataFrame, places: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the log errors of deployments."""
        return self._posterior.predict(self._points(labels, places))

    def covariance(self, labels: pd.DataFrame, places: pd.DataFrame) -> np.ndarray:
        """Return how the log errors of some deployments go together (rows, rows).

        What `predict` says of each is the diagonal's root.
        """
        return self._posterior.at(self._points(labels, places)).covariance(np.arange(len(labels)))

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        return {
            "shares": {columns: asdict(share) for columns, share in self.shares.items()},
            "noise": self.noise,
            "labels": {name: self._labels[name].tolist() for name in LABELS},
            "places": {name: self._places[name].tolist() for name in LENGTHS},
            "errors": self._posterior.y.tolist(),
            "row_noise": (self.noise + self._more_noise).tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        shares = {columns: Shares(**share) for columns, share in data["shares"].items()}
        process = cls(shares, data["noise"])
        process._keep(pd.DataFrame(data["labels"]), pd.DataFrame(data["places"]))
        process._more_noise = np.array(data["row_noise"], dtype=float) - process.noise
        errors = np.array(data["errors"], dtype=float)
        process._posterior = process._given(errors, process._more_noise).rounded()
        return process

    def _keep(self, labels: pd.DataFrame, places: pd.DataFrame) -> None:
        self._labels = labels[list(LABELS)].astype(str).reset_index(drop=True)
        self._places = places[list(LENGTHS)].reset_index(drop=True)
        self._known = [pd.Index(_joined(self._labels, columns)).unique() for columns in self.shares]

    def _given(self, errors: np.ndarray, more_noise: np.ndarray) -> Posterior:
        """Return what ``errors`` of the deployments that are kept say."""
        term = SharedErrors(tuple(self.shares.values()))
        process = Process.expected([term], Hyperprior(self.noise, 0.0))
        X = self._points(self._labels, self._places)
        errors = np.asarray(errors, dtype=float)
        return Posterior(process, X, errors, more_noise=more_noise, observation_noise=True)

    def _points(self, labels: pd.DataFrame, places: pd.DataFrame) -> np.ndarray:
        """Return deployments as the process sees them; labels that are new count on."""
        scaled = [places[name].to_numpy() / length for name, length in LENGTHS.items()]
        numbers = []
        for columns, known in zip(self.shares, self._known, strict=True):
            texts = pd.Index(_joined(labels, columns))
            numbers.append(known.append(texts.difference(known)).get_indexer(texts))
        return np.column_stack([*scaled, *numbers])


def group_labels(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the labels of deployments, of what `physics.physics` says."""
    kind = np.where(rows["is_latent"] > 0, "latent", np.where(rows["is_moe"] > 0, "moe", "dense"))
    return pd.DataFrame({name: kind if name == "kind" else rows[name] for name in LABELS})


def group_places(rows: pd.DataFrame, tpot_ms: np.ndarray) -> pd.DataFrame:
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


def _near(places: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how alike places are, over long and over short distances."""
    squared = (places**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :]
    distance = np.maximum(squared - 2.0 * places @ others.T, 0.0).astype(np.float32)
    return np.exp(-0.5 / FAR**2 * distance), np.exp(-0.5 * distance)


def _joined(labels: pd.DataFrame, columns: str) -> np.ndarray:
    """Return the text of some columns, the same where all of them agree."""
    nothing = pd.Series("", index=labels.index, dtype=object)
    texts = (labels[column].astype(str).astype(object) for column in columns.split())
    return reduce(lambda left, right: left + "\t" + right, texts, nothing).to_numpy()
