"""Kernels of `breadth.py` that move elements, or compute with each alone.

None has a loop: a program loads one block, and stores one. What those of a matrix share in Python
is in `_OfMatrix`.
"""

from abc import abstractmethod
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
    # A block has three axes: tokens, heads, and pairs of a head.
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, D // 2)

    # All heads of a token turn by the same angles.
    angle_at = t[:, None] * (D // 2) + d[None, :]
    cosine = tl.load(cosines + angle_at, mask=(t < tokens)[:, None], other=0.0)[:, None, :]
    sine = tl.load(sines + angle_at, mask=(t < tokens)[:, None], other=0.0)[:, None, :]

    # Both elements of each pair.
    at = (t[:, None].to(tl.int64) * heads + h[None, :])[:, :, None] * D + d[None, None, :]
    mask = ((t < tokens)[:, None] & (h < heads)[None, :])[:, :, None]
    first = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + at + D // 2, mask=mask, other=0.0).to(tl.float32)

    # The rotation of a plane.
    tl.store(y + at, (first * cosine - second * sine).to(y.dtype.element_ty), mask=mask)
    tl.store(y + at + D // 2, (second * cosine + first * sine).to(y.dtype.element_ty), mask=mask)


@triton.jit
def _swiglu(gate, up, y, size, BLOCK: tl.constexpr):
    """Multiply the sigmoid-weighted gate by the other half."""
    # Shapes do not matter: all elements are in one line.
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

    # Rows of X are columns of Y. Threads exchange their elements, so that both sides of the copy
    # are contiguous.
    tl.store(y + c[:, None] * rows + r[None, :], tl.trans(tile), mask=tl.trans(mask))


@triton.jit
def _scatter(x, places, y, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Write a tile of the rows of X to their places in Y."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)

    # The rows of X lie one after the other; those of Y lie where `places` says.
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
        grid = (
            triton.cdiv(tokens, int(config["BLOCK_T"])),
            triton.cdiv(heads, int(config["BLOCK_H"])),
        )
        arguments = (x, inputs["cosines"], inputs["sines"], y, tokens, heads)
        return [JitLaunch(_rotary, grid, arguments, {**config, "D": width})], y

    def reference(self, inputs: Inputs) -> Any:
        """Return Y in single precision."""
        first, second = inputs["x"].float().chunk(2, dim=2)
        cosine = inputs["cosines"][:, None]
        sine = inputs["sines"][:, None]
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=2)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return three operations per element, and all tensors moved once."""
        tokens, heads, width = (1.0 * problem[name] for name in ("tokens", "heads", "width"))
        operations = 3.0 * tokens * heads * width

        # X and Y in 16 bits; a cosine and a sine in 32 bits per pair of elements.
        moved_bytes = 4.0 * tokens * width * (heads + 1.0)
        return Cost(operations, moved_bytes)


class _OfMatrix(BreadthKernel):
    """A kernel that moves a matrix, a tile per program.

    Attributes:
        program: The function in Triton. Its arguments are the inputs, the output, and the sizes.
        reads: The names of the inputs, in the order of the function's arguments.
        matrices: The number of matrices that move.
    """

    tolerance = 2e-3
    sizes = SIZES
    tiles: ClassVar = {"BLOCK_R": (1, 4, 16, 32), "BLOCK_C": (64, 128, 256, 512)}
    usual: ClassVar = {"BLOCK_R": 16, "BLOCK_C": 256, "num_warps": 4, "num_stages": 1}
    program: ClassVar[Any]
    reads: ClassVar[tuple[str, ...]]
    matrices: ClassVar[float] = 2.0

    @abstractmethod
    def output(self, inputs: Inputs) -> torch.Tensor:
        """Return the tensor that a launch on ``inputs`` writes."""

    def grid(self, problem: Problem, config: Configuration) -> tuple[int, ...]:
        """Return the tiles along rows and columns."""
        rows, columns = sizes_of(problem, "R", "C")
        return (
            triton.cdiv(rows, int(config["BLOCK_R"])),
            triton.cdiv(columns, int(config["BLOCK_C"])),
        )

    def extents(self, problem: Problem) -> list[int]:
        """Return the sizes that the function is told: rows and columns."""
        return sizes_of(problem, "R", "C")

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and the output."""
        output = self.output(inputs)
        read = [inputs[name] for name in self.reads]
        arguments = (*read, output, *self.extents(problem))
        return [
            JitLaunch(self.program, self.grid(problem, config), arguments, dict(config))
        ], output

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return an operation per element, and all matrices moved once."""
        elements = 1.0 * problem["R"] * problem["C"]
        return Cost(elements, 2.0 * self.matrices * elements)


class Swiglu(_OfMatrix):
    """``silu(gate) · up``."""

    name = "triton_swiglu"
    tiles: ClassVar = {"BLOCK": (256, 512, 1024, 2048, 4096, 8192)}
    usual: ClassVar = {"BLOCK": 1024, "num_warps": 4, "num_stages": 1}
    program = _swiglu
    reads = ("gate", "up")
    matrices = 3.0

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return both halves, standard normal."""
        shape = tuple(sizes_of(problem, "R", "C"))
        return {
            "gate": normal(shape, "fp16", self, 2 * seed),
            "up": normal(shape, "fp16", self, 2 * seed + 1),
        }

    def output(self, inputs: Inputs) -> torch.Tensor:
        """Return Y."""
        return torch.empty_like(inputs["gate"])

    def grid(self, problem: Problem, config: Configuration) -> tuple[int, ...]:
        """Return the blocks of all elements in one line."""
        (size,) = self.extents(problem)
        return (triton.cdiv(size, int(config["BLOCK"])),)

    def extents(self, problem: Problem) -> list[int]:
        """Return the number of elements."""
        rows, columns = sizes_of(problem, "R", "C")
        return [rows * columns]

    def reference(self, inputs: Inputs) -> Any:
        """Return Y in single precision."""
        return torch.nn.functional.silu(inputs["gate"].float()) * inputs["up"].float()


class Transpose(_OfMatrix):
    """The transpose of a matrix."""

    name = "triton_transpose"
    tiles: ClassVar = {"BLOCK_R": (16, 32, 64, 128), "BLOCK_C": (16, 32, 64, 128)}
    usual: ClassVar = {"BLOCK_R": 64, "BLOCK_C": 64, "num_warps": 4, "num_stages": 1}
    program = _transpose
    reads = ("x",)

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, standard normal."""
        return {"x": normal(tuple(sizes_of(problem, "R", "C")), "fp16", self, seed)}

    def output(self, inputs: Inputs) -> torch.Tensor:
        """Return Y."""
        x = inputs["x"]
        rows, columns = x.shape
        return torch.empty((columns, rows), dtype=x.dtype, device=x.device)

    def reference(self, inputs: Inputs) -> Any:
        """Return the transpose."""
        return inputs["x"].t().float()


class Scatter(_OfMatrix):
    """Rows written to other places, as the tokens of experts are."""

    name = "triton_scatter"
    program = _scatter
    reads = ("x", "places")

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, standard normal, and a permutation of its rows."""
        rows, columns = sizes_of(problem, "R", "C")
        device = torch_device(self)
        places = torch.randperm(rows, generator=seeded(device, 2 * seed + 1), device=device)
        return {"x": normal((rows, columns), "fp16", self, 2 * seed), "places": places}

    def output(self, inputs: Inputs) -> torch.Tensor:
        """Return Y."""
        return torch.empty_like(inputs["x"])

    def reference(self, inputs: Inputs) -> Any:
        """Return Y."""
        y = torch.empty_like(inputs["x"], dtype=torch.float32)
        y[inputs["places"]] = inputs["x"].float()
        return y


def cases() -> list[Case]:
    """Return the cases of this file."""
    # The first two problems have less than a wave of programs, of which some kernels have more.
    large = ({"R": 4096, "C": 4096}, {"R": 16384, "C": 2048}, {"R": 8192, "C": 5000})
    gated = ({"R": 8, "C": 11008}, {"R": 16, "C": 4096}, *large)
    transposed = ({"R": 512, "C": 512}, {"R": 256, "C": 1024}, *large)
    scattered = ({"R": 64, "C": 4096}, {"R": 128, "C": 2048}, *large)
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
        Swiglu().case("SwiGLU", gated, SMALL),
        Transpose().case("transpose", transposed, SMALL),
        Scatter().case("scatter", scattered, SMALL),
    ]
