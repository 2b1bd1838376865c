"""Kernels of `breadth.py` that move elements, or compute with each alone."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from breadth_kernel import BreadthKernel, Case, sizes_of

from foretune.collect.kernels.triton_kernel import JitLaunch, normal, seeded, torch_device
from foretune.family import Cost
from foretune.kernel import Inputs
from foretune.problem import Problem
from foretune.space import Configuration

SIZES = {"R": "rows", "C": "columns"}
SMALL = {"R": 40, "C": 100}


@triton.jit
def _rotary(
    x,
    cosines,
    sines,
    y,
    tokens,
    heads,
    D: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Rotate pairs of elements, half a head apart, of some tokens and heads."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, D // 2)
    angle_at = t[:, None] * (D // 2) + d[None, :]
    cosine = tl.load(cosines + angle_at, mask=(t < tokens)[:, None], other=0.0)[:, None, :]
    sine = tl.load(sines + angle_at, mask=(t < tokens)[:, None], other=0.0)[:, None, :]
    at = (t[:, None].to(tl.int64) * heads + h[None, :])[:, :, None] * D + d[None, None, :]
    mask = ((t < tokens)[:, None] & (h < heads)[None, :])[:, :, None]
    first = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + at + D // 2, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + at, (first * cosine - second * sine).to(y.dtype.element_ty), mask=mask)
    tl.store(y + at + D // 2, (second * cosine + first * sine).to(y.dtype.element_ty), mask=mask)


@triton.jit
def _swiglu(gate, up, y, size, BLOCK: tl.constexpr):
    """Multiply the sigmoid-weighted gate by the other half."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    result = g / (1.0 + tl.exp(-g)) * u
    tl.store(y + at, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _transpose(x, y, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Write a tile of X into Y, its transpose."""
    r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.program_id(1).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (r < rows)[:, None] & (c < columns)[None, :]
    tile = tl.load(x + r[:, None] * columns + c[None, :], mask=mask, other=0.0)
    tl.store(y + c[:, None] * rows + r[None, :], tl.trans(tile), mask=tl.trans(mask))


@triton.jit
def _scatter(x, places, y, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Write a tile of the rows of X to their places in Y."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    place = tl.load(places + r, mask=r < rows, other=0)
    mask = (r < rows)[:, None] & (c < columns)[None, :]
    tile = tl.load(x + r[:, None].to(tl.int64) * columns + c[None, :], mask=mask, other=0.0)
    tl.store(y + place[:, None] * columns + c[None, :], tile, mask=mask)


class Rotary(BreadthKernel):
    """Rotary embeddings of queries or keys."""

    name = "triton_rotary"
    tolerance = 2e-3
    sizes: ClassVar = {"tokens": "tokens", "heads": "heads of a token", "width": "of a head"}
    tiles: ClassVar = {"BLOCK_T": (1, 2, 4, 8), "BLOCK_H": (1, 4, 8)}
    usual: ClassVar = {"BLOCK_T": 4, "BLOCK_H": 4, "num_warps": 4, "num_stages": 1}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, standard normal, and the cosine and sine of an angle per token and pair."""
        tokens, heads, width = sizes_of(problem, "tokens", "heads", "width")
        angles = normal((tokens, width // 2), "fp32", self, 2 * seed + 1)
        x = normal((tokens, heads, width), "fp16", self, 2 * seed)
        return {"x": x, "cosines": angles.cos(), "sines": angles.sin()}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and Y."""
        tokens, heads, width = sizes_of(problem, "tokens", "heads", "width")
        x = inputs["x"]
        y = torch.empty_like(x)
        grid = triton.cdiv(tokens, int(config["BLOCK_T"])), triton.cdiv(heads, config["BLOCK_H"])
        arguments = (x, inputs["cosines"], inputs["sines"], y, tokens, heads)
        return [JitLaunch(_rotary, grid, arguments, {**config, "D": width})], y

    def reference(self, inputs: Inputs) -> Any:
        """Return Y in single precision."""
        first, second = inputs["x"].float().chunk(2, dim=2)
        cosine, sine = inputs["cosines"][:, None], inputs["sines"][:, None]
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=2)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return three operations per element, and all tensors moved once."""
        tokens, heads, width = (1.0 * problem[name] for name in ("tokens", "heads", "width"))
        return Cost(3.0 * tokens * heads * width, 4.0 * tokens * width * (heads + 1.0))


class _OfMatrix(BreadthKernel):
    """A kernel that moves a matrix."""

    tolerance = 2e-3
    sizes = SIZES
    tiles: ClassVar = {"BLOCK_R": (1, 4, 16, 32), "BLOCK_C": (64, 128, 256, 512)}
    usual: ClassVar = {"BLOCK_R": 16, "BLOCK_C": 256, "num_warps": 4, "num_stages": 1}
    matrices = 2.0

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return an operation per element, and all matrices moved once."""
        elements = 1.0 * problem["R"] * problem["C"]
        return Cost(elements, 2.0 * self.matrices * elements)


class Swiglu(_OfMatrix):
    """``silu(gate) · up``."""

    name = "triton_swiglu"
    tiles: ClassVar = {"BLOCK": (256, 512, 1024, 2048, 4096, 8192)}
    usual: ClassVar = {"BLOCK": 1024, "num_warps": 4, "num_stages": 1}
    matrices = 3.0

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return both halves, standard normal."""
        shape = tuple(sizes_of(problem, "R", "C"))
        names = ("gate", "up")
        return {name: normal(shape, "fp16", self, 2 * seed + i) for i, name in enumerate(names)}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and Y."""
        gate, up = inputs["gate"], inputs["up"]
        y = torch.empty_like(gate)
        size = gate.numel()
        grid = (triton.cdiv(size, int(config["BLOCK"])),)
        return [JitLaunch(_swiglu, grid, (gate, up, y, size), dict(config))], y

    def reference(self, inputs: Inputs) -> Any:
        """Return Y in single precision."""
        return torch.nn.functional.silu(inputs["gate"].float()) * inputs["up"].float()


class Transpose(_OfMatrix):
    """The transpose of a matrix."""

    name = "triton_transpose"
    tiles: ClassVar = {"BLOCK_R": (16, 32, 64, 128), "BLOCK_C": (16, 32, 64, 128)}
    usual: ClassVar = {"BLOCK_R": 64, "BLOCK_C": 64, "num_warps": 4, "num_stages": 1}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, standard normal."""
        return {"x": normal(tuple(sizes_of(problem, "R", "C")), "fp16", self, seed)}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and Y."""
        r, c = sizes_of(problem, "R", "C")
        x = inputs["x"]
        y = torch.empty((c, r), dtype=x.dtype, device=x.device)
        return [JitLaunch(_transpose, _grid(problem, config), (x, y, r, c), dict(config))], y

    def reference(self, inputs: Inputs) -> Any:
        """Return the transpose."""
        return inputs["x"].t().float()


class Scatter(_OfMatrix):
    """Rows written to other places, as the tokens of experts are."""

    name = "triton_scatter"

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, standard normal, and a permutation of its rows."""
        r, c = sizes_of(problem, "R", "C")
        device = torch_device(self)
        places = torch.randperm(r, generator=seeded(device, 2 * seed + 1), device=device)
        return {"x": normal((r, c), "fp16", self, 2 * seed), "places": places}

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and Y."""
        r, c = sizes_of(problem, "R", "C")
        y = torch.empty_like(inputs["x"])
        arguments = (inputs["x"], inputs["places"], y, r, c)
        return [JitLaunch(_scatter, _grid(problem, config), arguments, dict(config))], y

    def reference(self, inputs: Inputs) -> Any:
        """Return Y."""
        y = torch.empty_like(inputs["x"], dtype=torch.float32)
        y[inputs["places"]] = inputs["x"].float()
        return y


def _grid(problem: Problem, config: Configuration) -> tuple[int, int]:
    """Return the tiles along rows and columns."""
    r, c = sizes_of(problem, "R", "C")
    return triton.cdiv(r, int(config["BLOCK_R"])), triton.cdiv(c, int(config["BLOCK_C"]))


def cases() -> list[Case]:
    """Return the cases of this file."""
    moved = (
        {"R": 64, "C": 4096},
        {"R": 128, "C": 2048},
        {"R": 4096, "C": 4096},
        {"R": 16384, "C": 2048},
        {"R": 8192, "C": 5000},
    )
    return [
        Rotary().case(
            "rotary",
            (
                {"tokens": 16, "heads": 32, "width": 128},
                {"tokens": 64, "heads": 8, "width": 128},
                {"tokens": 4096, "heads": 32, "width": 128},
                {"tokens": 8192, "heads": 40, "width": 128},
                {"tokens": 16384, "heads": 8, "width": 128},
            ),
            {"tokens": 10, "heads": 6, "width": 64},
        ),
        Swiglu().case("SwiGLU", ({"R": 8, "C": 11008}, {"R": 16, "C": 4096}, *moved[2:]), SMALL),
        Transpose().case(
            "transpose", ({"R": 512, "C": 512}, {"R": 256, "C": 1024}, *moved[2:]), SMALL
        ),
        Scatter().case("scatter", moved, SMALL),
    ]
