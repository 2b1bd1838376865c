"""Launches of kernels that multiply tiles, as columns that mean the same for all of them.

Products and attention, whoever wrote them, load tiles step by step and add up tiles of sums. What a
call says of that (`TileLaunch`) becomes columns relative to the device and to the candidates of the
problem, which is how one kernel tells of another. They hold a law of the launch, too: the parts of
`TiledLaunch`, and what small tiles, few warps and full registers cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from foretune.collect.compiled.targets import get_target
from foretune.device import Device, peak_rate
from foretune.errors import UnknownName
from foretune.family import Quantity, nan_to
from foretune.features.families.tiled_launch import STEP_LATENCY_MS, TiledLaunch
from foretune.features.families.tiles import cores_of

LAUNCH_MS = 2e-3
"""What any launch takes."""
SMALL_TILE, SMALL_TILE_EXPONENT = 32.0 * 32.0, 0.3
"""Tile whose operations take 2^0.3 times as long as those of a large one; that power."""
PREFERRED_ELEMENTS_PER_THREAD, SPILLING_ELEMENTS_PER_THREAD, SPILL_COST = 64.0, 160.0, 0.7
"""Sums per thread that run best, above which registers spill, and what an octave of that costs."""
MIN_ASYNC_ROWS, SYNC_RATE_SHARE = 64.0, 0.62
"""Rows of a tile below which a device with asynchronous matrix units cannot use them, and the share
of its peak rate that is left (Luo et al., arXiv:2402.13499: 62.9 % on Hopper)."""
DEFAULT_GFLOPS, DEFAULT_GBPS, DEFAULT_L2_KIB, DEFAULT_SHARED_BYTES = 3e5, 2e3, 4e4, 232448.0
"""Of a device that does not say; the last one also of one that has more."""
ASYNC_ARCHITECTURES = ("sm_90", "sm_100")
"""Architectures whose matrix units read shared memory on their own."""
MAX_LOG_RATIO = 3.0
"""Logarithm of a factor beyond which slower is as bad."""
RELATIVE_COLUMNS = (
    "area",
    "sums",
    "shared",
    "flight",
    "waves",
    "useful",
    "intensity",
    "warps_there",
)
"""Columns that are there a second time, less the median of the problem's candidates."""


@dataclass(frozen=True)
class TileLaunch:
    """One candidate's launch.

    Attributes:
        tiles: blocks, or what persistent blocks take in turn.
        tile_m, tile_n, tile_k: edges of the tile of sums, and how deep a step goes.
        size_m, size_n, size_k: what they divide up; a guess where the call does not tell.
        steps: of one block.
        flops: of one step.
        step_bytes: that a step loads.
        kept_bytes: that a block keeps beside its steps.
        sums: values of 32 bits that a block keeps.
        moved_bytes: of all operands and results.
        warps: of a block.
        stages: steps in flight.
        bits_a, bits_b: of an element of each operand.
        exact: 1 if 32 bits are multiplied as such, not rounded to TF32.
        transposed_a, transposed_b: 1 if an operand's last axis is not the one that lies together.
        alignment: log2 of the bytes, 16 at most, that divide all rows of the operands.
    """

    tiles: float
    tile_m: float
    tile_n: float
    tile_k: float
    size_m: float
    size_n: float
    size_k: float
    steps: float
    flops: float
    step_bytes: float
    kept_bytes: float
    sums: float
    moved_bytes: float
    warps: float
    stages: float
    bits_a: float
    bits_b: float
    exact: float
    transposed_a: float
    transposed_b: float
    alignment: float


@dataclass(frozen=True)
class LaunchFeatures:
    """Candidates of one problem.

    Attributes:
        values: shape (candidates, `NAMES`), float32.
        analytic_log_time: logarithm of what the law expects, over the least, at most `TOO_SLOW`.
        fits: whether the steps in flight fit a block's shared memory.
    """

    values: np.ndarray
    analytic_log_time: np.ndarray
    fits: np.ndarray


