"""Orders of candidates that other tools use, for kernels that multiply tiles.

`plain_ranking` is what a tuning service learns first: boosted trees on sizes and configuration, as
FlagTune's. `roofline_log_time` is a formula without any learning, in the manner of
tritonBLAS/Origami (arXiv 2512.04226): the time of one tile, times the waves of tiles.
"""

from collections.abc import Callable, Sequence

import numpy as np
from recorded_calls import Recorded

from foretune.features.launches import TileLaunch
from foretune.support.lazy import require

Order = Callable[[Recorded], np.ndarray]
"""Returns a score for each configuration of a problem; the lowest comes first."""

SIZES = ("tile_m", "tile_n", "tile_k", "size_m", "size_n", "size_k", "warps", "steps", "sums")
"""Columns of the plain ranking, in octaves."""
NUMBERS = ("stages", "bits_a", "bits_b", "exact")
"""Columns of the plain ranking as they are."""
RANKING_ROUNDS = 300
RANKING_PARAMETERS = {
    "objective": "rank:ndcg",
    "ndcg_exp_gain": False,
    "eta": 0.1,
    "max_depth": 6,
    "subsample": 0.8,
    "seed": 0,
    "nthread": 1,
}
GAIN = 31.0
"""Relevance of the fastest configuration; others have their relative speed of it."""

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


def plain_ranking(problems: Sequence[Recorded]) -> Order:
    """Return a ranking learned from sizes, types and configurations; kernels weigh the same."""
    xgboost = require("xgboost", "learn", "a ranking")
    kernels, number, counts = np.unique(
        [p.kernel for p in problems], return_inverse=True, return_counts=True
    )
    data = xgboost.DMatrix(
        np.concatenate([_plain_columns(p.launches) for p in problems]),
        GAIN * np.concatenate([p.time_ms.min() / p.time_ms for p in problems]),
        group=[len(p.time_ms) for p in problems],
        weight=len(problems) / len(kernels) / counts[number],
    )
    booster = xgboost.train(RANKING_PARAMETERS, data, RANKING_ROUNDS)

    def order(problem: Recorded) -> np.ndarray:
        columns = _plain_columns(problem.launches)
        return -np.asarray(booster.predict(xgboost.DMatrix(columns)), dtype=float)

    return order


def roofline_log_time(problem: Recorded) -> np.ndarray:
    """Return the log of the time that the formula gives each configuration."""
    launches = problem.launches
    specs = problem.call.device.specs
    x = {
        name: np.array([getattr(launch, name) for launch in launches])
        for name in TileLaunch.__dataclass_fields__
    }
    cores = specs.get("cores", DEFAULT_CORES)
    bandwidth = 1e9 * specs.get("memory_gbps", DEFAULT_GBPS)
    rate = 1e9 * specs.get("fp16_gflops", DEFAULT_GFLOPS)
    bits = x["bits_a"]
    rate = np.select([bits <= 8, bits >= 32], [2.0 * rate, 0.5 * rate], default=rate)

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


def _plain_columns(launches: Sequence[TileLaunch]) -> np.ndarray:
    sizes = [[max(getattr(launch, name), 1.0) for name in SIZES] for launch in launches]
    numbers = [[getattr(launch, name) for name in NUMBERS] for launch in launches]
    return np.column_stack([np.log2(sizes), numbers]).astype(np.float32)
