"""Flash attention, forward, in Triton: ``O = softmax(Q Kᵀ / √d) V`` without the matrix of scores.

Each program keeps a tile of queries and walks along the keys; sums are brought to the largest score
so far whenever it rises (Dao et al., arXiv:2205.14135 and 2307.08691). Keys that all queries of a
tile see need no mask and are walked through first. With a causal mask the longest walks start
first, so that no multiprocessor begins one when the others are done.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from foretune.collect.kernels.triton_gemm import Limits, device_limits, multiply_add
from foretune.collect.kernels.triton_kernel import (
    CACHE,
    JitLaunch,
    TritonKernel,
    check_support,
    element_bytes,
    normal,
)
from foretune.errors import ProblemError
from foretune.family import Cost, Quantity
from foretune.kernel import Inputs, Launch, latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

DTYPES = ("fp16", "bf16")
MASKS = ("causal", "none")
SUMS_PER_THREAD = 160
"""Most scores and outputs a thread holds: what registers are left is for addresses and operands."""
REFERENCE_ROWS = 512
BARRIER_BYTES = 2048
"""Of shared memory, beside the tiles."""

TRAINING = {
    "batch": (1, 2, 4, 16, 64),
    "seq_len": (128, 250, 512, 1000, 1024, 2048, 4096, 8192, 16384),
    "heads": (8, 16, 32, 64),
    "kv_heads": (0, 4, 8),
    "head_dim": (64, 128),
    "dtype": DTYPES,
    "mask": MASKS,
}
MAX_PAIRS = 2**34
"""Queries times keys times heads of a training problem: some 10 ms on a fast GPU."""


@triton.jit
def online_softmax_step(scores, scale, total, sums, top):
    """Return weights of new scores, and what was summed up so far, brought to the new largest."""
    higher = tl.maximum(top, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    shrink = tl.exp2(top - higher)
    return weights, total * shrink[:, None], sums * shrink + tl.sum(weights, axis=1), higher


@triton.jit
def mask_scores(scores, columns, rows, keys, CAUSAL: tl.constexpr):
    """Return scores with -inf where a query does not see a key."""
    seen = (columns < keys)[None, :]
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def key_bounds(tile, keys, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """Return how many keys all queries of a tile see, and how many any of them does."""
    if CAUSAL:
        return tile * BLOCK_M // BLOCK_N * BLOCK_N, tl.minimum((tile + 1) * BLOCK_M, keys)
    return keys // BLOCK_N * BLOCK_N, keys


@triton.jit
def _walk(
    total,
    sums,
    top,
    q,
    k_at,
    v_at,
    scale,
    stride_k,
    stride_v,
    rows,
    start,
    stop,
    keys,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Add the keys from ``start`` to ``stop`` to outputs, sums of weights and largest scores."""
    n = tl.arange(0, BLOCK_N)
    for first in range(start, stop, BLOCK_N):
        first = tl.multiple_of(first, BLOCK_N)
        if MASKED:
            inside = first + n < keys
            k = tl.load(k_at + first * stride_k, mask=inside[:, None], other=0.0)
            v = tl.load(v_at + first * stride_v, mask=inside[:, None], other=0.0)
        else:
            k = tl.load(k_at + first * stride_k)
            v = tl.load(v_at + first * stride_v)
        scores = multiply_add(q, tl.trans(k), tl.zeros((q.shape[0], BLOCK_N), tl.float32))
        if MASKED:
            scores = mask_scores(scores, first + n, rows, keys, CAUSAL)
        weights, total, sums, top = online_softmax_step(scores, scale, total, sums, top)
        total = multiply_add(weights.to(v.dtype), v, total)
    return total, sums, top


