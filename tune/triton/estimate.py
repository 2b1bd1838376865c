"""What a kernel nobody has measured should take: from configuration and grid, and from its code.

Only the order of one problem's configurations matters, so what is the same for all is left out.
Five things are weighed, each as a factor on the time of ideal code:

- *padding*: what programs times their tiles cover beyond what is needed;
- *waves*: the last one is seldom full, and few programs leave multiprocessors idle;
- *reuse*: a tile of M×N loads (M+N) for M·N products; below the balance of the machine it waits
  (the roofline of Williams et al., CACM 52(4), 2009, one level up);
- *elements per thread*: too few cannot hide latencies or use wide loads, too many spill;
- *spills*, once machine code shows them.

Tiles are recognised by their names, ``BLOCK_M``, ``BLOCK_SIZE_N``, ``BLOCK``: the convention of the
field; where somebody looked at the code, it says instead how much it computes per byte it loads. It
is a first guess with a wide spread; measurements correct it at once.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from foretune.mapping import FrozenParameters
from foretune.search.rows import KernelRuns

LOG_TIME_SPREAD = 0.5
"""Standard deviation of the estimate's error in log time: a factor of 1.6."""
BALANCE_OPS_PER_BYTE = 64.0
"""Operations per byte of 16-bit operands above which matrix units decide, not loads."""
PREFERRED_ELEMENTS_PER_THREAD = {"tile": 64.0, "row": 16.0}
"""Elements per thread that run best: accumulators of matrix tiles, elements of rows."""
SPILLING_ELEMENTS_PER_THREAD = 256.0
"""Elements per thread that no longer fit 255 registers."""

MAX_GRID_CORRELATION = -0.5
"""Correlation of programs with tiles, both logarithms, below which a grid covers the problem."""
MAX_LOG_PADDING = np.log(64.0)
SPILLED_BYTES = 32.0
"""Bytes that a thread spills before that begins to cost."""

_TILE = re.compile(r"^(?:BLOCK|TILE|B)(?:_?SIZE)?_?([A-Z0-9]*)$", re.IGNORECASE)


def estimate(rows: KernelRuns, specs: Mapping[str, float]) -> np.ndarray:
    """Return the logarithm of each row's time, up to a constant per problem.

    Args:
        rows: of one kernel.
        specs: of the device; ``cores`` is used.
    """
    result = np.zeros(len(rows))
    waves = rows.waves(specs)
    known = np.isfinite(waves) & (waves > 0)
    result[known] += np.log(np.ceil(waves[known]) / waves[known])
    edges = [tile_edges(c) for c in rows.configs]
    for numbers in rows.by_problem().values():
        result[numbers] += _padding_penalty(rows.programs[numbers], [edges[i] for i in numbers])
    for i, warps in enumerate(rows.warps):
        code = rows.statics[i]
        result[i] += _tile_factor(edges[i], code, 32.0 * warps) + spill_penalty(code)
    return result


def spill_penalty(code: Mapping[str, float]) -> float:
    """Return the logarithm of what registers kept in memory cost."""
    spilled = code.get("spill_load_bytes", 0.0) + code.get("spill_store_bytes", 0.0)
    spilled += 4.0 * code.get("spilled_registers", 0.0)
    return 0.2 * float(np.log2(1.0 + spilled / SPILLED_BYTES))


def _padding_penalty(programs: np.ndarray, edges: Sequence[Mapping[str, float]]) -> np.ndarray:
    """Return the logarithm of how much more than needed the tiles of all programs cover.

    Nothing where the number of programs does not follow from the tile: they take tiles in turn.

    Args:
        programs: of one problem's rows.
        edges: of their tiles.
    """
    area = np.array([e.get("M", 1.0) * e.get("N", 1.0) * e.get("", 1.0) for e in edges])
    nothing = np.zeros(len(area))
    if not (programs > 0).all() or np.ptp(area) == 0 or np.ptp(programs) == 0:
        return nothing
    if np.corrcoef(np.log(programs), np.log(area))[0, 1] > MAX_GRID_CORRELATION:
        return nothing
    covered = np.log(programs * area)
    return np.minimum(covered - covered.min(), MAX_LOG_PADDING)


def _tile_factor(edges: Mapping[str, float], code: Mapping[str, float], threads: float) -> float:
    if code.get("dots", 0) > 0 and code.get("loop_intensity", 0) > 0:
        # of 16-bit operands: narrower ones are multiplied as much faster as they load faster
        intensity = code["loop_intensity"] * code.get("dot_bits", 16.0) / 16.0
        return _memory_stall_penalty(intensity) + _occupancy_penalty(
            max(code.get("carried_registers", 1.0), 1.0), "tile"
        )
    if "M" in edges and "N" in edges:
        m, n = edges["M"], edges["N"]
        return _memory_stall_penalty(m * n / (m + n)) + _occupancy_penalty(m * n / threads, "tile")
    if code.get("tile_registers", 0) > 0:
        return _occupancy_penalty(code["tile_registers"], "row")
    if not edges:
        return 0.0
    return _occupancy_penalty(float(np.prod(list(edges.values()))) / threads, "row")


def _memory_stall_penalty(intensity: float) -> float:
    """Return the logarithm of what waiting for loads costs, given operations per byte."""
    return float(np.logaddexp(0.0, 2 * np.log(BALANCE_OPS_PER_BYTE / intensity)) / 2)


def _occupancy_penalty(elements: float, kind: str) -> float:
    """Return the logarithm of what too few or too many elements per thread cost."""
    octaves = np.log2(elements / PREFERRED_ELEMENTS_PER_THREAD[kind])
    spilled = max(float(np.log2(elements / SPILLING_ELEMENTS_PER_THREAD)), 0.0)
    return float(0.02 * octaves**2 + 0.7 * spilled)


def tile_edges(config: FrozenParameters) -> dict[str, float]:
    """Return the edges of a configuration's tile, by the letters that its names end in."""
    edges: dict[str, float] = {}
    for name, value in config.items():
        found = _TILE.match(name)
        if found and isinstance(value, int) and value > 0:
            edges[found[1].upper()] = float(value)
    return edges
