"""Features of launch geometry, alignment and cache use."""

import math

import numpy as np

from foretune.family import Cells, Quantity, nan_to
from foretune.features.families.tiles import padding, wave_features

AXES = ("x", "y", "z")
WARP = 32.0
_CLBLAST = ("MWG", "NWG", "MDIMC", "NDIMC")
MAX_ALIGNMENT = 8  # log2 of the largest power of two considered
CACHE_SUFFIX = "_of_cache"
"""Suffix of cache features; they are redundant if all devices have equal caches."""


def launch_geometry(problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
    """Return threads per block, work per thread, tile sizes and waves, if the names are known.

    Sizes are log2. ``padding`` is 1 if the tiles divide the problem: compilers then omit bounds
    checks and unroll. Returns nothing for unknown parameter names.
    """
    if all(name in config and config[name].dtype.kind != "U" for name in _CLBLAST):
        return _clblast(problem, config, device)
    blocks = _axes(config, "block_size") or _axes(config, "block_dim")
    if not blocks:
        return {}
    works = _axes(config, "tile_size") or _axes(config, "work_per_thread")
    threads = math.prod(blocks.values())
    work = math.prod(works.values())
    features: dict[str, Quantity] = {
        "log2_threads": np.log2(threads),
        "warp_fill": threads / (np.ceil(threads / WARP) * WARP),
        "log2_work": np.log2(work),
        "log2_tile": np.log2(threads * work),
    }
    tiles: Quantity = 1.0
    real: Quantity = 1.0
    for i, axis in enumerate(AXES):
        if axis not in blocks:
            continue
        edge = blocks[axis] * works.get(axis, 1.0)
        features[f"log2_tile_{axis}"] = np.log2(edge)
        if (size := problem.get(f"size_{i}")) is not None:
            tiles = tiles * np.ceil(size / edge)
            real = real * padding(size, edge)
    if {"x", "y"} <= blocks.keys():
        edges = [blocks[a] * works.get(a, 1.0) for a in "xy"]
        features["log2_tile_aspect"] = np.log2(edges[0] / edges[1])
        features |= _halo(problem, edges, [blocks[a] for a in "xy"], threads * work)
    if "size_0" in problem:
        features["padding"] = real
        features |= wave_features("blocks", tiles, device)
        features |= wave_features("threads", np.ceil(tiles * threads / 1024), device)
    return features


def _halo(
    problem: Cells, edges: list[Quantity], blocks: list[np.ndarray], tile: Quantity
) -> dict[str, Quantity]:
    """Return the loads of a stencil or convolution outside its tile, and the rounds they take."""
    if not {"filter_width", "filter_height"} <= problem.keys():
        return {}
    wide = edges[0] + problem["filter_width"] - 1
    high = edges[1] + problem["filter_height"] - 1
    loaded = wide * high
    return {
        "log2_loaded": np.log2(loaded),
        "halo": loaded / tile,
        "loads_per_thread": loaded / (blocks[0] * blocks[1]),
        "load_rounds_x": np.ceil(wide / blocks[0]),
        "load_rounds_y": np.ceil(high / blocks[1]),
    }


def _clblast(problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
    """Return the geometry of CLBlast's GEMM (Nugteren, IWOCL 2018)."""
    m = config["MWG"]
    n = config["NWG"]
    threads = config["MDIMC"] * config["NDIMC"]
    k = problem.get("KWG", config.get("KWG", np.float64(32.0)))
    shared = config.get("SA", 0.0) * m * k + config.get("SB", 0.0) * n * k
    features: dict[str, Quantity] = {
        "log2_threads": np.log2(threads),
        "log2_work_m": np.log2(m / config["MDIMC"]),
        "log2_work_n": np.log2(n / config["NDIMC"]),
        "log2_work": np.log2(m * n / threads),
        "log2_tile": np.log2(m * n),
        "log2_tile_aspect": np.log2(m / n),
        "shared_words": shared,
        "loads_per_flop": 1.0 / m + 1.0 / n,
        "loads_per_thread": k * (m + n) / threads,
    }
    if {"size_0", "size_1"} <= problem.keys():
        tiles = np.ceil(problem["size_0"] / m) * np.ceil(problem["size_1"] / n)
        features |= wave_features("blocks", tiles, device)
    return features


def _axes(columns: Cells, stem: str) -> dict[str, np.ndarray]:
    """Return the numeric columns ``stem_x``, ``stem_y``, …; a column ``stem`` counts as x."""
    found = {axis: columns[f"{stem}_{axis}"] for axis in AXES if f"{stem}_{axis}" in columns}
    if not found and stem in columns:
        found = {"x": columns[stem]}
    return {axis: values for axis, values in found.items() if values.dtype.kind != "U"}


def alignment(sizes: np.ndarray) -> np.ndarray:
    """Return log2 of the largest power of two that divides each size; NaN if not an integer."""
    whole = (sizes > 0) & (sizes < 2.0**53) & (sizes == np.floor(sizes))
    numbers = np.where(whole, sizes, 1).astype(np.int64)
    power = np.log2((numbers & -numbers).astype(float))
    return np.where(whole, np.minimum(power, MAX_ALIGNMENT), np.nan)


def cache_features(name: str, working_set: Quantity, device: Cells) -> dict[str, Quantity]:
    """Return log2 of working-set bytes over the last-level cache, named ``…_of_cache``.

    The cache is ``l3_kib`` (CPUs), else ``l2_kib``; NaN if both are unknown.
    """
    cache = nan_to(device.get("l3_kib", np.nan), device.get("l2_kib", np.nan))
    return {f"{name}{CACHE_SUFFIX}": np.log2(working_set / (1024.0 * cache))}
