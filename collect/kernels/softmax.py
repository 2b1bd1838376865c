"""Softmax of the rows of a matrix on the CPU: ``Y[r, c] = exp(X[r, c]) / Σ exp(X[r, :])``.

Three algorithms avoid overflow and trade arithmetic for passes over memory. Two subtract the row's
maximum and either compute the exponentials twice or store them in between. The third needs no
maximum: it sums exponentials as pairs of mantissa and exponent (Dukhan and Ablavatski, The Two-Pass
Softmax Algorithm, arXiv:2001.04438). Rows can be reduced in blocks that stay in a cache. The block
sums are then rescaled to one maximum (Milakov and Gimelshein, arXiv:1805.02867).
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from foretune.collect.kernels.numba_codegen import (
    compile_function,
    function_source,
    run_parallel,
    split_range,
    thread_counts,
)
from foretune.family import Cost, Quantity
from foretune.kernel import Inputs, Kernel, Launch
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

ALGORITHMS = ("three_pass_recompute", "three_pass_reload", "two_pass")
ROWS = (1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1000, 2048, 4096)
COLUMNS = (64, 100, 128, 256, 500, 512, 1000, 1024, 2048, 4096, 10000, 32000, 50257, 128256)
ELEMENTS = (65_536, 4_194_304)
"""Fewest and most elements of a training problem: some 0.05 to 10 ms."""

LINE = 16
"""Numbers in a cache line, and the widest vector."""


class Softmax(Kernel):
    """``Y = softmax(X[R, C])`` along rows, in single precision.

    Knobs: how overflow is avoided (``algorithm``), vector width (``vector_bits``), independent sums
    in the reducing passes (``unroll``) and vectors at a time in the last (``unroll_scale``),
    columns reduced at a time (``block``; 0: the whole row, or a thread's share of it), stores that
    bypass the cache (``stream``), threads, and how they share the work (``split``): contiguous or
    interleaved rows, or the columns of every row.
    """

    name = "softmax"
    problem_parameters = (
        ProblemParameter("R", maximum=16777216, meaning="rows of X"),
        ProblemParameter("C", maximum=16777216, meaning="columns of X, over which sums run"),
    )

    def space(self, problem: Problem) -> SearchSpace:
        """Return algorithm, vector, blocking and threading choices."""
        return _space(thread_counts(), int(problem["C"]) % LINE == 0)

    def default(self, problem: Problem) -> Configuration:
        """Return the textbook algorithm that stores its exponentials, AVX2 vectors, all cores."""
        return Configuration(
            algorithm="three_pass_reload",
            vector_bits=256,
            unroll=1,
            unroll_scale=1,
            block=0,
            stream=False,
            threads=thread_counts()[-1],
            split="rows",
        )

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return X, normal with a standard deviation of 4."""
        rng = np.random.default_rng(seed)
        shape = int(problem["R"]), int(problem["C"])
        return {"x": rng.standard_normal(shape, dtype=np.float32) * np.float32(4)}

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Return a call that normalizes every row and returns Y."""
        x = inputs["x"]
        r, c = x.shape
        threads, by_columns = int(config["threads"]), config["split"] == "columns"
        block = int(config["block"]) or -(-c // (threads if by_columns else 1) // LINE) * LINE
        block = max(block, LINE)
        blocks = -(-c // block)
        sweep = _sweep(
            str(config["algorithm"]),
            int(config["vector_bits"]) // 32,
            int(config["unroll"]),
            int(config["unroll_scale"]),
            bool(config["stream"]),
        )
        y = _aligned(r * c)
        sums, tops = np.empty((2, r * blocks), dtype=np.float32)
        fx = x.ravel()

        if by_columns:
            ranges = split_range(blocks, threads)
        elif config["split"] == "interleaved":
            ranges = [(t, r) for t in range(threads)]
        else:
            ranges = split_range(r, threads)
        step = threads if config["split"] == "interleaved" else 1

        def work(reducing: bool, scaling: bool, first: int, last: int) -> None:
            bounds = (0, r, 1, first, last) if by_columns else (first, last, step, 0, blocks)
            sweep(fx, y, sums, tops, c, block, blocks, *bounds, reducing, scaling)

        # a row's columns can only be scaled once all threads know its sum
        phases = [(True, False), (False, True)] if by_columns else [(True, True)]
        calls = [partial(work, *phase) for phase in phases]

        def launch() -> Any:
            for call in calls:
                run_parallel(call, ranges)
            return y.reshape(r, c)

        launch()  # compiles for these types
        return launch

    def reference(self, inputs: Inputs) -> Any:
        """Return softmax in double precision."""
        x = inputs["x"].astype(np.float64)
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return the expression one would write in NumPy, without temporaries."""
        x = inputs["x"]
        y = np.empty_like(x)

        def launch() -> Any:
            np.subtract(x, x.max(axis=1, keepdims=True), out=y)
            np.exp(y, out=y)
            return np.divide(y, y.sum(axis=1, keepdims=True), out=y)

        return "NumPy", launch

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the algorithm's operations, an exponential counting 20, and X and Y moved once."""
        elements = 1.0 * problem["R"] * problem["C"]
        reload = np.equal(config["algorithm"], "three_pass_reload")
        two_pass = np.equal(config["algorithm"], "two_pass")
        operations = np.where(reload, 24.0, np.where(two_pass, 54.0, 44.0))
        return Cost(flops=operations * elements, bytes_moved=8.0 * elements)

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return passes over memory, what must stay cached between them, and threads' shares."""
        r, c = 1.0 * problem["R"], 1.0 * problem["C"]
        threads, lanes = 1.0 * config["threads"], config["vector_bits"] / 32.0
        by_columns = np.equal(config["split"], "columns")
        share = np.where(by_columns, np.ceil(c / threads), c)
        block = np.where(np.equal(config["block"], 0), share, np.minimum(config["block"], c))
        units = np.where(by_columns, np.ceil(c / block), r)
        two_pass = np.equal(config["algorithm"], "two_pass")
        reload = np.equal(config["algorithm"], "three_pass_reload")
        width = lanes * config["unroll"]
        return {
            "row_bytes": 4.0 * c,
            "block_bytes": 4.0 * block,
            "work_bytes": 8.0 * np.where(by_columns, r * share, c),
            "passes": np.where(two_pass, 3.0, np.where(reload, 5.0, 4.0)),
            "exponentials": np.where(reload, 1.0, 2.0) * r * c,
            "exponentials_per_thread": np.where(reload, 1.0, 2.0) * r * c / threads,
            "width": width,
            "scale_width": lanes * config["unroll_scale"],
            "steps_per_block": block / width,
            "edge": (block % width) / block,
            "parallel": np.minimum(units, threads),
            "imbalance": np.ceil(units / threads) * threads / units,
        }

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return shapes from many short rows to one long one, of 65 thousand to 4 million."""
        low, high = ELEMENTS
        shapes = [(r, c) for r in ROWS for c in COLUMNS if low <= r * c <= high]
        chosen = np.random.default_rng(seed).permutation(len(shapes))[:n]
        return [self.problem(R=shapes[i][0], C=shapes[i][1]) for i in chosen]


@lru_cache
def _space(threads: tuple[int, ...], aligned: bool) -> SearchSpace:
    return SearchSpace(
        {
            "algorithm": ALGORITHMS,
            "vector_bits": (128, 256, 512),
            "unroll": (1, 2, 3, 4, 6, 8),
            "unroll_scale": (1, 2, 3, 4, 6, 8),
            "block": (0, 512, 2048, 8192, 32768),
            "stream": (False, True) if aligned else (False,),  # rows must start at a cache line
            "threads": threads,
            "split": ("rows", "interleaved", "columns"),
        },
        [
            "algorithm != 'two_pass' or block == 0",  # no second reducing pass needs the data
            "threads > 1 or split == 'rows'",  # otherwise the program is the same
        ],
    )


def _aligned(length: int) -> Any:
    """Return ``length`` floats that start at a cache line."""
    buffer = np.empty(length + LINE, dtype=np.float32)
    return buffer[-buffer.ctypes.data // 4 % LINE :][:length]


Lines = tuple[list[str], str, list[str]]
CONSTANTS = {
    "ZERO": np.float32(0),
    "LOWEST": np.float32(-1e30),
    "FLOOR": np.float32(-88),  # exp of this and of anything smaller is 0
}

# Passes: lines that take a vector `v`, update the sums of number U, and may leave `v` to be stored.
# In the last, partial vector, lanes beyond the end are masked in the named variable.
_EXP = ["k = exp_exponent(v)", "p = exp_mantissa(v, k)"]
_BELOW_TOP = ["v = maximum(subtract(v, tops), splat(FLOOR, LANES))", *_EXP]
_MAXIMUM: Lines = ([], "v", ["m_U = maximum(m_U, v)"])
_SUM: Lines = ([], "v", [*_BELOW_TOP, "v = multiply(p, power_of_two(k))", "s_U = add(s_U, v)"])
_ADD_PAIR = [
    "h = maximum(k, m_U)",
    "p = multiply(p, power_of_two(subtract(k, h)))",
    "s_U = fma(s_U, power_of_two(subtract(m_U, h)), p)",
    "m_U = h",
]
_SUM_PAIRS: Lines = (_EXP, "k", _ADD_PAIR)
_SCALE = {
    "three_pass_recompute": [*_BELOW_TOP, "v = multiply(multiply(p, factors), power_of_two(k))"],
    "three_pass_reload": ["v = multiply(v, factors)"],
    "two_pass": [*_EXP, "v = multiply(multiply(p, factors), power_of_two(subtract(k, tops)))"],
}


def _pass(lines: Lines, lanes: int, unroll: int, load: str, store: str = "") -> list[str]:
    """Return the loops of one pass over elements ``i0`` to ``i1``."""
    before, masked, after = lines
    width = lanes * unroll
    body = [f"full = i0 + (i1 - i0) // {width} * {width}", f"for i in range(i0, full, {width}):"]
    for u in range(unroll):
        step = [f"v = load({load}, i + {u * lanes}, LANES)", *before, *after]
        step += [f"{store}(y, i + {u * lanes}, v)"] if store else []
        body += [f"    {line.replace('_U', str(u))}" for line in step]
    tail = [f"v = load_first({load}, i, i1 - i, LANES)", *before]
    tail += [f"{masked} = keep_first({masked}, i1 - i, LOWEST)"] if masked else []
    tail += [*after, *(["store_first(y, i, v, i1 - i)"] if store else [])]
    body += [f"for i in range(full, i1, {lanes}):"]
    body += [f"    {line.replace('_U', '0')}" for line in tail]
    return [line.replace("LANES", str(lanes)) for line in body]


@lru_cache(maxsize=512)
def _reduce(algorithm: str, lanes: int, unroll: int) -> Any:
    """Compile the reduction of a block to (sum, top): its exponentials sum to sum · base^top.

    The base is e and the top is the maximum. With two passes the base is 2 and the top an integer.
    """
    body = [f"m{u} = splat(LOWEST, {lanes})" for u in range(unroll)]
    body += [f"s{u} = splat(ZERO, {lanes})" for u in range(unroll)]
    if algorithm == "two_pass":
        body += _pass(_SUM_PAIRS, lanes, unroll, "x")
        for u in range(1, unroll):
            body += [f"k = m{u}", f"p = s{u}", *(v.replace("_U", "0") for v in _ADD_PAIR)]
        body += ["top = largest(m0)", f"m0 = subtract(m0, splat(top, {lanes}))"]
        body += ["s0 = multiply(s0, power_of_two(m0))"]
    else:
        body += _pass(_MAXIMUM, lanes, unroll, "x")
        body += [f"m0 = maximum(m0, m{u})" for u in range(1, unroll)]
        body += ["top = largest(m0)", f"tops = splat(top, {lanes})"]
        store = "store" if algorithm == "three_pass_reload" else ""
        body += _pass(_SUM, lanes, unroll, "x", store)
        body += [f"s0 = add(s0, s{u})" for u in range(1, unroll)]
    body += ["return total(s0), top"]
    return compile_function(function_source("reduce", "x, y, i0, i1", body), "reduce", **CONSTANTS)


@lru_cache(maxsize=512)
def _scale(algorithm: str, lanes: int, unroll: int, stream: bool) -> Any:
    """Compile the last pass over a block: ``y = factor · base^(… − top)``."""
    body = [f"tops = splat(top, {lanes})", f"factors = splat(factor, {lanes})"]
    load = "y" if algorithm == "three_pass_reload" else "x"
    store = "store_past_cache" if stream else "store"
    body += _pass(([], "", _SCALE[algorithm]), lanes, unroll, load, store)
    return compile_function(
        function_source("scale", "x, y, i0, i1, top, factor", body), "scale", **CONSTANTS
    )


_SWEEP = """
def sweep(x, y, sums, tops, c, block, blocks, first, last, step, b0, b1, reducing, scaling):
    for row in range(first, last, step):
        p0 = row * blocks
        if reducing:
            for b in range(b0, b1):
                i0, i1 = row * c + b * block, row * c + min(b * block + block, c)
                sums[p0 + b], tops[p0 + b] = reduce(x, y, i0, i1)
        if scaling:
            top, total = tops[p0], sums[p0]
            for p in range(p0 + 1, p0 + blocks):
                h = max(top, tops[p])
                total = total * POWER(top - h) + sums[p] * POWER(tops[p] - h)
                top = h
            for b in range(b0, b1):
                i0, i1 = row * c + b * block, row * c + min(b * block + block, c)
                scale(x, y, i0, i1, top, FACTOR / total)
"""


@lru_cache(maxsize=512)
def _sweep(algorithm: str, lanes: int, unroll: int, unroll_scale: int, stream: bool) -> Any:
    """Compile both phases for a range of rows and of blocks."""
    power = "np.exp2" if algorithm == "two_pass" else "np.exp"
    # stored exponentials are relative to the maximum of their block
    factor = "np.exp(tops[p0 + b] - top)" if algorithm == "three_pass_reload" else "np.float32(1)"
    return compile_function(
        _SWEEP.replace("POWER", power).replace("FACTOR", factor),
        "sweep",
        np=np,
        reduce=_reduce(algorithm, lanes, unroll),
        scale=_scale(algorithm, lanes, unroll_scale, stream),
    )
