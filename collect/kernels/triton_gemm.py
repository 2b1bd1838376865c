"""GEMM in Triton, and the tiles that all products share."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from foretune.collect.kernels.triton_kernel import (
    BITS,
    CACHE,
    JitLaunch,
    TritonKernel,
    check_support,
    normal,
    shared_memory_limit,
)
from foretune.errors import ProblemError
from foretune.family import Cost, Quantity
from foretune.kernel import Inputs, Launch, latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

DEFAULT_CORES = 128.0
"""Default number of multiprocessors."""
MIN_SUMS, MAX_SUMS = 4, 128
"""Elements of C per thread: the output of a matrix instruction, and the limit of registers."""
WORKSPACE_BYTES = 2**28
"""Maximum memory of the partial sums of a split product."""
MAX_ELEMENTS = 2**31 - 1
"""Maximum elements of a matrix: offsets have 32 bits."""
SUM_BLOCK = 1024
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@dataclass(frozen=True)
class Limits:
    """Limits of a device on tiles.

    Attributes:
        shared_bytes: shared memory per block.
        threads: threads per warp.
        cores: multiprocessors, which is the number of persistent programs.
        reads_shared: whether matrix units read operands from shared memory (Hopper and data-center
            Blackwell). The buffers of a step are then occupied until it ends.
        specializes: whether Triton supports warp specialization (data-center Blackwell).
    """

    shared_bytes: int
    threads: int
    cores: int
    reads_shared: bool
    specializes: bool = False


def device_limits() -> Limits:
    """Return the limits of the current device; without one, limits that most devices keep."""
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
    """A tiled matrix product with 32-bit offsets."""

    def matrix_sizes(self, problem: Problem) -> list[int]:
        """Return the number of elements of A, B and C."""
        m, n, k = (int(problem[p]) for p in "MNK")
        return [m * k, k * n, m * n]

    def problem(self, values: Mapping[str, Any] = {}, /, **named: Any) -> Problem:
        """Return a complete, checked problem.

        Raises:
            UnknownName, ProblemError: see `foretune.problem.make_problem`; or a matrix is too
                large.
        """
        problem = super().problem(values, **named)
        if max(self.matrix_sizes(problem)) > MAX_ELEMENTS:
            raise ProblemError(
                f"a matrix of {problem} has more than {MAX_ELEMENTS:,} elements: split it"
            )
        return problem


def split_sum_launches(partial: torch.Tensor, c: torch.Tensor) -> list[JitLaunch]:
    """Return the launch that sums ``partial`` into ``c``; none if ``partial`` is ``c``."""
    if partial is c:
        return []
    size = c.numel()
    options = {"SPLIT_K": len(partial), "BLOCK": SUM_BLOCK}
    return [JitLaunch(add_splits, (triton.cdiv(size, SUM_BLOCK),), (partial, c, size), options)]


@triton.jit
def tile_position(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Return row and column of the ``tile``-th tile.

    Tiles are counted down columns that are ``GROUP_M`` tiles high. Tiles that run at the same time
    then share rows of A and columns of B in the L2 cache.
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
    """Return the restrictions of a tile: it fits the device and feeds its matrix units.

    Args:
        limits: limits of the device.
        bytes_m: bytes per element of A in shared memory.
        bytes_n: bytes per element of B in shared memory, as loaded.
        bytes_unpacked: bytes per element of B in shared memory after unpacking.
    """
    a, b = f"BLOCK_M * BLOCK_K * {bytes_m}", f"BLOCK_N * BLOCK_K * {bytes_n}"
    # each step loaded ahead has a buffer; the current step is in registers …
    need = f"max(num_stages - 1, 1) * ({a} + {b})"
    if limits.reads_shared:  # … unless four warps share 64 rows
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
    """Return the restrictions that leave out tiles much larger than the matrices."""
    return [
        f"BLOCK_M == 16 or BLOCK_M < 2 * {m}",  # larger tiles are mostly padding
        f"BLOCK_N == 32 or BLOCK_N < 2 * {n}",
        f"BLOCK_K == 32 or BLOCK_K < 2 * {k}",
        f"GROUP_M == 1 or GROUP_M // 2 * BLOCK_M < {m}",
    ]


def split_rules(m: int, n: int, k: int) -> list[str]:
    """Return the restrictions of ``SPLIT_K``: at least two steps each, and memory for the sums."""
    return [
        f"num_stages == 1 or (num_stages - 1) * BLOCK_K * SPLIT_K < {k}",
        f"SPLIT_K == 1 or SPLIT_K * BLOCK_K * 2 <= {k}",
        f"SPLIT_K == 1 or SPLIT_K <= {WORKSPACE_BYTES / (4 * m * n)}",
    ]


def persistent_rule(m: float, n: float, limits: Limits) -> str:
    """Return the restriction that persistent programs have more than one tile each."""
    tiles = f"(({m} + BLOCK_M - 1) // BLOCK_M) * (({n} + BLOCK_N - 1) // BLOCK_N)"
    return f"not PERSISTENT or {tiles} > {limits.cores}"


def power_of_two(size: float, low: int, high: int) -> int:
    """Return the smallest power of two not below ``size``, clipped to [``low``, ``high``]."""
    return min(max(triton.next_power_of_2(int(size)), low), high)


def default_tile(m: int, n: int, k: int, block_k: int) -> dict[str, int]:
    """Return the knobs of a sensible tile without tuning."""
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
    """Return length over padded length of a dimension: 1 if ``tile`` divides it."""
    return size / (np.ceil(size / tile) * tile)


def tile_features(
    config: Mapping[str, Any], tiles: Quantity, steps: Quantity, device: Mapping[str, Any]
) -> dict[str, Quantity]:
    """Return features of a tile, and of how ``tiles`` of them fill the device.

    Args:
        config: the knobs of the tile.
        tiles: number of programs with work, counting every part of a split product.
        steps: steps of ``BLOCK_K`` per program.
        device: specs by name; `DEFAULT_CORES` multiprocessors by default.
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
    """Return operations per element of A and B that all concurrent tiles read together.

    They form a block ``GROUP_M`` tiles high and share what they read through the L2 cache.
    """
    concurrent_tiles = np.minimum(tiles, _cores(device))
    height = np.minimum(np.minimum(1.0 * config["GROUP_M"], tiles_m), concurrent_tiles)
    rows, columns = height * config["BLOCK_M"], concurrent_tiles / height * config["BLOCK_N"]
    return rows * columns / (rows + columns)


