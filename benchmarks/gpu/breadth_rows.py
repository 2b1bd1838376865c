"""Kernels of `breadth.py` that reduce rows: norms, softmax, cross entropy, quantization.

Each walks along a row twice, in blocks of columns: the first time to sum up what the whole row
decides, the second time to write. The second walk finds most of the row in the cache. What they
share in Python is in `_OfRows`.
"""

import sys
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

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

# Problems: the first two have less than a wave of programs.
SIZES = {"R": "rows", "C": "columns"}
SHAPES = (
    {"R": 16, "C": 4096},
    {"R": 64, "C": 2048},
    {"R": 4096, "C": 4096},
    {"R": 16384, "C": 2048},
    {"R": 8192, "C": 5000},
)
SMALL = {"R": 20, "C": 100}

# Columns of a block: values of lists, and the default.
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
    # Programs are fewer than rows: each writes one partial sum of the weights' gradients.
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    c = tl.arange(0, BLOCK)
    for row in range(part, rows, parts):
        # What the forward pass kept of this row.
        at = row * columns
        center = tl.load(mean + row)
        scale = tl.load(rstd + row)

        # First walk: how much of the gradient changes only the row's deviation, or its mean?
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

        # Second walk: dX is the gradient without these two parts.
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

    # First walk: the mean of the gradient, weighted by the softmax.
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = start + c < columns
        out = tl.load(y + at + start + c, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + at + start + c, mask=inside, other=0.0).to(tl.float32)
        sums += out * g
    total = tl.sum(sums, axis=0)

    # Second walk: only what differs from that mean changes the softmax.
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

    # First walk: the sum of exponentials, relative to the largest score so far so that none
    # overflows. Each thread has its own largest score.
    top = tl.full((BLOCK,), -1e30, tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = start + c < columns
        v = tl.load(x + at + start + c, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, v)
        sums = sums * tl.exp(top - higher) + tl.exp(v - higher)
        top = higher

    # The loss is the log of the sum over all columns, less the score of the label.
    highest = tl.max(top, axis=0)
    total = tl.sum(sums * tl.exp(top - highest), axis=0)
    log_total = highest + tl.log(total)
    tl.store(loss + row, log_total - tl.load(x + at + label).to(tl.float32))

    # Second walk: the gradient is the softmax, less one at the label.
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

    # First walk: the largest magnitude, at least so much that no scale is zero.
    tops = tl.full((BLOCK,), 1e-12, tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = start + c < columns
        v = tl.load(x + at + start + c, mask=inside, other=0.0).to(tl.float32)
        tops = tl.maximum(tops, tl.abs(v))
    scale = tl.max(tops, axis=0) / LARGEST
    tl.store(scales + row, scale)

    # Second walk: divide and round.
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = start + c < columns
        v = tl.load(x + at + start + c, mask=inside, other=0.0).to(tl.float32)
        tl.store(codes + at + start + c, (v / scale).to(codes.dtype.element_ty), mask=inside)


class _OfRows(BreadthKernel):
    """A kernel on the rows of a matrix, which walks along a row in blocks.

    Attributes:
        program: The function in Triton. Its arguments are the inputs, the outputs, the numbers of
            rows and columns, and `constants`.
        reads: The names of the inputs, in the order of the function's arguments.
        constants: Compile-time arguments besides those of the configuration.
        max_programs: The largest number of programs; None: one per row.
        moved_bytes: Bytes per element, of all matrices.
    """

    tolerance = 5e-3
    sizes = SIZES
    tiles = BLOCKS
    usual = USUAL
    program: ClassVar[Any]
    reads: ClassVar[tuple[str, ...]]
    constants: ClassVar[Mapping[str, Any]] = {}
    max_programs: ClassVar[int | None] = None
    moved_bytes: ClassVar[float] = 6.0

    @abstractmethod
    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return the tensors that a launch on ``inputs`` writes, in the order of arguments."""

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and the output, or a tuple of several."""
        rows, columns = sizes_of(problem, "R", "C")
        outputs = self.outputs(inputs)
        read = [inputs[name] for name in self.reads]
        n_programs = min(rows, self.max_programs or rows)
        launch = JitLaunch(
            self.program,
            (n_programs,),
            (*read, *outputs, rows, columns),
            {**launch_options(config), **self.constants},
        )
        return [launch], outputs if len(outputs) > 1 else outputs[0]

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return some operations per element, and all matrices moved once."""
        elements = 1.0 * problem["R"] * problem["C"]
        return Cost(8.0 * elements, self.moved_bytes * elements)


class LayerNormBackward(_OfRows):
    """The gradients of layer norm: of X, and partial sums of those of weights and biases."""

    name = "triton_layer_norm_backward"
    program = _layer_norm_backward
    reads = ("x", "weights", "gradient", "mean", "rstd")
    max_programs = PARTS

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

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return the gradient of X, and the partial sums of those of weights and biases."""
        x = inputs["x"]
        rows, columns = x.shape
        dx = torch.empty_like(x)
        dw = torch.empty((min(rows, PARTS), columns), device=x.device)
        db = torch.empty_like(dw)
        return dx, dw, db

    def reference(self, inputs: Inputs) -> Any:
        """Return the gradients in single precision."""
        x, w, g = (inputs[name].float() for name in ("x", "weights", "gradient"))
        normed = (x - inputs["mean"][:, None]) * inputs["rstd"][:, None]

        # Take out what changes only the row's mean, or its deviation.
        scaled = g * w
        centered = scaled - scaled.mean(1, keepdim=True)
        dx = centered - normed * (scaled * normed).mean(1, keepdim=True)
        return dx * inputs["rstd"][:, None], _sums_of_parts(g * normed), _sums_of_parts(g)


class SoftmaxBackward(_OfRows):
    """The gradient of a softmax of rows."""

    name = "triton_softmax_backward"
    program = _softmax_backward
    reads = ("y", "gradient")

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return Y, a softmax, and its gradient."""
        shape = tuple(sizes_of(problem, "R", "C"))
        scores = normal(shape, "fp16", self, 2 * seed)
        return {
            "y": torch.softmax(scores.float(), dim=1).half(),
            "gradient": normal(shape, "fp16", self, 2 * seed + 1),
        }

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return the gradient of the scores."""
        return (torch.empty_like(inputs["y"]),)

    def reference(self, inputs: Inputs) -> Any:
        """Return the gradient in single precision."""
        y = inputs["y"].float()
        gradient = inputs["gradient"].float()
        return y * (gradient - (y * gradient).sum(1, keepdim=True))


class CrossEntropy(_OfRows):
    """The cross entropy of rows of scores, and its gradient."""

    name = "triton_cross_entropy"
    program = _cross_entropy
    reads = ("x", "labels")
    moved_bytes = 4.0

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return scores, standard normal, and labels."""
        rows, columns = sizes_of(problem, "R", "C")
        device = torch_device(self)
        generator = seeded(device, 2 * seed + 1)
        labels = torch.randint(0, columns, (rows,), generator=generator, device=device)
        return {"x": normal((rows, columns), "fp16", self, 2 * seed), "labels": labels}

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return the losses, and the gradient."""
        x = inputs["x"]
        losses = torch.empty((x.shape[0],), device=x.device)
        return losses, torch.empty_like(x)

    def reference(self, inputs: Inputs) -> Any:
        """Return losses and gradient in single precision."""
        x = inputs["x"].float()
        labels = inputs["labels"]
        losses = torch.nn.functional.cross_entropy(x, labels, reduction="none")
        one_hot = torch.nn.functional.one_hot(labels, x.shape[1])
        return losses, torch.softmax(x, dim=1) - one_hot


class QuantizedRows(_OfRows):
    """Rows in fp8, each with a scale."""

    name = "triton_quantize_rows"
    program = _quantize_rows
    reads = ("x",)
    constants: ClassVar = {"LARGEST": LARGEST_FP8}
    tolerance = 7e-2
    moved_bytes = 3.0

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, standard normal."""
        return {"x": normal(tuple(sizes_of(problem, "R", "C")), "fp16", self, seed)}

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return codes and scales."""
        x = inputs["x"]
        codes = torch.empty(tuple(x.shape), dtype=torch.float8_e4m3fn, device=x.device)
        scales = torch.empty((x.shape[0],), device=x.device)
        return codes, scales

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
            name="rms norm forward",
            kernel=TritonNorm(),
            sizes=SHAPES,
            small=SMALL,
            tiles=norm,
            default=Configuration({**USUAL, "ROWS": 1, "REDUCE": "last", "PROGRAMS": 0}),
        ),
        LayerNormBackward().case("layer norm backward", SHAPES, SMALL),
        SoftmaxBackward().case("softmax backward", SHAPES, SMALL),
        CrossEntropy().case("cross entropy", vocabularies, SMALL),
        QuantizedRows().case("fp8 quantization", SHAPES, SMALL),
    ]
