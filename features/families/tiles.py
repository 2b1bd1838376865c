"""Tiles and waves: how evenly output tiles fill a device's multiprocessors, and tiled launches."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from foretune.device import peak_rate
from foretune.family import Cells, Quantity, nan_to

DEFAULT_CORES = 128.0
"""Multiprocessors assumed if the device does not report them; only ratios matter then."""


def cores_of(device: Cells) -> Quantity:
    """Return the number of multiprocessors (or CPU cores) of each row's device."""
    return nan_to(device.get("cores", DEFAULT_CORES), DEFAULT_CORES)


TILES = ((64, 64), (64, 256), (128, 128), (128, 256), (256, 128), (16, 64))
"""Output tiles of common libraries; the one that ran is unknown, so each gives features."""


def wave_features(name: str, tiles: Quantity, device: Cells) -> dict[str, Quantity]:
    """Return log2 of the waves of ``tiles``, and how full they are.

    A wave is one tile per multiprocessor. ``waves_…`` is log2 of the whole waves; ``fill_…`` is the
    filled share of their slots (0 … 1).
    """
    waves = tiles / cores_of(device)
    whole = np.ceil(waves)
    return {f"waves_{name}": np.log2(whole), f"fill_{name}": waves / whole}


def padding(size: Quantity, tile: Quantity) -> Quantity:
    """Return the unpadded share of a tiled dimension; 1 if ``tile`` divides it."""
    return size / (np.ceil(size / tile) * tile)


_STEMS = ("block", "tile", "b", "t", "blocksize", "tilesize", "ctatile", "threadblock", "wg")
"""Words before or after the axis in names of tile sizes, ignoring case and underscores."""
_NAMED_TILE = re.compile(r"(?<!\d)(\d{2,3})x(\d{2,3})(?!\d)")
"""The tile in the name of a kernel, as in ``ampere_sgemm_128x64_tn``."""


