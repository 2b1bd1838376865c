"""Calibration: all that runs on other devices have taught a trained predictor."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets import newest_runs, read_runs, write_runs
from foretune.decoding import read_json
from foretune.errors import PredictorError
from foretune.features.arrays import Rows
from foretune.models.calibration.correction import Correction
from foretune.models.calibration.likeness import CorrectionFeatures
from foretune.models.target.targets import (
    MIN_ROWS,
    Target,
    present_targets,
    training_rows,
    usable_rows,
)
from foretune.models.training_range import TrainingRange

CARD, RUNS_FILE = "calibration.json", "calibration.parquet"
MAX_ERROR_FACTOR = 100.0
"""No descriptor leads so far astray: measurements off by this factor are in other units."""

PredictUncorrected = Callable[[Target, pd.DataFrame], tuple[np.ndarray, CorrectionFeatures]]
"""Returns the log of what is predicted of rows without corrections, and what is known of them."""


@dataclass(frozen=True)
class Calibration:
    """What is known of devices that a predictor was calibrated for; at first of none.

    Attributes:
        runs: all that it was learned from.
        corrections: (target, device) -> what to add to predictions there.
        ranges: device -> the training range, widened by its runs.
    """

    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    corrections: Mapping[tuple[Target, str], Correction] = field(default_factory=dict)
    ranges: Mapping[str, TrainingRange] = field(default_factory=dict)

    @property
    def devices(self) -> list[str]:
        """The devices it is for."""
        return sorted(self.ranges)

    def with_runs(
        self,
        runs: pd.DataFrame,
        training_runs: pd.DataFrame,
        targets: Sequence[Target],
        predict_uncorrected: PredictUncorrected,
        seed: int,
    ) -> Self:
        """Return what is known with more runs, beside those that it was learned from.

        Args:
            runs: of one or several devices, valid.
            training_runs: what the predictor was trained on.
            targets: of the predictor, the first one first.
            predict_uncorrected: what it says of rows.
            seed: which rows are used where they are many.

        Raises:
            PredictorError: a device has fewer than five runs, or they are far off.
        """
        all_runs = pd.concat([self.runs, runs], ignore_index=True)
        newest = newest_runs(all_runs)
        corrections, ranges = dict(self.corrections), dict(self.ranges)
        for device in sorted(runs["device"].astype(str).unique()):
            device_runs = newest[newest["device"] == device].reset_index(drop=True)
            present = [t for t in targets if t in present_targets(device_runs)]
            if not present:
                raise PredictorError(
                    f"{device} has fewer than {MIN_ROWS} successful runs to calibrate with"
                )
            for target in present:
                rows = usable_rows(target, device_runs)
                corrections[target, device] = _fit_correction(
                    target, rows, predict_uncorrected, seed
                )
            known = pd.concat([training_runs, device_runs], ignore_index=True)
            ranges[device] = TrainingRange.from_runs(training_rows(targets[0], known))
        return type(self)(all_runs, corrections, ranges)

    def octaves_outside(
        self, rows: Rows, training_range: TrainingRange, reach: Mapping[str, float] | None = None
    ) -> np.ndarray:
        """Return `TrainingRange.octaves_outside` of what each row's device was calibrated with.

        Args:
            rows: in question.
            training_range: the training range, for all other devices.
            reach: column -> how far outside does not count.
        """
        outside = training_range.octaves_outside(rows, reach)
        for device, indices, device_rows in self._calibrated_devices(rows):
            outside[indices] = self.ranges[device].octaves_outside(device_rows, reach)
        return outside

    def correct(
        self,
        target: Target,
        rows: Rows,
        features: CorrectionFeatures,
        log_value: np.ndarray,
        width: np.ndarray,
    ) -> None:
        """Correct ``log_value`` and ``width`` in place where a device was calibrated."""
        for device, indices, device_rows in self._calibrated_devices(rows):
            if (correction := self.corrections.get((target, device))) is not None:
                shift, width[indices] = correction.predict(device_rows, features[indices])
                log_value[indices] += shift

    def _calibrated_devices(self, rows: Rows) -> Iterator[tuple[str, np.ndarray, Rows]]:
        """Yield every calibrated device among ``rows``, the numbers of its rows, and them."""
        if not self.ranges:
            return
        names, codes = rows.distinct("device")
        for device in self.ranges:
            indices = np.flatnonzero((names == device)[codes])
            if len(indices):
                is_everything = len(indices) == len(rows)
                yield device, indices, rows if is_everything else Rows(rows.frame.iloc[indices])

    def save(self, folder: Path) -> None:
        """Write to ``folder``; nothing if there is nothing."""
        if not self.ranges:
            return
        for i, correction in enumerate(self.corrections.values()):
            correction.save(folder, f"correction{i}")
        ranges = {device: known.to_json() for device, known in self.ranges.items()}
        card = {"corrections": list(self.corrections), "ranges": ranges}
        (folder / CARD).write_text(json.dumps(card), encoding="utf-8")
        write_runs(folder / RUNS_FILE, self.runs)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote."""
        if not (folder / CARD).exists():
            return cls()
        card = read_json(folder / CARD)
        corrections = {
            (target, device): Correction.load(folder, f"correction{i}")
            for i, (target, device) in enumerate(card["corrections"])
        }
        ranges = {device: TrainingRange.from_json(data) for device, data in card["ranges"].items()}
        return cls(read_runs(folder / RUNS_FILE), corrections, ranges)


def _fit_correction(
    target: Target, rows: pd.DataFrame, predict_uncorrected: PredictUncorrected, seed: int
) -> Correction:
    uncorrected, features = predict_uncorrected(target, rows)
    errors = np.log(rows[target].to_numpy(dtype=float)) - uncorrected
    if (factor := float(np.exp(abs(np.median(errors))))) > MAX_ERROR_FACTOR:
        raise PredictorError(
            f"half of the {len(rows)} runs are over {factor:,.0f} times off what is predicted: "
            f"is their {target} in the right unit, and is this the device?"
        )
    return Correction().fit(rows, features, errors, seed)
