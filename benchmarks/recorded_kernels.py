"""The kernels of recorded tables: a decorator reads their code and arguments, nothing runs them."""

import triton
import triton.language as tl


@triton.jit
def tiled_product(
    A,
    B,
    C,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
):
    """Multiply; what its parameters mean can only be read from the code."""
    across = tl.cdiv(N, WIDE)
    rows = (tl.program_id(0) // across) * TALL + tl.arange(0, TALL)
    columns = (tl.program_id(0) % across) * WIDE + tl.arange(0, WIDE)
    sums = tl.zeros((TALL, WIDE), dtype=tl.float32)
    for start in range(0, K, DEEP):
        depth = start + tl.arange(0, DEEP)
        a = tl.load(A + rows[:, None] * stride_am + depth[None, :] * stride_ak)
        b = tl.load(B + depth[:, None] * stride_bk + columns[None, :] * stride_bn)
        sums = tl.dot(a, b.to(a.dtype), sums)
    at = C + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(at, sums.to(C.dtype.element_ty))


@triton.jit
def mm(
    A,
    B,
    C,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    ALLOW_TF32: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Multiply, with parameters as Inductor names them."""
    tiled_product(
        A,
        B,
        C,
        M,
        N,
        K,
        stride_am,
        stride_ak,
        stride_bk,
        stride_bn,
        stride_cm,
        stride_cn,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )


@triton.jit
def flex_attention(
    Q,
    K,
    V,
    OUT,
    KV_NUM_BLKS,
    KV_IDX,
    Z,
    H,
    Q_LEN,
    KV_LEN,
    NODES,
    USED,
    QK_HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Stand for attention under a mask of blocks: how many are visited is data, no argument."""


@triton.jit
def softmax_rows(OUT, IN, rows, columns, stride, WIDTH: tl.constexpr):
    """Compute the softmax of a row per block."""
    at = tl.arange(0, WIDTH)
    x = tl.load(IN + tl.program_id(0) * stride + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(OUT + tl.program_id(0) * stride + at, e / tl.sum(e, axis=0), mask=at < columns)
