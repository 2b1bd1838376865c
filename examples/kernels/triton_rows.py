"""What Triton kernels that reduce and rescale the rows of a matrix share: knobs, limits, work.

A short row stays in registers between the reduction and the rescaling (``BLOCK`` is 0), so it is
read once. A long one is walked through in blocks of ``BLOCK`` columns, twice; the second walk goes
backwards, because the end of the row is what the caches still hold.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from foretune.collect.kernels.triton_gemm import Limits, device_limits
from foretune.collect.kernels.triton_kernel import (
    BITS,
    CACHE,
    TritonKernel,
    check_support,
    element_bytes,
)
from foretune.family import Cost, Quantity
from foretune.kernel import latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace
from foretune.values import Value

DTYPES = ("fp16", "bf16", "fp32")
TILE = 32_768
"""Most elements of a tile: half the registers of a multiprocessor, an element in each."""
TILE_PER_WARP = 4096
"""Half the 255 registers a thread may have."""
SCRATCH_BYTES = 4096
"""Of shared memory, for the reductions between warps."""

TRAINING = {
    "R": (1, 16, 64, 250, 512, 1024, 3000, 4096, 8192, 16384, 65536),
    "C": (64, 128, 500, 1024, 2048, 4096, 5120, 8192, 10000, 16384, 32000, 50257, 128256),
    "dtype": DTYPES,
}
MAX_ELEMENTS = 2**28


class RowKernel(TritonKernel):
    """A kernel on the rows of ``X[R, C]``.

    Knobs: rows of a tile (``ROWS``), columns of it (``BLOCK``; 0: the whole row, in registers),
    whether a row in blocks is reduced at each block or lane by lane and at its ``last`` block only
    (``REDUCE``), programs per multiprocessor that take rows in turn (``PROGRAMS``; 0: a program
    for each tile of rows), warps, and blocks or rows loaded ahead (``num_stages``).
    """

    problem_parameters: tuple[ProblemParameter, ...] = (
        ProblemParameter("R", maximum=2**30, meaning="rows of X"),
        ProblemParameter("C", maximum=2**24, meaning="columns of X"),
        ProblemParameter("dtype", "fp16", choices=DTYPES, meaning="of X and the result"),
        CACHE,
    )
    flops_per_element = 8.0

    def space(self, problem: Problem) -> SearchSpace:
        """Return tiles that registers hold, and what is loaded ahead if shared memory holds it."""
        dtype = str(problem["dtype"])
        check_support(dtype)
        rows, columns = _padded(int(problem["R"])), _padded(int(problem["C"]))
        vectors = float(self.vectors(problem))
        return _space(rows, columns, BITS[dtype] // 8, vectors, device_limits())

    def vectors(self, problem: Mapping[str, Any]) -> Quantity:
        """Return how many vectors, as long as a row, are read besides the rows."""
        return 0.0

    def default(self, problem: Problem) -> Configuration:
        """Return one row per program, whole if registers hold it; a few rows of a short one."""
        padded = _padded(int(problem["C"]))
        rows = min(16, max(512 // padded, 1), _padded(int(problem["R"])))
        fixed: dict[str, Value] = {"REDUCE": "each", "PROGRAMS": 0, "num_stages": 1}
        whole = {"ROWS": rows, "BLOCK": 0, "num_warps": min(max(padded // 512, 1), 16)}
        blocks = {"ROWS": 1, "BLOCK": 4096, "num_warps": 8}
        config = Configuration({**whole, **fixed})
        return config if config in self.space(problem) else Configuration({**blocks, **fixed})

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return X and vectors read once, Y written once, and a few operations per element."""
        r, c = 1.0 * problem["R"], 1.0 * problem["C"]
        moved = (2.0 * r + self.vectors(problem)) * c
        return Cost(
            flops=self.flops_per_element * r * c,
            bytes_moved=element_bytes(problem["dtype"]) * moved,
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the tile, what a thread holds of it, padding, waves, and what is read twice."""
        r, c = 1.0 * problem["R"], 1.0 * problem["C"]
        size = element_bytes(problem["dtype"])
        padded = 2.0 ** np.ceil(np.log2(c))
        whole = np.equal(config["BLOCK"], 0)
        block = np.where(whole, padded, config["BLOCK"])
        tiles = np.ceil(r / config["ROWS"])
        cores = np.nan_to_num(1.0 * device.get("cores", 128.0), nan=128.0)
        turns = np.where(np.equal(config["PROGRAMS"], 0), 1.0, config["PROGRAMS"])
        waves = tiles / (cores * turns)
        vector_rows = np.where(whole, 0.0, self.vectors(problem))
        threads = 32.0 * config["num_warps"]
        return {
            "row_bytes": size * c,
            "tile": config["ROWS"] * block,
            "per_thread": config["ROWS"] * block / threads,
            "bytes_per_thread": size * config["ROWS"] * block / threads,
            "padding": np.ceil(c / block) * block / c,
            "steps": np.ceil(c / block),
            "loads": np.where(whole, 1.0, 2.0) * size * r * c,
            "tiles": tiles,
            "threads": np.minimum(tiles * threads, cores * 2048.0),
            "waves": waves,
            "imbalance": np.ceil(waves) / waves,
            "shared_bytes": (config["num_stages"] - 1.0)
            * size
            * block
            * (config["ROWS"] + vector_rows),
        }

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return shapes from one row to 65536, of up to 256 million elements."""
        return self._sample_problems(TRAINING, n, seed)

    def _sample_problems(
        self, choices: Mapping[str, Sequence[Any]], n: int, seed: int
    ) -> list[Problem]:
        candidates = latin_hypercube_problems(self, choices, 2 * n, seed)
        fitting = [p for p in candidates if int(p["R"]) * int(p["C"]) <= MAX_ELEMENTS]
        return fitting[:n]


def launch_options(problem: Problem, config: Configuration) -> dict[str, Any]:
    """Return the keyword arguments of a launch: the tile, and how it runs; ``grid`` besides."""
    rows, block = int(config["ROWS"]), int(config["BLOCK"])
    tiles = -(-int(problem["R"]) // rows)
    programs = int(config["PROGRAMS"]) * device_limits().cores
    return {
        "grid": (min(tiles, programs) if programs else tiles,),
        "ROWS": rows,
        "BLOCK": block or _padded(int(problem["C"])),
        "WHOLE": block == 0,
        "LAST": config["REDUCE"] == "last",
        "STAGES": int(config["num_stages"]),
        "num_warps": int(config["num_warps"]),
        "num_stages": int(config["num_stages"]),
    }


def _padded(columns: int) -> int:
    return 1 << (columns - 1).bit_length()


@lru_cache
def _space(rows: int, padded: int, itemsize: int, vectors: float, limits: Limits) -> SearchSpace:
    columns = f"(BLOCK if BLOCK > 0 else {padded})"
    tile = f"ROWS * {columns}"
    max_elements = f"min({TILE}, {TILE_PER_WARP} * num_warps)"
    ahead, max_bytes = f"(ROWS + {vectors} * (BLOCK > 0))", limits.shared_bytes - SCRATCH_BYTES
    return SearchSpace(
        {
            "ROWS": tuple(r for r in (1, 2, 4, 8, 16) if r <= rows),
            "BLOCK": (0, *(b for b in (512, 1024, 2048, 4096, 8192, 16384) if b < padded)),
            "REDUCE": ("each", "last"),
            "PROGRAMS": (0, 1, 2, 4),
            "num_warps": (1, 2, 4, 8, 16),
            "num_stages": (1, 2, 3, 4),
        },
        [
            # whole rows keep the vectors beside them, in their own format
            f"(ROWS + {vectors * itemsize / 4}) * {columns} <= {max_elements}",
            f"{tile} >= {limits.threads} * num_warps or num_warps == 1",  # no idle threads
            "REDUCE == 'each' or BLOCK > 0",  # the same program otherwise
            f"REDUCE == 'each' or 3 * {tile} <= {max_elements}",  # so do the sums of each lane
            "PROGRAMS == 0 or BLOCK == 0",  # the program of a long row has enough to do
            "num_stages == 1 or PROGRAMS > 0 or BLOCK > 0",  # nothing to load ahead
            # what is loaded ahead: rows; with rows in blocks, vectors as well
            f"(num_stages - 1) * {itemsize} * {columns} * {ahead} <= {max_bytes}",
        ],
    )
