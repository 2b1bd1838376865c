"""Grouped matrix product in Triton: a layer of a mixture of experts in one launch.

Rows are sorted by expert, and each expert multiplies its own by its own weights. Which expert a
program works for is found by the program itself, from where experts' rows end: the routing of a
batch never visits the host. The grid is as large as the most unequal routing needs; programs that
find no tile are done.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from expert_counts import expert_counts, per_routing

from foretune.collect.kernels.triton_gemm import (
    Limits,
    TiledProduct,
    default_tile,
    device_limits,
    group_reuse,
    multiply_add,
    padding,
    persistent_rule,
    shape_rules,
    tile_features,
    tile_position,
    tile_rules,
)
from foretune.collect.kernels.triton_kernel import BITS, CACHE, JitLaunch, check_support, normal
from foretune.errors import ProblemError
from foretune.family import Cost, Quantity
from foretune.kernel import Inputs, Launch
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

OUTPUT = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}

# Up and down projections of mixtures from 8 large to 256 small experts, some of them as one rank
# of several holds them, for one decoding batch to a long prompt; and sizes that nothing divides.
LAYERS = (  # experts, top_k, N, K
    (8, 2, 14336, 4096),
    (8, 2, 4096, 14336),
    (16, 4, 5376, 6144),
    (32, 4, 5760, 2880),
    (32, 8, 2048, 7168),
    (60, 4, 2816, 2048),
    (64, 6, 2816, 2048),
    (64, 8, 1000, 1500),
    (128, 8, 1536, 2048),
    (128, 8, 2048, 768),
    (256, 8, 512, 7168),
)
TOKENS = (1, 4, 16, 33, 64, 128, 256, 500, 1024, 2048, 4096)
SKEWS = (0.0, 0.5, 1.0)


@triton.jit
def _expert_tile(
    tile,
    a,
    b,
    c,
    token_of,
    ends,
    ends_tiles,
    tiles_m,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """Compute the ``tile``-th tile of all experts' tiles."""
    pid_m, pid_n = tile_position(tile, tiles_m, tl.cdiv(N, BLOCK_N), GROUP_M)
    expert = tl.sum((ends_tiles <= pid_m).to(tl.int32), 0)
    before = tl.max(tl.where(ends_tiles <= pid_m, ends_tiles, 0), 0)
    first = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends + expert)
    rows = first + (pid_m - before) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    # past the end, the last row and wrapped columns are loaded, and not stored
    tokens = tl.load(token_of + tl.minimum(rows, end - 1))
    a_at = a + tokens[:, None] * K + ks[None, :]
    b += expert.to(tl.int64) * N * K
    b_at = b + ks[:, None] + (columns % N)[None, :] * K
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            x = tl.load(a_at)
            y = tl.load(b_at)
        else:
            x = tl.load(a_at, mask=ks[None, :] < K - k, other=0.0)
            y = tl.load(b_at, mask=ks[:, None] < K - k, other=0.0)
        total = multiply_add(x, y, total)
        a_at += BLOCK_K
        b_at += BLOCK_K
    inside = (rows < end)[:, None] & (columns < N)[None, :]
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def _grouped_gemm(
    a,
    b,
    c,
    token_of,
    ends,
    experts,
    N,
    K,
    EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PERSISTENT: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """Multiply: ``ends`` says behind which row each of ``experts`` ends, EXPERTS at most."""
    one = tl.arange(0, EXPERTS)
    end = tl.load(ends + one, mask=one < experts, other=0)
    start = tl.load(ends + one - 1, mask=(one > 0) & (one < experts), other=0)
    ends_tiles = tl.cumsum(tl.cdiv(end - start, BLOCK_M), 0)
    tiles_m = tl.max(ends_tiles, 0)
    tiles = tiles_m * tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    if PERSISTENT:
        for t in tl.range(tile, tiles, tl.num_programs(0)):
            _expert_tile(
                t,
                a,
                b,
                c,
                token_of,
                ends,
                ends_tiles,
                tiles_m,
                N,
                K,
                BLOCK_M,
                BLOCK_N,
                BLOCK_K,
                GROUP_M,
                EVEN_K,
            )
    elif tile < tiles:
        _expert_tile(
            tile,
            a,
            b,
            c,
            token_of,
            ends,
            ends_tiles,
            tiles_m,
            N,
            K,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            GROUP_M,
            EVEN_K,
        )


class TritonGroupedGemm(TiledProduct):
    """``C[r, N] = A[token of r, K] @ B[expert of r, K, N]`` for rows r sorted by expert.

    There is a row for each of a token's ``top_k`` experts. B lies as N rows of K per expert.

    Knobs: the tile of a program (``BLOCK_M`` × ``BLOCK_N``, ``BLOCK_K`` at a time), how many rows
    of tiles are done together (``GROUP_M``), whether programs stay and take tile after tile
    (``PERSISTENT``), warps of a program, and steps in flight (``num_stages``).
    """

    name = "triton_grouped_gemm"
    problem_parameters = (
        ProblemParameter("tokens", meaning="tokens of a batch: rows of A"),
        ProblemParameter("experts", maximum=4096, meaning="experts with weights of their own"),
        ProblemParameter("top_k", maximum=4096, meaning="experts of a token"),
        ProblemParameter("N", meaning="columns of an expert's weights, and of C"),
        ProblemParameter("K", meaning="columns of A"),
        ProblemParameter("dtype", "bf16", choices=tuple(OUTPUT), meaning="of A and B"),
        ProblemParameter(
            "skew",
            0.0,
            minimum=0.0,
            maximum=4.0,
            meaning="how unequal experts are: the n-th gets n**-skew of the first's tokens",
        ),
        CACHE,
    )

    def matrix_sizes(self, problem: Problem) -> list[int]:
        """Return the elements of A, C and one expert's weights."""
        tokens, top_k, n, k = (int(problem[p]) for p in ("tokens", "top_k", "N", "K"))
        return [tokens * k, tokens * top_k * n, n * k]

    def problem(self, values: Mapping[str, Any] = {}, /, **named: Any) -> Problem:
        """Return a complete, checked problem.

        Raises:
            UnknownName, ProblemError: see `TiledProduct.problem`; also if a token has more experts
                than there are.
        """
        problem = super().problem(values, **named)
        top_k, experts = int(problem["top_k"]), int(problem["experts"])
        if top_k > experts:
            raise ProblemError(f"top_k={top_k} is more than experts={experts}: lower it")
        return problem

    def space(self, problem: Problem) -> SearchSpace:
        """Return tiles that fit the current device."""
        tokens, top_k, n, k = (int(problem[p]) for p in ("tokens", "top_k", "N", "K"))
        itemsize = BITS[str(problem["dtype"])] // 8
        return _space(tokens, tokens * top_k, n, k, itemsize, device_limits())

    def default(self, problem: Problem) -> Configuration:
        """Return a tile as high as an average expert's rows, three steps in flight."""
        tokens, experts, top_k, n, k = (
            int(problem[p]) for p in ("tokens", "experts", "top_k", "N", "K")
        )
        each = -(-tokens * top_k // experts)
        tile = default_tile(each, n, k, 1024 // BITS[str(problem["dtype"])])
        return Configuration(tile, PERSISTENT=False)

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return A, B, the token of each row, and behind which row each expert ends."""
        tokens, experts, n, k = (int(problem[p]) for p in ("tokens", "experts", "N", "K"))
        dtype = str(problem["dtype"])
        check_support(dtype)
        token_of, ends = token_permutation(problem, seed)
        a = normal((tokens, k), dtype, self, 2 * seed)
        return {
            "a": a,
            "b": normal((experts, n, k), dtype, self, 2 * seed + 1),
            "token_of": torch.from_numpy(token_of.astype(np.int32)).to(a.device),
            "ends": torch.from_numpy(ends.astype(np.int32)).to(a.device),
        }

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch that multiplies the rows of all experts, and C."""
        a, b, token_of, ends = (inputs[name] for name in ("a", "b", "token_of", "ends"))
        experts, n, k = b.shape
        rows, block_m = len(token_of), int(config["BLOCK_M"])
        c = torch.empty((rows, n), dtype=OUTPUT[str(problem["dtype"])], device=a.device)
        max_tiles = min(rows // block_m + experts, rows)  # each expert's last tile may not be full
        programs = max_tiles * triton.cdiv(n, int(config["BLOCK_N"]))
        if config["PERSISTENT"]:
            programs = min(programs, device_limits().cores)

        arguments = (a, b, c, token_of, ends, experts, n, k)
        whole = k % int(config["BLOCK_K"]) == 0
        options = {**config, "EXPERTS": triton.next_power_of_2(experts), "EVEN_K": whole}
        return [JitLaunch(_grouped_gemm, (programs,), arguments, options)], c

    def reference(self, inputs: Inputs) -> Any:
        """Return the product in single precision, expert by expert."""
        return torch.cat([x.float() @ w.float() for x, w in _experts(inputs)])

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return torch's product expert by expert; None for formats it has no plain product of."""
        if problem["dtype"] == "fp8":
            return None
        a, b, ends = inputs["a"], inputs["b"], inputs["ends"].tolist()
        token_of = inputs["token_of"].long()
        out = torch.empty((len(token_of), b.shape[1]), dtype=a.dtype, device=a.device)
        spans = list(zip([0, *ends[:-1]], ends, b.transpose(1, 2), strict=True))

        def launch() -> Any:
            rows = a[token_of]
            for start, end, weights in spans:
                if end > start:
                    torch.matmul(rows[start:end], weights, out=out[start:end])
            return out

        return "torch.matmul per expert", launch

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·N·K operations per row; tokens, C and weights of wanted experts moved once."""
        tokens, n, k = (1.0 * problem[p] for p in ("tokens", "N", "K"))
        rows = tokens * problem["top_k"]
        active = _routing(problem, lambda counts, _: np.count_nonzero(counts))
        return Cost(
            flops=2.0 * rows * n * k,
            bytes_moved=_bytes(problem) * (tokens * k + active * n * k) + 2.0 * rows * n,
            dtype=problem["dtype"],
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the tile, its share of real work, the waves, and how rows are spread."""
        n, k = 1.0 * problem["N"], 1.0 * problem["K"]
        rows = 1.0 * problem["tokens"] * problem["top_k"]
        tile_m, tile_n, tile_k = (1.0 * config[f"BLOCK_{p}"] for p in "MNK")
        active = _routing(problem, lambda counts, _: np.count_nonzero(counts))
        largest = _routing(problem, lambda counts, _: counts.max())
        tiles_m = _routing(problem, lambda counts, tile: np.ceil(counts / tile).sum(), tile_m)
        tiles_n, steps, itemsize = np.ceil(n / tile_n), np.ceil(k / tile_k), _bytes(problem)
        return {
            "log2_rows": np.log2(rows),
            "log2_per_expert": np.log2(rows / active),
            "log2_largest": np.log2(largest),
            "imbalance": largest * active / rows,
            "log2_active": np.log2(active),
            "log2_expert": np.log2(n * k),
            "padding": rows / (tiles_m * tile_m) * padding(n, tile_n),
            "padding_k": k / (steps * tile_k),
            "step_bytes": itemsize * tile_k * (tile_m + tile_n),
            "buffer_bytes": itemsize * tile_k * (tile_m + tile_n) * config["num_stages"],
            "weights_read": tiles_m / active,
            "idle": (rows / tile_m + problem["experts"]) / tiles_m,
            "shared_by": group_reuse(config, tiles_m, tiles_m * tiles_n, device),
            **tile_features(config, tiles_m * tiles_n, steps, device),
        }

    def memory_bytes(self, problem: Problem) -> float:
        """Return the size of tokens, weights and C, and of the reference's copies."""
        tokens, experts, top_k, n, k = (
            float(problem[p]) for p in ("tokens", "experts", "top_k", "N", "K")
        )
        return 6.0 * experts * n * k + 6.0 * tokens * k + tokens * top_k * (6.0 * k + 12.0 * n)

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return layers of mixtures of experts, for one token to a long prompt."""
        rng = np.random.default_rng(seed)
        choices = list(product(LAYERS, TOKENS, SKEWS, OUTPUT))
        chosen = [choices[i] for i in rng.permutation(len(choices))[:n]]
        return [
            self.problem(
                tokens=tokens, experts=experts, top_k=top_k, N=n_, K=k, dtype=dtype, skew=skew
            )
            for (experts, top_k, n_, k), tokens, skew, dtype in chosen
        ]


def token_permutation(
    problem: Problem, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the token of each row, sorted by expert, and behind which row each expert ends."""
    tokens, experts, top_k = (int(problem[p]) for p in ("tokens", "experts", "top_k"))
    rng = np.random.default_rng(seed)
    counts = rng.permutation(expert_counts(tokens, experts, top_k, float(problem["skew"])))
    ends = np.cumsum(counts)
    # in turn, so that all tokens have top_k experts and no expert a token twice
    token_of = rng.permutation(tokens)[np.arange(tokens * top_k) % tokens]
    for rows in np.split(token_of, ends[:-1]):
        rows.sort()
    return token_of, ends


def _experts(inputs: Inputs) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return rows of A and weights (K, N) of every expert."""
    rows = inputs["a"][inputs["token_of"].long()]
    counts = np.diff(inputs["ends"].tolist(), prepend=0).tolist()
    return list(zip(rows.split(counts), inputs["b"].transpose(1, 2), strict=True))


def _routing(problem: Mapping[str, Any], what: Any, tile: Any = 1.0) -> Quantity:
    """Return ``what`` of the tokens per expert and the tile, see `per_routing`."""
    tokens, experts = problem["tokens"], problem["experts"]
    return per_routing(what, tokens, experts, problem["top_k"], problem["skew"], tile)


def _bytes(problem: Mapping[str, Any]) -> Quantity:
    """Return the bytes of an element of A and B."""
    return np.where(np.equal(problem["dtype"], "fp8"), 1.0, 2.0)


@lru_cache(maxsize=32)
def _space(tokens: int, rows: int, n: int, k: int, itemsize: int, limits: Limits) -> SearchSpace:
    return SearchSpace(
        {
            "BLOCK_M": (16, 32, 64, 128, 256),
            "BLOCK_N": (32, 64, 128, 256),
            "BLOCK_K": (32, 64, 128) if itemsize > 1 else (32, 64, 128, 256),
            "GROUP_M": (1, 2, 4, 8, 16),
            "PERSISTENT": (False, True),
            "num_warps": (2, 4, 8),
            "num_stages": (1, 2, 3, 4, 5),
        },
        [
            *tile_rules(limits, itemsize, itemsize),
            *shape_rules(tokens, n, k),  # an expert's rows: at most one per token
            f"num_stages == 1 or (num_stages - 1) * BLOCK_K < {k}",
            persistent_rule(rows, n, limits),
        ],
    )