@lru_cache(maxsize=256)
def _tile_columns(names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the column of kernel names ("" if none), and axis -> column of its tile size."""
    plain = {name.lower().replace("_", ""): name for name in names}
    kernel = next((plain[n] for n in ("kernel", "kernelname") if n in plain), "")
    found = {}
    for axis in "mnk":
        spellings = [w for stem in _STEMS for w in (stem + axis, axis + stem)]
        if (column := next((plain[w] for w in spellings if w in plain), None)) is not None:
            found[axis] = column
    return kernel, found


def tile_of(config: Cells) -> dict[str, Quantity]:
    """Return the sizes of the tile that ran, by axis (``m``, ``n`` and maybe ``k``).

    They come from the name of the kernel, else from columns such as ``BLOCK_M``, ``tile_m`` or
    ``BM``. Empty if ``m`` or ``n`` is in no column; NaN in rows without it.
    """
    kernel, columns = _tile_columns(tuple(config))
    if kernel and _is_text(config[kernel]):
        m, n = (map_texts(config[kernel], _edge_of(i)) for i in (1, 2))
        if not np.isnan(m).all():
            return {"m": m, "n": n}
    sizes = {axis: config[c] for axis, c in columns.items() if not _is_text(config[c])}
    if not {"m", "n"} <= sizes.keys():
        return {}
    return {axis: np.where(np.greater(v, 0), v, np.nan)[()] for axis, v in sizes.items()}


def _is_text(values: Any) -> bool:
    return isinstance(values, str) or getattr(values, "dtype", np.dtype(float)).kind == "U"


def _edge_of(group: int) -> Callable[[str], float]:
    def edge(name: str) -> float:
        found = _NAMED_TILE.search(name)
        return float(found.group(group)) if found else np.nan

    return edge


def map_texts(texts: Any, value: Callable[[str], Any]) -> Any:
    """Return a value per text, computed once per distinct text."""
    if isinstance(texts, str):
        return value(texts)
    names = np.asarray(texts, dtype=str)
    codes = np.zeros(names.shape, dtype=np.int64)
    values: list[Any] = []
    for name in set(names.ravel().tolist()):  # few distinct names: faster than sorting
        codes[names == name] = len(values)
        values.append(value(name))
    return np.array(values)[codes]


def tile_features(
    tile: Mapping[str, Quantity],
    m: Quantity,
    n: Quantity,
    k: Quantity,
    batch: Quantity,
    device: Cells,
) -> dict[str, Quantity]:
    """Return waves, padding and shape of the ``tile`` that ran; nothing if it is unknown."""
    if not tile:
        return {}
    features = {
        **wave_features("tile", batch * np.ceil(m / tile["m"]) * np.ceil(n / tile["n"]), device),
        "padding_tile": padding(m, tile["m"]) * padding(n, tile["n"]),
        "log2_tile": np.log2(tile["m"] * tile["n"]),
        "tile_aspect": np.log2(tile["m"] / tile["n"]),
    }
    return features | ({"padding_tile_k": padding(k, tile["k"])} if "k" in tile else {})


def wave_rounding(
    tile: Mapping[str, Quantity], m: Quantity, n: Quantity, batch: Quantity, device: Cells
) -> Quantity:
    """Return the ratio of the time of whole tiles in whole waves to that of the operations."""
    blocks = batch * np.ceil(m / tile["m"]) * np.ceil(n / tile["n"])
    waves = blocks / cores_of(device)
    rounded = np.ceil(waves) / waves / (padding(m, tile["m"]) * padding(n, tile["n"]))
    return nan_to(rounded, 1.0)


def product_features(
    m: Quantity, n: Quantity, batch: Quantity, device: Cells
) -> dict[str, Quantity]:
    """Return waves and padding per tile shape, for ``batch`` matrices of ``m`` × ``n``."""
    features: dict[str, Quantity] = {}
    for tile_m, tile_n in TILES:
        tiles = batch * np.ceil(m / tile_m) * np.ceil(n / tile_n)
        name = f"{tile_m}x{tile_n}"
        features |= wave_features(name, tiles, device)
        features[f"padding_{name}"] = padding(m, tile_m) * padding(n, tile_n)
    return features


L2_SPEEDUP = 3.0  # approximate bandwidth of the L2 cache over that of main memory
STEP_LATENCY_MS = 0.7e-3  # approximate latency of one step's loads without prefetching
PIPELINING_EXPONENT = 0.8
"""Latency is divided by the stages in flight to this power (fitted on matrix products, A100)."""
SHARED_KIB, REGISTERS, MAX_WARPS, MAX_BLOCKS = 128.0, 65536.0, 64.0, 32.0
"""Limits per multiprocessor since 2017; the first only if the device does not report it."""


@dataclass(frozen=True)
class TiledLaunch:
    """The geometry of one launch.

    ``steps`` are sequential, per block; ``flops`` and loaded ``step_bytes`` are per step; 32-bit
    accumulators (``sums``) and ``warps`` are per block; ``stages`` steps are in flight;
    ``moved_bytes`` is the main-memory traffic; ``dtype`` is the precision of the operations.
    """

    blocks: Quantity
    steps: Quantity
    flops: Quantity
    step_bytes: Quantity
    sums: Quantity
    warps: Quantity
    stages: Quantity
    moved_bytes: Quantity
    dtype: Any

    def parts_ms(self, device: Cells) -> dict[str, Quantity]:
        """Return the launch's time by each limit alone, in ms.

        The limits are operations in whole waves of blocks, L2 traffic, memory traffic, and the load
        latency per step, which steps in flight partly hide.
        """
        cores, bandwidth = cores_of(device), device.get("memory_gbps", np.nan) * 1e6
        rate = peak_rate(self.dtype, device) * 1e6 / cores
        waves = np.ceil(self.blocks / cores)
        waits = np.ceil(self.blocks / (cores * self.resident(device))) * self.steps
        return {
            "operations": waves * self.steps * self.flops / rate,
            "cache": self.blocks * self.steps * self.step_bytes / (L2_SPEEDUP * bandwidth),
            "memory": self.moved_bytes / bandwidth,
            "latency": STEP_LATENCY_MS
            * waits
            / np.maximum(self.stages - 1.0, 1.0) ** PIPELINING_EXPONENT,
        }

    def resident(self, device: Cells) -> Quantity:
        """Return the number of blocks that fit a multiprocessor at once, at least one."""
        shared = 1024.0 * nan_to(device.get("l1_kib", SHARED_KIB), SHARED_KIB)
        registers = 1.2 * self.sums + 32.0 * 40.0 * self.warps
        held = np.minimum(shared / self._buffers, MAX_WARPS / self.warps)
        held = np.minimum(np.floor(np.minimum(held, REGISTERS / registers)), MAX_BLOCKS)
        return np.maximum(held, 1.0)

    def features(self, device: Cells) -> dict[str, Quantity]:
        """Return scale-free features of a launch."""
        shared = 1024.0 * nan_to(device.get("l1_kib", SHARED_KIB), SHARED_KIB)
        resident = self.resident(device)
        active = np.minimum(resident, np.maximum(self.blocks / cores_of(device), 1.0))
        return {
            **wave_features("blocks", self.blocks, device),
            "partial_waves": np.log2(self.blocks / cores_of(device)),
            "log2_steps": np.log2(self.steps),
            "sums_per_thread": self.sums / (32.0 * self.warps),
            "shared_share": self._buffers / shared,
            "resident": resident,
            "reuse": self.flops / self.step_bytes,
            "bytes_in_flight": self._buffers * active,
        }

    @property
    def _buffers(self) -> Quantity:
        return self.stages * self.step_bytes
