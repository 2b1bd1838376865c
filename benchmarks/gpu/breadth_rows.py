"""Kernels of `breadth.py` that reduce rows: norms, softmax, cross entropy, quantization."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from breadth_kernel import BreadthKernel, Case, Knobs, launch_options, sizes_of

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))

from triton_norm import TritonNorm

from foretune.collect.kernels.triton_kernel import JitLaunch, normal, seeded, torch_device
from foretune.family import Cost
from foretune.kernel import Inputs
from foretune.problem import Problem
from foretune.space import Configuration

EPSILON = 1e-5
PARTS = 512
"""Partial sums of the gradient of weights: every part takes each `PARTS`-th row."""
LARGEST_FP8 = 448.0
"""The largest number of fp8 with four bits of exponent."""
SIZES = {"R": "rows", "C": "columns"}
SHAPES = (
    {"R": 16, "C": 4096},
    {"R": 64, "C": 2048},
    {"R": 4096, "C": 4096},
    {"R": 16384, "C": 2048},
    {"R": 8192, "C": 5000},
)
SMALL = {"R": 20, "C": 100}
BLOCKS = {"BLOCK": (512, 1024, 2048, 4096)}
USUAL = {"BLOCK": 1024, "num_warps": 4, "num_stages": 2}


@triton.jit
def _layer_norm_backward(
    x,
    w,
    dy,
    mean,
    rstd,
    dx,
    dw,
    db,
    rows,
    columns,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute dX of every n-th row in two walks; add up what it adds to the weights' gradients."""
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    c = tl.arange(0, BLOCK)
    for row in range(part, rows, parts):
        at = row * columns
        center = tl.load(mean + row)
        scale = tl.load(rstd + row)
        of_norm = tl.zeros((BLOCK,), tl.float32)
        of_mean = tl.zeros((BLOCK,), tl.float32)
        for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
            inside = start + c < columns
            v = tl.load(x + at + start + c, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(dy + at + start + c, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(w + start + c, mask=inside, other=0.0).to(tl.float32)
            of_norm += g * weight * (v - center) * scale
            of_mean += g * weight
        norm_share = tl.sum(of_norm, axis=0) / columns
        mean_share = tl.sum(of_mean, axis=0) / columns
        for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
            inside = start + c < columns
            v = tl.load(x + at + start + c, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(dy + at + start + c, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(w + start + c, mask=inside, other=0.0).to(tl.float32)
            normed = (v - center) * scale
            result = (g * weight - normed * norm_share - mean_share) * scale
            tl.store(dx + at + start + c, result.to(dx.dtype.element_ty), mask=inside)
            # The first row of a part replaces what is there, the others add to it.
            sums = part * columns + start + c
            added = inside & (tl.full((BLOCK,), row - part, tl.int32) > 0)
            tl.store(dw + sums, tl.load(dw + sums, mask=added, other=0.0) + g * normed, mask=inside)
            tl.store(db + sums, tl.load(db + sums, mask=added, other=0.0) + g, mask=inside)


@triton.jit
def _softmax_backward(y, dy, dx, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Compute one row of dX in two walks."""
    at = tl.program_id(0).to(tl.int64) * columns
    c = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = start + c < columns
        out = tl.load(y + at + start + c, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + at + start + c, mask=inside, other=0.0).to(tl.float32)
        sums += out * g
    total = tl.sum(sums, axis=0)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = start + c < columns
        out = tl.load(y + at + start + c, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + at + start + c, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + at + start + c, (out * (g - total)).to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _cross_entropy(x, labels, loss, dx, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Compute the loss of a row and its gradient in two walks."""
    row = tl.program_id(0).to(tl.int64)
    at = row * columns
    label = tl.load(labels + row)
    c = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -1e30, tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = start + c < columns
        v = tl.load(x + at + start + c, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, v)
        sums = sums * tl.exp(top - higher) + tl.exp(v - higher)
        top = higher
    highest = tl.max(top, axis=0)
    total = tl.sum(sums * tl.exp(top - highest), axis=0)
    log_total = highest + tl.log(total)
    tl.store(loss + row, log_total - tl.load(x + at + label).to(tl.float32))
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = start + c < columns
        v = tl.load(x + at + start + c, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.exp(v - log_total) - tl.where(start + c == label, 1.0, 0.0)
        tl.store(dx + at + start + c, gradient.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _quantize_rows(
    x,
    codes,
    scales,
    rows,
    columns,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Scale a row to the range of fp8, in two walks."""
    row = tl.program_id(0).to(tl.int64)
    at = row * columns
    c = tl.arange(0, BLOCK)
    tops = tl.full((BLOCK,), 1e-12, tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = start + c < columns
        v = tl.load(x + at + start + c, mask=inside, other=0.0).to(tl.float32)
        tops = tl.maximum(tops, tl.abs(v))
    scale = tl.max(tops, axis=0) / LARGEST
    tl.store(scales + row, scale)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = start + c < columns
        v = tl.load(x + at + start + c, mask=inside, other=0.0).to(tl.float32)
        tl.store(codes + at + start + c, (v / scale).to(codes.dtype.element_ty), mask=inside)


class _OfRows(BreadthKernel):
    """A kernel on the rows of a matrix, which walks along a row in blocks."""

    tolerance = 5e-3
    sizes = SIZES
    tiles = BLOCKS
    usual = USUAL
    moved_bytes = 6.0
    """Per element: of all matrices."""

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return some operations per element, and all matrices moved once."""
        elements = 1.0 * problem["R"] * problem["C"]
        return Cost(8.0 * elements, self.moved_bytes * elements)


class LayerNormBackward(_OfRows):
    """The gradients of layer norm: of X, and partial sums of those of weights and biases."""

    name = "triton_layer_norm_backward"

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, weights and the gradient of Y, and mean and 1/σ of each row."""
        r, c = sizes_of(problem, "R", "C")
        x = normal((r, c), "fp16", self, 3 * seed)
        wide = x.float()
        variance = wide.var(1, unbiased=False)
        return {
            "x": x,
            "weights": normal((c,), "fp16", self, 3 * seed + 1),
            "gradient": normal((r, c), "fp16", self, 3 * seed + 2),
            "mean": wide.mean(1),
            "rstd": torch.rsqrt(variance + EPSILON),
        }

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and the three gradients."""
        r, c = sizes_of(problem, "R", "C")
        x = inputs["x"]
        parts = min(r, PARTS)
        dx = torch.empty_like(x)
        dw = torch.empty((parts, c), device=x.device)
        db = torch.empty_like(dw)
        names = ("x", "weights", "gradient", "mean", "rstd")
        arguments = (*(inputs[name] for name in names), dx, dw, db, r, c)
        launch = JitLaunch(_layer_norm_backward, (parts,), arguments, launch_options(config))
        return [launch], (dx, dw, db)

    def reference(self, inputs: Inputs) -> Any:
        """Return the gradients in single precision."""
        x, w, g = (inputs[name].float() for name in ("x", "weights", "gradient"))
        normed = (x - inputs["mean"][:, None]) * inputs["rstd"][:, None]
        scaled = g * w
        centered = scaled - scaled.mean(1, keepdim=True)
        dx = centered - normed * (scaled * normed).mean(1, keepdim=True)
        return dx * inputs["rstd"][:, None], _sums_of_parts(g * normed), _sums_of_parts(g)


class SoftmaxBackward(_OfRows):
    """The gradient of a softmax of rows."""

    name = "triton_softmax_backward"

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return Y, a softmax, and its gradient."""
        shape = tuple(sizes_of(problem, "R", "C"))
        y = torch.softmax(normal(shape, "fp16", self, 2 * seed).float(), dim=1).half()
        return {"y": y, "gradient": normal(shape, "fp16", self, 2 * seed + 1)}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and the gradient."""
        r, c = sizes_of(problem, "R", "C")
        dx = torch.empty_like(inputs["y"])
        arguments = (inputs["y"], inputs["gradient"], dx, r, c)
        return [JitLaunch(_softmax_backward, (r,), arguments, launch_options(config))], dx

    def reference(self, inputs: Inputs) -> Any:
        """Return the gradient in single precision."""
        y, g = inputs["y"].float(), inputs["gradient"].float()
        return y * (g - (y * g).sum(1, keepdim=True))


class CrossEntropy(_OfRows):
    """The cross entropy of rows of scores, and its gradient."""

    name = "triton_cross_entropy"
    moved_bytes = 4.0

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return scores, standard normal, and labels."""
        r, c = sizes_of(problem, "R", "C")
        device = torch_device(self)
        generator = seeded(device, 2 * seed + 1)
        labels = torch.randint(0, c, (r,), generator=generator, device=device)
        return {"x": normal((r, c), "fp16", self, 2 * seed), "labels": labels}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and losses and gradient."""
        r, c = sizes_of(problem, "R", "C")
        x = inputs["x"]
        loss = torch.empty((r,), device=x.device)
        dx = torch.empty_like(x)
        arguments = (x, inputs["labels"], loss, dx, r, c)
        return [JitLaunch(_cross_entropy, (r,), arguments, launch_options(config))], (loss, dx)

    def reference(self, inputs: Inputs) -> Any:
        """Return losses and gradient in single precision."""
        x, labels = inputs["x"].float(), inputs["labels"]
        loss = torch.nn.functional.cross_entropy(x, labels, reduction="none")
        one_hot = torch.nn.functional.one_hot(labels, x.shape[1])
        return loss, torch.softmax(x, dim=1) - one_hot


class QuantizedRows(_OfRows):
    """Rows in fp8, each with a scale."""

    name = "triton_quantize_rows"
    tolerance = 7e-2
    moved_bytes = 3.0

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, standard normal."""
        return {"x": normal(tuple(sizes_of(problem, "R", "C")), "fp16", self, seed)}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and codes and scales."""
        r, c = sizes_of(problem, "R", "C")
        x = inputs["x"]
        codes = torch.empty((r, c), dtype=torch.float8_e4m3fn, device=x.device)
        scales = torch.empty((r,), device=x.device)
        options = {**launch_options(config), "LARGEST": LARGEST_FP8}
        return [JitLaunch(_quantize_rows, (r,), (x, codes, scales, r, c), options)], (codes, scales)

    def reference(self, inputs: Inputs) -> Any:
        """Return codes, not rounded, and scales."""
        x = inputs["x"].float()
        scales = x.abs().amax(1) / LARGEST_FP8
        return x / scales[:, None], scales


def _sums_of_parts(x: torch.Tensor) -> torch.Tensor:
    """Return the sums of each `PARTS`-th row."""
    parts = min(len(x), PARTS)
    padded = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % parts))
    return padded.reshape(-1, parts, x.shape[1]).sum(0)


def cases() -> list[Case]:
    """Return the cases of this file."""
    vocabularies = (
        {"R": 64, "C": 32000},
        {"R": 16, "C": 128256},
        {"R": 2048, "C": 32000},
        {"R": 512, "C": 128256},
        {"R": 4096, "C": 16384},
    )
    norm: Knobs = {
        "ROWS": (1, 2, 4),
        "BLOCK": (512, 1024, 2048),
        "REDUCE": ("last",),
        "PROGRAMS": (0,),
    }
    return [
        Case(
            "rms norm forward",
            TritonNorm(),
            SHAPES,
            SMALL,
            norm,
            Configuration({**USUAL, "ROWS": 1, "REDUCE": "last", "PROGRAMS": 0}),
        ),
        LayerNormBackward().case("layer norm backward", SHAPES, SMALL),
        SoftmaxBackward().case("softmax backward", SHAPES, SMALL),
        CrossEntropy().case("cross entropy", vocabularies, SMALL),
        QuantizedRows().case("fp8 quantization", SHAPES, SMALL),
    ]
