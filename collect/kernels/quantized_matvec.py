"""Quantized matrix × vector on the CPU: the decode step of a language model, ``y = W @ x``.

One token reads every weight once, so time is bytes: halving the bits of a weight nearly halves the
time, as long as unpacking stays cheaper than the memory traffic it saves. Weights are quantized in
groups along a row that share one scale, as in llama.cpp's Q8_0 and Q4_0 formats.
"""

from collections.abc import Mapping
from functools import lru_cache
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

PACKED = {"fp32": np.float32, "int8": np.int8, "int4": np.uint8}
ROWS = (128, 256, 384, 500, 768, 1000, 1024, 1536, 2048, 3000, 3072, 4096, 8192)
COLUMNS = (512, 768, 1000, 1024, 1536, 2048, 3000, 4096, 5504, 8192, 11008)
WEIGHTS = (500_000, 24_000_000)
"""Fewest and most weights of a training problem: 2 to 96 MB unquantized."""


ROUNDING = {"fp32": 1e-5, "int8": 0.02, "int4": 0.15}
"""Largest relative error of a correct kernel by format, whatever the problem accepts."""


class QuantizedMatvec(Kernel):
    """``y[N] = W[N, K] @ x[K]`` with W stored in a format of choice.

    Knobs: storage of a weight (``format``), weights that share a scale (``group``), rows summed at
    a time (``rows``), vector width (``vector_bits``), independent sums of a row (``unroll``),
    prefetch distance in bytes (``prefetch``), whether the rows of a block are stored one after the
    other or interleaved group by group (``layout``), threads, and how they share the blocks of
    rows (``split``).
    """

    name = "quantized_matvec"
    problem_parameters = (
        ProblemParameter("N", maximum=1048576, meaning="rows of W"),
        ProblemParameter("K", maximum=1048576, meaning="columns of W"),
        ProblemParameter(
            "max_error", 0.1, minimum=1e-4, maximum=1.0, meaning="largest relative error of y"
        ),
    )

    def space(self, problem: Problem) -> SearchSpace:
        """Return format, register-block, layout and threading choices."""
        return _space(thread_counts())

    def default(self, problem: Problem) -> Configuration:
        """Return unquantized weights, AVX2 vectors, all cores."""
        threads = thread_counts()[-1]
        return Configuration(
            format="fp32",
            group=32,
            rows=4,
            vector_bits=256,
            unroll=2,
            prefetch=0,
            layout="rows",
            threads=threads,
            split="blocks",
        )

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return W and x, standard normal."""
        rng = np.random.default_rng(seed)
        n, k = int(problem["N"]), int(problem["K"])
        return {
            "w": rng.standard_normal((n, k), dtype=np.float32),
            "x": rng.standard_normal(k, dtype=np.float32),
        }

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Quantize and pack W, untimed; return a call that multiplies and returns y."""
        w, x = inputs["w"], inputs["x"]
        n, k = w.shape
        format_, rows, threads = str(config["format"]), int(config["rows"]), int(config["threads"])
        lanes, unroll = int(config["vector_bits"]) // 32, int(config["unroll"])
        group = lanes * unroll if format_ == "fp32" else int(config["group"])
        groups, blocks = -(-k // group), -(-n // rows)
        chunk = group // 2 if format_ == "int4" else group
        panels = config["layout"] == "panels"
        strides = (chunk, rows * chunk, 1, rows) if panels else (groups * chunk, chunk, groups, 1)
        scales = np.zeros(blocks * rows * groups, dtype=np.float32)
        packed = np.zeros(blocks * rows * groups * chunk, dtype=PACKED[format_])
        pack, shape = _pack(format_), (rows, group, chunk, groups)
        run_parallel(
            lambda *bounds: pack(w, scales, packed, *shape, *strides, *bounds),
            split_range(n, thread_counts()[-1]),
        )
        sweep = _sweep(format_, rows, lanes, unroll, group, int(config["prefetch"]))
        correct = compile_function(_CORRECT, "correct")
        padded = np.zeros(groups * group, dtype=np.float32)
        corrections = np.zeros(groups * lanes, dtype=np.float32)
        y = np.empty(blocks * rows, dtype=np.float32)
        interleaved = config["split"] == "interleaved"
        ranges = (
            [(t, blocks) for t in range(threads)] if interleaved else split_range(blocks, threads)
        )
        step = threads if interleaved else 1

        def multiply(first: int, last: int) -> None:
            sweep(packed, scales, padded, corrections, y, groups, *strides, first, last, step)

        def launch() -> Any:
            padded[:k] = x
            if format_ == "int4":
                correct(padded, corrections, group, lanes)
            run_parallel(multiply, ranges)
            return y[:n]

        launch()  # compiles for these types
        return launch

    def reference(self, inputs: Inputs) -> Any:
        """Return the product with the unquantized weights in double precision."""
        w, x = inputs["w"], inputs["x"].astype(np.float64)
        slices = range(0, len(w), 256)  # a copy of all of W in double precision might not fit
        return np.concatenate([w[i : i + 256].astype(np.float64) @ x for i in slices])

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return NumPy's BLAS in single precision."""
        w, x = inputs["w"], inputs["x"]
        y = np.empty(len(w), dtype=np.float32)
        return "NumPy BLAS", lambda: np.matmul(w, x, out=y)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·N·K operations, and the bytes of weights, scales and vectors."""
        n, k = 1.0 * problem["N"], 1.0 * problem["K"]
        return Cost(
            flops=2.0 * n * k,
            bytes_moved=n * k * _bytes_per_weight(config) + 4.0 * (n + k),
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the size of the packed weights, the register block, and how threads share rows."""
        n, k = 1.0 * problem["N"], 1.0 * problem["K"]
        floats = np.equal(config["format"], "fp32")
        lanes = config["vector_bits"] / 32.0
        group = np.where(floats, lanes * config["unroll"], config["group"])
        blocks = np.ceil(n / config["rows"])
        per_thread = np.ceil(blocks / config["threads"])
        return {
            "bytes_per_weight": _bytes_per_weight(config),
            "weight_bytes": n * k * _bytes_per_weight(config),
            "weight_bytes_per_thread": n * k * _bytes_per_weight(config) / config["threads"],
            "registers": config["rows"] * (config["unroll"] + np.where(floats, 0.0, 1.0)),
            "sums": config["rows"] * config["unroll"] * lanes,
            "vectors_per_group": group / lanes,
            "unpacking": np.where(np.equal(config["format"], "int4"), 2.0, np.where(floats, 0, 1)),
            "padding": np.ceil(k / group) * group / k * blocks * config["rows"] / n,
            "imbalance": per_thread * config["threads"] / blocks,
            "blocks_per_thread": per_thread,
        }

    def memory_bytes(self, problem: Problem) -> float:
        """Return the size of W and of a packed copy of the same size."""
        return 2.2 * 4.0 * float(problem["N"]) * float(problem["K"])

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return the problem's limit, capped at the rounding error of the format."""
        return min(float(problem["max_error"]), ROUNDING[str(config["format"])])

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return matrices of 2 to 96 MB unquantized, within and beyond most last-level caches.

        Every fourth has an error limit that int4 misses, so the table has its failures, too.
        """
        low, high = WEIGHTS
        shapes = [(r, c) for r in ROWS for c in COLUMNS if low <= r * c <= high]
        chosen = [shapes[i] for i in np.random.default_rng(seed).permutation(len(shapes))[:n]]
        limits = (0.1, 0.1, 0.1, 0.02)
        return [self.problem(N=r, K=c, max_error=limits[i % 4]) for i, (r, c) in enumerate(chosen)]


def _bytes_per_weight(config: Mapping[str, Any]) -> Quantity:
    floats, halves = np.equal(config["format"], "fp32"), np.equal(config["format"], "int4")
    scales = np.where(floats, 0.0, 4.0 / config["group"])
    return np.where(floats, 4.0, np.where(halves, 0.5, 1.0)) + scales


@lru_cache
def _space(threads: tuple[int, ...]) -> SearchSpace:
    return SearchSpace(
        {
            "format": tuple(PACKED),
            "group": (32, 64, 128, 256),
            "rows": (1, 2, 3, 4, 6, 8),
            "vector_bits": (128, 256, 512),
            "unroll": (1, 2, 4),
            "prefetch": (0, 256, 1024, 4096),
            "layout": ("rows", "panels"),
            "threads": threads,
            "split": ("blocks", "interleaved"),
        },
        [
            "format != 'fp32' or group == 32",  # no scales, no groups
            "rows * unroll <= 16",
            "format != 'int8' or unroll * vector_bits / 32 <= group",
            "format != 'int4' or unroll * vector_bits / 32 <= group / 2",
            "threads > 1 or split == 'blocks'",  # otherwise the program is the same
        ],
    )


_PACK = """
def pack(w, scales, packed, rows, group, chunk, groups, row_at, group_at, row_s, group_s, i0, i1):
    for i in range(i0, i1):
        block, r = i // rows, i % rows
        for g in range(groups):
            start, stop = g * group, min((g + 1) * group, w.shape[1])
            most = np.float32(0)
            for j in range(start, stop):
                if abs(w[i, j]) > abs(most):
                    most = w[i, j]
            inverse = -LEVELS / most if most != 0 else np.float32(0)
            scales[block * rows * groups + r * row_s + g * group_s] = most / -LEVELS
            at = block * rows * groups * chunk + r * row_at + g * group_at
            for j in range(stop - start):
                v = w[i, start + j]
                q = min(max(np.rint(v * inverse), -LEVELS), LEVELS - 1)
                STORE
"""
_STORE = {
    "fp32": "packed[at + j] = v",
    "int8": "packed[at + j] = np.int8(q)",
    "int4": "packed[at + j % chunk] |= np.uint8(q + 8) << (4 if j >= chunk else 0)",
}


@lru_cache
def _pack(format_: str) -> Any:
    """Compile quantization: the value of largest magnitude in a group becomes the lowest level."""
    levels = np.float32({"fp32": 1, "int8": 128, "int4": 8}[format_])
    return compile_function(_PACK.replace("STORE", _STORE[format_]), "pack", LEVELS=levels, np=np)


_CORRECT = """
def correct(x, corrections, group, lanes):
    corrections[:] = 0
    for i in range(x.size):
        corrections[i // group * lanes + i % lanes] -= 8 * x[i]
"""

_STEP = {
    "fp32": ["{sum} = fma(load({at}), x0, {sum})"],
    "int8": ["{sum} = fma(to_float(load_bytes({at})), x0, {sum})"],
    "int4": [
        "q = load_bytes({at})",
        "{sum} = fma(to_float(low_nibble(q)), x0, {sum})",
        "{sum} = fma(to_float(high_nibble(q)), x1, {sum})",
    ],
}


@lru_cache(maxsize=512)
def _sweep(format_: str, rows: int, lanes: int, unroll: int, group: int, prefetch: int) -> Any:
    """Compile the product of blocks of rows.

    Nibbles are stored as weight + 8. Subtracting the 8 costs nothing per weight: the sums of a
    group start at −8 · Σx, which all rows share (`_CORRECT`).
    """
    floats, nibbles = format_ == "fp32", format_ == "int4"
    chunk, width = group // 2 if nibbles else group, lanes * unroll
    zero = f"splat(ZERO, {lanes})"
    first = f"load(corrections, g * {lanes}, {lanes})" if nibbles else zero
    clear = [f"a{r}_{u} = {zero if u else first}" for r in range(rows) for u in range(unroll)]
    add = [f"a{r}_0 = add(a{r}_0, a{r}_{u})" for r in range(rows) for u in range(1, unroll)]
    step = [f"at = w0 + g * group_at + j * {width}", f"xj = g * {group} + j * {width}"]
    if prefetch:
        ahead = prefetch // np.dtype(PACKED[format_]).itemsize
        step += [f"prefetch(w, at + {r} * row_at + {ahead})" for r in range(rows)]
    for u in range(unroll):
        step += [
            f"x{h} = load(x, xj + {h * chunk + u * lanes}, {lanes})" for h in range(1 + nibbles)
        ]
        for r in range(rows):
            at = f"w, at + {r} * row_at + {u * lanes}, {lanes}"
            step += [line.format(sum=f"a{r}_{u}", at=at) for line in _STEP[format_]]
    steps = [f"for j in range({chunk // width}):", *_indented(step)]
    if floats:
        block = [*clear, "for g in range(groups):", *_indented(steps), *add]
    else:
        scale = [
            f"t{r} = fma(splat(scales[s0 + {r} * row_s + g * group_s], {lanes}), a{r}_0, t{r})"
            for r in range(rows)
        ]
        block = [f"t{r} = {zero}" for r in range(rows)]
        block += ["for g in range(groups):", *_indented([*clear, *steps, *add, *scale])]
    sums = (f"a{r}_0" if floats else f"t{r}" for r in range(rows))
    block += [f"y[block * {rows} + {r}] = total({name})" for r, name in enumerate(sums)]
    start = [f"s0 = block * {rows} * groups", f"w0 = s0 * {chunk}"]
    source = function_source(
        "sweep",
        "w, scales, x, corrections, y, groups, row_at, group_at, row_s, group_s, first, last, step",
        ["for block in range(first, last, step):", *_indented([*start, *block])],
    )
    return compile_function(source, "sweep", ZERO=np.float32(0))


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
