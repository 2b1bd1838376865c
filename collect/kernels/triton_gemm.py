"""Dense matrix product in Triton: ``C = A @ B`` on the matrix units of a GPU.

Each program computes one tile of C, or, with ``PERSISTENT``, one tile after the other: then there
are as many programs as multiprocessors. With ``SPLIT_K`` several programs share the sums of a tile;
what each of them found is added by a second launch, which is part of the time.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from foretune.collect.kernels.gemm_tiles import (
    WORKSPACE_BYTES,
    Limits,
    TiledProduct,
    default_tile,
    device_limits,
    group_reuse,
    multiply_add,
    padding,
    persistent_rule,
    shape_rules,
    split_rules,
    split_sum_launches,
    tile_features,
    tile_position,
    tile_rules,
)
from foretune.collect.kernels.triton_kernel import BITS, CACHE, JitLaunch, check_support, normal
from foretune.family import Cost, Quantity
from foretune.kernel import Inputs, Launch, latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

OUTPUT = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16, "int8": torch.int32}

# Tokens of a decoding batch and of a prompt; hidden, intermediate and projected sizes of models
# from 1 to 70 billion parameters; and sizes that nothing divides.
TRAINING = {
    "M": (1, 7, 16, 33, 64, 128, 250, 512, 1000, 2048, 4096, 8192),
    "N": (1000, 2048, 3072, 4096, 5120, 6144, 8192, 11008, 14336, 28672),
    "K": (768, 1000, 2048, 3584, 4096, 5120, 8192, 11008, 14336),
    "dtype": ("fp16", "bf16", "fp8", "int8"),
    "layout": ("nt", "nt", "nn", "tn"),
}


@triton.jit
def _multiply_tile(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, pid_m, pid_n, split,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr, EVEN_K: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """Compute one tile of C, or of the ``split``-th part of its sums."""
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    share = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT_K) * BLOCK_K
    first = split * share
    # rows and columns past the end wrap around: loads need no mask, and only the store has one
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
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, PERSISTENT: tl.constexpr, EVEN_K: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """Multiply: programs are numbered along the tiles of C (0) and the parts of the sums (1)."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    split = tl.program_id(1)
    if PERSISTENT:
        for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
            pid_m, pid_n = tile_position(tile, tiles_m, tiles_n, GROUP_M)
            _multiply_tile(
                a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, pid_m, pid_n, split,
                BLOCK_M, BLOCK_N, BLOCK_K, SPLIT_K, EVEN_K, SUM,
            )  # fmt: skip
    else:
        pid_m, pid_n = tile_position(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
        _multiply_tile(
            a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, pid_m, pid_n, split,
            BLOCK_M, BLOCK_N, BLOCK_K, SPLIT_K, EVEN_K, SUM,
        )  # fmt: skip


class TritonGemm(TiledProduct):
    """``C[M, N] = A[M, K] @ B[K, N]``, sums in fp32 (int32 for int8).

    C has the format of A and B; bf16 where that is fp8, int32 where it is int8.

    Knobs: the tile of a program (``BLOCK_M`` × ``BLOCK_N``, ``BLOCK_K`` at a time), how many rows
    of tiles are done together (``GROUP_M``), how many programs share a tile's sums (``SPLIT_K``),
    whether programs stay and take tile after tile (``PERSISTENT``), warps of a program, and steps
    in flight (``num_stages``).
    """

    name = "triton_gemm"
    accepts_scalars = True
    problem_parameters = (
        ProblemParameter("M", meaning="rows of A and C"),
        ProblemParameter("N", meaning="columns of B and C"),
        ProblemParameter("K", meaning="columns of A, rows of B"),
        ProblemParameter("dtype", "fp16", choices=tuple(OUTPUT), meaning="of A and B"),
        ProblemParameter(
            "layout", "nt", choices=("nt", "nn", "tn"),
            meaning="A, B as they lie in memory: n row by row, t column by column",
        ),
        CACHE,
    )  # fmt: skip

    def space(self, problem: Problem) -> SearchSpace:
        """Return tiles that fit the current device, and how programs share the work."""
        sizes = (int(problem[p]) for p in "MNK")
        return _space(*sizes, BITS[str(problem["dtype"])] // 8, device_limits())

    def default(self, problem: Problem) -> Configuration:
        """Return a tile of at most 128 × 128, three steps in flight, nothing split."""
        m, n, k = (int(problem[p]) for p in "MNK")
        tile = default_tile(m, n, k, 1024 // BITS[str(problem["dtype"])])
        return Configuration(tile, SPLIT_K=1, PERSISTENT=False)

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return A and B, standard normal, laid out as the problem says."""
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
        """Return the product in single precision; in double precision, and so exact, of int8."""
        a, b = inputs["a"], inputs["b"]
        wide = torch.float64 if a.dtype == torch.int8 else torch.float32
        return a.to(wide) @ b.to(wide)

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return cuBLAS (on AMD: hipBLAS) through torch, where it takes these formats and sizes."""
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
        """Return the tile, its share of real work, the waves, and what splitting adds."""
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
        """Return the size of the matrices, of the reference's copies, and of split sums."""
        m, n, k = (float(problem[p]) for p in "MNK")
        return 9.0 * (m * k + k * n) + 12.0 * m * n + min(64.0 * m * n, WORKSPACE_BYTES)

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return layers of language models, for one token to a long prompt, and odd sizes."""
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