def _cores(device: Mapping[str, Any]) -> Quantity:
    known = 1.0 * device.get("cores", DEFAULT_CORES)
    return np.where(np.isnan(known), DEFAULT_CORES, known)


OUTPUT = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16, "int8": torch.int32}

# Tokens of a decoding batch and of a prompt; hidden, intermediate and projected sizes of models
# with 1 to 70 billion parameters; and odd sizes.
TRAINING = {
    "M": (1, 7, 16, 33, 64, 128, 250, 512, 1000, 2048, 4096, 8192),
    "N": (1000, 2048, 3072, 4096, 5120, 6144, 8192, 11008, 14336, 28672),
    "K": (768, 1000, 2048, 3584, 4096, 5120, 8192, 11008, 14336),
    "dtype": ("fp16", "bf16", "fp8", "int8"),
    "layout": ("nt", "nt", "nn", "tn"),
}


@triton.jit
def _multiply_tile(
    a,
    b,
    c,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    pid_m,
    pid_n,
    split,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    SUM: tl.constexpr,
):
    """Compute one tile of C, or of the ``split``-th part of its sums."""
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    share = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT_K) * BLOCK_K
    first = split * share
    # rows and columns past the end wrap around, so only the store needs a mask
    a_at = a + (rows % M)[:, None] * stride_am + (first + ks)[None, :] * stride_ak
    b_at = b + (first + ks)[:, None] * stride_bk + (columns % N)[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
    for k in range(first, min(first + share, K), BLOCK_K):
        if EVEN_K:
            x = tl.load(a_at)
            y = tl.load(b_at)
        else:
            x = tl.load(a_at, mask=ks[None, :] < K - k, other=0.0)
            y = tl.load(b_at, mask=ks[:, None] < K - k, other=0.0)
        total = multiply_add(x, y, total)
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    c += split * M * N  # parts are stored one after the other
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def _gemm(
    a,
    b,
    c,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PERSISTENT: tl.constexpr,
    EVEN_K: tl.constexpr,
    SUM: tl.constexpr,
):
    """Multiply: programs are numbered along the tiles of C (0) and the parts of the sums (1)."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    split = tl.program_id(1)
    if PERSISTENT:
        for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
            pid_m, pid_n = tile_position(tile, tiles_m, tiles_n, GROUP_M)
            _multiply_tile(
                a,
                b,
                c,
                M,
                N,
                K,
                stride_am,
                stride_ak,
                stride_bk,
                stride_bn,
                pid_m,
                pid_n,
                split,
                BLOCK_M,
                BLOCK_N,
                BLOCK_K,
                SPLIT_K,
                EVEN_K,
                SUM,
            )
    else:
        pid_m, pid_n = tile_position(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
        _multiply_tile(
            a,
            b,
            c,
            M,
            N,
            K,
            stride_am,
            stride_ak,
            stride_bk,
            stride_bn,
            pid_m,
            pid_n,
            split,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            SPLIT_K,
            EVEN_K,
            SUM,
        )


class TritonGemm(TiledProduct):
    """``C[M, N] = A[M, K] @ B[K, N]``, sums in fp32 (int32 for int8).

    C has the format of A and B; bf16 for fp8, int32 for int8.

    Knobs: the tile of a program (``BLOCK_M`` × ``BLOCK_N``, ``BLOCK_K`` at a time), rows of tiles
    in a group (``GROUP_M``), programs that share a tile's sums (``SPLIT_K``), whether programs are
    persistent (``PERSISTENT``), warps of a program, and steps in flight (``num_stages``).
    """

    name = "triton_gemm"
    problem_parameters = (
        ProblemParameter("M", meaning="rows of A and C"),
        ProblemParameter("N", meaning="columns of B and C"),
        ProblemParameter("K", meaning="columns of A, rows of B"),
        ProblemParameter("dtype", "fp16", choices=tuple(OUTPUT), meaning="format of A and B"),
        ProblemParameter(
            "layout",
            "nt",
            choices=("nt", "nn", "tn"),
            meaning="layouts of A and B: n row-major, t column-major",
        ),
        CACHE,
    )

    def space(self, problem: Problem) -> SearchSpace:
        """Return tiles that fit the current device, and how programs share the work."""
        sizes = (int(problem[p]) for p in "MNK")
        return _space(*sizes, BITS[str(problem["dtype"])] // 8, device_limits())

    def default(self, problem: Problem) -> Configuration:
        """Return a tile of at most 128 × 128, three steps in flight, no split."""
        m, n, k = (int(problem[p]) for p in "MNK")
        tile = default_tile(m, n, k, 1024 // BITS[str(problem["dtype"])])
        return Configuration(tile, SPLIT_K=1, PERSISTENT=False)

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return A and B, standard normal, in the problem's layout."""
        m, n, k = (int(problem[p]) for p in "MNK")
        dtype, layout = str(problem["dtype"]), str(problem["layout"])
        check_support(dtype)
        a = normal((k, m) if layout[0] == "t" else (m, k), dtype, self, 2 * seed)
        b = normal((n, k) if layout[1] == "t" else (k, n), dtype, self, 2 * seed + 1)
        return {"a": a.t() if layout[0] == "t" else a, "b": b.t() if layout[1] == "t" else b}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launches that multiply and add the parts of split sums, and C."""
        a, b = inputs["a"], inputs["b"]
        (m, k), n = a.shape, b.shape[1]
        splits, block_k = int(config["SPLIT_K"]), int(config["BLOCK_K"])
        whole = str(problem["dtype"]) == "int8"
        c = torch.empty((m, n), dtype=OUTPUT[str(problem["dtype"])], device=a.device)
        out = c
        if splits > 1:
            kind = torch.int32 if whole else torch.float32
            out = torch.empty((splits, m, n), dtype=kind, device=a.device)
        tiles = triton.cdiv(m, int(config["BLOCK_M"])) * triton.cdiv(n, int(config["BLOCK_N"]))
        programs = min(tiles, device_limits().cores) if config["PERSISTENT"] else tiles

        arguments = (a, b, out, m, n, k, *a.stride(), *b.stride())
        sums = tl.int32 if whole else tl.float32
        options = {**config, "EVEN_K": k % block_k == 0, "SUM": sums}
        product = JitLaunch(_gemm, (programs, splits), arguments, options)
        return [product, *split_sum_launches(out, c)], c

    def reference(self, inputs: Inputs) -> Any:
        """Return the product in single precision; for int8 in double precision, which is exact."""
        a, b = inputs["a"], inputs["b"]
        wide = torch.float64 if a.dtype == torch.int8 else torch.float32
        return a.to(wide) @ b.to(wide)

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return cuBLAS (on AMD: hipBLAS) through torch, if it takes these formats and sizes."""
        a, b = inputs["a"], inputs["b"]
        dtype, (n, k) = str(problem["dtype"]), b.t().shape
        if dtype == "int8":
            taken = not a.is_cuda or (len(a) > 16 and n % 8 == 0 and k % 8 == 0)
            return ("torch._int_mm", lambda: torch._int_mm(a, b)) if taken else None
        if dtype == "fp8":
            if not a.is_cuda or problem["layout"] != "nt" or n % 16 or k % 16:
                return None
            one = torch.ones((), device=a.device)
            return "torch._scaled_mm", lambda: torch._scaled_mm(
                a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        out = torch.empty((len(a), n), dtype=a.dtype, device=a.device)
        return "torch.matmul", lambda: torch.matmul(a, b, out=out)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·M·N·K operations and each matrix moved once."""
        m, n, k = (1.0 * problem[p] for p in "MNK")
        itemsize, out = _bytes(problem)
        return Cost(
            flops=2.0 * m * n * k,
            bytes_moved=itemsize * (m * k + k * n) + out * m * n,
            dtype=problem["dtype"],
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return features of the tile, padding, waves, and splitting."""
        m, n, k = (1.0 * problem[p] for p in "MNK")
        tile_m, tile_n, tile_k = (1.0 * config[f"BLOCK_{p}"] for p in "MNK")
        itemsize, _ = _bytes(problem)
        splits = 1.0 * config["SPLIT_K"]
        tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n)
        steps = np.ceil(np.ceil(k / tile_k) / splits)
        return {
            "log2_a": np.log2(m * k),
            "log2_b": np.log2(k * n),
            "log2_c": np.log2(m * n),
            "padding": padding(m, tile_m) * padding(n, tile_n),
            "padding_k": k / (steps * tile_k * splits),
            "step_bytes": itemsize * tile_k * (tile_m + tile_n),
            "buffer_bytes": itemsize * tile_k * (tile_m + tile_n) * config["num_stages"],
            "split_bytes": np.where(splits > 1, 8.0 * splits * m * n, 0.0),
            "strided": 1.0 * np.not_equal(problem["layout"], "nt"),
            "shared_by": group_reuse(config, np.ceil(m / tile_m), tiles * splits, device),
            **tile_features(config, tiles * splits, steps, device),
        }

    def memory_bytes(self, problem: Problem) -> float:
        """Return the bytes of the matrices, the reference's copies, and split sums."""
        m, n, k = (float(problem[p]) for p in "MNK")
        return 9.0 * (m * k + k * n) + 12.0 * m * n + min(64.0 * m * n, WORKSPACE_BYTES)

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return layers of language models, from one token to a long prompt, and odd sizes."""
        return latin_hypercube_problems(self, TRAINING, n, seed)


def _bytes(problem: Mapping[str, Any]) -> tuple[Quantity, Quantity]:
    """Return the bytes of an element of A and B, and of C."""
    kind = problem["dtype"]
    whole = np.equal(kind, "int8")
    return np.where(whole | np.equal(kind, "fp8"), 1.0, 2.0), np.where(whole, 4.0, 2.0)


@lru_cache(maxsize=32)
def _space(m: int, n: int, k: int, itemsize: int, limits: Limits) -> SearchSpace:
    return SearchSpace(
        {
            "BLOCK_M": (16, 32, 64, 128, 256),
            "BLOCK_N": (32, 64, 128, 256),
            "BLOCK_K": (32, 64, 128) if itemsize > 1 else (32, 64, 128, 256),
            "GROUP_M": (1, 2, 4, 8, 16),
            "SPLIT_K": (1, 2, 4, 8, 16),
            "PERSISTENT": (False, True),
            "num_warps": (2, 4, 8),
            "num_stages": (1, 2, 3, 4, 5),
        },
        [
            *tile_rules(limits, itemsize, itemsize),
            *shape_rules(m, n, k),
            *split_rules(m, n, k),
            "not PERSISTENT or SPLIT_K == 1",
            persistent_rule(m, n, limits),
        ],
    )
