"""Small Triton kernels for tests that compile: elementwise, softmax, matrix product, oddities."""

import os
import time

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """``out = x + y``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, stride, n, BLOCK: tl.constexpr):
    """Softmax of one row."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < n, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    share = powers / tl.sum(powers, axis=0)
    tl.store(out + row * stride + at, share.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """``c = a @ b`` of row-major matrices."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    at_a = a + rows[:, None] * K + depth[None, :]
    at_b = b + depth[:, None] * N + columns[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        left = tl.load(at_a, mask=depth[None, :] < K - k * BK, other=0.0)
        right = tl.load(at_b, mask=depth[:, None] < K - k * BK, other=0.0)
        total = tl.dot(left, right, total)
        at_a += BK
        at_b += BK * N
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def converted(x, out, BLOCK: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr):
    """``out = x``, by way of another type; a bias may be None."""
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at).to(KIND)
    if BIAS is not None:
        value += BIAS
    tl.store(out + at, value)


@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_copy(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """``out = x``, under an autotuner and a heuristic that reads its configuration."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(x + at))
    else:
        tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def refuses(x, BLOCK: tl.constexpr):
    """Cannot be compiled with an odd block."""
    tl.static_assert(BLOCK % 2 == 0, "BLOCK must be even")
    at = tl.arange(0, 64)
    tl.store(x + at, tl.load(x + at) * BLOCK)


def misbehave(args):
    """Do what a compiler may do: hang, or take its process with it."""
    if args["HOW"] == "hang":
        time.sleep(600)
    if args["HOW"] == "die":
        os.abort()
    return 1


@triton.heuristics({"FACTOR": misbehave})
@triton.jit
def scale(x, BLOCK: tl.constexpr, HOW: tl.constexpr, FACTOR: tl.constexpr):
    """Hangs or dies while it is compiled, if it is told to."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) * FACTOR)


@triton.jit
def tile_copy(source, out, N, BM: tl.constexpr, BN: tl.constexpr):
    """Copies a tile through a tensor descriptor made by the host."""
    tile = source.load([0, 0])
    at = tl.arange(0, BM)[:, None] * N + tl.arange(0, BN)[None, :]
    tl.store(out + at, tile)
