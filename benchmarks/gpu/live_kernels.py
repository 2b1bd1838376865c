"""The six kernels of `live.py`: they are in no table, so no order has learned from them.

Each is launched as its author would launch it, so that any autotuner can be put on top of it.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from breadth_kernel import BreadthKernel, evenly_drawn, launch_options, sizes_of

from foretune.collect.kernels.triton_kernel import JitLaunch, normal
from foretune.family import Cost
from foretune.kernel import Inputs
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration
from foretune.values import Value

LISTED = 40
"""Maximum number of configurations of a list."""
WARPS = (2, 4, 8, 16)
STAGES = (1, 2, 3, 4)
COLUMN_PARTS = 64
"""Parts into which the rows of a matrix are cut when its columns are summed."""
LEARNING_RATE = 1e-3
FIRST_DECAY = 0.9
SECOND_DECAY = 0.99
WEIGHT_DECAY = 0.01
EPSILON = 1e-8
"""Constants of an optimizer's step."""


@triton.jit
def _squared_distances(
    a,
    b,
    d,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute a tile of the squared distances between the rows of A and those of B."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)

    # The squared lengths are summed in the same walk as the products.
    products = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    lengths_a = tl.zeros((BLOCK_M,), tl.float32)
    lengths_b = tl.zeros((BLOCK_N,), tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = start + k < K
        mask_a = (m < M)[:, None] & inside[None, :]
        mask_b = (n < N)[:, None] & inside[None, :]
        x = tl.load(a + m[:, None] * K + start + k[None, :], mask=mask_a, other=0.0)
        y = tl.load(b + n[:, None] * K + start + k[None, :], mask=mask_b, other=0.0)
        products = tl.dot(x, tl.trans(y), products)
        lengths_a += tl.sum(x.to(tl.float32) * x.to(tl.float32), axis=1)
        lengths_b += tl.sum(y.to(tl.float32) * y.to(tl.float32), axis=1)

    distances = lengths_a[:, None] + lengths_b[None, :] - 2.0 * products
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.store(d + m[:, None] * N + n[None, :], distances, mask=mask)


@triton.jit
def _batched_layer(
    a,
    b,
    bias,
    c,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute a tile of GELU(Aᵀ B + bias) of one matrix of a batch."""
    batch = tl.program_id(1).to(tl.int64)
    tiles_n = tl.cdiv(N, BLOCK_N)
    m = (tl.program_id(0) // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)

    # A is stored with K rows, so its tile is read along M.
    a_at = a + batch * M * K + k[None, :] * M + m[:, None]
    b_at = b + batch * K * N + k[:, None] * N + n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = start + k < K
        x = tl.load(a_at, mask=(m < M)[:, None] & inside[None, :], other=0.0)
        y = tl.load(b_at, mask=inside[:, None] & (n < N)[None, :], other=0.0)
        total = tl.dot(x, y, total)
        a_at += BLOCK_K * M
        b_at += BLOCK_K * N

    # GELU, with the approximation by tanh.
    total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    inner = 1.5957691216057308 * (total + 0.044715 * total * total * total)
    result = total / (1.0 + tl.exp(-inner))
    c_at = c + batch * M * N + m[:, None] * N + n[None, :]
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.store(c_at, result.to(c.dtype.element_ty), mask=mask)


@triton.jit
def _cumulative_sums(
    x, y, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """Compute the cumulative sums along some rows, block by block."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)

    # What the blocks before this one add up to.
    carried = tl.zeros((ROWS,), tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        mask = (r < rows)[:, None] & (start + c < columns)[None, :]
        at = r[:, None].to(tl.int64) * columns + start + c[None, :]
        values = tl.load(x + at, mask=mask, other=0.0)
        tl.store(y + at, tl.cumsum(values, axis=1) + carried[:, None], mask=mask)
        carried += tl.sum(values, axis=1)


@triton.jit
def _column_sums(
    x, sums, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr
):
    """Sum some columns of one part of the rows."""
    part = tl.program_id(1)
    rows_of_part = tl.cdiv(rows, tl.num_programs(1))
    first = part * rows_of_part
    last = tl.minimum(first + rows_of_part, rows)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)

    total = tl.zeros((BLOCK_C,), tl.float32)
    for start in tl.range(first, last, BLOCK_R, num_stages=STAGES):
        r = start + tl.arange(0, BLOCK_R)
        mask = (r < last)[:, None] & (c < columns)[None, :]
        at = r[:, None].to(tl.int64) * columns + c[None, :]
        total += tl.sum(tl.load(x + at, mask=mask, other=0.0).to(tl.float32), axis=0)
    tl.store(sums + part * columns + c, total, mask=c < columns)


@triton.jit
def _stencil(x, y, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Average the four neighbors of each element of a tile; beyond the edge is zero."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    at = r[:, None].to(tl.int64) * columns + c[None, :]
    inside = (r < rows)[:, None] & (c < columns)[None, :]

    above = tl.load(x + at - columns, mask=inside & (r > 0)[:, None], other=0.0)
    below = tl.load(x + at + columns, mask=inside & (r < rows - 1)[:, None], other=0.0)
    left = tl.load(x + at - 1, mask=inside & (c > 0)[None, :], other=0.0)
    right = tl.load(x + at + 1, mask=inside & (c < columns - 1)[None, :], other=0.0)
    tl.store(y + at, 0.25 * (above + below + left + right), mask=inside)


@triton.jit
def _optimizer_step(
    weights,
    gradients,
    first_moments,
    second_moments,
    new_weights,
    new_first,
    new_second,
    size,
    RATE: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    DECAY: tl.constexpr,
    SMALL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Make one step of Adam with decoupled weight decay, without correction of the moments."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    w = tl.load(weights + at, mask=inside, other=0.0)
    g = tl.load(gradients + at, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(first_moments + at, mask=inside, other=0.0)
    v = tl.load(second_moments + at, mask=inside, other=0.0)

    m = FIRST * m + (1.0 - FIRST) * g
    v = SECOND * v + (1.0 - SECOND) * g * g
    w -= RATE * (m / (tl.sqrt(v) + SMALL) + DECAY * w)

    tl.store(new_weights + at, w, mask=inside)
    tl.store(new_first + at, m, mask=inside)
    tl.store(new_second + at, v, mask=inside)


class LiveKernel(BreadthKernel):
    """A kernel of one launch, whose grid and arguments do not depend on who chooses.

    Attributes:
        function: The plain ``@triton.jit`` function.
        key: Names of the arguments that make a problem for a tuner.
        constants: Constants that are not tuned.
        has_loop: Whether the number of stages matters.
    """

    sizes: ClassVar[Mapping[str, str]] = {}
    function: ClassVar[Any]
    key: ClassVar[tuple[str, ...]]
    constants: ClassVar[Mapping[str, float]] = {}
    has_loop: ClassVar[bool] = True

    @abstractmethod
    def arguments(self, problem: Problem, inputs: Inputs) -> tuple[tuple[Any, ...], Any]:
        """Return the positional arguments of the launch, and the output among them."""

    @abstractmethod
    def grid(self, problem: Problem, knobs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the grid of a tile."""

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch, and its output."""
        arguments, output = self.arguments(problem, inputs)
        options = {**self.knobs(config), **self.constants}
        launch = JitLaunch(self.function, self.grid(problem, config), arguments, options)
        return [launch], output

    def knobs(self, config: Configuration) -> dict[str, Any]:
        """Return what a configuration sets; loops without a product take their stages by name."""
        has_stages = "STAGES" in self.function.arg_names
        return launch_options(config) if has_stages else dict(config)


class SquaredDistances(LiveKernel):
    """Squared distances between the rows of two matrices."""

    name = "triton_squared_distances"
    tolerance = 5e-3
    function = _squared_distances
    key = ("M", "N", "K")
    sizes: ClassVar = {"M": "rows of A", "N": "rows of B", "K": "columns"}
    tiles: ClassVar = {
        "BLOCK_M": (32, 64, 128),
        "BLOCK_N": (64, 128),
        "BLOCK_K": (32, 64),
    }
    usual: ClassVar = {
        "BLOCK_M": 64,
        "BLOCK_N": 64,
        "BLOCK_K": 32,
        "num_warps": 4,
        "num_stages": 3,
    }

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return A and B, standard normal."""
        m, n, k = sizes_of(problem, "M", "N", "K")
        return {
            "a": normal((m, k), "fp16", self, 2 * seed),
            "b": normal((n, k), "fp16", self, 2 * seed + 1),
        }

    def arguments(self, problem: Problem, inputs: Inputs) -> tuple[tuple[Any, ...], Any]:
        """Return A, B, the distances, and the sizes."""
        m, n, k = sizes_of(problem, "M", "N", "K")
        d = torch.empty((m, n), device=inputs["a"].device)
        return (inputs["a"], inputs["b"], d, m, n, k), d

    def grid(self, problem: Problem, knobs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return tiles down and across."""
        m, n = sizes_of(problem, "M", "N")
        return triton.cdiv(m, knobs["BLOCK_M"]), triton.cdiv(n, knobs["BLOCK_N"])

    def reference(self, inputs: Inputs) -> Any:
        """Return the distances in single precision."""
        a = inputs["a"].float()
        b = inputs["b"].float()
        return (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * (a @ b.t())

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the operations of the product, and all matrices moved once."""
        m = 1.0 * problem["M"]
        n = 1.0 * problem["N"]
        k = 1.0 * problem["K"]
        return Cost(2.0 * m * n * k, 2.0 * (m * k + n * k) + 4.0 * m * n)


class BatchedLayer(LiveKernel):
    """``C = GELU(Aᵀ B + bias)`` of a batch, with A stored as its transpose."""

    name = "triton_batched_layer"
    tolerance = 2e-2
    function = _batched_layer
    key = ("M", "N", "K")
    sizes: ClassVar = {
        "batch": "matrices",
        "M": "rows of C",
        "N": "columns of C",
        "K": "rows of A and B",
    }
    choices = (
        ProblemParameter("dtype", "bf16", choices=("bf16", "fp16"), meaning="of all matrices"),
    )
    tiles: ClassVar = {
        "BLOCK_M": (32, 64, 128),
        "BLOCK_N": (32, 64, 128),
        "BLOCK_K": (32, 64),
    }
    usual: ClassVar = {
        "BLOCK_M": 64,
        "BLOCK_N": 64,
        "BLOCK_K": 32,
        "num_warps": 4,
        "num_stages": 3,
    }

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return A, B and the bias, standard normal."""
        batch, m, n, k = sizes_of(problem, "batch", "M", "N", "K")
        dtype = str(problem["dtype"])
        return {
            "a": normal((batch, k, m), dtype, self, 3 * seed),
            "b": normal((batch, k, n), dtype, self, 3 * seed + 1),
            "bias": normal((n,), dtype, self, 3 * seed + 2),
        }

    def arguments(self, problem: Problem, inputs: Inputs) -> tuple[tuple[Any, ...], Any]:
        """Return A, B, the bias, C, and the sizes of a matrix."""
        batch, m, n, k = sizes_of(problem, "batch", "M", "N", "K")
        a = inputs["a"]
        c = torch.empty((batch, m, n), dtype=a.dtype, device=a.device)
        return (a, inputs["b"], inputs["bias"], c, m, n, k), c

    def grid(self, problem: Problem, knobs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the tiles of a matrix, and the matrices."""
        batch, m, n = sizes_of(problem, "batch", "M", "N")
        return triton.cdiv(m, knobs["BLOCK_M"]) * triton.cdiv(n, knobs["BLOCK_N"]), batch

    def reference(self, inputs: Inputs) -> Any:
        """Return C in single precision."""
        product = inputs["a"].float().transpose(1, 2) @ inputs["b"].float()
        return torch.nn.functional.gelu(product + inputs["bias"].float(), approximate="tanh")

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the operations of the products, and all matrices moved once."""
        batch = 1.0 * problem["batch"]
        m = 1.0 * problem["M"]
        n = 1.0 * problem["N"]
        k = 1.0 * problem["K"]
        return Cost(2.0 * batch * m * n * k, 2.0 * batch * (m * k + n * k + m * n))


class _OfMatrix(LiveKernel):
    """A kernel on a matrix of rows and columns."""

    key = ("rows", "columns")
    sizes: ClassVar = {"R": "rows", "C": "columns"}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return the matrix, standard normal."""
        return {"x": normal(tuple(sizes_of(problem, "R", "C")), "fp32", self, seed)}

    def arguments(self, problem: Problem, inputs: Inputs) -> tuple[tuple[Any, ...], Any]:
        """Return the matrix, the output, and the sizes."""
        x = inputs["x"]
        y = torch.empty_like(x)
        return (x, y, *x.shape), y

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return a few operations per element, and two matrices moved once."""
        elements = 1.0 * problem["R"] * problem["C"]
        return Cost(4.0 * elements, 8.0 * elements)


class CumulativeSums(_OfMatrix):
    """Cumulative sums along the rows of a matrix."""

    name = "triton_cumulative_sums"
    tolerance = 1e-3
    function = _cumulative_sums
    tiles: ClassVar = {"ROWS": (1, 2, 4), "BLOCK": (256, 512, 1024, 2048)}
    usual: ClassVar = {"ROWS": 1, "BLOCK": 1024, "num_warps": 4, "num_stages": 2}

    def grid(self, problem: Problem, knobs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the groups of rows."""
        return (triton.cdiv(int(problem["R"]), knobs["ROWS"]),)

    def reference(self, inputs: Inputs) -> Any:
        """Return the sums in double precision."""
        return inputs["x"].double().cumsum(1)


class ColumnSums(_OfMatrix):
    """Sums of the columns of a matrix, for each of `COLUMN_PARTS` parts of its rows."""

    name = "triton_column_sums"
    tolerance = 1e-3
    function = _column_sums
    tiles: ClassVar = {"BLOCK_R": (4, 8, 16, 32), "BLOCK_C": (32, 64, 128, 256)}
    usual: ClassVar = {"BLOCK_R": 16, "BLOCK_C": 128, "num_warps": 4, "num_stages": 2}

    def arguments(self, problem: Problem, inputs: Inputs) -> tuple[tuple[Any, ...], Any]:
        """Return the matrix, the sums, and the sizes."""
        x = inputs["x"]
        sums = torch.empty((COLUMN_PARTS, x.shape[1]), device=x.device)
        return (x, sums, *x.shape), sums

    def grid(self, problem: Problem, knobs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the groups of columns, and the parts of the rows."""
        return triton.cdiv(int(problem["C"]), knobs["BLOCK_C"]), COLUMN_PARTS

    def reference(self, inputs: Inputs) -> Any:
        """Return the sums in double precision."""
        x = inputs["x"].double()
        rows_of_part = triton.cdiv(len(x), COLUMN_PARTS)
        n_missing = COLUMN_PARTS * rows_of_part - len(x)
        padded = torch.nn.functional.pad(x, (0, 0, 0, n_missing))
        return padded.reshape(COLUMN_PARTS, rows_of_part, x.shape[1]).sum(1)


class Stencil(_OfMatrix):
    """The mean of the four neighbors of each element of a matrix."""

    name = "triton_stencil"
    tolerance = 1e-5
    function = _stencil
    has_loop = False
    tiles: ClassVar = {"BLOCK_R": (1, 4, 8, 16, 32), "BLOCK_C": (32, 64, 128, 256, 512)}
    usual: ClassVar = {"BLOCK_R": 4, "BLOCK_C": 128, "num_warps": 4, "num_stages": 1}

    def grid(self, problem: Problem, knobs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return tiles down and across."""
        r, c = sizes_of(problem, "R", "C")
        return triton.cdiv(r, knobs["BLOCK_R"]), triton.cdiv(c, knobs["BLOCK_C"])

    def reference(self, inputs: Inputs) -> Any:
        """Return the means in double precision."""
        x = torch.nn.functional.pad(inputs["x"].double(), (1, 1, 1, 1))
        return 0.25 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])


class OptimizerStep(LiveKernel):
    """A step of Adam with decoupled weight decay, which writes to new tensors."""

    name = "triton_optimizer_step"
    tolerance = 1e-4
    function = _optimizer_step
    key = ("size",)
    has_loop = False
    constants: ClassVar = {
        "RATE": LEARNING_RATE,
        "FIRST": FIRST_DECAY,
        "SECOND": SECOND_DECAY,
        "DECAY": WEIGHT_DECAY,
        "SMALL": EPSILON,
    }
    sizes: ClassVar = {"size": "weights"}
    tiles: ClassVar = {"BLOCK": (128, 256, 512, 1024, 2048, 4096, 8192)}
    usual: ClassVar = {"BLOCK": 1024, "num_warps": 4, "num_stages": 1}

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return weights, gradients in half precision, and moments."""
        (size,) = sizes_of(problem, "size")
        first = normal((size,), "fp32", self, 4 * seed + 2)
        second = normal((size,), "fp32", self, 4 * seed + 3)
        return {
            "weights": normal((size,), "fp32", self, 4 * seed),
            "gradients": normal((size,), "fp16", self, 4 * seed + 1),
            "first": first,
            "second": second * second,
        }

    def arguments(self, problem: Problem, inputs: Inputs) -> tuple[tuple[Any, ...], Any]:
        """Return the old tensors, the new ones, and the size."""
        old = tuple(inputs[name] for name in ("weights", "gradients", "first", "second"))
        new = tuple(torch.empty_like(inputs["weights"]) for _ in range(3))
        return (*old, *new, int(problem["size"])), new

    def grid(self, problem: Problem, knobs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the blocks of weights."""
        return (triton.cdiv(int(problem["size"]), knobs["BLOCK"]),)

    def reference(self, inputs: Inputs) -> Any:
        """Return weights and moments in double precision."""
        w = inputs["weights"].double()
        g = inputs["gradients"].double()
        m = FIRST_DECAY * inputs["first"].double() + (1.0 - FIRST_DECAY) * g
        v = SECOND_DECAY * inputs["second"].double() + (1.0 - SECOND_DECAY) * g * g
        step = m / (v.sqrt() + EPSILON) + WEIGHT_DECAY * w
        return w - LEARNING_RATE * step, m, v

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return some operations per weight, and all tensors moved once."""
        size = 1.0 * problem["size"]
        return Cost(14.0 * size, 26.0 * size)


@dataclass(frozen=True)
class LiveCase:
    """A kernel to tune.

    Attributes:
        kernel: The kernel.
        sizes: Three problems; the second has less than a wave of the GPU's programs.
        small: A problem that Triton's interpreter computes in seconds.
    """

    kernel: LiveKernel
    sizes: tuple[Mapping[str, Value], ...]
    small: Mapping[str, Value]

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems, complete."""
        return [self.kernel.problem(sizes) for sizes in self.sizes]

    @cached_property
    def default(self) -> Configuration:
        """The configuration that stands first on the list."""
        return Configuration(self.kernel.usual)

    @cached_property
    def listed(self) -> list[Configuration]:
        """The list, with the default in front: every tile with every launch, evenly thinned."""
        stages = STAGES if self.kernel.has_loop else (1,)
        knobs = {**self.kernel.tiles, "num_warps": WARPS, "num_stages": stages}
        others = [c for c in evenly_drawn(knobs, LISTED) if c != self.default]
        return [self.default, *others][:LISTED]

    def decorated(self, autotune: Callable[..., Any], listed: int, **options: Any) -> Any:
        """Return the kernel under an autotuner, as if it had never been called.

        The tuner chooses among the first ``listed`` configurations of the list.
        """
        configs = [self.triton_config(config) for config in self.listed[:listed]]
        return autotune(configs, list(self.kernel.key), **options)(
            triton.jit(self.kernel.function.fn)
        )

    def triton_config(self, config: Configuration) -> triton.Config:
        """Return a configuration of the list as its author writes it."""
        knobs = self.kernel.knobs(config)
        warps = knobs.pop("num_warps")
        stages = knobs.pop("num_stages")
        return triton.Config(knobs, num_warps=warps, num_stages=stages)

    def launch(self, tuner: Any, problem: Problem, inputs: Inputs) -> Any:
        """Call the decorated kernel, and return its output."""
        arguments, output = self.kernel.arguments(problem, inputs)
        self.kernel.invalidate_output(output)
        tuner[lambda knobs: self.kernel.grid(problem, knobs)](*arguments, **self.kernel.constants)
        return output


def cases() -> list[LiveCase]:
    """Return the six cases."""
    matrices = (
        {"R": 8192, "C": 8192},
        {"R": 96, "C": 2048},
        {"R": 5000, "C": 3000},
    )
    return [
        LiveCase(
            SquaredDistances(),
            (
                {"M": 8192, "N": 4096, "K": 512},
                {"M": 512, "N": 512, "K": 1024},
                {"M": 3000, "N": 5000, "K": 200},
            ),
            {"M": 70, "N": 90, "K": 50},
        ),
        LiveCase(
            BatchedLayer(),
            (
                {"batch": 32, "M": 1024, "N": 1024, "K": 512},
                {"batch": 2, "M": 256, "N": 512, "K": 2048},
                {"batch": 48, "M": 300, "N": 700, "K": 500},
            ),
            # Triton's interpreter cannot multiply bf16.
            {"batch": 2, "M": 70, "N": 90, "K": 50, "dtype": "fp16"},
        ),
        LiveCase(CumulativeSums(), matrices, {"R": 3, "C": 2100}),
        LiveCase(ColumnSums(), matrices, {"R": 200, "C": 70}),
        LiveCase(Stencil(), matrices, {"R": 12, "C": 100}),
        LiveCase(
            OptimizerStep(),
            ({"size": 1 << 26}, {"size": 100_000}, {"size": 9_999_999}),
            {"size": 3_000},
        ),
    ]
