"""Layer norm and RMS norm of the rows of a matrix in Triton.

``Y[r, :] = (X[r, :] − mean) / √(variance + ε) · weight + bias``; for the RMS norm (Zhang and
Sennrich, arXiv:1910.07467) mean and bias are 0. Sums are of differences from the row's first
element, which lies near the mean: in single precision the sum of squares of a row far from zero
would leave nothing of its variance.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton_rows import TRAINING, RowKernel, launch_options

from foretune.collect.kernels.triton_kernel import JitLaunch, normal
from foretune.family import Quantity
from foretune.kernel import Inputs, Launch
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration

EPSILON = 1e-5


@triton.jit
def _rescale(v, mean, scale, w, b, CENTER: tl.constexpr):
    """Return the result of a tile, given the statistics of its rows."""
    if CENTER:
        return (v - mean) * scale * w[None, :] + b[None, :]
    else:
        return v * scale * w[None, :]


@triton.jit
def _whole_rows(
    x,
    w,
    b,
    y,
    rows,
    columns,
    epsilon,
    CENTER: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Normalise tiles of whole rows, which stay in registers, as weight and bias do."""
    c = tl.arange(0, BLOCK)
    inside = c < columns
    weight = tl.load(w + c, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(b + c, mask=inside & CENTER, other=0.0).to(tl.float32)
    step = tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), step, num_stages=STAGES):
        r = tile * ROWS + tl.arange(0, ROWS)
        at = tl.minimum(r, rows - 1).to(tl.int64)[:, None] * columns + c[None, :]
        v = tl.load(x + at, mask=inside[None, :], other=0.0).to(tl.float32)
        if CENTER:
            mean = tl.sum(v, axis=1, keep_dims=True) / columns
            d = tl.where(inside[None, :], v - mean, 0.0)
        else:
            mean = 0.0
            d = v
        scale = tl.rsqrt(tl.sum(d * d, axis=1, keep_dims=True) / columns + epsilon)
        out = _rescale(v, mean, scale, weight, bias, CENTER)
        tl.store(y + at, out.to(y.dtype.element_ty), mask=inside[None, :] & (r < rows)[:, None])


@triton.jit
def _blocks_of_rows(
    x,
    w,
    b,
    y,
    rows,
    columns,
    epsilon,
    CENTER: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Normalise one tile of rows, which is walked through forwards and backwards."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    row = tl.minimum(r, rows - 1).to(tl.int64)[:, None] * columns
    at = row + c[None, :]
    width: tl.constexpr = BLOCK if LAST else 1
    total = tl.zeros((ROWS, width), tl.float32)
    squares = tl.zeros((ROWS, width), tl.float32)
    pivot = tl.zeros((ROWS, 1), tl.float32)
    if CENTER:
        pivot = tl.load(x + row).to(tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        inside = (c < columns - start)[None, :]
        v = tl.load(x + at + start, mask=inside, other=0.0, eviction_policy="evict_last")
        d = tl.where(inside, v.to(tl.float32) - pivot, 0.0)
        if LAST:
            total += d
            squares += d * d
        else:
            total += tl.sum(d, axis=1, keep_dims=True)
            squares += tl.sum(d * d, axis=1, keep_dims=True)
    if LAST:
        total = tl.sum(total, axis=1, keep_dims=True)
        squares = tl.sum(squares, axis=1, keep_dims=True)
    shift = total / columns
    variance = squares / columns
    if CENTER:
        variance = tl.maximum(variance - shift * shift, 0.0)
    mean = pivot + shift
    scale = tl.rsqrt(variance + epsilon)
    final = (tl.cdiv(columns, BLOCK) - 1) * BLOCK
    for back in tl.range(0, columns, BLOCK, num_stages=STAGES):
        start = final - back
        inside = c < columns - start
        v = tl.load(x + at + start, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
        weight = tl.load(w + start + c, mask=inside, other=0.0).to(tl.float32)
        bias = tl.load(b + start + c, mask=inside & CENTER, other=0.0).to(tl.float32)
        out = _rescale(v.to(tl.float32), mean, scale, weight, bias, CENTER)
        mask = inside[None, :] & (r < rows)[:, None]
        tl.store(y + at + start, out.to(y.dtype.element_ty), mask=mask)


class TritonNorm(RowKernel):
    """Layer or RMS norm (``norm``) of ``X[R, C]`` along rows; knobs as of every `RowKernel`."""

    name = "triton_norm"
    problem_parameters = (
        *RowKernel.problem_parameters,
        ProblemParameter("norm", "rms", choices=("rms", "layer"), meaning="which"),
    )

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, normal around 3, and weight and bias around 1 and 0."""
        r, c, dtype = int(problem["R"]), int(problem["C"]), str(problem["dtype"])
        return {
            "x": normal((r, c), dtype, self, 3 * seed).add_(3),
            "weight": normal((c,), dtype, self, 3 * seed + 1).mul_(0.1).add_(1),
            "bias": normal((c,), dtype, self, 3 * seed + 2) if problem["norm"] == "layer" else None,
        }

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch that normalises every row into Y, and Y."""
        x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
        y = torch.empty_like(x)
        options = launch_options(problem, config)
        grid, whole = options.pop("grid"), options.pop("WHOLE")
        if whole:
            del options["LAST"]
        function = _whole_rows if whole else _blocks_of_rows
        arguments = (x, weight, weight if bias is None else bias, y, *x.shape, EPSILON)
        options["CENTER"] = bias is not None
        return [JitLaunch(function, grid, arguments, options)], y

    def reference(self, inputs: Inputs) -> Any:
        """Return the norm in double precision."""
        x, weight = inputs["x"].double(), inputs["weight"].double()
        if inputs["bias"] is None:
            return torch.nn.functional.rms_norm(x, x.shape[1:], weight, EPSILON)
        bias = inputs["bias"].double()
        return torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias, EPSILON)

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return torch's own kernel."""
        x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
        if bias is None:
            rms_norm = torch.nn.functional.rms_norm
            return "torch.rms_norm", lambda: rms_norm(x, x.shape[1:], weight, EPSILON)
        layer_norm = torch.nn.functional.layer_norm
        return "torch.layer_norm", lambda: layer_norm(x, x.shape[1:], weight, bias, EPSILON)

    def vectors(self, problem: Mapping[str, Any]) -> Quantity:
        """Return 2 for weight and bias of a layer norm, 1 otherwise."""
        return np.where(np.equal(problem["norm"], "layer"), 2.0, 1.0)

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return shapes as of every kernel on rows, with both norms."""
        return self._sample_problems({**TRAINING, "norm": ("rms", "layer")}, n, seed)