def launch_features(launches: Sequence[TileLaunch], device: Device) -> LaunchFeatures:
    """Return what tells the candidates of one problem on a device apart."""
    names = [f.name for f in fields(TileLaunch)]
    table = np.array([[getattr(one, n) for n in names] for one in launches])
    x = dict(zip(names, table.T, strict=True))
    specs = device.specs
    dtype = np.where(x["exact"] > 0, "fp32", "fp16")
    dtype[(x["bits_a"] >= 32) & (x["exact"] == 0)] = "tf32"
    dtype[x["bits_a"] <= 8] = "fp8"
    tiled = TiledLaunch(
        x["tiles"], x["steps"], x["flops"], x["step_bytes"], x["sums"], x["warps"], x["stages"],
        x["moved_bytes"], dtype,
    )  # fmt: skip
    asynchronous, limit = _shared_memory(device)
    buffers = _buffers(x, asynchronous)
    fits = ~(buffers > limit)
    slow = asynchronous & (x["bits_a"] <= 16) & (x["tile_m"] < MIN_ASYNC_ROWS)
    cores, resident = cores_of(specs), tiled.resident(specs)
    waves = x["tiles"] / cores
    active = np.minimum(resident, np.maximum(np.ceil(waves), 1.0))
    area, threads = x["tile_m"] * x["tile_n"], 32.0 * x["warps"]
    parts = tiled.parts_ms(specs)
    parts["operations"] = parts["operations"] * (1.0 + SMALL_TILE / area) ** SMALL_TILE_EXPONENT
    parts["operations"] = parts["operations"] / np.where(slow, SYNC_RATE_SHARE, 1.0)
    parts["cache"] = parts["cache"] / np.minimum(waves, 1.0)
    parts["latency"] = parts["latency"] * (active * x["warps"] / 4.0) ** 0.4
    parts = {name: np.broadcast_to(nan_to(1.0 * p, 0.0), area.shape) for name, p in parts.items()}
    busy = np.cbrt(sum(p**3 for p in parts.values())) + 1e-9
    octaves = np.log2(x["sums"] / threads)
    log_time = (
        np.log(busy + LAUNCH_MS) + 0.02 * (octaves - np.log2(PREFERRED_ELEMENTS_PER_THREAD)) ** 2
    )
    log_time = log_time + SPILL_COST * np.maximum(
        octaves - np.log2(SPILLING_ELEMENTS_PER_THREAD), 0.0
    )
    ahead = log_time - log_time[fits].min() if fits.any() else log_time - log_time.min()
    rate = 1e6 * np.broadcast_to(nan_to(peak_rate(dtype, specs), DEFAULT_GFLOPS), area.shape)
    bandwidth = 1e6 * nan_to(
        specs.get("memory_gbps", np.nan), DEFAULT_GBPS
    )  # bytes per millisecond
    balance = bandwidth / rate
    work = x["tiles"] * x["steps"] * x["flops"]
    rounds = np.maximum(np.ceil(waves / resident), 1.0)
    columns = {
        "shared": np.log2(buffers / min(limit, DEFAULT_SHARED_BYTES)),
        "resident": resident,
        "waves": np.log2(waves),
        "fill": waves / np.ceil(waves),
        "fill_resident": waves / resident / rounds,
        "rounds": np.log2(rounds),
        "warps_there": np.log2(active * x["warps"]),
        "sums": octaves,
        "area": np.log2(area),
        "aspect": np.log2(x["tile_m"] / x["tile_n"]),
        "warps": np.log2(x["warps"]),
        "stages": x["stages"],
        "intensity": np.log2(x["flops"] / x["step_bytes"] * balance),
        "work_intensity": np.log2(work / x["moved_bytes"] * balance),
        "steps": np.log2(x["steps"]),
        "useful": _useful(x, "m") * _useful(x, "n"),
        "useful_k": _useful(x, "k"),
        "flight": np.log2(buffers * active * cores / bandwidth / STEP_LATENCY_MS),
        "step_flops": np.log2(x["flops"] * cores / rate / STEP_LATENCY_MS),
        **{n: np.log2(x[n]) for n in names if n.startswith(("tile_", "size_"))},
        "moved": np.log2(
            x["moved_bytes"] / (1024.0 * nan_to(specs.get("l2_kib", np.nan), DEFAULT_L2_KIB))
        ),
        **{n: x[n] for n in names[-6:]},
        **{f"part_{name}": np.log(np.maximum(p / busy, 1e-9)) for name, p in parts.items()},
        **{f"over_{n}": _over(parts[n]) for n in ("operations", "cache", "latency")},
        "law": np.minimum(ahead, MAX_LOG_RATIO),
        "law_rank": log_time.argsort(kind="stable").argsort(kind="stable") / len(log_time),
        "log_law": log_time,
    }
    columns |= {f"other_{n}": columns[n] - np.median(columns[n]) for n in RELATIVE_COLUMNS}
    values = np.column_stack([np.broadcast_to(c, area.shape) for c in columns.values()])
    return LaunchFeatures(values.astype(np.float32), columns["law"], fits)


def _shared_memory(device: Device) -> tuple[bool, float]:
    """Return whether matrix units read it on their own, and how many bytes a block can have."""
    try:
        target = get_target(device.architecture)
    except UnknownName:
        return False, np.inf
    return target.name in ASYNC_ARCHITECTURES, float(target.limits.shared_bytes_per_cta)


def _buffers(x: dict[str, np.ndarray], asynchronous: bool) -> np.ndarray:
    """Return the shared memory that a block needs, in bytes.

    Triton loads one step less ahead than there are stages, except where the matrix units read
    shared memory on their own and so still need what they work on.
    """
    waits = asynchronous & (x["bits_a"] <= 16) & (x["tile_m"] >= MIN_ASYNC_ROWS)
    steps = np.where(waits, x["stages"], np.maximum(x["stages"] - 1.0, 1.0))
    return steps * x["step_bytes"] + x["kept_bytes"]


def _useful(x: dict[str, np.ndarray], edge: str) -> np.ndarray:
    """Return the share of what tiles cover along an edge that is there."""
    size, tile = x[f"size_{edge}"], x[f"tile_{edge}"]
    return size / (np.ceil(size / tile) * tile)


def _over(part: Quantity) -> np.ndarray:
    """Return the logarithm of a part over the least of all candidates."""
    logs = np.log(np.maximum(part, 1e-12))
    return logs - logs.min()
