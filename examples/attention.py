"""Flash attention (forward) in Triton, tuned by Foretune instead of by measuring everything.

    python examples/attention.py [TOKENS …]

prints, for each length of a sequence, the configuration chosen, how many were measured, and the
error against torch. Without a GPU the kernel is interpreted, on short sequences: that shows that it
is right, and nothing about its speed.
"""

import argparse
import os
import sys
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: it looks only once

import triton
import triton.language as tl

import foretune

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS = (512, 1024, 4096, 16384) if DEVICE == "cuda" else (64, 100, 128)
HEADS, HEAD_DIM = (32, 128) if DEVICE == "cuda" else (2, 64)
LOG2_E = 1.4426950408889634
CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
    for m, n, warps, stages in [
        (32, 32, 2, 3),
        (64, 32, 4, 3),
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (128, 32, 4, 3),
        (128, 64, 4, 2),
        (128, 64, 8, 3),
        (128, 128, 8, 2),
    ]
]


@foretune.autotune(configs=CONFIGS, key=["tokens"])  # the only change: was triton.autotune
@triton.jit
def attention(
    q,
    k,
    v,
    out,
    scale,
    tokens,
    stride_head,
    stride_token,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute BLOCK_M rows of one head of ``softmax(q @ kᵀ · scale) @ v``, causal."""
    head = tl.program_id(1).to(tl.int64) * stride_head
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    depth = tl.arange(0, HEAD_DIM)
    at = head + rows[:, None] * stride_token + depth[None, :]
    mine = (rows < tokens)[:, None]
    queries = tl.load(q + at, mask=mine, other=0.0)

    # The whole row of scores is never there. What is kept per row is the largest score so far and,
    # relative to it, the sum of the weights and the weighted sum of v; all in powers of two.
    largest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((BLOCK_M,), dtype=tl.float32)
    total = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    last = min((tl.program_id(0) + 1) * BLOCK_M, tokens)
    for first in range(0, last, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        theirs = head + columns[:, None] * stride_token + depth[None, :]
        there = (columns < tokens)[:, None]
        keys = tl.load(k + theirs, mask=there, other=0.0)
        scores = tl.dot(queries, tl.trans(keys)) * scale
        scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp2(largest - higher)
        weights = tl.exp2(scores - higher[:, None])
        values = tl.load(v + theirs, mask=there, other=0.0)
        weight = weight * shrink + tl.sum(weights, 1)
        total = tl.dot(weights.to(values.dtype), values, total * shrink[:, None])
        largest = higher
    result = total / weight[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=mine)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return causal attention of contiguous tensors of shape (heads, tokens, head size)."""
    heads, tokens, size = q.shape
    out = torch.empty_like(q)

    def grid(config: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(tokens, config["BLOCK_M"]), heads

    scale = LOG2_E / size**0.5
    attention[grid](q, k, v, out, scale, tokens, *q.stride()[:2], HEAD_DIM=size)
    return out


def count_measurements() -> list[Any]:
    """Return a list that from now on gets the times of every configuration that is measured.

    What an earlier run left in the store is not measured again.
    """
    timed: list[Any] = []
    bench = attention.do_bench

    def count(launch: Any, *args: Any, **kwargs: Any) -> Any:
        times = bench(launch, *args, **kwargs)
        timed.append(times)
        return times

    attention.do_bench = count
    return timed


def main() -> None:
    """Attend, compare with torch, and print what was chosen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "tokens", nargs="*", type=int, metavar="TOKENS", default=TOKENS, help="lengths of sequences"
    )
    asked = parser.parse_args().tokens
    timed = count_measurements()
    print(torch.cuda.get_device_name() if DEVICE == "cuda" else "interpreted on the CPU")
    print(f"{'tokens':>6}  measured    error  chosen: BLOCK_M × BLOCK_N")
    for tokens in asked:
        timed.clear()
        torch.manual_seed(tokens)
        q, k, v = (torch.randn(HEADS, tokens, HEAD_DIM, device=DEVICE).half() for _ in range(3))
        out = attend(q, k, v).float()
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.float(), k.float(), v.float(), is_causal=True
        )
        error = float((out - expected).norm() / expected.norm())
        measured = f"{len(timed)}/{len(CONFIGS)}"
        best = attention.best_config
        tile = " × ".join(str(best.kwargs[name]) for name in ("BLOCK_M", "BLOCK_N"))
        print(
            f"{tokens:>6}  {measured:>8}  {error:.1e}  {tile}, "
            f"{best.num_warps} warps, {best.num_stages} stages"
        )
        if not error < 2e-3:
            sys.exit(f"{tokens} tokens: the result is wrong")


if __name__ == "__main__":
    main()
