"""Dense matrix product in Triton by tensor descriptors: a unit of the device copies tiles (TMA).

For Hopper and newer. One thread asks for a whole tile, and the tile arrives in shared memory while
others compute. With ``WARP_SPECIALIZE`` some warps only load and the others only multiply, where
programs stay and take tile after tile (``PERSISTENT``); Triton 3.9 does that on Blackwell alone.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from foretune.collect.kernels.triton_gemm import (
    OUTPUT,
    TRAINING,
    Limits,
    TritonGemm,
    default_tile,
    device_limits,
    multiply_add,
    persistent_rule,
    tile_position,
    tile_rules,
)
from foretune.collect.kernels.triton_kernel import BITS, CACHE, JitLaunch
from foretune.errors import ProblemError
from foretune.kernel import Inputs, latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

ALIGNED_BYTES = 16
"""A row of a tensor that a descriptor is of must be a multiple of them."""
FORMATS = ("fp16", "bf16", "fp8")


@triton.jit
def _gemm_tma(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):
    """Multiply A by the transpose of B: a tile of C per turn, as many turns as it takes."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    start = tl.program_id(0)
    turns = tl.num_programs(0)
    for tile in tl.range(start, tiles_m * tiles_n, turns, warp_specialize=WARP_SPECIALIZE):
        pid_m, pid_n = tile_position(tile, tiles_m, tiles_n, GROUP_M)
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            x = a.load([pid_m * BLOCK_M, k])
            y = b.load([pid_n * BLOCK_N, k])
            total = multiply_add(x, y.T, total)
        c.store([pid_m * BLOCK_M, pid_n * BLOCK_N], total.to(c.dtype))


class TritonGemmTma(TritonGemm):
    """``C[M, N] = A[M, K] @ B[K, N]`` by tensor descriptors, sums in fp32.

    B lies column by column. Rows of A, columns of B and rows of C are multiples of 16 bytes.

    Knobs: those of ``triton_gemm`` without ``SPLIT_K``, and whether warps specialise
    (``WARP_SPECIALIZE``).
    """

    name = "triton_gemm_tma"
    problem_parameters = (
        *TritonGemm.problem_parameters[:3],
        ProblemParameter("dtype", "fp16", choices=FORMATS, meaning="of A and B"),
        ProblemParameter("layout", "nt", choices=("nt",), meaning="A row by row, B by columns"),
        CACHE,
    )

    def space(self, problem: Problem) -> SearchSpace:
        """Return tiles that fit the current device, and how programs take turns."""
        sizes = (int(problem[p]) for p in "MNK")
        return _space(*sizes, BITS[str(problem["dtype"])] // 8, device_limits())

    def default(self, problem: Problem) -> Configuration:
        """Return a tile of 128 × 128 at most, three steps in flight, one turn."""
        m, n, k = (int(problem[p]) for p in "MNK")
        tile = default_tile(max(m, 64), max(n, 64), k, 1024 // BITS[str(problem["dtype"])])
        plain = {"SPLIT_K": 1, "PERSISTENT": False, "WARP_SPECIALIZE": False}
        return Configuration({**tile, "num_warps": 4, **plain})

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return A and B, standard normal.

        Raises:
            ProblemError: a row is no multiple of 16 bytes.
        """
        size = BITS[str(problem["dtype"])] // 8
        for name, itemsize in (("K", size), ("N", 2)):
            if int(problem[name]) * itemsize % ALIGNED_BYTES:
                raise ProblemError(
                    f"{name}={problem[name]} makes rows that are no multiple of 16 bytes, which "
                    f"tensor descriptors need: take a multiple of {ALIGNED_BYTES // itemsize}"
                )
        return super().make_inputs(problem, seed)

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and C."""
        a, b = inputs["a"], inputs["b"].t()
        (m, k), n = a.shape, len(b)
        c = torch.empty((m, n), dtype=OUTPUT[str(problem["dtype"])], device=a.device)
        block_m, block_n, block_k = (int(config[f"BLOCK_{p}"]) for p in "MNK")
        tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
        programs = min(tiles, device_limits().cores) if config["PERSISTENT"] else tiles
        described = [
            TensorDescriptor.from_tensor(tensor, list(block))
            for tensor, block in (
                (a, (block_m, block_k)),
                (b, (block_n, block_k)),
                (c, (block_m, block_n)),
            )
        ]
        options = {n: v for n, v in config.items() if n not in ("SPLIT_K", "PERSISTENT")}
        return [JitLaunch(_gemm_tma, (programs,), (*described, m, n, k), options)], c

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return layers of language models, for one token to a long prompt."""
        choices = {**TRAINING, "dtype": FORMATS, "layout": ("nt",)}
        for size in "NK":
            choices[size] = tuple(s for s in TRAINING[size] if int(s) % ALIGNED_BYTES == 0)
        return latin_hypercube_problems(self, choices, n, seed)


@lru_cache(maxsize=32)
def _space(m: int, n: int, k: int, itemsize: int, limits: Limits) -> SearchSpace:
    return SearchSpace(
        {
            "BLOCK_M": (64, 128, 256),
            "BLOCK_N": (64, 128, 256),
            "BLOCK_K": (32, 64, 128) if itemsize > 1 else (32, 64, 128, 256),
            "GROUP_M": (1, 2, 4, 8, 16),
            "SPLIT_K": (1,),
            "PERSISTENT": (False, True),
            "WARP_SPECIALIZE": (False, True) if limits.specializes else (False,),
            "num_warps": (4, 8),
            "num_stages": (1, 2, 3, 4, 5),
        },
        [
            *tile_rules(limits, itemsize, itemsize),
            f"BLOCK_N == 64 or BLOCK_N < 2 * {n}",
            f"BLOCK_M == 64 or BLOCK_M < 2 * {m}",
            f"BLOCK_K == 32 or BLOCK_K < 2 * {k}",
            f"GROUP_M == 1 or GROUP_M // 2 * BLOCK_M < {m}",
            "PERSISTENT or not WARP_SPECIALIZE",
            persistent_rule(m, n, limits),
        ],
    )
