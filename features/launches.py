"""Features of tiled launches that have the same meaning for all kernels of this kind.

Matrix products and attention load tiles step by step and accumulate a tile of sums. A call's
`TileLaunch` becomes columns relative to the device and to the problem's other candidates, so that
one kernel's runs inform another's order. The columns include an analytic time: the parts of
`TiledLaunch` plus penalties for small tiles, few warps and register spills.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from foretune.collect.compiled.gpu_targets import get_target
from foretune.device import Device, peak_rate
from foretune.errors import UnknownName
from foretune.family import Quantity, nan_to
from foretune.features.families.tiles import STEP_LATENCY_MS, TiledLaunch, cores_of, padding

LAUNCH_MS = 2e-3
"""Fixed overhead of a launch."""
THREADS_PER_WARP = 32.0
SMALL_TILE = 32.0 * 32.0
SMALL_TILE_EXPONENT = 0.3
"""A tile of this size takes 2^0.3 times as long per operation as a large one; the exponent."""
PREFERRED_ELEMENTS_PER_THREAD = 64.0
"""Sums per thread that are fastest."""
PREFERENCE_COST = 0.02
"""Log-time cost of the squared distance from the preferred sums per thread, in octaves."""
SPILLING_ELEMENTS_PER_THREAD = 160.0
"""Sums per thread from which registers spill."""
SPILL_COST = 0.7
"""Log-time cost per octave of spilled sums."""
MAX_ELEMENTS_PER_THREAD = 512.0
"""Sums per thread from which nothing ran on an A100, whatever the spills."""
LATENCY_WARPS = 4.0
LATENCY_EXPONENT = 0.4
"""The latency of a step grows with the warps on a core, above these, to this power."""
MIN_ASYNC_ROWS = 64.0
"""Minimum tile rows for asynchronous matrix units."""
SYNC_RATE_SHARE = 0.62
"""Share of the rate without asynchronous matrix units.

Luo et al., arXiv:2402.13499: 62.9 % on Hopper.
"""
TF32_ROWS = 64.0
TF32_WARPS = 4.0
"""Tile rows and warps from which Triton gives 32-bit products to Hopper's asynchronous units."""
TF32_RATE_SHARE = 0.4
"""Share of their rate if an operand is not contiguous along the inner axis (K).

The units take 32-bit operands only so (PTX ISA, ``wgmma``), and others are rearranged first. On a
table recorded on an H100 with Triton of 2024, the tiles that Triton gives to these units kept 0.33
to 0.54 of the best then. Not verified on a GPU with a newer Triton.
"""
TF32_K_MAJOR_ARCHITECTURES = ("sm_90",)
DEFAULT_GFLOPS = 3e5
DEFAULT_GBPS = 2e3
DEFAULT_L2_KIB = 4e4
"""Rates and size of a device that are used if they are unknown."""
DEFAULT_SHARED_BYTES = 232448.0
"""Shared memory of a block if it is unknown; it also caps larger devices."""
ASYNC_ARCHITECTURES = ("sm_90", "sm_100")
"""Architectures whose matrix units read shared memory asynchronously."""
MAX_LOG_RATIO = 3.0
"""Clip of the log ratio to the fastest candidate."""
SIZE_COLUMNS = {
    "tile_m": True,
    "tile_n": True,
    "tile_k": True,
    "size_m": True,
    "size_n": True,
    "size_k": True,
    "warps": True,
    "steps": True,
    "sums": True,
    "stages": False,
    "bits_a": False,
    "bits_b": False,
    "exact": False,
}
"""Columns of `LaunchFeatures.sizes`; whether they are sizes, of which the logarithm is taken."""
OPERAND_COLUMNS = ("bits_a", "bits_b", "exact", "transposed_a", "transposed_b", "alignment")
"""Fields of `TileLaunch` that are columns as they are."""
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
"""Columns repeated relative to the median of the problem's candidates."""


