"""A formula that orders candidates without learning, for kernels that multiply tiles.

It is in the manner of tritonBLAS/Origami (arXiv 2512.04226): the time of one tile, times the waves
of tiles.
"""

from collections.abc import Sequence

import numpy as np

from foretune.device import Device
from foretune.features.launches import TileLaunch

L2_SPEEDUP = 2.5
"""Bandwidth of the second-level cache over that of memory."""
MAX_HIT_RATE = 0.95
MATRIX_ROWS = 16.0
"""Rows of a matrix instruction; a tile with fewer wastes the others."""
PROLOGUE_STEPS = 1.5
"""Loads of a tile before its first step, in steps."""
LATENCY_S = 0.5e-6
"""Time from a load to its data."""
DEFAULT_GFLOPS = 3e5
DEFAULT_GBPS = 2e3
DEFAULT_CORES = 128.0
"""Rates of a device that does not report them."""


def roofline_log_time(launches: Sequence[TileLaunch], device: Device) -> np.ndarray:
    """Return the log of the time that the formula gives each launch."""
    specs = device.specs
    x = {
        name: np.array([getattr(launch, name) for launch in launches])
        for name in TileLaunch.__dataclass_fields__
    }
    cores = specs.get("cores", DEFAULT_CORES)
    bandwidth = 1e9 * specs.get("memory_gbps", DEFAULT_GBPS)
    rate_16 = 1e9 * specs.get("fp16_gflops", DEFAULT_GFLOPS)
    bits = x["bits_a"]
    rate = np.select([bits <= 8, bits >= 32], [2.0 * rate_16, 0.5 * rate_16], default=rate_16)

    # Compute time of a step: on one core, with the rows that a matrix instruction needs.
    rows = np.ceil(x["tile_m"] / MATRIX_ROWS) * MATRIX_ROWS
    compute_s = x["flops"] * rows / x["tile_m"] / (rate / cores)

    # Memory time of a step: tiles that run at the same time share rows and columns in the cache.
    tiles = np.maximum(x["tiles"], 1.0)
    active = np.minimum(tiles, cores)
    across = np.minimum(np.ceil(x["size_n"] / x["tile_n"]), np.ceil(np.sqrt(active)))
    down = np.ceil(active / across)
    unique_edges = down * x["tile_m"] + across * x["tile_n"]
    hit_rate = 1.0 - unique_edges / (active * (x["tile_m"] + x["tile_n"]))
    hit_rate = np.clip(hit_rate, 0.0, MAX_HIT_RATE)
    read_bytes = active * x["step_bytes"]
    memory_s = np.maximum(
        read_bytes / (L2_SPEEDUP * bandwidth), read_bytes * (1.0 - hit_rate) / bandwidth
    )

    # A step waits for its data unless enough stages are in flight.
    latency_s = LATENCY_S / np.maximum(x["stages"] - 1.0, 1.0)
    step_s = np.maximum(np.maximum(compute_s, memory_s), latency_s)
    epilogue_s = active * x["tile_m"] * x["tile_n"] * bits / 8.0 / bandwidth
    tile_s = PROLOGUE_STEPS * memory_s + step_s * np.maximum(x["steps"], 1.0) + epilogue_s
    return np.log(tile_s * np.ceil(tiles / cores))
