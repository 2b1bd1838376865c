"""Dense matrix product on the CPU: ``C = A @ B``, blocked, register-tiled and vectorized.

The structure is that of BLIS (Van Zee and van de Geijn, ACM TOMS 41(3), 2015): three loops over
blocks sized for the caches around a micro-kernel that keeps ``micro_m × micro_n`` vectors of C in
registers. Every one of those choices is a tunable parameter.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import permutations
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
from foretune.kernel import Inputs, Kernel, Launch, latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

DTYPES = {"fp32": np.float32, "fp64": np.float64}
EDGE_ROWS = 6  # enough independent sums to hide the FMA latency, few enough for any register file
SIZES = (32, 64, 96, 128, 192, 256, 320, 384, 500, 512, 640, 768, 1000, 1024)


class Matmul(Kernel):
    """``C[M, N] = A[M, K] @ B[K, N]``, all in C order.

    Knobs: cache blocks (``block_*``), register tile in rows (``micro_m``) and vectors
    (``micro_n`` × ``vector_bits``), unrolling of the reduction (``unroll_k``), the order of the
    three block loops (``order``, outermost first), whether B is first copied into panels the
    micro-kernel reads contiguously (``pack_b``), threads, and which dimension they share
    (``split``).
    """

    name = "matmul"
    problem_parameters = (
        ProblemParameter("M", maximum=65536, meaning="rows of A and C"),
        ProblemParameter("N", maximum=65536, meaning="columns of B and C"),
        ProblemParameter("K", maximum=65536, meaning="columns of A, rows of B"),
        ProblemParameter("dtype", "fp32", choices=tuple(DTYPES), meaning="of A, B and C"),
    )
    tolerance = 1e-5

    def space(self, problem: Problem) -> SearchSpace:
        """Return block, register-tile, order, packing and threading choices."""
        return _space(thread_counts())

    def default(self, problem: Problem) -> Configuration:
        """Return AVX2-sized register tiles, blocks for a 256 KiB cache, all cores."""
        return Configuration(
            block_m=96,
            block_n=256,
            block_k=256,
            micro_m=4,
            micro_n=2,
            vector_bits=256,
            unroll_k=1,
            order="mnk",
            pack_b=False,
            threads=thread_counts()[-1],
            split="m",
        )

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return A and B, standard normal."""
        rng = np.random.default_rng(seed)
        m, n, k = (int(problem[p]) for p in ("M", "N", "K"))
        dtype = DTYPES[str(problem["dtype"])]
        return {
            "a": rng.standard_normal((m, k)).astype(dtype),
            "b": rng.standard_normal((k, n)).astype(dtype),
        }

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Return a call that packs (if configured), multiplies, and returns C."""
        a, b = inputs["a"], inputs["b"]
        (m, k), n = a.shape, b.shape[1]
        lanes = int(config["vector_bits"]) // (8 * a.itemsize)
        panel = int(config["micro_n"]) * lanes
        packed = bool(config["pack_b"])
        blocks = tuple(int(config[p]) for p in ("block_m", "block_n", "block_k"))
        sweep = _sweep(
            int(config["micro_m"]),
            int(config["micro_n"]),
            lanes,
            int(config["unroll_k"]),
            str(config["order"]),
            packed,
        )
        pack = compile_function(_PACK, "pack")
        by_rows, threads = config["split"] == "m", int(config["threads"])
        ranges = (
            split_range(m, threads, int(config["micro_m"]))
            if by_rows
            else split_range(n, threads, panel)
        )
        panels = n // panel
        panel_ranges = split_range(panels, threads)
        c = np.empty((m, n), dtype=a.dtype)
        bp = np.empty(panels * k * panel if packed else 0, dtype=a.dtype)
        fa, fb, fc = a.ravel(), b.ravel(), c.ravel()

        def multiply(start: int, stop: int) -> None:
            bounds = (start, stop, 0, n) if by_rows else (0, m, start, stop)
            sweep(fa, fb, bp, fc, n, k, *bounds, *blocks)

        def pack_panels(start: int, stop: int) -> None:
            pack(fb, bp, n, k, panel, start, stop)

        def launch() -> Any:
            if packed and panels:
                run_parallel(pack_panels, panel_ranges)
            run_parallel(multiply, ranges)
            return c

        launch()  # compiles for these types
        return launch

    def reference(self, inputs: Inputs) -> Any:
        """Return the product in double precision."""
        return inputs["a"].astype(np.float64) @ inputs["b"].astype(np.float64)

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return NumPy's BLAS."""
        a, b = inputs["a"], inputs["b"]
        out = np.empty((a.shape[0], b.shape[1]), dtype=a.dtype)
        return "NumPy BLAS", lambda: np.matmul(a, b, out=out)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·M·N·K operations and each matrix moved once."""
        m, n, k = problem["M"], problem["N"], problem["K"]
        itemsize = np.where(np.equal(problem["dtype"], "fp64"), 8.0, 4.0)
        return Cost(
            flops=2.0 * m * n * k,
            bytes_moved=itemsize * (1.0 * m * k + 1.0 * k * n + 1.0 * m * n),
            dtype=problem["dtype"],
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the register tile, the cache blocks' sizes, edges, and how threads share work."""
        m, n, k = problem["M"], problem["N"], problem["K"]
        itemsize = np.where(np.equal(problem["dtype"], "fp64"), 8.0, 4.0)
        panel = config["micro_n"] * config["vector_bits"] / (8.0 * itemsize)
        by_rows = np.equal(config["split"], "m")
        units = np.where(by_rows, np.ceil(m / config["micro_m"]), np.ceil(n / panel))
        share = np.ceil(units / config["threads"]) * config["threads"] / units
        return {
            "registers": config["micro_m"] * config["micro_n"] * 1.0,
            "loads_per_fma": 1.0 / config["micro_m"] + 1.0 / config["micro_n"],
            "panel_columns": panel,
            "panel_bytes": np.minimum(config["block_k"], k) * panel * itemsize,
            "block_b_bytes": np.minimum(config["block_k"], k)
            * np.minimum(config["block_n"], n)
            * itemsize,
            "block_a_bytes": np.minimum(config["block_k"], k)
            * np.minimum(config["block_m"], m)
            * itemsize,
            "edge_columns": (n % panel) / n,
            "edge_rows": (m % config["micro_m"]) / m,
            "k_blocks": np.ceil(k / config["block_k"]),
            "imbalance": share,
            "work_per_thread": m * n * k / config["threads"],
        }

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return sizes from 32 to 1024, odd ones included, in single precision."""
        return latin_hypercube_problems(self, dict.fromkeys("MNK", SIZES), n, seed)


@lru_cache
def _space(threads: tuple[int, ...]) -> SearchSpace:
    return SearchSpace(
        {
            "block_m": (16, 48, 96, 192, 384),
            "block_n": (64, 128, 256, 512, 1024),
            "block_k": (64, 128, 256, 512),
            "micro_m": (1, 2, 4, 6, 8, 12),
            "micro_n": (1, 2, 3, 4),
            "vector_bits": (128, 256, 512),
            "unroll_k": (1, 2, 4),
            "order": tuple("".join(p) for p in permutations("mnk")),
            "pack_b": (False, True),
            "threads": threads,
            "split": ("m", "n"),
        },
        [
            "block_m % micro_m == 0",
            "micro_m * micro_n <= 32",  # the size of the largest register file
            "threads > 1 or split == 'm'",  # otherwise the program is the same
        ],
    )


_PACK = """
def pack(b, bp, n, k, panel, first, last):
    for p in range(first, last):
        for kk in range(k):
            for j in range(panel):
                bp[(p * k + kk) * panel + j] = b[kk * n + p * panel + j]
