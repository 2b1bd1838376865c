"""Tunes kernels in Triton's interpreter and prints what came out, as one JSON object.

    TRITON_INTERPRET=1 python interpreted_tuning.py stock|foretune

A program of its own: whether Triton interprets is decided when a kernel is decorated.
"""

import functools
import json
import sys
import time

import torch
import triton
import triton.language as tl

N = 200
BLOCKS = (32, 64, 256)


def timed(call, quantiles):
    """Measure one call by the clock of the CPU: there is no device."""
    start = time.perf_counter()
    call()
    return [(time.perf_counter() - start) * 1e3] * len(quantiles)


if sys.argv[1] == "stock":
    autotune = functools.partial(triton.autotune, do_bench=timed)
else:
    import foretune

    autotune = functools.partial(foretune.autotune, budget="all", store=False)


def configs(*blocks):
    return [triton.Config({"BLOCK": block}, num_warps=1) for block in blocks]


def accumulate(y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(y + i, mask=i < n) + 1, mask=i < n)


def total(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


def matmul(a, b, c, M, N, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        left = tl.load(a + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        sums += tl.dot(left, right)
    tl.store(c + m * N + n, sums, mask=(m < M) & (n < N))


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def accumulated(**arguments):
    """Return what an accumulating kernel leaves after its first and second call."""
    tuned = autotune(configs(*BLOCKS), ["n"], **arguments)(triton.jit(accumulate))
    y = torch.zeros(N)
    found = []
    for _ in range(2):
        tuned[grid](y, N)
        assert bool(y.eq(y[0]).all())
        found.append(float(y[0]))
    return found


def summed():
    """Return the sum a kernel adds up atomically, and the true one."""
    x = torch.arange(N, dtype=torch.float32)
    y = torch.full((1,), 17.0)
    tuned = autotune(configs(*BLOCKS), ["n"], reset_to_zero=["y"])(triton.jit(total))
    tuned[grid](x, y, N)
    return [float(y), float(x.sum())]


def multiplied():
    """Return the largest error of a product per configuration, and of the tuned one."""
    torch.manual_seed(0)
    a = torch.randn(33, 48)
    b = torch.randn(48, 20)
    tiles = [triton.Config({"BLOCK": m, "BLOCK_K": k}) for m in (16, 32) for k in (16, 32)]
    errors = []
    for several in (*([tile] for tile in tiles), tiles):
        tuned = autotune(several, ["M", "N", "K"])(triton.jit(matmul))
        c = torch.full((33, 20), float("nan"))
        tuned[lambda meta: (triton.cdiv(33, meta["BLOCK"]), triton.cdiv(20, meta["BLOCK"]))](
            a, b, c, 33, 20, 48
        )
        errors.append(float((c - a @ b).abs().max()))
    return errors


def remembered():
    """Return keys, how many timings, and whether the best is one of the configurations."""
    tuned = autotune(configs(*BLOCKS), ["n"], restore_value=["y"])(triton.jit(accumulate))
    for y in (torch.zeros(N), torch.zeros(N, dtype=torch.float64)):
        tuned[grid](y, N)
    return {
        "keys": [list(key) for key in tuned.cache],
        "timings": len(tuned.configs_timings),
        "best_is_known": tuned.best_config in tuned.configs,
        "nargs": tuned.nargs,
        "is_stock": isinstance(tuned, triton.runtime.autotuner.Autotuner),
    }


print(
    json.dumps(
        {
            "restored": accumulated(restore_value=["y"]),
            "zeroed": accumulated(reset_to_zero=["y"]),
            "bare": accumulated(),
            "summed": summed(),
            "multiplied": multiplied(),
            "remembered": remembered(),
        }
    )
)