@dataclass(frozen=True)
class TileLaunch:
    """One candidate's launch.

    ``tiles`` are output tiles: the blocks, or the work items of persistent blocks. ``tile_m`` and
    ``tile_n`` are the edges of the output tile, ``tile_k`` the depth of a step, ``size_*`` the same
    of the problem, estimated if unknown. ``steps`` and ``warps`` are per block, ``flops`` and
    ``step_bytes`` (loaded) per step. A block keeps ``kept_bytes`` across its steps, and ``sums``
    32-bit accumulators. ``moved_bytes`` are of all operands and results. ``stages`` steps are in
    flight; ``bits_*`` are per element of each operand; ``exact`` is 1 if 32-bit products are not
    rounded to TF32, ``transposed_*`` if the operand's last axis is not contiguous; ``alignment`` is
    log2 of the bytes (at most 16) that divide all rows of the operands. ``k_major`` is 1 if both
    operands are contiguous along the inner axis of the product.
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
    k_major: float = 1.0


@dataclass(frozen=True)
class LaunchFeatures:
    """Features of one problem's candidates; arrays have shape (candidates, features).

    ``sizes`` are plain sizes and types of the launches (`SIZE_COLUMNS`), without any model.
    ``analytic_log_time`` is the log of the analytic time over the fastest, at most `MAX_LOG_RATIO`;
    ``fits`` is whether the steps in flight fit a block's shared memory, and the sums its registers.
    """

    values: np.ndarray
    sizes: np.ndarray
    analytic_log_time: np.ndarray
    fits: np.ndarray


def launch_features(launches: Sequence[TileLaunch], device: Device) -> LaunchFeatures:
    """Return the features that distinguish one problem's candidates on a device."""
    names = [field.name for field in fields(TileLaunch)]
    table = np.array([[getattr(launch, name) for name in names] for launch in launches])
    x = dict(zip(names, table.T, strict=True))

    # Do the buffers fit the shared memory, and the sums the registers?
    asynchronous, shared_bytes = _shared_memory(device)
    buffers = _buffers(x, asynchronous)
    max_sums = MAX_ELEMENTS_PER_THREAD * THREADS_PER_WARP * x["warps"]
    fits = ~(buffers > shared_bytes) & (x["sums"] < max_sums)

    tiled = TiledLaunch(
        blocks=x["tiles"],
        steps=x["steps"],
        flops=x["flops"],
        step_bytes=x["step_bytes"],
        sums=x["sums"],
        warps=x["warps"],
        stages=x["stages"],
        moved_bytes=x["moved_bytes"],
        dtype=_dtypes(x),
    )
    columns = {
        "shared": np.log2(buffers / min(shared_bytes, DEFAULT_SHARED_BYTES)),
        **_geometry(x, tiled, device, buffers),
        **{name: x[name] for name in OPERAND_COLUMNS},
        **_times(x, tiled, device, asynchronous, fits),
    }
    for name in RELATIVE_COLUMNS:
        columns[f"other_{name}"] = columns[name] - np.median(columns[name])
    shape = x["tiles"].shape
    values = np.column_stack([np.broadcast_to(column, shape) for column in columns.values()])
    return LaunchFeatures(
        values=values.astype(np.float32),
        sizes=_sizes(x),
        analytic_log_time=columns["law"],
        fits=fits,
    )


def _sizes(x: dict[str, np.ndarray]) -> np.ndarray:
    """Return `SIZE_COLUMNS`, sizes in octaves."""
    columns = [
        np.log2(np.maximum(x[name], 1.0)) if is_size else x[name]
        for name, is_size in SIZE_COLUMNS.items()
    ]
    return np.column_stack(columns).astype(np.float32)


def _dtypes(x: dict[str, np.ndarray]) -> np.ndarray:
    dtype = np.where(x["exact"] > 0, "fp32", "fp16")
    dtype[(x["bits_a"] >= 32) & (x["exact"] == 0)] = "tf32"
    dtype[x["bits_a"] <= 8] = "fp8"
    return dtype


def _geometry(
    x: dict[str, np.ndarray], tiled: TiledLaunch, device: Device, buffers: np.ndarray
) -> dict[str, Quantity]:
    """Return occupancy, tile shape, intensity and sizes, relative to the device."""
    specs = device.specs

    # Occupancy: blocks of tiles in waves over the cores, several resident on each.
    cores = cores_of(specs)
    resident = tiled.resident(specs)
    waves = x["tiles"] / cores
    rounds = np.maximum(np.ceil(waves / resident), 1.0)
    active = _active(tiled, device)
    area = x["tile_m"] * x["tile_n"]
    threads = THREADS_PER_WARP * x["warps"]

    # Rates per ms; their ratio makes intensities relative to the device.
    gflops = nan_to(peak_rate(tiled.dtype, specs), DEFAULT_GFLOPS)
    rate = 1e6 * np.broadcast_to(gflops, area.shape)
    bandwidth = 1e6 * nan_to(specs.get("memory_gbps", np.nan), DEFAULT_GBPS)
    balance = bandwidth / rate
    work = x["tiles"] * x["steps"] * x["flops"]
    l2_bytes = 1024.0 * nan_to(specs.get("l2_kib", np.nan), DEFAULT_L2_KIB)
    return {
        "resident": resident,
        "waves": np.log2(waves),
        "fill": waves / np.ceil(waves),
        "fill_resident": waves / resident / rounds,
        "rounds": np.log2(rounds),
        "warps_there": np.log2(active * x["warps"]),
        "sums": np.log2(x["sums"] / threads),
        "area": np.log2(area),
        "aspect": np.log2(x["tile_m"] / x["tile_n"]),
        "warps": np.log2(x["warps"]),
        "stages": x["stages"],
        "intensity": np.log2(x["flops"] / x["step_bytes"] * balance),
        "work_intensity": np.log2(work / x["moved_bytes"] * balance),
        "steps": np.log2(x["steps"]),
        "useful": padding(x["size_m"], x["tile_m"]) * padding(x["size_n"], x["tile_n"]),
        "useful_k": padding(x["size_k"], x["tile_k"]),
        "flight": np.log2(buffers * active * cores / bandwidth / STEP_LATENCY_MS),
        "step_flops": np.log2(x["flops"] * cores / rate / STEP_LATENCY_MS),
        **{n: np.log2(values) for n, values in x.items() if n.startswith(("tile_", "size_"))},
        "moved": np.log2(x["moved_bytes"] / l2_bytes),
    }