"""


@lru_cache(maxsize=512)
def _micro(rows: int, vectors: int, lanes: int, unroll: int, masked: bool = False) -> Any:
    """Compile the register tile: ``c[rows, vectors*lanes] += a[rows, depth] @ b[depth, …]``.

    The masked variant has one vector of columns and touches only its first ``count`` lanes.
    """
    tile = [(i, v) for i in range(rows) for v in range(vectors)]
    first, count = ("_first", ", count") if masked else ("", "")
    step = [
        f"w{v} = load{first}(b, b0 + kk * ldb + {v * lanes}{count}, {lanes})"
        for v in range(vectors)
    ]
    for i in range(rows):
        step.append(f"x = splat(a[a0 + {i} * lda + kk], {lanes})")
        step += [f"c{i}_{v} = fma(x, w{v}, c{i}_{v})" for v in range(vectors)]
    body = [
        f"c{i}_{v} = load{first}(c, c0 + {i} * ldc + {v * lanes}{count}, {lanes})" for i, v in tile
    ]
    body += [f"for ku in range(depth // {unroll}):"]
    for u in range(unroll):
        body += [f"    {line}" for line in [f"kk = ku * {unroll} + {u}", *step]]
    if unroll > 1:
        body += [f"for kk in range(depth // {unroll} * {unroll}, depth):"]
        body += [f"    {line}" for line in step]
    body += [f"store{first}(c, c0 + {i} * ldc + {v * lanes}, c{i}_{v}{count})" for i, v in tile]
    arguments = f"a, a0, lda, b, b0, ldb, c, c0, ldc, depth{count}"
    return compile_function(function_source("micro", arguments, body), "micro")


@lru_cache
def _edge(lanes: int) -> Any:
    """Compile the product of the columns that fill no panel, one partial vector at a time."""
    body = [
        f"for j in range(j0, j1, {lanes}):",
        f"    i_full = i0 + (i1 - i0) // {EDGE_ROWS} * {EDGE_ROWS}",
        f"    for i in range(i0, i_full, {EDGE_ROWS}):",
        "        tile(a, i * k + kb, k, b, kb * n + j, n, c, i * n + j, n, depth, j1 - j)",
        "    for i in range(i_full, i1):",
        "        row(a, i * k + kb, k, b, kb * n + j, n, c, i * n + j, n, depth, j1 - j)",
    ]
    tile, row = (_micro(rows, 1, lanes, 1, masked=True) for rows in (EDGE_ROWS, 1))
    source = function_source("edge", "a, b, c, n, k, i0, i1, j0, j1, kb, depth", body)
    return compile_function(source, "edge", tile=tile, row=row)


@lru_cache(maxsize=512)
def _sweep(micro_m: int, micro_n: int, lanes: int, unroll: int, order: str, packed: bool) -> Any:
    """Compile the loops over blocks around the micro-kernel, for one range of rows and columns."""
    panel = micro_n * lanes
    b_args = f"bp, (j // {panel} * k + kb) * {panel}, {panel}" if packed else "b, kb * n + j, n"
    body = ["for i in range(i0, i1):", "    c[i * n + j0 : i * n + j1] = 0.0"]
    loops = {
        "m": "for ib in range(i0, i1, block_m):",
        "n": f"for jb in range(j0, j1, block_n // {panel} * {panel} or {panel}):",
        "k": "for kb in range(0, k, block_k):",
    }
    body += ["    " * depth + loops[axis] for depth, axis in enumerate(order)]
    block = [
        "depth = min(block_k, k - kb)",
        "i_end = min(ib + block_m, i1)",
        f"j_end = min(jb + (block_n // {panel} * {panel} or {panel}), j1)",
        f"j_full = jb + (j_end - jb) // {panel} * {panel}",
        f"for j in range(jb, j_full, {panel}):",
        f"    i_full = ib + (i_end - ib) // {micro_m} * {micro_m}",
        f"    for i in range(ib, i_full, {micro_m}):",
        f"        micro(a, i * k + kb, k, {b_args}, c, i * n + j, n, depth)",
        "    for i in range(i_full, i_end):",
        f"        row(a, i * k + kb, k, {b_args}, c, i * n + j, n, depth)",
        "edge(a, b, c, n, k, ib, i_end, j_full, j_end, kb, depth)",
    ]
    body += ["    " * 3 + line for line in block]
    source = function_source(
        "sweep", "a, b, bp, c, n, k, i0, i1, j0, j1, block_m, block_n, block_k", body
    )
    return compile_function(
        source,
        "sweep",
        micro=_micro(micro_m, micro_n, lanes, unroll),
        row=_micro(1, micro_n, lanes, unroll),
        edge=_edge(lanes),
    )
