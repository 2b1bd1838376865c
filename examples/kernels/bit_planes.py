"""Matrix × vector with weights of any number of bits, 1 to 8, on the CPU.

Weights and vector are rounded to whole numbers and stored bit by bit: plane ``i`` of a row holds
bit ``i`` of each of its numbers, 64 to a word. A product of two planes is the number of ones in
their ``and``, so that a product of ``a`` and ``b`` bits takes ``a·b`` of these (Feng et al.,
APNN-TC, SC 2021). Memory and time shrink with every bit, and the error grows.

A number is ``scale * (2 q - (2^bits - 1))`` with whole q from 0 on; with one bit, plus or minus
scale.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from foretune.collect.kernels.numba_codegen import (
    compile_function,
    function_source,
    run_parallel,
    split_range,
    thread_counts,
)
from foretune.family import Cost, Quantity
from foretune.kernel import Inputs, Kernel, Launch, latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

BITS = (1, 2, 3, 4, 5, 6, 7, 8)
GROUPS = (128, 256, 512, 1024)
SIZES = {"N": (512, 1000, 1024, 2048, 4096), "K": (512, 1000, 1024, 2048, 4096)}
WORD = 64
STEPS = (1.596, 0.9957, 0.586, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308)
"""Distance of levels with the least square error, in standard deviations of normal numbers, for 1
to 8 bits (Max, Quantizing for minimum distortion, IRE Transactions on Information Theory, 1960)."""


class BitPlanes(Kernel):
    """``y[N] = W[N, K] @ x[K]``, both rounded to a number of bits.

    Knobs: bits of a weight (``bits``) and of the vector (``x_bits``), numbers that share a scale
    (``group``), and threads. Fewer bits are faster and less exact: limit the error
    (``--limit relative_error=0.1``), and the search takes the fastest that keeps it.
    """

    name = "bit_planes"
    problem_parameters = (
        ProblemParameter("N", maximum=1048576, meaning="rows of W"),
        ProblemParameter("K", maximum=1048576, meaning="columns of W"),
    )

    def space(self, problem: Problem) -> SearchSpace:
        """Return all numbers of bits, groups and threads."""
        return _space(thread_counts())

    def default(self, problem: Problem) -> Configuration:
        """Return 8 bits and all cores."""
        return Configuration(bits=8, x_bits=8, group=512, threads=thread_counts()[-1])

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return W and x, standard normal."""
        rng = np.random.default_rng(seed)
        n, k = int(problem["N"]), int(problem["K"])
        return {
            "w": rng.standard_normal((n, k), dtype=np.float32),
            "x": rng.standard_normal(k, dtype=np.float32),
        }

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Round and pack W, untimed; return a call that rounds x, multiplies and returns y."""
        w, x = inputs["w"], inputs["x"]
        bits, x_bits, group = (int(config[name]) for name in ("bits", "x_bits", "group"))
        planes, scales, sums = pack(w, bits, group)
        planes = planes.ravel()
        multiply = _multiply(bits, x_bits, group // WORD)
        counts, y = counts_of(len(x), group), np.empty(len(w), dtype=np.float32)
        ranges = split_range(len(w), int(config["threads"]))

        def launch() -> Any:
            x_planes, x_scales, x_sums = pack(x[None, :], x_bits, group)
            packed = planes, scales, sums, x_planes.ravel(), x_scales[0], x_sums[0], counts, y
            run_parallel(lambda first, last: multiply(*packed, first, last), ranges)
            return y

        launch()  # compiles
        return launch

    def reference(self, inputs: Inputs) -> Any:
        """Return the product with unrounded numbers in double precision."""
        return inputs["w"].astype(np.float64) @ inputs["x"].astype(np.float64)

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return twice the expected error of rounding; a smaller limit is the user's."""
        steps = (STEPS[int(config[name]) - 1] for name in ("bits", "x_bits"))
        return min(0.95, 2 * math.sqrt(sum(step**2 for step in steps) / 12))

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return NumPy's BLAS in single precision."""
        w, x = inputs["w"], inputs["x"]
        y = np.empty(len(w), dtype=np.float32)
        return "NumPy BLAS", lambda: np.matmul(w, x, out=y)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return three operations per word and pair of planes, and the bytes of both operands."""
        n, k = 1.0 * problem["N"], 1.0 * problem["K"]
        pairs = 1.0 * config["bits"] * config["x_bits"]
        bytes_moved = n * k * (config["bits"] / 8.0 + 8.0 / config["group"]) + 4.0 * (n + k)
        return Cost(flops=3.0 * n * k / WORD * pairs, bytes_moved=bytes_moved)

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the pairs of planes."""
        return {"pairs": 1.0 * config["bits"] * config["x_bits"]}

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return matrices of 1 to 64 MB unrounded."""
        return latin_hypercube_problems(self, SIZES, n, seed)


@lru_cache
def _space(threads: tuple[int, ...]) -> SearchSpace:
    return SearchSpace({"bits": BITS, "x_bits": BITS[1:], "group": GROUPS, "threads": threads})


def pack(values: np.ndarray, bits: int, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round rows of numbers, whose ends are padded with zeros to whole groups.

    Returns:
        planes: words by row, group, bit and word.
        scales: by row and group.
        sums: of q by row and group.
    """
    rows, columns = values.shape
    groups = -(-columns // group)
    padded = np.zeros((rows, groups * group), dtype=np.float32)
    padded[:, :columns] = values
    padded, top = padded.reshape(rows, groups, group), (1 << bits) - 1
    deviation = np.sqrt(np.square(padded).sum(axis=2) / counts_of(columns, group))
    scales = np.minimum(STEPS[bits - 1] / 2 * deviation, np.abs(padded).max(axis=2) / top)
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    q = np.clip(np.rint((padded / scales[..., None] + top) / 2), 0, top).astype(np.uint8)
    q.reshape(rows, -1)[:, columns:] = 0
    planes = np.empty((rows, groups, bits, group // WORD), dtype=np.uint64)
    for bit in range(bits):
        planes[:, :, bit] = np.packbits(q >> bit & 1, axis=2, bitorder="little").view(np.uint64)
    return planes, scales, q.sum(axis=2, dtype=np.int64)


def counts_of(columns: int, group: int) -> np.ndarray:
    """Return how many numbers each group has."""
    return np.minimum(group, columns - np.arange(0, columns, group)).astype(np.float64)


@intrinsic
def add_common(typingctx: Any, counts: Any, a: Any, b: Any) -> Any:
    """Return ``counts`` plus the number of ones that each word of ``a`` and ``b`` has in common."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = args[0].type
        one_argument = ir.FunctionType(vector, [vector])
        name = f"llvm.ctpop.v{vector.count}i64"
        count_ones = builder.module.declare_intrinsic(name, (), one_argument)
        return builder.add(args[0], builder.call(count_ones, [builder.and_(args[1], args[2])]))

    return counts(counts, a, b), codegen


@intrinsic
def sum_up(typingctx: Any, counts: Any) -> Any:
    """Return the sum of a vector of whole numbers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = args[0].type
        total = ir.FunctionType(vector.element, [vector])
        name = f"llvm.vector.reduce.add.v{vector.count}i64"
        return builder.call(builder.module.declare_intrinsic(name, (), total), [args[0]])

    return types.uint64(counts), codegen


@lru_cache(maxsize=256)
def _multiply(bits: int, x_bits: int, words: int) -> Any:
    """Compile the product of rows.

    With ``w = s (2 q - t)`` and ``x = u (2 p - v)``, a group of n numbers adds
    ``s u (4 Σ q p - 2 v Σ q - 2 t Σ p + n t v)``. Padding has q = p = 0 and does not count.
    """
    t, v = (1 << bits) - 1, (1 << x_bits) - 1
    lanes, stride, x_stride = min(words, 8), bits * words, x_bits * words
    shifts = sorted({i + j for i in range(bits) for j in range(x_bits)})
    group = [f"c{s} = splat(ZERO, {lanes})" for s in shifts]
    group += [f"for k in range(0, {words}, {lanes}):"]
    group += [
        f"    x{j} = load(x_planes, g * {x_stride} + {j * words} + k, {lanes})"
        for j in range(x_bits)
    ]
    for i in range(bits):
        at = f"(r * groups + g) * {stride} + {i * words} + k"
        group += [f"    w = load(planes, {at}, {lanes})"]
        group += [f"    c{i + j} = add_common(c{i + j}, w, x{j})" for j in range(x_bits)]
    qp = " + ".join(f"{2.0**s} * sum_up(c{s})" for s in shifts)
    rest = f"{float(t * v)} * counts[g] - {2.0 * v} * sums[r, g] - {2.0 * t} * x_sums[g]"
    group += [f"y_r += scales[r, g] * u[g] * (4.0 * ({qp}) + {rest})"]
    body = ["groups = len(u)", "for r in range(first, last):", "    y_r = 0.0"]
    body += ["    for g in range(groups):", *(f"        {line}" for line in group)]
    body += ["    y[r] = y_r"]
    arguments = "planes, scales, sums, x_planes, u, x_sums, counts, y, first, last"
    return compile_function(
        function_source("multiply", arguments, body),
        "multiply",
        ZERO=np.uint64(0),
        add_common=add_common,
        sum_up=sum_up,
    )
