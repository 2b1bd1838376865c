"""Correction: what a few runs on a new device (or of a new kind) say about a trained predictor.

A Gaussian process on the logarithm of measured over predicted. Two rows are alike in their error
where their sizes and settings are, where the predictor says the same of them, where its experts
disagree in the same way, and where their physics is the same: operations, bytes, waves of tiles.
Near measured runs it moves the prediction to where they were, far from them it goes back to their
mean error. Its own uncertainty, scaled so that it holds for nine of ten runs when each is left out,
is the new interval.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.errors import PredictorError
from foretune.features.arrays import Rows, as_array
from foretune.models.process import Process
from foretune.models.spread import SMALLEST, quantile

LEAST_ROWS = 5
MOST_ROWS = 1500
"""A Gaussian process costs the cube of its rows."""
MOST_TO_TUNE = 512
"""Scales are found on so many: more find the same, and the cost of finding them is a cube too."""
SETTINGS = ("problem.", "config.", "device.")
"""Features that a correction reads from the rows themselves, or that are the same in all."""
WORK = ("log2_flops", "log2_bytes", "log2_intensity", "log2_roofline_ms")
"""Features that are known of every row whose cost is known: how much work it is, of which kind."""


@dataclass(frozen=True)
class Evidence:
    """What a predictor has found out about rows, apart from their settings.

    Attributes:
        gradual: what was predicted, by whom, and the logarithms of the work (rows, inputs).
        detail: the other features (rows, inputs). NaN is unknown in both.
    """

    gradual: np.ndarray
    detail: np.ndarray

    @classmethod
    def of(
        cls, columns: Sequence[str], X: np.ndarray, log_value: np.ndarray, differences: np.ndarray
    ) -> Self:
        """Return it.

        Args:
            columns: names of the features.
            X: the features.
            log_value: the log of what is predicted.
            differences: how far each expert is from that, a column each; NaN where one cannot tell.
        """
        own = [i for i, name in enumerate(columns) if not name.startswith(SETTINGS)]
        work = [i for i in own if columns[i] in WORK]
        rest = [i for i in own if columns[i] not in WORK]
        gradual = np.column_stack([log_value, differences, X[:, work]])
        return cls(gradual.astype(np.float64), X[:, rest].astype(np.float64))

    def __getitem__(self, rows: np.ndarray) -> "Evidence":
        return Evidence(self.gradual[rows], self.detail[rows])


class Correction:
    """Learns log(measured / predicted) from runs, to be added to predictions of their like.

    Attributes:
        numbers: numeric settings that vary -> whether they count in octaves.
        texts: settings of text -> the values it has an indicator for.
        centre, scale: of the process's inputs; those with a scale of zero are left out.
        process: the Gaussian process.
        widening: what the process's deviation is multiplied with for a 90 % interval.
    """

    numbers: dict[str, bool]
    texts: dict[str, list[str]]
    centre: np.ndarray
    scale: np.ndarray
    process: Process
    widening: float

    def fit(
        self, runs: pd.DataFrame, evidence: Evidence, errors: np.ndarray, seed: int = 0
    ) -> Self:
        """Learn from ``errors`` of ``runs``, at least `LEAST_ROWS`; `MOST_ROWS` are used."""
        some = np.random.default_rng(seed).permutation(len(runs))[:MOST_ROWS]
        runs, evidence, y = runs.iloc[some], evidence[some], errors[some]
        self._describe(runs)
        inputs, gradual = self._inputs(Rows(runs), evidence)
        known = np.ma.masked_invalid(inputs)
        self.centre, self.scale = (m.filled(0.0) for m in (known.mean(axis=0), known.std(axis=0)))
        X, gradual = self._scaled(inputs, gradual)
        tuned = Process.tuned(X[:MOST_TO_TUNE], y[:MOST_TO_TUNE], gradual)
        self.process = Process(X, y, gradual, tuned.parameters)
        self.widening = _widening(self.process)
        return self

    def predict(
        self, rows: pd.DataFrame | Rows, evidence: Evidence
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the correction of the log prediction and the half-width of the interval."""
        X, _ = self._scaled(*self._inputs(Rows.of(rows), evidence))
        mean, deviation = self.process.predict(X)
        return mean, self.widening * deviation

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``: plain numbers and texts."""
        card = {
            "numbers": self.numbers, "texts": self.texts, "widening": self.widening,
            "gradual": self.process.parts[0],
        }  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")
        np.savez_compressed(
            folder / f"{name}.npz", X=self.process.X, errors=self.process.y, centre=self.centre,
            scale=self.scale, parameters=self.process.parameters,
        )  # fmt: skip

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Read what `save` wrote."""
        correction = cls()
        card = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        correction.numbers, correction.texts = card["numbers"], card["texts"]
        correction.widening = card["widening"]
        with np.load(folder / f"{name}.npz", allow_pickle=False) as data:
            correction.centre, correction.scale = data["centre"], data["scale"]
            correction.process = Process(
                data["X"], data["errors"], card["gradual"], data["parameters"]
            )
        return correction

    def _describe(self, runs: pd.DataFrame) -> None:
        self.numbers, self.texts = {}, {}
        for column in [*columns_of(runs, "problem"), *columns_of(runs, "config")]:
            values = as_array(runs[column])
            if values.dtype.kind == "U":
                distinct = sorted(set(values.tolist()))
                if len(distinct) > 1:
                    self.texts[column] = distinct
            elif np.nanmin(values) != np.nanmax(values):
                self.numbers[column] = bool(np.nanmin(values) > 0)

    def _inputs(self, rows: Rows, evidence: Evidence) -> tuple[np.ndarray, int]:
        """Return inputs as they are, and how many of them, the first ones, are gradual."""
        columns = []
        if absent := [c for c in (*self.numbers, *self.texts) if c not in rows]:
            raise PredictorError(f"the runs lack column {absent[0]!r}, calibrated with")
        for column, octaves in self.numbers.items():
            values = rows[column]
            columns.append(np.log2(np.maximum(values, 1e-30)) if octaves else values)
        for column, distinct in self.texts.items():
            values = rows[column]
            columns += [1.0 * (values == text) for text in distinct]
        inputs = np.column_stack([*columns, evidence.gradual, evidence.detail])
        return inputs, inputs.shape[1] - evidence.detail.shape[1]

    def _scaled(self, inputs: np.ndarray, gradual: int) -> tuple[np.ndarray, int]:
        varies = self.scale > 1e-6
        scaled = (inputs[:, varies] - self.centre[varies]) / self.scale[varies]
        return np.nan_to_num(scaled), int(varies[:gradual].sum())  # unknown: as most are


def _widening(process: Process) -> float:
    """Return the factor with which the process's deviations hold for nine of ten left-out runs.

    Scales that were found with a run in sight make it seem better known than it was: with those of
    one half of the runs the other half is predicted.
    """
    X, y, gradual = process.X, process.y, process.parts[0]
    _, deviations = process.left_out()
    half = np.arange(len(y)) % 2 == 0
    misses = np.empty(len(y))
    for seen in (half, ~half):
        tuned = Process.tuned(X[seen][:MOST_TO_TUNE], y[seen][:MOST_TO_TUNE], gradual)
        misses[~seen] = Process(X, y, gradual, tuned.parameters).left_out()[0][~seen]
    return quantile(np.maximum(np.abs(misses), SMALLEST) / deviations)
