"""Output tiles of matrix products on a GPU: their order, what they need, how they fill a device.

The kernels for matrix products share the knobs of a tile (``BLOCK_M``, ``BLOCK_N``, ``BLOCK_K``,
``num_warps``, ``num_stages``), what keeps a tile from fitting the device, and the quantities that
tell tiles apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from foretune.collect.kernels.triton_kernel import JitLaunch, TritonKernel, shared_memory_limit
from foretune.errors import ProblemError
from foretune.family import Quantity
from foretune.problem import Problem

DEFAULT_CORES = 128.0
"""Multiprocessors assumed where no device tells."""
MIN_SUMS, MAX_SUMS = 4, 128
"""Elements of C per thread: fewer than a matrix instruction yields, or more than registers hold."""
WORKSPACE_BYTES = 2**28
"""Most memory that partial sums of a product split along K may take."""
MAX_ELEMENTS = 2**31 - 1
"""Most elements of a matrix: offsets within one are 32 bits wide."""
SUM_BLOCK = 1024
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@dataclass(frozen=True)
class Limits:
    """What the current device sets for a tile.

    Attributes:
        shared_bytes: shared memory of a block.
        threads: of a warp.
        cores: multiprocessors: as many programs are persistent.
        reads_shared: whether matrix units read operands from shared memory (Hopper's, and those
            of Blackwell's data-centre GPUs), so that a step's buffers stay until it is done.
        specializes: whether Triton can give warps work of their own (data-centre Blackwell).
    """

    shared_bytes: int
    threads: int
    cores: int
    reads_shared: bool
    specializes: bool = False


def device_limits() -> Limits:
    """Return the limits of the current device; those that most devices keep where there is none."""
    if not torch.cuda.is_available():
        return Limits(shared_memory_limit(), threads=32, cores=8, reads_shared=True)
    properties = torch.cuda.get_device_properties()
    return Limits(
        shared_bytes=shared_memory_limit(),
        threads=int(properties.warp_size),
        cores=int(properties.multi_processor_count),
        reads_shared=torch.version.hip is None and properties.major in (9, 10),
        specializes=torch.version.hip is None and properties.major == 10,
    )


class TiledProduct(TritonKernel):
    """A matrix product in tiles, with matrices whose offsets are 32 bits wide."""

    def matrix_sizes(self, problem: Problem) -> list[int]:
        """Return the elements of A, B and C: those between which offsets are computed."""
        m, n, k = (int(problem[p]) for p in "MNK")
        return [m * k, k * n, m * n]

    def problem(self, values: Mapping[str, Any] = {}, /, **named: Any) -> Problem:
        """Return a complete, checked problem.

        Raises:
            UnknownName, ProblemError: see `foretune.problem.make_problem`; also if a matrix is
                too large.
        """
        problem = super().problem(values, **named)
        if max(self.matrix_sizes(problem)) > MAX_ELEMENTS:
            raise ProblemError(
                f"a matrix of {problem} has more than {MAX_ELEMENTS:,} elements: split it"
            )
        return problem


def split_sum_launches(partial: torch.Tensor, c: torch.Tensor) -> list[JitLaunch]:
    """Return what stores in ``c`` the sum of ``partial``'s matrices; nothing if that is ``c``."""
    if partial is c:
        return []
    size = c.numel()
    options = {"SPLIT_K": len(partial), "BLOCK": SUM_BLOCK}
    return [JitLaunch(add_splits, (triton.cdiv(size, SUM_BLOCK),), (partial, c, size), options)]


@triton.jit
def tile_position(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Return row and column of the ``tile``-th tile.

    Tiles are counted down columns that are ``GROUP_M`` tiles high, one column after the other:
    those that run at the same time then share rows of A and columns of B in the L2 cache.
    """
    in_group = GROUP_M * tiles_n
    top = (tile // in_group) * GROUP_M
    height = min(tiles_m - top, GROUP_M)
    return top + (tile % in_group) % height, (tile % in_group) // height


@triton.jit
def multiply_add(x, y, total):
    """Return ``total + x @ y`` on the matrix units."""
    if INTERPRETED and x.dtype == tl.bfloat16:  # the interpreter would multiply the bits
        x = x.to(tl.float32)
        y = y.to(tl.float32)
    return tl.dot(x, y, total, out_dtype=total.dtype)


@triton.jit
def add_splits(partial, c, size, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr):
    """Store in ``c`` the sum of the ``SPLIT_K`` matrices of ``size`` elements in ``partial``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.load(partial + at, mask=inside, other=0)
    for split in tl.static_range(1, SPLIT_K):
        total += tl.load(partial + split * size + at, mask=inside, other=0)
    tl.store(c + at, total.to(c.dtype.element_ty), mask=inside)


def tile_rules(
    limits: Limits, bytes_m: float, bytes_n: float, bytes_unpacked: float = 0
) -> list[str]:
    """Return the restrictions of a tile: it fits the device, and feeds its matrix units.

    Args:
        limits: of the device.
        bytes_m: of one element of A in shared memory.
        bytes_n: of one element of B in shared memory, as it is loaded.
        bytes_unpacked: of one element of B there that is made from what was loaded.
    """
    a, b = f"BLOCK_M * BLOCK_K * {bytes_m}", f"BLOCK_N * BLOCK_K * {bytes_n}"
    # steps loaded ahead have a buffer each; the step being multiplied is in registers …
    need = f"max(num_stages - 1, 1) * ({a} + {b})"
    if limits.reads_shared:  # … or not, for tiles that give four warps 64 rows
        kept = f"num_stages * ({a} + {b})"
        if bytes_unpacked:
            unpacked = f"BLOCK_N * BLOCK_K * {bytes_unpacked}"
            kept = f"num_stages * {a} + max(num_stages - 1, 1) * {b} + {unpacked}"
        need = f"({kept} if BLOCK_M >= 64 and num_warps >= 4 else {need})"
    return [
        f"{need} <= {limits.shared_bytes}",
        f"BLOCK_M * BLOCK_N >= {MIN_SUMS * limits.threads} * num_warps",
        f"BLOCK_M * BLOCK_N <= {MAX_SUMS * limits.threads} * num_warps",
    ]


def shape_rules(m: int, n: int, k: int) -> list[str]:
    """Return the restrictions that leave out programs that another configuration is, too.

    Args:
        m: rows of C.
        n: columns of C.
        k: length of the sums.
    """
    return [
        f"BLOCK_M == 16 or BLOCK_M < 2 * {m}",  # most of it would be padding
        f"BLOCK_N == 32 or BLOCK_N < 2 * {n}",
        f"BLOCK_K == 32 or BLOCK_K < 2 * {k}",
        f"GROUP_M == 1 or GROUP_M // 2 * BLOCK_M < {m}",
    ]


def split_rules(m: int, n: int, k: int) -> list[str]:
    """Return the restrictions of ``SPLIT_K``: two steps for everyone, and room for partial sums."""
    return [
        f"num_stages == 1 or (num_stages - 1) * BLOCK_K * SPLIT_K < {k}",
        f"SPLIT_K == 1 or SPLIT_K * BLOCK_K * 2 <= {k}",
        f"SPLIT_K == 1 or SPLIT_K <= {WORKSPACE_BYTES / (4 * m * n)}",
    ]


def persistent_rule(m: float, n: float, limits: Limits) -> str:
    """Return the restriction that only programs with more than one tile each are persistent."""
    tiles = f"(({m} + BLOCK_M - 1) // BLOCK_M) * (({n} + BLOCK_N - 1) // BLOCK_N)"
    return f"not PERSISTENT or {tiles} > {limits.cores}"


def power_of_two(size: float, low: int, high: int) -> int:
    """Return the smallest power of two that holds ``size``, between two others."""
    return min(max(triton.next_power_of_2(int(size)), low), high)


def default_tile(m: int, n: int, k: int, block_k: int) -> dict[str, int]:
    """Return the knobs of a tile a sensible person would write without tuning."""
    rows, columns = power_of_two(m, 16, 128), power_of_two(n, 32, 128)
    depth = power_of_two(k, 32, block_k)
    return {
        "BLOCK_M": rows,
        "BLOCK_N": columns,
        "BLOCK_K": depth,
        "GROUP_M": power_of_two(-(-m // rows), 1, 8),
        "num_warps": 4 if rows * columns >= 4096 else 2,
        "num_stages": min(3, -(-k // depth)),
    }


def padding(size: Quantity, tile: Quantity) -> Quantity:
    """Return the share of a dimension's padded length that is real: 1 where ``tile`` divides it."""
    return size / (np.ceil(size / tile) * tile)


def tile_features(
    config: Mapping[str, Any], tiles: Quantity, steps: Quantity, device: Mapping[str, Any]
) -> dict[str, Quantity]:
    """Return what a tile is like, and how ``tiles`` of them fill the device.

    Args:
        config: the knobs of the tile.
        tiles: programs that have work, those of a split product counted each.
        steps: of ``BLOCK_K`` along K that one of them does.
        device: specs by name; `CORES` multiprocessors where there is no such spec.
    """
    m, n, k = (1.0 * config[f"BLOCK_{axis}"] for axis in "MNK")
    waves = tiles / _cores(device)
    return {
        "log2_tiles": np.log2(tiles),
        "waves": np.log2(np.ceil(waves)),
        "fill": waves / np.ceil(waves),
        "steps": steps,
        "reuse": m * n / (m + n),
        "sums_per_thread": m * n / (32.0 * config["num_warps"]),
        "work_per_warp": m * n * k / config["num_warps"],
        "steps_in_flight": np.minimum(config["num_stages"], steps) / steps,
    }


def group_reuse(
    config: Mapping[str, Any], tiles_m: Quantity, tiles: Quantity, device: Mapping[str, Any]
) -> Quantity:
    """Return operations per element that all the tiles running together read from A and B.

    They form a block ``GROUP_M`` tiles high: what one of them reads is in the L2 cache for others.
    """
    concurrent_tiles = np.minimum(tiles, _cores(device))
    height = np.minimum(np.minimum(1.0 * config["GROUP_M"], tiles_m), concurrent_tiles)
    rows, columns = height * config["BLOCK_M"], concurrent_tiles / height * config["BLOCK_N"]
    return rows * columns / (rows + columns)


def _cores(device: Mapping[str, Any]) -> Quantity:
    known = 1.0 * device.get("cores", DEFAULT_CORES)
    return np.where(np.isnan(known), DEFAULT_CORES, known)
