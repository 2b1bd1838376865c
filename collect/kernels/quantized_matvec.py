"""Quantized matrix × vector on the CPU: the decode step of a language model, ``y = W @ x``.

One token reads every weight once, so time is bytes: halving the bits of a weight nearly halves the
time, as long as unpacking stays cheaper than the memory traffic it saves. Weights are quantized in
groups along a row that share one scale, as in llama.cpp's Q8_0 and Q4_0 formats.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from foretune.collect.numba_source import compiled, define
from foretune.collect.threads import in_parallel, split, thread_counts
from foretune.kernel import Cost, Inputs, Kernel, Launch, Quantity, spread_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

BYTES_PER_WEIGHT = {"fp32": 4.0, "int8": 1.0, "int4": 0.5}
PACKED = {"fp32": np.float32, "int8": np.int8, "int4": np.uint8}
SIZES_N = (256, 500, 1024, 2048, 3072, 4096)
SIZES_K = (512, 1000, 2048, 4096, 5504, 11008)


class QuantizedMatvec(Kernel):
    """``y[N] = W[N, K] @ x[K]`` with W stored in a format of choice.

    Knobs: storage of a weight (``format``), weights that share a scale (``group``), rows summed at
    a time (``rows``), vector width (``vector_bits``), independent sums of a row (``unroll``), how
    far ahead weights are asked for in bytes (``prefetch``), whether the rows of a block lie one
    after the other or interleaved group by group (``layout``), threads, and how they share the
    blocks of rows (``split``).
    """

    name = "quantized_matvec"
    problem_parameters = (
        ProblemParameter("N", maximum=1048576, meaning="rows of W"),
        ProblemParameter("K", maximum=1048576, meaning="columns of W"),
        ProblemParameter(
            "max_error", 0.1, minimum=1e-6, maximum=1.0, meaning="largest relative error of y"
        ),
    )

    def space(self, problem: Problem) -> SearchSpace:
        """Return format, register-block, layout and threading choices."""
        return _space(thread_counts())

    def default(self, problem: Problem) -> Configuration:
        """Return unquantized weights, AVX2 vectors, all cores."""
        threads = thread_counts()[-1]
        return Configuration(
            format="fp32", group=32, rows=4, vector_bits=256, unroll=2, prefetch=0, layout="rows",
            threads=threads, split="blocks",
        )  # fmt: skip

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return W and x, standard normal."""
        rng = np.random.default_rng(seed)
        n, k = int(problem["N"]), int(problem["K"])
        return {
            "w": rng.standard_normal((n, k), dtype=np.float32),
            "x": rng.standard_normal(k, dtype=np.float32),
        }

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Quantize and pack W; return a call that multiplies and returns y."""
        w, x = inputs["w"], inputs["x"]
        n, k = w.shape
        format_, rows, threads = str(config["format"]), int(config["rows"]), int(config["threads"])
        lanes, unroll = int(config["vector_bits"]) // 32, int(config["unroll"])
        group = int(config["group"]) if format_ != "fp32" else lanes * unroll
        groups, blocks = -(-k // group), -(-n // rows)
        packed = np.zeros((blocks * rows, groups * group), dtype=np.float32)
        chunk = group * np.dtype(PACKED[format_]).itemsize // (2 if format_ == "int4" else 1)
        sweep = _sweep(format_, rows, lanes, unroll, group, int(config["prefetch"]))
        return packed, chunk, sweep, threads, in_parallel, split
