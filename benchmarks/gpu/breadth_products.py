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

# The usual tile and launch, and the tiles of lists.
TILE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}
LAUNCH = {"num_warps": 8, "num_stages": 3}
TILES = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (64, 128, 256), "BLOCK_K": (32, 64, 128)}
DEEP_TILES = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (64, 128, 256), "BLOCK_K": (64, 128)}

# Problems: the first two have less than a wave of programs.
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
    # Programs that run at once share rows of A and columns of B in the cache.
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tile_position(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)

    # Rows and columns beyond the edge wrap around, so that loads need no mask for them: what they
    # give is not stored.
    a_at = a + (m % M)[:, None] * stride_am + k[None, :] * stride_ak
    b_at = b + k[:, None] * stride_bk + (n % N)[None, :] * stride_bn

    # Walk along K. Terms beyond the edge are zero.
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = k < K - start
        a_tile = tl.load(a_at, mask=inside[None, :], other=0.0)
        b_tile = tl.load(b_at, mask=inside[:, None], other=0.0)
        total = tl.dot(a_tile, b_tile, total, input_precision=PRECISION)
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk

    # C is row-major in every layout.
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
        layout_a = layout[0]
        layout_b = layout[1]
        a_seed = 2 * seed
        b_seed = 2 * seed + 1

        # A column-major matrix is the transpose of a row-major one.
        if layout_a == "t":
            a = normal((k, m), "fp32", self, a_seed).t()
        else:
            a = normal((m, k), "fp32", self, a_seed)
        if layout_b == "t":
            b = normal((n, k), "fp32", self, b_seed).t()
        else:
            b = normal((k, n), "fp32", self, b_seed)
        return {"a": a, "b": b}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch that multiplies, and C."""
        a = inputs["a"]
        b = inputs["b"]
        m, n, k = sizes_of(problem, "M", "N", "K")
        c = torch.empty((m, n), dtype=a.dtype, device=a.device)

        tiles_m = triton.cdiv(m, int(config["BLOCK_M"]))
        tiles_n = triton.cdiv(n, int(config["BLOCK_N"]))
        arguments = (a, b, c, m, n, k, *a.stride(), *b.stride())
        options = {**config, "PRECISION": str(problem["precision"])}
        return [JitLaunch(_product_of_fp32, (tiles_m * tiles_n,), arguments, options)], c

    def reference(self, inputs: Inputs) -> Any:
        """Return the product in double precision, which torch never rounds to TF32."""
        return inputs["a"].double() @ inputs["b"].double()

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return what rounding the operands to TF32, with ten bits of mantissa, can cause."""
        return 3e-3 if problem["precision"] == "tf32" else 1e-5

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·M·N·K operations and each matrix moved once."""
        m, n, k = (1.0 * problem[name] for name in "MNK")
        operations = 2.0 * m * n * k
        moved_bytes = 4.0 * (m * k + k * n + m * n)
        return Cost(operations, moved_bytes, "tf32")


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

    # Where in X does the window of each output pixel begin?
    image = m // (out_height * out_width)
    row = m // out_width % out_height
    column = m % out_width
    corner = (image * height + row) * width + column

    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        # The tap and the channel of each term of the sum, and how far it is from the corner.
        k = start + tl.arange(0, BLOCK_K)
        tap = k // C
        channel = k % C
        shift = (tap // R * width + tap % R) * C + channel

        # Gather the pixels: no matrix of windows is ever written to memory.
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
        x = inputs["x"]
        weights = inputs["weights"]

        # As a product: a row per output pixel, a column per filter, a term per tap and channel.
        out = h - r + 1
        m = images * out * out
        k = r * r * c
        y = torch.empty((m, f), dtype=x.dtype, device=x.device)

        grid = (triton.cdiv(m, int(config["BLOCK_M"])), triton.cdiv(f, int(config["BLOCK_N"])))
        arguments = (x, weights, y, m, f, k, h, h, out, out)
        options = {**config, "C": c, "R": r}
        return [JitLaunch(_convolution, grid, arguments, options)], y

    def reference(self, inputs: Inputs) -> Any:
        """Return torch's convolution in double precision, which is never rounded to TF32."""
        # torch's order of axes is NCHW.
        x = inputs["x"].double().permute(0, 3, 1, 2)
        weights = inputs["weights"].double().permute(0, 3, 1, 2)
        y = torch.nn.functional.conv2d(x, weights).permute(0, 2, 3, 1)
        return y.reshape(-1, y.shape[3])

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·R²·C operations per output, and all tensors moved once."""
        images, h, c, f, r = (1.0 * problem[n] for n in ("images", "H", "C", "F", "R"))
        pixels = images * (h - r + 1.0) ** 2
        operations = 2.0 * pixels * f * r * r * c
        moved_elements = images * h * h * c + f * r * r * c + pixels * f
        return Cost(operations, 2.0 * moved_elements, "fp16")


def cases() -> list[Case]:
    """Return the cases of this file."""
    return [
        *_plain_products(),
        _split_products(),
        _grouped_products(),
        _quantized_products(),
        _convolutions(),
    ]


def _plain_products() -> list[Case]:
    """Return products in fp16, fp8 and TF32; one program per tile, and no split sums."""
    gemm = TritonGemm()
    tiles = {**TILES, "SPLIT_K": (1,), "PERSISTENT": (False,), "GROUP_M": (8,)}
    default = {**TILE, "SPLIT_K": 1, "PERSISTENT": False, **LAUNCH}
    fp8 = {"dtype": "fp8"}
    return [
        Case(
            name="GEMM fp16",
            kernel=gemm,
            sizes=PRODUCTS,
            small=SMALL,
            tiles=tiles,
            default=Configuration(default),
        ),
        Case(
            name="GEMM fp8",
            kernel=gemm,
            sizes=tuple({**sizes, **fp8} for sizes in PRODUCTS),
            small={**SMALL, **fp8},
            tiles=tiles,
            default=Configuration({**default, "BLOCK_K": 128}),
        ),
        Tf32Gemm().case("GEMM TF32", PRODUCTS, SMALL),
    ]


def _split_products() -> Case:
    """Return products of few rows, whose long sums are split over programs."""
    bf16 = {"dtype": "bf16"}
    return Case(
        name="GEMM split-K",
        kernel=TritonGemm(),
        sizes=(
            {"M": 16, "N": 1024, "K": 8192, **bf16},
            {"M": 64, "N": 512, "K": 16384, **bf16},
            {"M": 16, "N": 28672, "K": 8192, **bf16},
            {"M": 64, "N": 14336, "K": 4096, **bf16},
            {"M": 128, "N": 8192, "K": 8192, **bf16},
        ),
        small={**SMALL, "K": 512},
        tiles={
            "BLOCK_M": (16, 64),
            "BLOCK_N": (64, 128),
            "BLOCK_K": TILES["BLOCK_K"],
            "SPLIT_K": (2, 4, 8),
            "PERSISTENT": (False,),
            "GROUP_M": (8,),
        },
        default=Configuration({**TILE, "BLOCK_M": 64, **LAUNCH, "SPLIT_K": 4, "PERSISTENT": False}),
    )


def _grouped_products() -> Case:
    """Return the products of the tokens of eight experts."""
    experts = {"experts": 8, "top_k": 2, "N": 4096, "K": 4096}
    return Case(
        name="GEMM grouped",
        kernel=TritonGroupedGemm(),
        sizes=(
            {"tokens": 16, **experts, "N": 512},
            {"tokens": 64, **experts, "N": 512},
            {"tokens": 512, **experts},
            {"tokens": 2048, **experts},
            {"tokens": 4096, **experts, "N": 2048},
        ),
        small={"tokens": 32, "experts": 4, "top_k": 2, "N": 64, "K": 128},
        tiles={**TILES, "PERSISTENT": (False,), "GROUP_M": (8,)},
        default=Configuration({**TILE, **LAUNCH, "PERSISTENT": False}),
    )


def _quantized_products() -> Case:
    """Return products with weights of four bits."""
    return Case(
        name="GEMM int4 weights",
        kernel=TritonQuantizedGemm(),
        sizes=(
            {"M": 16, "N": 2048, "K": 4096},
            {"M": 64, "N": 4096, "K": 4096},
            {"M": 16, "N": 28672, "K": 4096},
            {"M": 512, "N": 14336, "K": 4096},
            {"M": 2048, "N": 4096, "K": 4096},
        ),
        small={"M": 32, "N": 64, "K": 256},
        tiles={
            "BLOCK_M": (16, 32, 64, 128),
            "BLOCK_N": (64, 128, 256),
            "BLOCK_K": (32, 64, 128),
            "GROUP_M": (8,),
            "SPLIT_K": (1,),
            "ORDER": ("n",),
        },
        default=Configuration({**TILE, **LAUNCH, "BLOCK_M": 64, "SPLIT_K": 1, "ORDER": "n"}),
    )


def _convolutions() -> Case:
    """Return layers of a network of images: filters of 3 × 3, and of 1 × 1."""
    layer = {"C": 128, "F": 128, "R": 3}
    return Convolution().case(
        "convolution",
        (
            {"images": 1, "H": 30, **layer},
            {"images": 1, "H": 58, **layer},
            {"images": 32, "H": 58, **layer},
            {"images": 64, "H": 30, "C": 256, "F": 256, "R": 3},
            {"images": 32, "H": 56, "C": 256, "F": 512, "R": 1},
        ),
        {"images": 2, "H": 8, "C": 16, "F": 32, "R": 3},
    )
