"""A module of decorated kernels, as a program that serves requests imports them."""

import triton
import triton.language as tl
from tuned_kernels import configs

import foretune


@foretune.autotune(configs(64, 128, 256), ["n"], budget="all")
@triton.jit
def tuned(x, y, n, m=1, BLOCK: tl.constexpr = 64):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * m, mask=i < n)


@triton.jit
def plain(x):
    pass


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)