@triton.jit
def _attention(
    q,
    k,
    v,
    o,
    scale,
    heads,
    group,
    length,
    stride_qb,
    stride_qh,
    stride_qs,
    stride_kb,
    stride_kh,
    stride_ks,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_ob,
    stride_oh,
    stride_os,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Compute one tile of queries: tiles along axis 0, batches and heads along axis 1."""
    tile = tl.program_id(0)
    if CAUSAL:
        tile = tl.num_programs(0) - 1 - tile
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    q += batch * stride_qb + head * stride_qh
    k += batch * stride_kb + (head // group) * stride_kh
    v += batch * stride_vb + (head // group) * stride_vh
    o += batch * stride_ob + head * stride_oh

    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, D)
    mine = (rows < length)[:, None]
    queries = tl.load(q + rows[:, None] * stride_qs + d[None, :], mask=mine, other=0.0)
    k_at = k + n[:, None] * stride_ks + d[None, :]
    v_at = v + n[:, None] * stride_vs + d[None, :]

    seen_by_all, end = key_bounds(tile, length, BLOCK_M, BLOCK_N, CAUSAL)
    total = tl.zeros((BLOCK_M, D), tl.float32)
    sums = tl.zeros((BLOCK_M,), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total, sums, top = _walk(
        total,
        sums,
        top,
        queries,
        k_at,
        v_at,
        scale,
        stride_ks,
        stride_vs,
        rows,
        0,
        seen_by_all,
        length,
        BLOCK_N,
        False,
        CAUSAL,
    )
    total, sums, top = _walk(
        total,
        sums,
        top,
        queries,
        k_at,
        v_at,
        scale,
        stride_ks,
        stride_vs,
        rows,
        seen_by_all,
        end,
        length,
        BLOCK_N,
        True,
        CAUSAL,
    )
    result = (total / sums[:, None]).to(o.dtype.element_ty)
    tl.store(o + rows[:, None] * stride_os + d[None, :], result, mask=mine)


class TritonAttention(TritonKernel):
    """Attention of ``seq_len`` queries to as many keys, in ``heads`` heads of ``head_dim``.

    Heads share keys and values in groups where there are fewer ``kv_heads``. Tensors are of shape
    (batch, heads, seq_len, head_dim).

    Knobs: tile of queries (``BLOCK_M``) and of keys (``BLOCK_N``), warps, and tiles of keys loaded
    ahead (``num_stages``).
    """

    name = "triton_attention"
    has_warp_specialization = False
    """Whether there is a knob for warps that only load."""
    problem_parameters = (
        ProblemParameter("batch", 1, maximum=65535, meaning="sequences"),
        ProblemParameter("seq_len", maximum=2**20, meaning="queries, and keys, of a sequence"),
        ProblemParameter("heads", maximum=4096, meaning="of queries"),
        ProblemParameter("kv_heads", 0, minimum=0, maximum=4096, meaning="0: as many as heads"),
        ProblemParameter("head_dim", 128, choices=(64, 128), meaning="size of a head"),
        ProblemParameter("dtype", "bf16", choices=DTYPES, meaning="of all tensors"),
        ProblemParameter("mask", "causal", choices=MASKS, meaning="which keys a query sees"),
        CACHE,
    )

    def problem(self, values: Mapping[str, Any] = {}, /, **named: Any) -> Problem:
        """Return a complete, checked problem.

        Raises:
            UnknownName, ProblemError: see `foretune.problem.make_problem`; also if heads cannot be
                grouped, or are too many.
        """
        problem = super().problem(values, **named)
        heads, shared = int(problem["heads"]), _kv_heads(problem)
        if heads % shared:
            raise ProblemError(f"heads={heads} cannot share kv_heads={shared}: take a divisor")
        if int(problem["batch"]) * heads > 65535:  # programs along the second axis of a grid
            raise ProblemError("batch × heads is above 65535: split the batch")
        return problem

    def space(self, problem: Problem) -> SearchSpace:
        """Return tiles whose sums registers hold and whose operands shared memory holds."""
        check_support(str(problem["dtype"]))
        max_block = max(16, 1 << (int(problem["seq_len"]) - 1).bit_length())
        return _space(
            int(problem["head_dim"]), max_block, device_limits(), self.has_warp_specialization
        )

    def default(self, problem: Problem) -> Configuration:
        """Return 128 queries by 64 keys; less where shared memory or the sequence is short."""
        space = self.space(problem)
        wide = int(problem["head_dim"]) == 128
        warps = 8 if wide else 4
        tried = [(128, 64, warps, 3), (128, 64, warps, 2), (64, 64, 4, 2), (64, 32, 4, 2)]
        for m, n, warps, stages in [*tried, (32, 32, 2, 2), (16, 16, 1, 2)]:
            config = {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}
            config |= {"WARP_SPECIALIZE": False} if self.has_warp_specialization else {}
            if config in space:
                return Configuration(config)
        return space[0]

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return Q, K and V, standard normal."""
        batch, length, dim = (int(problem[n]) for n in ("batch", "seq_len", "head_dim"))
        heads = {"q": int(problem["heads"]), "k": _kv_heads(problem), "v": _kv_heads(problem)}
        tensors = {
            name: normal((batch, h, length, dim), str(problem["dtype"]), self, 3 * seed + i)
            for i, (name, h) in enumerate(heads.items())
        }
        return {**tensors, "causal": problem["mask"] == "causal"}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch that computes O, and O."""
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        o = torch.empty_like(q)
        batch, heads, length, dim = q.shape
        grid = triton.cdiv(length, int(config["BLOCK_M"])), batch * heads
        strides = [step for tensor in (q, k, v, o) for step in tensor.stride()[:3]]
        arguments = math.log2(math.e) / math.sqrt(dim), heads, heads // k.shape[1], length, *strides
        options = {name: int(value) for name, value in config.items()}
        options |= {"D": dim, "CAUSAL": inputs["causal"]}
        return [JitLaunch(_attention, grid, (q, k, v, o, *arguments), options)], o

    def reference(self, inputs: Inputs) -> Any:
        """Return attention in single precision, some hundred queries at a time."""
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        group, length = q.shape[1] // k.shape[1], q.shape[2]
        result = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        keys = torch.arange(length, device=q.device)
        for b, h in np.ndindex(q.shape[0], q.shape[1]):
            key, value = k[b, h // group].float(), v[b, h // group].float()
            for rows in keys.split(REFERENCE_ROWS):
                scores = q[b, h, rows].float() @ key.T / math.sqrt(q.shape[3])
                if inputs["causal"]:
                    scores.masked_fill_(keys[None, :] > rows[:, None], -math.inf)
                result[b, h, rows] = torch.softmax(scores, dim=1) @ value
        return result

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return torch's scaled_dot_product_attention, which picks the fastest it has."""
        q, k, v, causal = inputs["q"], inputs["k"], inputs["v"], inputs["causal"]
        attention, shared = (
            torch.nn.functional.scaled_dot_product_attention,
            k.shape[1] < q.shape[1],
        )
        return "torch.sdpa", lambda: attention(q, k, v, is_causal=causal, enable_gqa=shared)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 4·head_dim operations per query and key it sees, and tensors moved once."""
        batch, length, dim = 1.0 * problem["batch"], problem["seq_len"], problem["head_dim"]
        heads = problem["heads"]
        moved = 2.0 * heads + 2.0 * _kv_heads(problem)
        return Cost(
            flops=4.0 * batch * heads * dim * length * _keys_seen(problem),
            bytes_moved=element_bytes(problem["dtype"]) * batch * length * dim * moved,
            dtype=problem["dtype"],
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the tile, its traffic, what a thread and shared memory hold, waves and steps."""
        length, dim = 1.0 * problem["seq_len"], 1.0 * problem["head_dim"]
        m, n, warps = (1.0 * config[name] for name in ("BLOCK_M", "BLOCK_N", "num_warps"))
        tiles = np.ceil(length / m) * problem["batch"] * problem["heads"]
        cores = np.nan_to_num(1.0 * device.get("cores", 128.0), nan=128.0)
        causal = np.equal(problem["mask"], "causal")
        steps = np.ceil(np.where(causal, (length + m) / 2.0, length) / n)
        waves = tiles / cores
        return {
            "log2_tiles": np.log2(tiles),
            "waves": waves,
            "imbalance": np.ceil(waves) / waves,
            "steps": steps,
            "tile": m * n,
            "rows_per_warp": m / warps,
            "sums_per_thread": m * (n + dim) / (32.0 * warps),
            "work_per_score": steps * n * np.ceil(length / m) * m / (length * _keys_seen(problem)),
            "reads_of_keys": tiles * steps * n * dim * 2.0 * element_bytes(problem["dtype"]),
            "tile_bytes": 2.0 * dim * (m + 2.0 * n * config["num_stages"]),
            "blocks_per_core": np.minimum(tiles / cores, 2048.0 / (32.0 * warps)),
        }

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return prompts of language models, from 128 tokens to 16 thousand, with both masks."""
        candidates = latin_hypercube_problems(self, TRAINING, 4 * n, seed)
        return [p for p in candidates if _pairs(p) <= MAX_PAIRS][:n]


def _pairs(problem: Problem) -> float:
    return float(problem["batch"]) * float(problem["heads"]) * float(problem["seq_len"]) ** 2


def _kv_heads(problem: Mapping[str, Any]) -> Any:
    """Return the heads of keys; as many as of queries where the problem says 0."""
    shared = np.where(np.equal(problem["kv_heads"], 0), problem["heads"], problem["kv_heads"])
    return shared if shared.ndim else int(shared)


def _keys_seen(problem: Mapping[str, Any]) -> Quantity:
    """Return how many keys a query sees on average."""
    length = 1.0 * problem["seq_len"]
    return np.where(np.equal(problem["mask"], "causal"), (length + 1.0) / 2.0, length)


@lru_cache
def _space(dim: int, max_block: int, limits: Limits, warp_specialization: bool) -> SearchSpace:
    # tiles loaded ahead have a buffer each, the queries one, the weights one on their way from
    # scores to operand …
    need = f"2 * {dim} * (BLOCK_M + 2 * BLOCK_N * max(num_stages - 1, 1)) + 2 * BLOCK_M * BLOCK_N"
    if limits.reads_shared:
        # … but four warps with 64 rows keep weights in registers, and read all else from there
        kept = f"2 * {dim} * (BLOCK_M + 2 * BLOCK_N * num_stages) + {BARRIER_BYTES}"
        need = f"({kept} if num_warps >= 4 else {need})"
    warps = (False, True) if limits.specializes else (False,)
    return SearchSpace(
        {
            "BLOCK_M": tuple(m for m in (16, 32, 64, 128, 256) if m <= max_block),
            "BLOCK_N": tuple(n for n in (16, 32, 64, 128, 256) if n <= max_block),
            "num_warps": (1, 2, 4, 8, 16),
            "num_stages": (1, 2, 3, 4, 5),
            **({"WARP_SPECIALIZE": warps} if warp_specialization else {}),
        },
        [
            "BLOCK_M >= 16 * num_warps",  # a matrix instruction has sixteen rows
            f"BLOCK_M * (BLOCK_N + {dim}) <= {SUMS_PER_THREAD * limits.threads} * num_warps",
            f"{need} <= {limits.shared_bytes}",
        ],
    )
