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


@dataclass
class GroupProcess:
    """Log errors of deployments, learned from some.

    Attributes:
        components: columns of labels, joined by blanks -> what agreeing in all of them is worth.
        noise: variance of a repeated measurement.
    """

    components: Mapping[str, VarianceComponent]
    noise: float = 0.01

    def fit(self, labels: pd.DataFrame, places: pd.DataFrame, errors: np.ndarray) -> Self:
        """Learn from deployments.

        Args:
            labels: text columns, those of `LABELS`.
            places: numbers, those of `LENGTHS`.
            errors: log errors (rows).
        """
        from scipy.linalg import cho_solve, cholesky
        from scipy.linalg.lapack import dpotri

        self._keep(labels, places, errors)
        kernel = self._kernel(labels, places)
        noise = np.full(len(errors), self.noise)
        for _ in range(ROUNDS):
            factor = cholesky(kernel + np.diag(noise), lower=True)
            # Rows that all others contradict are noisier: Student's t as a scale mixture.
            precision = np.diag(dpotri(factor, lower=True)[0])
            left_out = cho_solve((factor, True), errors) / precision
            spread = np.maximum(1.0 / precision - noise + self.noise, self.noise)
            self._noise = noise
            noise = self.noise * np.maximum(1.0, (NU + left_out**2 / spread) / (NU + 1.0)) ** 2
        self._solve(kernel)
        return self

    def predict(self, labels: pd.DataFrame, places: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the log errors of deployments."""
        cross, left = self._explain(labels, places)
        own = sum(s.constant + s.slow + s.fast for s in self.components.values())
        explained = np.einsum("ij,ij->j", left, left)
        variance = np.maximum(own - explained, 0.0) + self.noise
        return cross @ self._weights, np.sqrt(variance)

    def covariance(self, labels: pd.DataFrame, places: pd.DataFrame) -> np.ndarray:
        """Return how the log errors of some deployments go together (rows, rows).

        What `predict` says of each is the diagonal's root.
        """
        _, left = self._explain(labels, places)
        own = _kernel(self.components, (labels, places), (labels, places)).astype(float)
        together: np.ndarray = own - left.T @ left
        np.fill_diagonal(together, np.maximum(np.diag(together), 0.0) + self.noise)
        return together

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        return {
            "components": {
                columns: asdict(component) for columns, component in self.components.items()
            },
            "noise": self.noise,
            "labels": {name: self._labels[name].tolist() for name in LABELS},
            "places": {name: self._places[name].tolist() for name in LENGTHS},
            "errors": self._errors.tolist(),
            "row_noise": self._noise.tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        components = {
            columns: VarianceComponent(**component)
            for columns, component in data["components"].items()
        }
        process = cls(components, data["noise"])
        labels, places = pd.DataFrame(data["labels"]), pd.DataFrame(data["places"])
        process._keep(labels, places, np.array(data["errors"], dtype=float))
        process._noise = np.array(data["row_noise"], dtype=float)
        process._solve(process._kernel(labels, places))
        return process

    def _keep(self, labels: pd.DataFrame, places: pd.DataFrame, errors: np.ndarray) -> None:
        self._labels = labels[list(LABELS)].astype(str).reset_index(drop=True)
        self._places = places[list(LENGTHS)].reset_index(drop=True)
        self._errors = np.asarray(errors, dtype=float)

    def _solve(self, kernel: np.ndarray) -> None:
        from scipy.linalg import cho_solve, cholesky

        factor = cholesky(kernel + np.diag(self._noise), lower=True)
        self._weights = cho_solve((factor, True), self._errors)
        # Variances need few digits, and thousands of candidates are asked about at once.
        self._factor = factor.astype(np.float32)

    def _explain(self, labels: pd.DataFrame, places: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return covariances with what was learned from (rows, learned), and what they explain."""
        from scipy.linalg import solve_triangular

        cross = self._kernel(labels, places)
        left = solve_triangular(self._factor, cross.T.astype(np.float32), lower=True)
        return cross, left

    def _kernel(self, labels: pd.DataFrame, places: pd.DataFrame) -> np.ndarray:
        """Return the covariances of deployments with those that were learned from."""
        return _kernel(self.components, (labels, places), (self._labels, self._places)).astype(
            float
        )


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


Sites = tuple[pd.DataFrame, pd.DataFrame]
"""Labels and places of deployments."""


def _kernel(components: Mapping[str, VarianceComponent], rows: Sites, others: Sites) -> np.ndarray:
    """Return the covariances of deployments with others."""
    slow, fast = _near(_scaled(rows[1]), _scaled(others[1]))
    total = np.zeros_like(slow)
    for columns, component in components.items():
        values: np.ndarray = np.full((1, 1), component.constant, dtype=np.float32)
        for size, near in ((component.slow, slow), (component.fast, fast)):
            if size > 0:
                values = values + np.float32(size) * near
        mine, theirs = (_joined(labels, columns.split()) for labels in (rows[0], others[0]))
        known, codes = np.unique(theirs, return_inverse=True)
        agree = pd.Index(known).get_indexer(mine)[:, None] == codes[None, :]
        total += values * agree
    return total


def _near(places: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how alike places are, over long and over short distances."""
    squared = (places**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :]
    distance = np.maximum(squared - 2.0 * places @ others.T, 0.0).astype(np.float32)
    return np.exp(-0.5 / FAR**2 * distance), np.exp(-0.5 * distance)


def _scaled(places: pd.DataFrame) -> np.ndarray:
    return np.stack([places[name].to_numpy() / length for name, length in LENGTHS.items()], axis=1)


def _joined(labels: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """Return the text of some columns, the same where all of them agree."""
    nothing = pd.Series("", index=labels.index, dtype=object)
    texts = (labels[column].astype(str).astype(object) for column in columns)
    return reduce(lambda left, right: left + "\t" + right, texts, nothing).to_numpy()