def _times(
    x: dict[str, np.ndarray],
    tiled: TiledLaunch,
    device: Device,
    asynchronous: bool,
    fits: np.ndarray,
) -> dict[str, Quantity]:
    """Return the analytic time, its parts, and its rank among the candidates."""
    area = x["tile_m"] * x["tile_n"]
    waves = x["tiles"] / cores_of(device.specs)
    parts = tiled.parts_ms(device.specs)

    # Small tiles, and tiles with too few rows for asynchronous matrix units, compute slower.
    is_synchronous = asynchronous & (x["bits_a"] <= 16) & (x["tile_m"] < MIN_ASYNC_ROWS)
    small_tile_factor = (1.0 + SMALL_TILE / area) ** SMALL_TILE_EXPONENT
    rate_share = np.where(is_synchronous, SYNC_RATE_SHARE, 1.0)
    rate_share = np.where(_is_rearranged(x, device), TF32_RATE_SHARE, rate_share)
    parts["operations"] = parts["operations"] * small_tile_factor / rate_share
    # With fewer tiles than cores, only the busy cores' share of the cache bandwidth is used.
    parts["cache"] = parts["cache"] / np.minimum(waves, 1.0)
    # The latency of a step grows with the warps that share a core.
    warps_per_core = _active(tiled, device) * x["warps"]
    parts["latency"] = parts["latency"] * (warps_per_core / LATENCY_WARPS) ** LATENCY_EXPONENT

    # Parts overlap, but not fully: between their maximum and their sum (the 3-norm).
    parts = {
        name: np.broadcast_to(nan_to(1.0 * part, 0.0), area.shape) for name, part in parts.items()
    }
    busy_ms = np.cbrt(sum(part**3 for part in parts.values())) + 1e-9

    # One number of sums per thread is fastest; with many more, registers spill.
    log_sums_per_thread = np.log2(x["sums"] / (THREADS_PER_WARP * x["warps"]))
    from_preferred = log_sums_per_thread - np.log2(PREFERRED_ELEMENTS_PER_THREAD)
    spilled = np.maximum(log_sums_per_thread - np.log2(SPILLING_ELEMENTS_PER_THREAD), 0.0)
    log_time = (
        np.log(busy_ms + LAUNCH_MS) + PREFERENCE_COST * from_preferred**2 + SPILL_COST * spilled
    )

    compared = log_time[fits] if fits.any() else log_time
    over_fastest = log_time - compared.min()
    return {
        **{f"part_{name}": np.log(np.maximum(p / busy_ms, 1e-9)) for name, p in parts.items()},
        **{f"over_{name}": _over(parts[name]) for name in ("operations", "cache", "latency")},
        "law": np.minimum(over_fastest, MAX_LOG_RATIO),
        "law_rank": log_time.argsort(kind="stable").argsort(kind="stable") / len(log_time),
        "log_law": log_time,
    }


def _is_rearranged(x: dict[str, np.ndarray], device: Device) -> np.ndarray:
    """Whether matrix units get 32-bit operands only after a block has rearranged them."""
    is_tf32 = (x["bits_a"] >= 32) & (x["exact"] == 0)
    is_asynchronous = (x["tile_m"] >= TF32_ROWS) & (x["warps"] >= TF32_WARPS)
    try:
        architecture = get_target(device.architecture).name
    except UnknownName:
        architecture = ""
    needs_k_major = architecture in TF32_K_MAJOR_ARCHITECTURES
    return needs_k_major & is_tf32 & is_asynchronous & (x["k_major"] == 0)


def _active(tiled: TiledLaunch, device: Device) -> Quantity:
    waves = np.ceil(tiled.blocks / cores_of(device.specs))
    return np.minimum(tiled.resident(device.specs), np.maximum(waves, 1.0))


def _shared_memory(device: Device) -> tuple[bool, float]:
    """Return whether matrix units are asynchronous, and the shared-memory bytes per block."""
    try:
        target = get_target(device.architecture)
    except UnknownName:
        return False, np.inf
    return target.name in ASYNC_ARCHITECTURES, float(target.limits.shared_bytes_per_cta)


def _buffers(x: dict[str, np.ndarray], asynchronous: bool) -> np.ndarray:
    """Return the shared memory that a block needs, in bytes.

    Triton prefetches one step less than there are stages, except with asynchronous matrix units,
    which still read the current step.
    """
    waits = asynchronous & (x["bits_a"] <= 16) & (x["tile_m"] >= MIN_ASYNC_ROWS)
    steps = np.where(waits, x["stages"], np.maximum(x["stages"] - 1.0, 1.0))
    return steps * x["step_bytes"] + x["kept_bytes"]


def _over(part: Quantity) -> np.ndarray:
    """Return the log of a part over its minimum among the candidates."""
    logs = np.log(np.maximum(part, 1e-12))
    return logs - logs.min()
