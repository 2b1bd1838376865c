"""A product of matrices in Triton, and what a made-up A100 takes for each of its tiles."""

import math

import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

DEVICE = "NVIDIA A100-SXM4-40GB"
TILES = [
    {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "num_warps": w, "num_stages": s}
    for m in (16, 64, 128)
    for n in (32, 64, 128, 256)
    for k in (32, 64)
    for w in (4, 8)
    for s in (2, 4)
]


@triton.jit
def mm(
    A,
    B,
    C,
    M,
    N,
    K,
    stride_am,
    stride_bk,
    stride_cm,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BLOCK_N)
    rows = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + depth
        inside_a = (rows[:, None] < M) & (k[None, :] < K)
        inside_b = (k[:, None] < K) & (columns[None, :] < N)
        a = tl.load(A + rows[:, None] * stride_am + k[None, :], mask=inside_a, other=0.0)
        b = tl.load(B + k[:, None] * stride_bk + columns[None, :], mask=inside_b, other=0.0)
        total = tl.dot(a, b, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(C + rows[:, None] * stride_cm + columns[None, :], total.to(tl.float16), mask=inside)


def grid(meta):
    return (triton.cdiv(meta["M"], meta["BLOCK_M"]) * triton.cdiv(meta["N"], meta["BLOCK_N"]),)


def time_ms(size, tile):
    """Return what a launch takes: waves of tiles, of which computing or memory binds each.

    It is infinite where a tile needs more shared memory or registers than there are.
    """
    (M, N, K), (m, n, k, warps, stages) = size, tile.values()
    if stages * k * (m + n) * 2 > 163 * 1024 or m * n > 6000 * warps:
        return math.inf
    waves = math.ceil(math.ceil(M / m) * math.ceil(N / n) / 108)
    compute = m * n * k / 1.1e6 / min(1.0, 0.35 + 0.65 * math.sqrt(m * n) / 128)
    memory = (m + n) * k / 1.3e4
    hidden = 1 + 0.5 / stages + 0.1 * abs(math.log2(m * n / warps / 2048))
    scatter = 1 + 0.06 * (hash_of(M, N, K, *tile.values()) - 0.5)
    return (4e-3 + 1e-3 * waves * (math.ceil(K / k) + 4) * max(compute, memory) * hidden) * scatter


def hash_of(*numbers):
    """Return a number below 1 without a pattern, the same on every machine."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number * 2_654_435_761) % 2**32
    return (mixed * 2_246_822_519 % 2**32) / 2**32


def launch_ms(launch):
    """Return the same of a launch on a replayed device."""
    size = tuple(launch.arguments[name] for name in "MNK")
    found = time_ms(size, {name: launch.config[name] for name in TILES[0]})
    if math.isinf(found):
        raise OutOfResources(300_000, 200_000, "shared memory")
    return found
