"""Direct convolution on the CPU: NHWC, stride 1, no padding, one image.

For one row of the filter, the inputs of neighbouring pixels are overlapping runs of the same image
row, ``C`` apart, and the taps and channels of each run are contiguous. So a tile of pixels ×
filters is a small matrix product that reads the image in place: no im2col copy (Zhang, Franchetti
and Low, High Performance Zero-Memory Overhead Direct Convolutions, ICML 2018).
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
from foretune.errors import ProblemError
from foretune.family import Cost, Quantity
from foretune.kernel import Inputs, Kernel, Launch, latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace

SIZES = {
    "H": (14, 20, 28, 40, 56, 80),
    "W": (14, 20, 28, 37, 40, 56, 80),
    "C": (3, 16, 32, 50, 64, 96),
    "F": (16, 24, 32, 50, 64, 96),
    "R": (1, 3, 5),
}


class Conv2d(Kernel):
    """``out[h, w, f] = Σ x[h + r, w + s, c] · weights[r, s, c, f]`` in single precision.

    Knobs: register tile in pixels along a row (``tile_w``) and vectors of filters (``tile_f`` ×
    ``vector_bits``), unrolling of the sum over channels (``unroll_c``), how many taps × channels
    of a filter row are summed per visit to a tile (``block_c``; 0: all, so a tile is visited
    once), rows of the output per block (``block_h``), the order of the loops over blocks of rows,
    panels of filters and channels (``order``, outermost first), threads, and whether they share
    rows or filters (``split``).
    """

    name = "conv2d"
    problem_parameters = (
        ProblemParameter("H", maximum=65536, meaning="rows of the image"),
        ProblemParameter("W", maximum=65536, meaning="pixels of a row"),
        ProblemParameter("C", maximum=65536, meaning="channels of the image"),
        ProblemParameter("F", maximum=65536, meaning="filters: channels of the output"),
        ProblemParameter("R", 3, choices=(1, 3, 5), meaning="rows and columns of a filter"),
    )
    tolerance = 1e-5

    def space(self, problem: Problem) -> SearchSpace:
        """Return register-tile, block, order and threading choices."""
        return _space(thread_counts())

    def default(self, problem: Problem) -> Configuration:
        """Return AVX2-sized register tiles, whole sums, all cores."""
        return Configuration(
            tile_w=4,
            tile_f=2,
            vector_bits=256,
            unroll_c=1,
            block_c=0,
            block_h=4,
            order="hfc",
            threads=thread_counts()[-1],
            split="rows",
        )

    def problem(self, values: Mapping[str, Any] = {}, /, **named: Any) -> Problem:
        """Return a complete, checked problem whose filter fits into the image."""
        problem = super().problem(values, **named)
        h, w, r = (int(problem[p]) for p in "HWR")
        if min(h, w) < r:
            raise ProblemError(f"a filter of {r}×{r} does not fit into an image of {h}×{w}")
        return problem

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return image and weights, standard normal."""
        rng = np.random.default_rng(seed)
        h, w, c, f, r = (int(problem[p]) for p in "HWCFR")
        return {
            "x": rng.standard_normal((h, w, c), dtype=np.float32),
            "weights": rng.standard_normal((r, r, c, f), dtype=np.float32),
        }

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Pack the weights, untimed; return a call that convolves and returns the output."""
        x, weights = inputs["x"], inputs["weights"]
        (h, w, c), (r, f) = x.shape, weights.shape[1:4:2]
        rows, pixels, run = h - r + 1, w - r + 1, r * c
        panel = int(config["tile_f"]) * int(config["vector_bits"]) // 32
        panels = -(-f // panel)
        padded = np.zeros((r * run, panels * panel), dtype=np.float32)
        padded[:, :f] = weights.reshape(r * run, f)
        packed = padded.reshape(r * run, panels, panel).transpose(1, 0, 2).ravel()
        sweep = _sweep(
            int(config["tile_w"]),
            int(config["tile_f"]),
            int(config["vector_bits"]) // 32,
            int(config["unroll_c"]),
            str(config["order"]),
        )
        sizes = (r, run, w * c, c, f, pixels)
        blocks = (int(config["block_h"]), int(config["block_c"]) or run)
        by_rows, threads = config["split"] == "rows", int(config["threads"])
        ranges = split_range(rows if by_rows else panels, threads)
        out = np.empty((rows, pixels, f), dtype=np.float32)
        fx, fout = x.ravel(), out.ravel()

        def convolve(first: int, last: int) -> None:
            bounds = (first, last, 0, panels) if by_rows else (0, rows, first, last)
            sweep(fx, packed, fout, *sizes, *bounds, *blocks)

        def launch() -> Any:
            run_parallel(convolve, ranges)
            return out

        launch()  # compiles for these types
        return launch

    def reference(self, inputs: Inputs) -> Any:
        """Return the convolution in double precision, tap by tap."""
        x, weights = (inputs[name].astype(np.float64) for name in ("x", "weights"))
        r = len(weights)
        rows, pixels = x.shape[0] - r + 1, x.shape[1] - r + 1
        taps = ((i, j) for i in range(r) for j in range(r))
        return sum(x[i : i + rows, j : j + pixels] @ weights[i, j] for i, j in taps)

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return a copy to overlapping patches and one BLAS product."""
        x, weights = inputs["x"], inputs["weights"]
        r, _, c, f = weights.shape
        flat = weights.reshape(r * r * c, f)

        def launch() -> Any:
            patches = np.lib.stride_tricks.sliding_window_view(x, (r, r), axis=(0, 1))
            rows, pixels = patches.shape[:2]
            columns = patches.transpose(0, 1, 3, 4, 2).reshape(rows * pixels, r * r * c)
            return (columns @ flat).reshape(rows, pixels, f)

        return "NumPy im2col + BLAS", launch

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return two operations per tap, channel, filter and pixel; each array moved once."""
        outputs, taps = _outputs(problem), 1.0 * problem["R"] * problem["R"] * problem["C"]
        image = 1.0 * problem["H"] * problem["W"] * problem["C"]
        return Cost(
            flops=2.0 * outputs * taps,
            bytes_moved=4.0 * (image + taps * problem["F"] + outputs),
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the register tile, the blocks' sizes, edges, and how threads share work."""
        f, run = 1.0 * problem["F"], 1.0 * problem["R"] * problem["C"]
        rows, pixels = problem["H"] - problem["R"] + 1.0, problem["W"] - problem["R"] + 1.0
        panel = config["tile_f"] * config["vector_bits"] / 32.0
        panels = np.ceil(f / panel)
        depth = np.where(np.equal(config["block_c"], 0), run, np.minimum(config["block_c"], run))
        block_h = np.minimum(config["block_h"], rows)
        units = np.where(np.equal(config["split"], "rows"), rows, panels)
        return {
            "registers": config["tile_w"] * config["tile_f"] * 1.0,
            "loads_per_fma": 1.0 / config["tile_w"] + 1.0 / config["tile_f"],
            "panel_filters": panel,
            "panel_bytes": 4.0 * problem["R"] * depth * panel,
            "block_x_bytes": 4.0 * (block_h + problem["R"] - 1.0) * problem["W"] * problem["C"],
            "block_out_bytes": 4.0 * block_h * pixels * np.minimum(panel, f),
            "visits": np.ceil(run / depth),
            "fmas_per_visit": problem["R"] * depth,
            "padded_filters": panels * panel / f,
            "edge_pixels": (pixels % config["tile_w"]) / pixels,
            "imbalance": np.ceil(units / config["threads"]) * config["threads"] / units,
            "work_per_thread": _outputs(problem) * run * problem["R"] / config["threads"],
        }

    def memory_bytes(self, problem: Problem) -> float:
        """Return the size of the arrays and of the library call's patches."""
        h, w, c, r = (float(problem[p]) for p in "HWCR")
        return super().memory_bytes(problem) + 4.0 * h * w * c * r * r

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return images of 14 to 80 pixels with up to 96 channels, odd numbers included."""
        return latin_hypercube_problems(self, SIZES, n, seed)


def _outputs(problem: Mapping[str, Any]) -> Any:
    rows, pixels = problem["H"] - problem["R"] + 1.0, problem["W"] - problem["R"] + 1.0
    return rows * pixels * problem["F"]


@lru_cache
def _space(threads: tuple[int, ...]) -> SearchSpace:
    return SearchSpace(
        {
            "tile_w": (1, 2, 3, 4, 6, 8, 12),
            "tile_f": (1, 2, 3, 4),
            "vector_bits": (128, 256, 512),
            "unroll_c": (1, 2, 4),
            "block_c": (0, 32, 64, 128, 256),
            "block_h": (1, 4, 16),
            "order": tuple("".join(p) for p in permutations("hfc")),
            "threads": threads,
            "split": ("rows", "filters"),
        },
        [
            "tile_w * tile_f * unroll_c <= 32",  # registers; large tiles need no unrolling
            "threads > 1 or split == 'rows'",  # the same program otherwise
        ],
    )


@lru_cache(maxsize=512)
def _micro(pixels: int, vectors: int, lanes: int, unroll: int) -> Any:
    """Compile the register tile: ``out[pixels, vectors*lanes] += x[…] @ weights[…]``.

    Sums ``depth`` taps × channels in each of ``r`` filter rows. The first ``had`` filters are read
    from ``out`` and the others start at zero; the first ``count`` are written back.
    """
    tile = [(i, v) for i in range(pixels) for v in range(vectors)]
    panel = vectors * lanes
    step = [
        f"b{v} = load(weights, wr + k * {panel} + {v * lanes}, {lanes})" for v in range(vectors)
    ]
    for i in range(pixels):
        step.append(f"v = splat(x[xr + {i} * c + k], {lanes})")
        step += [f"s{i}_{v} = fma(v, b{v}, s{i}_{v})" for v in range(vectors)]
    at = "out, o0 + {0} * f + {1}".format
    body = [
        f"s{i}_{v} = load_first({at(i, v * lanes)}, had - {v * lanes}, {lanes})" for i, v in tile
    ]
    body += ["for row in range(r):"]
    body += [f"    xr, wr = x0 + row * x_row, w0 + row * run * {panel}"]
    body += [f"    for ku in range(depth // {unroll}):"]
    for u in range(unroll):
        body += [f"        {line}" for line in [f"k = ku * {unroll} + {u}", *step]]
    if unroll > 1:
        body += [f"    for k in range(depth // {unroll} * {unroll}, depth):"]
        body += [f"        {line}" for line in step]
    body += [f"if count >= {panel}:"]
    body += [f"    store({at(i, v * lanes)}, s{i}_{v})" for i, v in tile]
    body += ["else:"]
    body += [f"    store_first({at(i, v * lanes)}, s{i}_{v}, count - {v * lanes})" for i, v in tile]
    arguments = "x, x0, x_row, c, weights, w0, run, r, depth, out, o0, f, had, count"
    return compile_function(function_source("micro", arguments, body), "micro")


@lru_cache(maxsize=512)
def _sweep(tile_w: int, tile_f: int, lanes: int, unroll: int, order: str) -> Any:
    """Compile the loops over blocks around the register tile, for a range of rows and panels."""
    panel = tile_f * lanes
    loops = {
        "h": "for hb in range(h0, h1, block_h):",
        "f": "for p in range(p0, p1):",
        "c": "for kb in range(0, run, block_c):",
    }
    rest = f"c, weights, (p * r * run + kb) * {panel}, run, r, min(block_c, run - kb), out"
    call = f"(x, h * x_row + w * c + kb, x_row, {rest}, (h * pixels + w) * f + f0, f, had, count)"
    block = [
        f"f0 = p * {panel}",
        f"count = min(f - f0, {panel})",
        "had = count if kb > 0 else 0",
        "for h in range(hb, min(hb + block_h, h1)):",
        f"    full = pixels // {tile_w} * {tile_w}",
        f"    for w in range(0, full, {tile_w}):",
        f"        tile{call}",
        "    for w in range(full, pixels):",
        f"        pixel{call}",
    ]
    body = ["    " * depth + loops[axis] for depth, axis in enumerate(order)]
    body += ["    " * 3 + line for line in block]
    arguments = "x, weights, out, r, run, x_row, c, f, pixels, h0, h1, p0, p1, block_h, block_c"
    return compile_function(
        function_source("sweep", arguments, body),
        "sweep",
        tile=_micro(tile_w, tile_f, lanes, unroll),
        pixel=_micro(1, tile_f, lanes, unroll),
    )
