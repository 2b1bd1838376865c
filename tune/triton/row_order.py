"""Orders the candidates of a kernel without a product of tiles, such as a softmax.

With few elements, a thread idles while it waits for memory; with many, registers spill.
"""

import math

import numpy as np

from foretune.search.encoding import KernelRuns
from foretune.tune.triton.tiles import ShapeLaw

THREADS_PER_WARP = 32.0
ELEMENTS_PER_THREAD = 16.0
"""Fastest number of elements per thread."""
COST_PER_OCTAVE = 0.1
"""Log slow-down per octave from that number, from softmaxes on an RTX 3090 and an H100."""
ROW_SPREAD = 0.12
"""Standard deviation of the log error of this rule, from the same softmaxes."""


def row_log_ratios(law: ShapeLaw, rows: KernelRuns) -> np.ndarray:
    """Return the log slow-down of each candidate against the best one."""
    elements = np.array([law.elements(config) for config in rows.configs])
    octaves = np.log2(elements / (THREADS_PER_WARP * rows.warps) / ELEMENTS_PER_THREAD)
    cost = COST_PER_OCTAVE * np.abs(octaves)
    return cost - cost.min(initial=math.inf)
