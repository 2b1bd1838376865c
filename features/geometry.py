"""Features of launch geometry, alignment and cache use.

The geometry is read from the names of tunable parameters, as in Kernel Tuner's kernels
(``block_size_x``, ``tile_size_y``) and in CLBlast's. All values are arrays with one number per row
of a run table, or single numbers.
"""

import math

import numpy as np

from foretune.family import Cells, Quantity, nan_to
from foretune.features.families.tiles import padding, wave_features

AXES = ("x", "y", "z")
"""Axes of a block: x along the problem's ``size_0``, y along ``size_1``, z along ``size_2``."""
THREADS_PER_WARP = 32.0
MAX_BLOCK_THREADS = 1024
"""Threads of the largest block; ``waves_threads`` counts the threads in units of it."""
CLBLAST_NAMES = ("MWG", "NWG", "MDIMC", "NDIMC")
"""Parameters of CLBlast's GEMM: edges of the tile, and threads along them."""
CLBLAST_DEPTH = 32.0
"""Depth of a step of CLBlast's GEMM if ``KWG`` is unknown."""
MAX_ALIGNMENT = 8
"""log2 of the largest power of two considered."""
MAX_EXACT_INTEGER = 2.0**53
"""Below it, every integer is a float64."""
BYTES_PER_KIB = 1024.0
CACHE_SUFFIX = "_of_cache"
"""Suffix of cache features; they are redundant if all devices have equal caches."""


def launch_geometry(problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
    """Return threads per block, work per thread, tile sizes and waves, if the names are known.

    Sizes are log2. ``padding`` is 1 if the tiles divide the problem: compilers then omit bounds
    checks and unroll. Returns nothing for unknown parameter names.
    """
    if all(_is_numeric(config, name) for name in CLBLAST_NAMES):
        return _clblast(problem, config, device)
    threads_along = _axes(config, "block_size") or _axes(config, "block_dim")
    if not threads_along:
        return {}
    work_along = _axes(config, "tile_size") or _axes(config, "work_per_thread")

    threads = math.prod(threads_along.values())
    work = math.prod(work_along.values())
    features: dict[str, Quantity] = {
        "log2_threads": np.log2(threads),
        "warp_fill": threads / (np.ceil(threads / THREADS_PER_WARP) * THREADS_PER_WARP),
        "log2_work": np.log2(work),
        "log2_tile": np.log2(threads * work),
    }

    # A block computes a tile: along each axis its threads times the work of a thread.
    edges = {
        axis: threads_along[axis] * work_along.get(axis, 1.0)
        for axis in AXES
        if axis in threads_along
    }
    n_tiles: Quantity = 1.0
    unpadded_share: Quantity = 1.0
    for number, axis in enumerate(AXES):
        if axis not in edges:
            continue
        features[f"log2_tile_{axis}"] = np.log2(edges[axis])
        size = problem.get(f"size_{number}")
        if size is not None:
            n_tiles = n_tiles * np.ceil(size / edges[axis])
            unpadded_share = unpadded_share * padding(size, edges[axis])

    if "x" in edges and "y" in edges:
        features["log2_tile_aspect"] = np.log2(edges["x"] / edges["y"])
        features |= _halo(problem, edges, threads_along, tile=threads * work)
    if "size_0" in problem:
        features["padding"] = unpadded_share
        features |= wave_features("blocks", n_tiles, device)
        largest_blocks = np.ceil(n_tiles * threads / MAX_BLOCK_THREADS)
        features |= wave_features("threads", largest_blocks, device)
    return features


def _halo(
    problem: Cells,
    edges: dict[str, Quantity],
    threads_along: dict[str, np.ndarray],
    tile: Quantity,
) -> dict[str, Quantity]:
    """Return the loads of a stencil or convolution outside its tile, and the rounds they take.

    ``tile`` is the number of results of a block. Returns nothing without a filter.
    """
    if not {"filter_width", "filter_height"} <= problem.keys():
        return {}
    # The filter reaches (width - 1) / 2 beyond the tile on either side.
    loaded_width = edges["x"] + problem["filter_width"] - 1
    loaded_height = edges["y"] + problem["filter_height"] - 1
    loaded = loaded_width * loaded_height
    return {
        "log2_loaded": np.log2(loaded),
        "halo": loaded / tile,
        "loads_per_thread": loaded / (threads_along["x"] * threads_along["y"]),
        "load_rounds_x": np.ceil(loaded_width / threads_along["x"]),
        "load_rounds_y": np.ceil(loaded_height / threads_along["y"]),
    }


def _clblast(problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
    """Return the geometry of CLBlast's GEMM (Nugteren, IWOCL 2018)."""
    m = config["MWG"]
    n = config["NWG"]
    k = problem.get("KWG", config.get("KWG", np.float64(CLBLAST_DEPTH)))
    threads = config["MDIMC"] * config["NDIMC"]

    # SA and SB are 1 if the tiles of A and B are kept in shared memory.
    shared_words = config.get("SA", 0.0) * m * k + config.get("SB", 0.0) * n * k
    features: dict[str, Quantity] = {
        "log2_threads": np.log2(threads),
        "log2_work_m": np.log2(m / config["MDIMC"]),
        "log2_work_n": np.log2(n / config["NDIMC"]),
        "log2_work": np.log2(m * n / threads),
        "log2_tile": np.log2(m * n),
        "log2_tile_aspect": np.log2(m / n),
        "shared_words": shared_words,
        "loads_per_flop": 1.0 / m + 1.0 / n,
        "loads_per_thread": k * (m + n) / threads,
    }
    if {"size_0", "size_1"} <= problem.keys():
        n_tiles = np.ceil(problem["size_0"] / m) * np.ceil(problem["size_1"] / n)
        features |= wave_features("blocks", n_tiles, device)
    return features


def _axes(columns: Cells, stem: str) -> dict[str, np.ndarray]:
    """Return the numeric columns ``stem_x``, ``stem_y``, …; a column ``stem`` counts as x."""
    column_of_axis = {axis: f"{stem}_{axis}" for axis in AXES if f"{stem}_{axis}" in columns}
    if not column_of_axis and stem in columns:
        column_of_axis = {"x": stem}
    return {
        axis: columns[column]
        for axis, column in column_of_axis.items()
        if _is_numeric(columns, column)
    }


def _is_numeric(columns: Cells, name: str) -> bool:
    return name in columns and columns[name].dtype.kind != "U"


def alignment(sizes: np.ndarray) -> np.ndarray:
    """Return log2 of the largest power of two that divides each size; NaN if not an integer."""
    is_integer = (sizes > 0) & (sizes < MAX_EXACT_INTEGER) & (sizes == np.floor(sizes))
    integers = np.where(is_integer, sizes, 1).astype(np.int64)
    # In two's complement, n & -n is the lowest bit of n that is set.
    lowest_bit = integers & -integers
    power = np.log2(lowest_bit.astype(float))
    return np.where(is_integer, np.minimum(power, MAX_ALIGNMENT), np.nan)


def cache_features(name: str, working_set: Quantity, device: Cells) -> dict[str, Quantity]:
    """Return log2 of working-set bytes over the last-level cache, named ``…_of_cache``.

    The cache is ``l3_kib`` (CPUs), else ``l2_kib``; NaN if both are unknown.
    """
    cache_kib = nan_to(device.get("l3_kib", np.nan), device.get("l2_kib", np.nan))
    return {f"{name}{CACHE_SUFFIX}": np.log2(working_set / (BYTES_PER_KIB * cache_kib))}
