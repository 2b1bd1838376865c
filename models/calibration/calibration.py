"""Calibration: all that runs on other devices have taught a trained predictor."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets import read_runs, write_runs
from foretune.features.arrays import Rows
from foretune.models.calibration.correction import Correction
from foretune.models.calibration.likeness import Evidence
from foretune.models.target.targets import Target
from foretune.models.training_range import TrainingRange

CARD, RUNS_FILE = "calibration.json", "calibration.parquet"


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

    def octaves_outside(
        self, rows: Rows, general: TrainingRange, reach: Mapping[str, float] | None = None
    ) -> np.ndarray:
        """Return `TrainingRange.octaves_outside` of what each row's device was calibrated with.

        Args:
            rows: in question.
            general: the training range, for all other devices.
            reach: column -> how far outside does not count.
        """
        outside = general.octaves_outside(rows, reach)
        for device, here, there in self._parts(rows):
            outside[here] = self.ranges[device].octaves_outside(there, reach)
        return outside

    def correct(
        self,
        target: Target,
        rows: Rows,
        evidence: Evidence,
        log_value: np.ndarray,
        width: np.ndarray,
    ) -> None:
        """Correct ``log_value`` and ``width`` in place where a device was calibrated."""
        for device, here, there in self._parts(rows):
            if (correction := self.corrections.get((target, device))) is not None:
                shift, width[here] = correction.predict(there, evidence[here])
                log_value[here] += shift

    def _parts(self, rows: Rows) -> Iterator[tuple[str, np.ndarray, Rows]]:
        """Yield every calibrated device among ``rows``, the numbers of its rows, and them."""
        if not self.ranges:
            return
        names, codes = rows.distinct("device")
        for device in self.ranges:
            here = np.flatnonzero((names == device)[codes])
            if len(here):
                whole = len(here) == len(rows)
                yield device, here, rows if whole else Rows(rows.frame.iloc[here])

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
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        corrections = {
            (target, device): Correction.load(folder, f"correction{i}")
            for i, (target, device) in enumerate(card["corrections"])
        }
        ranges = {device: TrainingRange.from_json(data) for device, data in card["ranges"].items()}
        return cls(read_runs(folder / RUNS_FILE), corrections, ranges)
