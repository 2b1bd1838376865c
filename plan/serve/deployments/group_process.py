"""Gaussian process with grouped errors (engine, system, model, load).

Two deployments' errors are correlated if their labels agree (same engine, same model on the
same system, …), through a constant and smooth functions of sizes and loads. A new label shares
fewer components, so its mean shrinks to zero and its interval widens.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
REWEIGHTINGS = 3
"""Rounds in which outliers get more noise."""
NOISE = {"tpot_ms": 0.02, "ttft_ms": 0.04}
"""Variance of the logarithm of a repeated measurement."""
LABELS = ("use", "load", "system", "generation", "formats", "kind", "model", "layout", "version")
"""Columns of which deployments may have the same value."""
SLOT_EXPONENT = 0.7
PROMPTS_SCALE = 3.0
SHARE_SCALE = 4.0
"""Scales of coordinates in `deployment_points`."""


@dataclass(frozen=True)
class VarianceComponent:
    """Variance shared by rows that agree in a label."""

    constant: float = 0.0  # of an offset
    slow: float = 0.0  # of a function with long length scales
    fast: float = 0.0  # of a function with short length scales

    @property
    def total(self) -> float:
        """The variance of a single row."""
        return self.constant + self.slow + self.fast


@dataclass(frozen=True)
class Outliers:
    """How rows become outliers, which get more noise.

    Attributes:
        degrees_of_freedom: of the noise, which is Student's t. Its tails are heavy, because many
            measurements are mislabeled.
        of_the_mean: whether a row is an outlier at first if the prior mean, no error, is far from
            it. Else groups of outliers hide each other, since each is predicted by the others. Not
            for the few rows of one stack, whose common error is what is asked for.
    """

    degrees_of_freedom: float = 3.0
    of_the_mean: bool = False


OUTLIERS = {
    "tpot_ms": Outliers(),
    "ttft_ms": Outliers(degrees_of_freedom=1.0, of_the_mean=True),
}
"""Target -> outliers among deployments of many models. First tokens have more: whole series contain
the start of the engine."""


def _read_components() -> dict[str, dict[str, VarianceComponent]]:
    components: dict[str, dict[str, VarianceComponent]] = {}
    for row in shipped_rows("variances.csv", "foretune.plan.serve.deployments"):
        of_target = components.setdefault(row["target"], {})
        of_target[row["labels"]] = VarianceComponent(
            constant=float(row["constant"]), slow=float(row["slow"]), fast=float(row["fast"])
        )
    return components


COMPONENTS = _read_components()
"""Target -> label columns -> variance components."""


@dataclass(frozen=True)
class GroupedCovariance(CovarianceTerm):
    """Covariance of rows by the labels they share; it has no hyperparameters.

    The columns of a point are its scaled coordinates, then one number per label.
    """

    components: tuple[VarianceComponent, ...]

    def covariance(self, parameters: np.ndarray, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Return the covariances in single precision."""
        # Squared distances of all pairs, from the coordinates.
        points = X[:, : len(LENGTH_SCALES)]
        other_points = X2[:, : len(LENGTH_SCALES)]
        squares = (points**2).sum(axis=1)
        other_squares = (other_points**2).sum(axis=1)
        squared = squares[:, None] + other_squares[None, :] - 2.0 * points @ other_points.T
        distance = np.maximum(squared, 0.0).astype(np.float32)
        fast = np.exp(-0.5 * distance)
        slow = np.exp(-0.5 / SLOW_LENGTH_RATIO**2 * distance)

        # Each component adds its variance to the pairs that agree in its label.
        total = np.zeros_like(slow)
        for column, component in enumerate(self.components, start=len(LENGTH_SCALES)):
            shared: np.ndarray = np.full((1, 1), component.constant, dtype=np.float32)
            if component.slow > 0:
                shared = shared + np.float32(component.slow) * slow
            if component.fast > 0:
                shared = shared + np.float32(component.fast) * fast
            is_same_label = X[:, column, None] == X2[:, column]
            total += shared * is_same_label
        return total

    def variance(self, parameters: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the sum of all components."""
        return np.full(len(X), sum(component.total for component in self.components))


@dataclass
class GroupedGaussianProcess:
    """Posterior of the deployments' log errors.

    Attributes:
        components: label columns, joined by spaces -> variance shared by rows that agree in all.
        noise: variance of a repeated measurement.
        outliers: how they are found.
    """

    components: Mapping[str, VarianceComponent]
    noise: float = 0.01
    outliers: Outliers = Outliers()  # immutable

    def fit(self, points: pd.DataFrame, errors: np.ndarray) -> Self:
        """Condition on log errors of deployments; ``points`` are from `deployment_points`."""
        self._store(points)

        # Outliers get more noise: Student's t as a scale mixture. A row is an outlier if the others
        # predict it badly.
        extra_noise = np.zeros(len(errors))
        if self.outliers.of_the_mean:
            extra_noise = self._noise_of_outliers(errors, self.noise)
        for _ in range(REWEIGHTINGS):
            posterior = self._condition(errors, extra_noise)
            self._extra_noise = extra_noise
            residual, deviation = posterior.leave_one_out()
            spread = np.maximum(deviation**2 - extra_noise, self.noise)
            extra_noise = self._noise_of_outliers(residual, spread)

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
            "components": {
                labels: asdict(component) for labels, component in self.components.items()
            },
            "noise": self.noise,
            "points": self._points.to_dict("list"),
            "errors": self._posterior.y.tolist(),
            "row_noise": (self.noise + self._extra_noise).tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the process from `to_json`'s values."""
        components = {
            labels: VarianceComponent(**variances)
            for labels, variances in data["components"].items()
        }
        process = cls(components, noise=data["noise"])
        process._store(pd.DataFrame(data["points"]))

        errors = np.array(data["errors"], dtype=float)
        process._extra_noise = np.array(data["row_noise"], dtype=float) - process.noise
        posterior = process._condition(errors, process._extra_noise)
        process._posterior = posterior.in_single_precision()
        return process

    def _store(self, points: pd.DataFrame) -> None:
        """Keep the training points, and number their labels."""
        self._points = points[[*LABELS, *LENGTH_SCALES]].reset_index(drop=True)
        self._known_labels = [
            pd.Index(_joined_labels(self._points, columns)).unique() for columns in self.components
        ]

    def _noise_of_outliers(
        self, residuals: np.ndarray, variances: "np.ndarray | float"
    ) -> np.ndarray:
        """Return the variance to add to each row's noise, from its residual."""
        freedom = self.outliers.degrees_of_freedom
        factor = np.maximum(1.0, (freedom + residuals**2 / variances) / (freedom + 1.0))
        extra: np.ndarray = self.noise * (factor**2 - 1.0)
        return extra

    def _condition(self, errors: np.ndarray, extra_noise: np.ndarray) -> Posterior:
        """Return the posterior given the ``errors`` of the training deployments."""
        term = GroupedCovariance(tuple(self.components.values()))
        process = GaussianProcess.from_prior([term], Hyperprior(self.noise, 0.0))
        return Posterior(
            process,
            self._numbers(self._points),
            np.asarray(errors, dtype=float),
            extra_noise=extra_noise,
            observation_noise=True,
        )

    def _numbers(self, points: pd.DataFrame) -> np.ndarray:
        """Return the points of `GroupedCovariance`; new labels get new numbers."""
        coordinates = [points[name].to_numpy() / length for name, length in LENGTH_SCALES.items()]
        label_numbers = []
        for columns, known in zip(self.components, self._known_labels, strict=True):
            labels = pd.Index(_joined_labels(points, columns))
            all_labels = known.append(labels.difference(known))
            label_numbers.append(all_labels.get_indexer(labels))
        return np.column_stack([*coordinates, *label_numbers])


def deployment_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `LABELS` and `LENGTH_SCALES` of rows from `analytic_times`."""
    tpot_ms = formula_latencies(rows)["tpot_ms"].to_numpy()

    kind = np.where(rows["is_latent"] > 0, "latent", np.where(rows["is_moe"] > 0, "moe", "dense"))
    labels = {}
    for name in LABELS:
        labels[name] = kind if name == "kind" else rows[name].to_numpy(dtype=str)

    # Sizes, times and degrees count in octaves.
    slot_ms = rows["osl"] * tpot_ms / rows["running"]
    sizes = {
        "running": rows["running"],
        "isl": rows["isl"],
        "osl": rows["osl"],
        "ranks": rows["tp"] * rows["dp"],
        "moe_ep": rows["moe_ep"],
        "prefill": rows["prefill"],
        "step": tpot_ms,
        "slot": slot_ms**SLOT_EXPONENT,
    }
    octaves = {name: np.log2(np.asarray(size, dtype=float)) for name, size in sizes.items()}

    # Shares of a step.
    prompts = np.clip(rows["running"] / rows["osl"] * rows["prefill"] / tpot_ms, 0.0, 1.0)
    shares = {
        "prompts": np.asarray(PROMPTS_SCALE * np.sqrt(prompts)),
        "communication": np.asarray(SHARE_SCALE * rows["share_communication"]),
        "attention": np.asarray(SHARE_SCALE * rows["share_attention"]),
    }
    return pd.DataFrame(labels | octaves | shares)


def _joined_labels(points: pd.DataFrame, columns: str) -> np.ndarray:
    """Return one text per row from its values in ``columns``, which are joined by spaces."""
    joined = pd.Series("", index=points.index, dtype=object)
    for column in columns.split():
        joined = joined + "\t" + points[column].astype(str).astype(object)
    return joined.to_numpy()
