"""A Gaussian process for errors that deployments share: by engine, system, model and load.

Two deployments' errors go together as far as they agree in labels (the same engine, the same model
on the same system, …), by a constant and by smooth functions of sizes and loads. What was never
seen agrees in fewer labels, so its error is drawn to zero and its interval is wide.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

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


LABELS: dict[str, Shares] = {
    "": Shares(0.02, 0.03),
    "use": Shares(0.01, 0.01),
    "use load": Shares(0.005, 0.01),
    "use system": Shares(0.005, 0.005),
    "use generation formats": Shares(0.005),
    "use kind": Shares(0.01, 0.01),
    "model": Shares(0.01, 0.005),
    "model use": Shares(0.01, 0.01, 0.005),
    "model use system formats": Shares(0.01, 0.005, 0.005),
    "model use system formats layout": Shares(0.005, 0.0, 0.005),
}
"""Columns of labels, joined by blanks -> what agreeing in all of them is worth."""


@dataclass
class GroupProcess:
    """Log errors of deployments, learned from some.

    Attributes:
        scale: of all variances in `LABELS`.
        noise: variance of a repeated measurement.
    """

    scale: float = 0.5
    noise: float = 0.01

    def fit(self, labels: pd.DataFrame, places: pd.DataFrame, errors: np.ndarray) -> Self:
        """Learn from deployments.

        Args:
            labels: text columns, those that `LABELS` names.
            places: numbers, those of `LENGTHS`.
            errors: log errors (rows).
        """
        from scipy.linalg import cho_factor, cho_solve

        self._labels, self._places = labels.astype(str).reset_index(drop=True), _scaled(places)
        kernel = self._kernel(self._labels, self._places)
        noise = np.full(len(errors), self.noise)
        identity = np.eye(len(errors))
        for _ in range(ROUNDS):
            self._factor = cho_factor(kernel + np.diag(noise), lower=True)
            self._weights = cho_solve(self._factor, errors)
            # Rows that all others contradict are noisier: Student's t as a scale mixture.
            precision = np.diag(cho_solve(self._factor, identity))
            left_out = self._weights / precision
            spread = np.maximum(1.0 / precision - noise + self.noise, self.noise)
            noise = self.noise * np.maximum(1.0, (NU + left_out**2 / spread) / (NU + 1.0)) ** 2
        return self

    def predict(self, labels: pd.DataFrame, places: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the log errors of deployments."""
        from scipy.linalg import cho_solve

        cross = self._kernel(labels.astype(str).reset_index(drop=True), _scaled(places))
        own = self.scale * sum(s.constant + s.slow + s.fast for s in LABELS.values())
        explained = np.einsum("ij,ji->i", cross, cho_solve(self._factor, cross.T))
        variance = np.maximum(own - explained, 0.0) + self.noise
        return cross @ self._weights, np.sqrt(variance)

    def _kernel(self, labels: pd.DataFrame, places: np.ndarray) -> np.ndarray:
        """Return the covariances of deployments with those that were learned from."""
        squared = (places**2).sum(axis=1)[:, None] + (self._places**2).sum(axis=1)[None, :]
        distance = np.maximum(squared - 2.0 * places @ self._places.T, 0.0)
        slow, fast = np.exp(-0.5 * distance / FAR**2), np.exp(-0.5 * distance)
        total = np.zeros_like(distance)
        for columns, share in LABELS.items():
            values = share.constant + share.slow * slow + share.fast * fast
            total += values * _agree(labels, self._labels, columns.split())
        return self.scale * total


def group_labels(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the labels of deployments, of what `foretune.tune.plan.physics.physics` says."""
    kind = np.where(rows["is_latent"] > 0, "latent", np.where(rows["is_moe"] > 0, "moe", "dense"))
    names = ("use", "load", "system", "generation", "formats", "kind", "model", "layout")
    own: Mapping[str, Any] = {"use": rows["use"], "kind": kind}
    return pd.DataFrame({name: own.get(name, rows.get(name)) for name in names})


def group_places(rows: pd.DataFrame, tpot_ms: np.ndarray) -> pd.DataFrame:
    """Return where deployments lie, of what `foretune.tune.plan.physics.physics` says."""
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


def _scaled(places: pd.DataFrame) -> np.ndarray:
    return np.stack([places[name].to_numpy() / length for name, length in LENGTHS.items()], axis=1)


def _agree(rows: pd.DataFrame, others: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """Return which of ``rows`` agrees with which of ``others`` in all columns."""
    agree = np.ones((len(rows), len(others)), dtype=bool)
    for column in columns:
        codes, _ = pd.factorize(pd.concat([rows[column], others[column]]), use_na_sentinel=False)
        agree &= codes[: len(rows), None] == codes[None, len(rows) :]
    return agree
