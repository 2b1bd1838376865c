"""Products of `breadth.py`: Foretune's own kernels, products in TF32, and a convolution."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from breadth_kernel import BreadthKernel, Case, sizes_of

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))

from triton_grouped_gemm import TritonGroupedGemm

from foretune.collect.kernels.triton_gemm import TritonGemm, multiply_add, tile_position
from foretune.collect.kernels.triton_kernel import JitLaunch, normal
from foretune.collect.kernels.triton_quantized_gemm import TritonQuantizedGemm
from foretune.family import Cost
from foretune.kernel import Inputs
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration

TILE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}
LAUNCH = {"num_warps": 8, "num_stages": 3}
TILES = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (64, 128, 256), "BLOCK_K": (32, 64, 128)}
DEEP_TILES = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (64, 128, 256), "BLOCK_K": (64, 128)}
PRODUCTS = (
    {"M": 256, "N": 1024, "K": 4096},
    {"M": 512, "N": 512, "K": 2048},
    {"M": 4096, "N": 4096, "K": 4096},
    {"M": 2048, "N": 11008, "K": 4096},
    {"M": 8192, "N": 1024, "K": 8192},
)
SMALL = {"M": 64, "N": 64, "K": 128}


@triton.jit
def _product_of_fp32(
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
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Multiply one tile of C = A B in single precision, or in TF32."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tile_position(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_at = a + (m % M)[:, None] * stride_am + k[None, :] * stride_ak
    b_at = b + k[:, None] * stride_bk + (n % N)[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = k < K - start
        x = tl.load(a_at, mask=inside[None, :], other=0.0)
        y = tl.load(b_at, mask=inside[:, None], other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.store(c + m[:, None] * N + n[None, :], total, mask=mask)


class Tf32Gemm(BreadthKernel):
    """``C[M, N] = A[M, K] B[K, N]`` on operands of 32 bits.

    ``layout`` gives those of A and B: n row-major, t column-major. ``precision`` is that of Triton:
    tf32 rounds the operands, ieee does not.
    """

    name = "triton_tf32_gemm"
    sizes: ClassVar = {
        "M": "rows of A and C",
        "N": "columns of B and C",
        "K": "columns of A, rows of B",
    }
    choices = (
        ProblemParameter("layout", "nn", choices=("nn", "nt", "tn", "tt"), meaning="of A and B"),
        ProblemParameter("precision", "tf32", choices=("tf32", "ieee"), meaning="of the products"),
    )
    tiles: ClassVar = {
        "BLOCK_M": (32, 64, 128),
        "BLOCK_N": (64, 128),
        "BLOCK_K": (16, 32),
        "GROUP_M": (8,),
    }
    usual: ClassVar = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8, **LAUNCH}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return A and B, standard normal, in the problem's layout."""
        m, n, k = sizes_of(problem, "M", "N", "K")
        layout = str(problem["layout"])
        a = normal((k, m) if layout[0] == "t" else (m, k), "fp32", self, 2 * seed)
        b = normal((n, k) if layout[1] == "t" else (k, n), "fp32", self, 2 * seed + 1)
        return {"a": a.t() if layout[0] == "t" else a, "b": b.t() if layout[1] == "t" else b}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch that multiplies, and C."""
        a, b = inputs["a"], inputs["b"]
        m, n, k = sizes_of(problem, "M", "N", "K")
        c = torch.empty((m, n), dtype=a.dtype, device=a.device)
        tiles = triton.cdiv(m, int(config["BLOCK_M"])) * triton.cdiv(n, int(config["BLOCK_N"]))
        arguments = (a, b, c, m, n, k, *a.stride(), *b.stride())
        options = {**config, "PRECISION": str(problem["precision"])}
        return [JitLaunch(_product_of_fp32, (tiles,), arguments, options)], c

    def reference(self, inputs: Inputs) -> Any:
        """Return the product in double precision, which torch never rounds to TF32."""
        return inputs["a"].double() @ inputs["b"].double()

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return what rounding the operands to TF32, with ten bits of mantissa, can cause."""
        return 3e-3 if problem["precision"] == "tf32" else 1e-5

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·M·N·K operations and each matrix moved once."""
        m, n, k = (1.0 * problem[name] for name in "MNK")
        return Cost(2.0 * m * n * k, 4.0 * (m * k + k * n + m * n), "tf32")


@triton.jit
def _convolution(
    x,
    w,
    y,
    M,
    N,
    K,
    height,
    width,
    out_height,
    out_width,
    C: tl.constexpr,
    R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Multiply a tile of output pixels (M) by filters (N); the sum is over taps and channels."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    image = m // (out_height * out_width)
    row = m // out_width % out_height
    column = m % out_width
    corner = (image * height + row) * width + column
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        # The tap and the channel of each term of the sum.
        tap = k // C
        channel = k % C
        shift = (tap // R * width + tap % R) * C + channel
        x_inside = (m < M)[:, None] & (k < K)[None, :]
        w_inside = (k < K)[:, None] & (n < N)[None, :]
        pixels = tl.load(x + corner[:, None] * C + shift[None, :], mask=x_inside, other=0.0)
        filters = tl.load(w + n[None, :] * K + k[:, None], mask=w_inside, other=0.0)
        total = multiply_add(pixels, filters, total)
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.store(y + m[:, None] * N + n[None, :], total.to(y.dtype.element_ty), mask=mask)


class Convolution(BreadthKernel):
    """A convolution of NHWC images with filters of R × R, stride 1, no padding, in fp16."""

    name = "triton_convolution"
    tolerance = 2e-3
    sizes: ClassVar = {
        "images": "images",
        "H": "rows of an image, and pixels of a row",
        "C": "channels of the image",
        "F": "filters: channels of the output",
        "R": "rows and columns of a filter",
    }
    tiles = DEEP_TILES
    usual: ClassVar = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, **LAUNCH}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return images and weights, standard normal."""
        images, h, c, f, r = sizes_of(problem, "images", "H", "C", "F", "R")
        return {
            "x": normal((images, h, h, c), "fp16", self, 2 * seed),
            "weights": normal((f, r, r, c), "fp16", self, 2 * seed + 1),
        }

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch that convolves, and the output, one row per pixel."""
        images, h, c, f, r = sizes_of(problem, "images", "H", "C", "F", "R")
        out = h - r + 1
        m = images * out * out
        k = r * r * c
        x, w = inputs["x"], inputs["weights"]
        y = torch.empty((m, f), dtype=x.dtype, device=x.device)
        grid = triton.cdiv(m, int(config["BLOCK_M"])), triton.cdiv(f, int(config["BLOCK_N"]))
        arguments = (x, w, y, m, f, k, h, h, out, out)
        return [JitLaunch(_convolution, grid, arguments, {**config, "C": c, "R": r})], y

    def reference(self, inputs: Inputs) -> Any:
        """Return torch's convolution in double precision, which is never rounded to TF32."""
        x = inputs["x"].double().permute(0, 3, 1, 2)
        w = inputs["weights"].double().permute(0, 3, 1, 2)
        y = torch.nn.functional.conv2d(x, w).permute(0, 2, 3, 1)
        return y.reshape(-1, y.shape[3])

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·R²·C operations per output, and all tensors moved once."""
        images, h, c, f, r = (1.0 * problem[n] for n in ("images", "H", "C", "F", "R"))
        pixels = images * (h - r + 1.0) ** 2
        moved = images * h * h * c + f * r * r * c + pixels * f
        return Cost(2.0 * pixels * f * r * r * c, 2.0 * moved, "fp16")


def cases() -> list[Case]:
    """Return the cases of this file."""
    gemm = TritonGemm()
    whole = {"SPLIT_K": (1,), "PERSISTENT": (False,), "GROUP_M": (8,)}
    alone = {"SPLIT_K": 1, "PERSISTENT": False}
    fp8 = {"dtype": "fp8"}
    split = {**TILES, "BLOCK_M": (16, 64), "BLOCK_N": (64, 128), "SPLIT_K": (2, 4, 8)}
    experts = {"experts": 8, "top_k": 2, "N": 4096, "K": 4096}
    convolution = {"C": 128, "F": 128, "R": 3}
    return [
        Case(
            "GEMM fp16",
            gemm,
            PRODUCTS,
            SMALL,
            {**TILES, **whole},
            Configuration({**TILE, **alone, **LAUNCH}),
        ),
        Case(
            "GEMM fp8",
            gemm,
            tuple({**sizes, **fp8} for sizes in PRODUCTS),
            {**SMALL, **fp8},
            {**TILES, **whole},
            Configuration({**TILE, **alone, **LAUNCH, "BLOCK_K": 128}),
        ),
        Tf32Gemm().case("GEMM TF32", PRODUCTS, SMALL),
        Case(
            "GEMM split-K",
            gemm,
            (
                {"M": 16, "N": 1024, "K": 8192, "dtype": "bf16"},
                {"M": 64, "N": 512, "K": 16384, "dtype": "bf16"},
                {"M": 16, "N": 28672, "K": 8192, "dtype": "bf16"},
                {"M": 64, "N": 14336, "K": 4096, "dtype": "bf16"},
                {"M": 128, "N": 8192, "K": 8192, "dtype": "bf16"},
            ),
            {**SMALL, "K": 512},
            {**split, "PERSISTENT": (False,), "GROUP_M": (8,)},
            Configuration({**TILE, "BLOCK_M": 64, **LAUNCH, "SPLIT_K": 4, "PERSISTENT": False}),
        ),
        Case(
            "GEMM grouped",
            TritonGroupedGemm(),
            (
                {"tokens": 16, **experts, "N": 512},
                {"tokens": 64, **experts, "N": 512},
                {"tokens": 512, **experts},
                {"tokens": 2048, **experts},
                {"tokens": 4096, **experts, "N": 2048},
            ),
            {"tokens": 32, "experts": 4, "top_k": 2, "N": 64, "K": 128},
            {**TILES, "PERSISTENT": (False,), "GROUP_M": (8,)},
            Configuration({**TILE, **LAUNCH, "PERSISTENT": False}),
        ),
        Case(
            "GEMM int4 weights",
            TritonQuantizedGemm(),
            (
                {"M": 16, "N": 2048, "K": 4096},
                {"M": 64, "N": 4096, "K": 4096},
                {"M": 16, "N": 28672, "K": 4096},
                {"M": 512, "N": 14336, "K": 4096},
                {"M": 2048, "N": 4096, "K": 4096},
            ),
            {"M": 32, "N": 64, "K": 256},
            {
                "BLOCK_M": (16, 32, 64, 128),
                "BLOCK_N": (64, 128, 256),
                "BLOCK_K": (32, 64, 128),
                "GROUP_M": (8,),
                "SPLIT_K": (1,),
                "ORDER": ("n",),
            },
            Configuration({**TILE, **LAUNCH, "BLOCK_M": 64, "SPLIT_K": 1, "ORDER": "n"}),
        ),
        Convolution().case(
            "convolution",
            (
                {"images": 1, "H": 30, **convolution},
                {"images": 1, "H": 58, **convolution},
                {"images": 32, "H": 58, **convolution},
                {"images": 64, "H": 30, "C": 256, "F": 256, "R": 3},
                {"images": 32, "H": 56, "C": 256, "F": 512, "R": 1},
            ),
            {"images": 2, "H": 8, "C": 16, "F": 32, "R": 3},
        ),
    ]
