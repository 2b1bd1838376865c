"""Orders the candidates of a kernel without a product of tiles, such as a softmax.

With few elements, a thread idles while it waits for memory; with many, registers spill. Shallow
boosted trees can correct this rule (``benchmarks/launch_training.py`` fits them), but their
correction is not applied yet: see `LEARNED_SHARE`.
"""

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.device import Device
from foretune.errors import PredictorError
from foretune.features.families.tiles import cores_of
from foretune.search.searcher import Prior
from foretune.support.files import read_arrays, translate_read_errors
from foretune.tune.triton.launch_order import RankingTrees

SHIPPED = Path(__file__).parent / "shipped" / "rows.npz"
THREADS_PER_WARP = 32.0
ELEMENTS_PER_THREAD = 16.0
"""Fastest number of elements per thread."""
COST_PER_OCTAVE = 0.1
"""Log slow-down per octave from that number, from softmaxes on an RTX 3090 and an H100."""
LEARNED_SHARE = 0.0
"""Share of the trees' correction that is applied: none.

On seven kernels that were left out, half of it saved two measurements of eleven. But these are
norms and softmaxes, and for a kernel that copies elements the correction prefers a quarter of an
element per thread.
"""
SPREAD = 0.12
"""Standard deviation of the log error, from the same softmaxes."""
ERROR_FREEDOM = 2.5
"""Degrees of freedom of the Student law of the errors."""
MAX_ELEMENTS_OCTAVES = 18.0
MAX_PROGRAMS_OCTAVES = 14.0
"""Bounds of columns in octaves: beyond them, nothing was measured."""


@dataclass(frozen=True)
class RowLaunches:
    """The launches of one problem's candidates; arrays have one number for each.

    ``elements`` are of the largest tensor of a block, ``programs`` the blocks (NaN if unknown).
    """

    elements: np.ndarray
    warps: np.ndarray
    stages: np.ndarray
    programs: np.ndarray

    def columns(self, device: Device) -> np.ndarray:
        """Return what the trees read, shape (candidates, columns): values, then relative ones."""
        cores = cores_of(device.specs)
        programs = np.where(self.programs > 0, self.programs, cores)
        values = np.column_stack(
            [
                np.log2(self.elements / (THREADS_PER_WARP * self.warps)),
                np.log2(self.warps),
                np.log2(1.0 + self.stages),
                np.clip(np.log2(self.elements), 0.0, MAX_ELEMENTS_OCTAVES),
                np.clip(np.log2(programs / cores), -MAX_PROGRAMS_OCTAVES, MAX_PROGRAMS_OCTAVES),
            ]
        )
        return np.hstack([values, values - np.median(values, axis=0)]).astype(np.float32)

    def rule(self) -> np.ndarray:
        """Return the log slow-down against the best one, by elements per thread alone."""
        octaves = np.log2(self.elements / (THREADS_PER_WARP * self.warps) / ELEMENTS_PER_THREAD)
        cost = COST_PER_OCTAVE * np.abs(octaves)
        return cost - cost.min()


@dataclass(frozen=True)
class RowOrder:
    """Predicts slow-downs relative to the best candidate; ``trees`` correct the rule."""

    trees: RankingTrees

    def log_ratios(self, launches: RowLaunches, device: Device) -> np.ndarray:
        """Return the log of every candidate's expected slow-down."""
        correction = self.trees.scores(launches.columns(device))
        expected = launches.rule() + LEARNED_SHARE * correction
        return expected - expected.min()

    def prior(self, launches: RowLaunches, device: Device) -> Prior:
        """Return the prior of the candidates; it is rough, and has ties."""
        log_ratios = self.log_ratios(launches, device)
        runs = np.ones(len(log_ratios))
        return Prior(log_ratios, SPREAD, runs, ranks=False, error_freedom=ERROR_FREEDOM)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read from a file; raises PredictorError if it is damaged."""
        with translate_read_errors(path, PredictorError, "is damaged ({}): install Foretune again"):
            arrays = read_arrays(path)
            values: dict[str, Any] = {f.name: arrays[f.name] for f in fields(RankingTrees)}
            values["depth"] = int(values["depth"])
            return cls(RankingTrees(**values))

    def save(self, path: Path) -> None:
        """Write to a file."""
        arrays = {f.name: np.asarray(getattr(self.trees, f.name)) for f in fields(RankingTrees)}
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


@cache
def shipped_row_order() -> RowOrder:
    """Return the order shipped with Foretune."""
    return RowOrder.load(SHIPPED)
