"""What does it cost to see what compiled code shows? Per target: compiling, then reading.

python benchmarks/inspection.py [--repeats 5]

Compiles a GEMM of several tile sizes for every target, once as far as Triton's own intermediate
code (TTGIR) and once to machine code, without a GPU, and times the reading of both. Nothing comes
from Triton's cache: each compilation gets a folder of its own.
"""

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import heading, markdown

from foretune.collect import local_device
from foretune.collect.compiled.arguments import Tensor
from foretune.collect.compiled.compiling import compile_full, compile_ttgir, specialize
from foretune.collect.compiled.static_features import static_features, ttgir_features
from foretune.collect.compiled.targets import TARGETS, Target

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "toy"))
NAMES = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
TILES = [
    {"BM": 32, "BN": 32, "BK": 32, "num_warps": 4},
    {"BM": 64, "BN": 64, "BK": 64, "num_warps": 4},
    {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8},
    {"BM": 128, "BN": 256, "BK": 64, "num_warps": 8},
]
SIZES = [4096, 4096, 4096]
COLUMNS = (
    "target", "tile", "TTGIR", "full", "read TTGIR", "read all", "registers", "spilled", "CTAs/SM"
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    warnings.simplefilter("ignore")  # Triton's, on a default of its own
    print(heading("Compiling and reading without a GPU", local_device()))
    warm_up()
    rows = [row(TARGETS[name], tile, repeats) for name in NAMES for tile in TILES]
    print(markdown(COLUMNS, rows))


def row(target: Target, tile: dict[str, int], repeats: int) -> list[str]:
    from triton_toys import matmul

    specialised = specialize(matmul, [Tensor("float16")] * 3 + SIZES, {}, tile, target)
    ttgir, early_s = timed(lambda: compile_ttgir(specialised), repeats)
    compiled, full_s = timed(lambda: compile_full(specialised), repeats)
    _, read_early_s = timed(lambda: ttgir_features(ttgir, specialised), repeats)
    static, read_s = timed(lambda: static_features(compiled, target), repeats)
    spilled = static.get("spill_store_bytes", 0.0) + static.get("spill_load_bytes", 0.0)
    spilled += 4 * static.get("spilled_registers", 0.0)
    return [
        target.name,
        f"{tile['BM']}×{tile['BN']}×{tile['BK']}, {tile['num_warps']} warps",
        show(early_s),
        show(full_s),
        f"{1e3 * np.median(read_early_s):.2f} ms",
        f"{1e3 * np.median(read_s):.2f} ms",
        f"{static['registers']:.0f}",
        f"{spilled:.0f} B",
        f"{static['ctas_per_sm']:.0f}",
    ]


def warm_up() -> None:
    """Load Triton, its backends and assemblers, which the first compilation would pay for."""
    for name in NAMES:
        row(TARGETS[name], TILES[0], 1)


def timed(call: Callable[[], Any], repeats: int) -> tuple[Any, list[float]]:
    """Return the last result and the seconds of each call, each with an empty cache."""
    seconds = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            started = time.perf_counter()
            result = call()
            seconds.append(time.perf_counter() - started)
    return result, seconds


def show(seconds: list[float]) -> str:
    low, middle, high = (1e3 * f(seconds) for f in (min, np.median, max))
    return f"{middle:.0f} ms ({low:.0f}–{high:.0f})"


if __name__ == "__main__":
    main()
