"""Recorded spaces that formulas make: every time is known, and no file is read."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from foretune.search import Prior
from foretune.search.replay.recorded import RecordedSpace, recorded_spaces

Row = dict[str, str | int | bool]
Law = Callable[[Row], float]


def tiled_gemm() -> RecordedSpace:
    """Return a GEMM with tiles: waves, padding, latency hiding; too much shared memory fails."""
    problem = {"M": 1920, "N": 1280, "K": 640}
    rows = _rows(
        BLOCK_M=(16, 32, 64, 128),
        BLOCK_N=(16, 32, 64, 128),
        BLOCK_K=(16, 32, 64),
        num_warps=(1, 2, 4, 8),
        num_stages=(1, 2, 3),
    )

    def law(row: Row) -> float:
        m, n, k, warps, stages = (int(value) for value in row.values())
        if 2 * stages * k * (m + n) > 32 * 1024:
            return math.inf
        per_thread = m * n / (32 * warps)
        if per_thread > 192:
            return math.inf
        tiles = math.ceil(problem["M"] / m) * math.ceil(problem["N"] / n)
        waves = math.ceil(tiles / 40)
        step = m * n * k / 2.0e6 + (m + n) * k / 4.0e5
        hidden = 1 + 0.9 / (stages * math.sqrt(warps))
        pressure = 1.0 + 0.2 * abs(math.log2(per_thread / 48))
        return waves * math.ceil(problem["K"] / k) * (step + 2e-4) * hidden * pressure

    return _space("tiled_gemm", problem, rows, law)


def categorical() -> RecordedSpace:
    """Return a kernel whose parameters are words and switches, two of which interact."""
    rows = _rows(
        order=("ijk", "ikj", "jik", "kij"),
        layout=("row", "column", "blocked"),
        pack=(False, True),
        prefetch=("none", "near", "far"),
        unroll=(1, 2, 4, 8),
    )

    def law(row: Row) -> float:
        if row["layout"] == "column" and row["prefetch"] == "far" and row["unroll"] == 8:
            return math.inf
        time = {"ijk": 1.6, "ikj": 1.0, "jik": 1.9, "kij": 1.3}[str(row["order"])]
        friendly = (row["order"], row["layout"]) in (("ikj", "blocked"), ("jik", "column"))
        time *= 0.7 if friendly else 1.0
        time *= 0.8 if row["pack"] and row["layout"] != "blocked" else 1.0
        time *= {"none": 1.2, "near": 1.0, "far": 1.08}[str(row["prefetch"])]
        return time * (1 + 0.11 * abs(math.log2(int(row["unroll"])) - 2))

    return _space("categorical", {"n": 4096}, rows, law)


def stencil() -> RecordedSpace:
    """Return a stencil; `stencil_prior` is what another device would say of it."""
    rows = _rows(
        tile_x=(8, 16, 32, 64, 128),
        tile_y=(1, 2, 4, 8, 16),
        time_tile=(1, 2, 3, 4),
        texture=(False, True),
    )

    def law(row: Row) -> float:
        x, y, depth, texture = (int(value) for value in row.values())
        if x * y > 1024 or x * y < 16:
            return math.inf
        halo = (1 + 2 * depth / x) * (1 + 2 * depth / y) ** 0.5
        reuse = 1 / depth + 0.12 * depth
        return halo * reuse * (1 + 0.15 * abs(math.log2(x * y / 128))) * (0.94 if texture else 1.0)

    return _space("stencil", {"n": 2048}, rows, law)


def stencil_prior(recorded: RecordedSpace) -> Prior:
    """Return a prior that knows the tiles, misjudges the depth, and a third of the failures."""
    mean = np.empty(len(recorded))
    runs = np.empty(len(recorded))
    for number, config in enumerate(recorded.space):
        x, y, depth = (int(config[name]) for name in ("tile_x", "tile_y", "time_tile"))
        mean[number] = 0.2 * abs(math.log2(x * y / 64)) + 0.1 * depth
        runs[number] = 0.1 if x * y > 1024 else 0.9
    return Prior(mean + 0.1 * _scatter(len(recorded)), 0.25, runs)


def _rows(**values: Sequence[str | int | bool]) -> Iterator[Row]:
    return (dict(zip(values, row, strict=True)) for row in itertools.product(*values.values()))


def _scatter(n: int) -> np.ndarray:
    """Return numbers between -1 and 1 without a pattern, the same on every machine."""
    return np.arange(n) * 2654435761 % 2**32 / 2**31 - 1


def _space(name: str, problem: dict[str, int], rows: Iterator[Row], law: Law) -> RecordedSpace:
    """Return a space; three percent of scatter leave no two configurations alike."""
    configs = list(rows)
    times = np.array([law(row) for row in configs]) * (1 + 0.03 * _scatter(len(configs)))
    runs = pd.DataFrame(configs).add_prefix("config.")
    for size, value in problem.items():
        runs[f"problem.{size}"] = value
    runs["kernel"], runs["device"] = name, "Toy GPU"
    runs["status"] = np.where(np.isfinite(times), "ok", "runtime_error")
    runs["time_ms"] = np.where(np.isfinite(times), times, np.nan)
    (recorded,) = recorded_spaces(runs, name)
    return recorded
