"""Orders the candidates of a kernel without a product of tiles, such as a softmax.

With few elements, a thread idles while it waits for memory; with many, registers spill.
"""

from dataclasses import dataclass

import numpy as np

from foretune.search.searcher import Prior
from foretune.tune.triton.launch_order import ERROR_FREEDOM

THREADS_PER_WARP = 32.0
ELEMENTS_PER_THREAD = 16.0
"""Fastest number of elements per thread."""
COST_PER_OCTAVE = 0.1
"""Log slow-down per octave from that number, from softmaxes on an RTX 3090 and an H100."""
SPREAD = 0.12
"""Standard deviation of the log error, from the same softmaxes."""


@dataclass(frozen=True)
class RowLaunches:
    """The launches of one problem's candidates; arrays have one number for each.

    ``elements`` are of the largest tensor of a block.
    """

    elements: np.ndarray
    warps: np.ndarray

    def log_slowdowns(self) -> np.ndarray:
        """Return the log of every candidate's expected slow-down against the best one."""
        octaves = np.log2(self.elements / (THREADS_PER_WARP * self.warps) / ELEMENTS_PER_THREAD)
        cost = COST_PER_OCTAVE * np.abs(octaves)
        return cost - cost.min()


def row_prior(launches: RowLaunches) -> Prior:
    """Return the prior of the candidates; it is rough, and has ties."""
    log_slowdowns = launches.log_slowdowns()
    runs = np.ones(len(log_slowdowns))
    return Prior(log_slowdowns, SPREAD, runs, ranks=False, error_freedom=ERROR_FREEDOM)
