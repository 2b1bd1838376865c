"""Calibration: all that runs on other devices have taught a trained predictor."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets import latest, read_runs, write_runs
from foretune.decoding import read_json
from foretune.errors import PredictorError
from foretune.features.arrays import Rows
from foretune.models.calibration.correction import Correction
from foretune.models.calibration.likeness import Evidence
from foretune.models.target.targets import (
    LEAST_ROWS,
    Target,
    present_targets,
    telling_rows,
    usable_rows,
)
from foretune.models.training_range import TrainingRange

CARD, RUNS_FILE = "calibration.json", "calibration.parquet"
INCREDIBLE = 100.0
"""No descriptor leads so far astray: measurements off by this factor are in other units."""

Find = Callable[[Target, pd.DataFrame], tuple[np.ndarray, Evidence]]
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

    def learn(
        self,
        runs: pd.DataFrame,
        trained: pd.DataFrame,
        targets: Sequence[Target],
        find: Find,
        seed: int,
    ) -> Self:
        """Return what is known with more runs, beside those that it was learned from.

        Args:
            runs: of one or several devices, valid.
            trained: what the predictor was trained on.
            targets: of the predictor, the first one first.
            find: what it says of rows.
            seed: which rows are used where they are many.

        Raises:
            PredictorError: a device has fewer than five runs, or they are far off.
        """
        every = pd.concat([self.runs, runs], ignore_index=True)
        newest = latest(every)
        corrections, ranges = dict(self.corrections), dict(self.ranges)
        for device in sorted(runs["device"].astype(str).unique()):
            here = newest[newest["device"] == device].reset_index(drop=True)
            present = [t for t in targets if t in present_targets(here)]
            if not present:
                raise PredictorError(
                    f"{device} has fewer than {LEAST_ROWS} successful runs to calibrate with"
                )
            for target in present:
                rows = usable_rows(target, here)
                corrections[target, device] = _correction(target, rows, find, seed)
            known = pd.concat([trained, here], ignore_index=True)
            ranges[device] = TrainingRange.of(telling_rows(targets[0], known))
        return type(self)(every, corrections, ranges)

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
        card = read_json(folder / CARD)
        corrections = {
            (target, device): Correction.load(folder, f"correction{i}")
            for i, (target, device) in enumerate(card["corrections"])
        }
        ranges = {device: TrainingRange.from_json(data) for device, data in card["ranges"].items()}
        return cls(read_runs(folder / RUNS_FILE), corrections, ranges)


def _correction(target: Target, rows: pd.DataFrame, find: Find, seed: int) -> Correction:
    plain, evidence = find(target, rows)
    errors = np.log(rows[target].to_numpy(dtype=float)) - plain
    if (times := float(np.exp(abs(np.median(errors))))) > INCREDIBLE:
        raise PredictorError(
            f"half of the {len(rows)} runs are over {times:,.0f} times off what is predicted: "
            f"is their {target} in the right unit, and is this the device?"
        )
    return Correction().fit(rows, evidence, errors, seed)
