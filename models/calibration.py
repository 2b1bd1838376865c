"""Few-shot calibration of a predictor: corrections for devices that it was not trained on.

See docs/decisions/new-devices-calibration.md.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets.runs import newest_runs, read_runs, write_runs
from foretune.errors import PredictorError
from foretune.features.arrays import Rows
from foretune.models.correction import Correction, CorrectionFeatures
from foretune.models.target_names import MIN_ROWS, Target
from foretune.models.targets import attempted_rows, present_targets, usable_rows
from foretune.models.training_range import TrainingRange
from foretune.support.files import read_json

CARD = "calibration.json"
RUNS_FILE = "calibration.parquet"
MAX_ERROR_FACTOR = 100.0
"""Larger errors mean a wrong unit; a wrong device descriptor causes smaller ones."""

PredictUncorrected = Callable[[Target, pd.DataFrame], tuple[np.ndarray, CorrectionFeatures]]
"""Returns the log of the uncorrected prediction of rows, and their correction features."""


@dataclass(frozen=True)
class Calibration:
    """Corrections for the devices that a predictor was calibrated for; empty initially.

    ``corrections`` are by target and device, ``ranges`` by device: the training range, extended by
    its ``runs``.
    """

    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    corrections: Mapping[tuple[Target, str], Correction] = field(default_factory=dict)
    ranges: Mapping[str, TrainingRange] = field(default_factory=dict)

    @property
    def devices(self) -> list[str]:
        """The calibrated devices."""
        return sorted(self.ranges)

    def with_runs(
        self,
        runs: pd.DataFrame,
        *,
        training_runs: pd.DataFrame,
        targets: Sequence[Target],
        predict_uncorrected: PredictUncorrected,
        seed: int,
    ) -> Self:
        """Return the calibration with more runs, added to the earlier ones.

        ``runs`` are of one or more devices; the first of the predictor's ``targets`` determines the
        ranges; ``seed`` is for sampling from many rows. Raises PredictorError if a device has fewer
        than five runs, or its errors are implausibly large.
        """
        all_runs = pd.concat([self.runs, runs], ignore_index=True)
        newest = newest_runs(all_runs)
        corrections = dict(self.corrections)
        ranges = dict(self.ranges)
        for device in sorted(runs["device"].astype(str).unique()):
            device_runs = newest[newest["device"] == device].reset_index(drop=True)
            measured_targets = present_targets(device_runs)
            calibrated_targets = [target for target in targets if target in measured_targets]
            if not calibrated_targets:
                raise PredictorError(
                    f"{device} has fewer than {MIN_ROWS} successful runs to calibrate with"
                )
            for target in calibrated_targets:
                rows = usable_rows(target, device_runs)
                corrections[target, device] = _fit_correction(
                    target, rows, predict_uncorrected, seed
                )
            known_runs = pd.concat([training_runs, device_runs], ignore_index=True)
            ranges[device] = TrainingRange.from_runs(attempted_rows(targets[0], known_runs))
        return type(self)(all_runs, corrections, ranges)

    def octaves_outside(
        self, rows: Rows, training_range: TrainingRange, reach: Mapping[str, float] | None = None
    ) -> np.ndarray:
        """Return `TrainingRange.octaves_outside`, using the range of each row's device.

        ``training_range`` is for devices that were not calibrated.
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
        *,
        log_value: np.ndarray,
        half_width: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log values and half-widths, corrected in rows of calibrated devices."""
        log_value = log_value.copy()
        half_width = half_width.copy()
        for device, indices, device_rows in self._calibrated_devices(rows):
            correction = self.corrections.get((target, device))
            if correction is not None:
                shift, corrected_width = correction.predict(device_rows, features[indices])
                log_value[indices] += shift
                half_width[indices] = corrected_width
        return log_value, half_width

    def _calibrated_devices(self, rows: Rows) -> Iterator[tuple[str, np.ndarray, Rows]]:
        """Yield each calibrated device among ``rows``, the indices of its rows, and the rows."""
        if not self.ranges:
            return
        names, codes = rows.distinct("device")
        for device in self.ranges:
            indices = np.flatnonzero((names == device)[codes])
            if len(indices):
                is_everything = len(indices) == len(rows)
                yield device, indices, rows if is_everything else Rows(rows.frame.iloc[indices])

    def save(self, folder: Path) -> None:
        """Write to ``folder``; nothing if empty."""
        if not self.ranges:
            return
        for number, correction in enumerate(self.corrections.values()):
            correction.save(folder, _correction_name(number))
        ranges = {device: known.to_json() for device, known in self.ranges.items()}
        card = {"corrections": list(self.corrections), "ranges": ranges}
        (folder / CARD).write_text(json.dumps(card), encoding="utf-8")
        write_runs(folder / RUNS_FILE, self.runs)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read from ``folder``."""
        if not (folder / CARD).exists():
            return cls()
        card = read_json(folder / CARD)
        corrections = {
            (target, device): Correction.load(folder, _correction_name(number))
            for number, (target, device) in enumerate(card["corrections"])
        }
        ranges = {device: TrainingRange.from_json(data) for device, data in card["ranges"].items()}
        return cls(read_runs(folder / RUNS_FILE), corrections, ranges)


def _correction_name(number: int) -> str:
    return f"correction{number}"


def _fit_correction(
    target: Target, rows: pd.DataFrame, predict_uncorrected: PredictUncorrected, seed: int
) -> Correction:
    uncorrected, features = predict_uncorrected(target, rows)
    errors = np.log(rows[target].to_numpy(dtype=float)) - uncorrected
    factor = float(np.exp(abs(np.median(errors))))
    if factor > MAX_ERROR_FACTOR:
        raise PredictorError(
            f"half of the {len(rows)} runs differ from the prediction by a factor of over "
            f"{factor:,.0f}: check the unit of {target} and the device's name"
        )
    return Correction.fit(rows, features, errors, seed)
