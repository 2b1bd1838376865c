"""A matrix product in Triton, tuned by Foretune instead of by measuring every configuration.

    python examples/gemm.py [SIZE …]

prints, for each size of a square product, the configuration chosen, how many were measured, and the
error against torch. Without a GPU the kernel is interpreted, at small sizes: that shows that it is
right, and nothing about its speed.
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
SIZES = (512, 1024, 2048, 4096) if DEVICE == "cuda" else (64, 100, 128)
CONFIGS = [
    triton.Config(
        {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_warps=warps, num_stages=stages
    )
    for m, n, k, warps, stages in [
        (32, 64, 64, 2, 4),
        (64, 32, 64, 2, 4),
        (64, 64, 64, 4, 4),
        (64, 128, 32, 4, 4),
        (64, 128, 64, 4, 3),
        (64, 256, 32, 8, 3),
        (128, 64, 64, 4, 3),
        (128, 128, 32, 4, 4),
        (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3),
    ]
]


@foretune.autotune(configs=CONFIGS, key=["M", "N", "K"])  # the only change: was triton.autotune
@triton.jit
def gemm(
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
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Compute one tile of ``c = a @ b``."""
    # Programs that run at the same time should share what they read: they are counted down
    # columns of tiles, in bands that are GROUP_M tiles high.
    tile, tiles_m, tiles_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = tile // (GROUP_M * tiles_n)
    height = min(tiles_m - band * GROUP_M, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    rows = (band * GROUP_M + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (within // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)

    # Rows and columns behind the last one read the first ones again and are not stored.
    a_at = a + (rows % M)[:, None] * stride_am + ks[None, :] * stride_ak
    b_at = b + ks[:, None] * stride_bk + (columns % N)[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(a_at, mask=ks[None, :] < K - k, other=0.0)
        y = tl.load(b_at, mask=ks[:, None] < K - k, other=0.0)
        total = tl.dot(x, y, total)
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    c_at = c + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(c_at, total.to(c.dtype.element_ty), mask=inside)


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` as the kernel computes it."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)

    def grid(config: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),)

    gemm[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride())
    return c


def count_measurements() -> list[Any]:
    """Return a list that from now on gets the times of every configuration that is measured.

    What an earlier run left in the store is not measured again.
    """
    timed: list[Any] = []
    bench = gemm.do_bench

    def count(launch: Any, *args: Any, **kwargs: Any) -> Any:
        times = bench(launch, *args, **kwargs)
        timed.append(times)
        return times

    gemm.do_bench = count
    return timed


def main() -> None:
    """Multiply, compare with torch, and print what was chosen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "sizes",
        nargs="*",
        type=int,
        metavar="SIZE",
        default=SIZES,
        help="rows and columns of square matrices",
    )
    asked = parser.parse_args().sizes
    timed = count_measurements()
    print(torch.cuda.get_device_name() if DEVICE == "cuda" else "interpreted on the CPU")
    print(f"{'size':>6}  measured    error  chosen: BLOCK_M × BLOCK_N × BLOCK_K")
    for size in asked:
        timed.clear()
        torch.manual_seed(size)
        a, b = (torch.randn(size, size, device=DEVICE).half() for _ in range(2))
        c, expected = multiply(a, b).float(), a.float() @ b.float()
        error = float((c - expected).norm() / expected.norm())
        measured = f"{len(timed)}/{len(CONFIGS)}"
        best = gemm.best_config
        tile = " × ".join(str(best.kwargs[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
        print(
            f"{size:>6}  {measured:>8}  {error:.1e}  {tile}, "
            f"{best.num_warps} warps, {best.num_stages} stages"
        )
        if not error < 1e-3:
            sys.exit(f"size {size}: the result is wrong")


if __name__ == "__main__":
    main()
