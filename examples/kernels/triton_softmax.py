"""Softmax of the rows of a matrix in Triton: ``Y[r, c] = exp(X[r, c]) / Σ exp(X[r, :])``.

A row in blocks is reduced with the running maximum of Milakov and Gimelshein (arXiv:1805.02867):
whenever it rises, the sum so far is scaled down.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton_rows import RowKernel, launch_options

from foretune.collect.kernels.triton_kernel import JitLaunch, normal
from foretune.kernel import Inputs, Launch
from foretune.problem import Problem
from foretune.space import Configuration


@triton.jit
def _whole_rows(
    x,
    y,
    rows,
    columns,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Normalise tiles of whole rows, which stay in registers."""
    c = tl.arange(0, BLOCK)
    inside = (c < columns)[None, :]
    step = tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), step, num_stages=STAGES):
        r = tile * ROWS + tl.arange(0, ROWS)
        # rows past the end read the last one again: their numbers are finite, and not stored
        at = tl.minimum(r, rows - 1).to(tl.int64)[:, None] * columns + c[None, :]
        v = tl.load(x + at, mask=inside, other=float("-inf")).to(tl.float32)
        e = tl.exp(v - tl.max(v, axis=1)[:, None])
        e *= 1.0 / tl.sum(e, axis=1)[:, None]
        tl.store(y + at, e.to(y.dtype.element_ty), mask=inside & (r < rows)[:, None])


@triton.jit
def _add(top, total, v):
    """Return maximum and sum of exponentials after ``v`` was added to both, lane by lane."""
    higher = tl.maximum(top, v)
    # while a lane has seen nothing but -inf, differences would not be numbers
    base = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, total * tl.exp(top - base) + tl.exp(v - base)


@triton.jit
def _blocks_of_rows(
    x,
    y,
    rows,
    columns,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Normalise one tile of rows, which is walked through forwards and backwards."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    at = tl.minimum(r, rows - 1).to(tl.int64)[:, None] * columns + c[None, :]
    width: tl.constexpr = BLOCK if LAST else 1
    top = tl.full((ROWS, width), float("-inf"), tl.float32)
    total = tl.zeros((ROWS, width), tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        v = tl.load(
            x + at + start,
            mask=(c < columns - start)[None, :],
            other=float("-inf"),
            eviction_policy="evict_last",
        ).to(tl.float32)
        if LAST:
            top, total = _add(top, total, v)
        else:
            higher = tl.maximum(top, tl.max(v, axis=1, keep_dims=True))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            total *= tl.exp(top - base)
            total += tl.sum(tl.exp(v - base), axis=1, keep_dims=True)
            top = higher
    if LAST:
        highest = tl.max(top, axis=1, keep_dims=True)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        total = tl.sum(total * tl.exp(top - base), axis=1, keep_dims=True)
        top = highest
    scale = 1.0 / total
    final = (tl.cdiv(columns, BLOCK) - 1) * BLOCK
    for back in tl.range(0, columns, BLOCK, num_stages=STAGES):
        start = final - back
        inside = (c < columns - start)[None, :]
        v = tl.load(
            x + at + start, mask=inside, other=float("-inf"), eviction_policy="evict_first"
        ).to(tl.float32)
        e = tl.exp(v - top) * scale
        tl.store(y + at + start, e.to(y.dtype.element_ty), mask=inside & (r < rows)[:, None])


class TritonSoftmax(RowKernel):
    """``Y = softmax(X[R, C])`` along rows; knobs as of every `RowKernel`."""

    name = "triton_softmax"

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, normal with a standard deviation of 4."""
        shape = int(problem["R"]), int(problem["C"])
        return {"x": normal(shape, str(problem["dtype"]), self, seed).mul_(4)}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch that normalises every row into Y, and Y."""
        x = inputs["x"]
        y = torch.empty_like(x)
        options = launch_options(problem, config)
        grid, whole = options.pop("grid"), options.pop("WHOLE")
        if whole:
            del options["LAST"]
        function = _whole_rows if whole else _blocks_of_rows
        return [JitLaunch(function, grid, (x, y, *x.shape), options)], y

    def reference(self, inputs: Inputs) -> Any:
        """Return softmax in double precision."""
        return torch.softmax(inputs["x"], dim=1, dtype=torch.float64)

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return torch's own kernel."""
        x = inputs["x"]
        return "torch.softmax", lambda: torch.softmax(x, dim=1)
