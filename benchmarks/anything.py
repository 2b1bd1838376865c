"""Tuning a kernel's source: Foretune beside Kernel Tuner, on the same OpenCL and C kernels.

    PYTHONPATH=src python benchmarks/anything.py [--repeats 5] [--budget 30] [--json]

Every configuration of each kernel is measured by both tools, in turn, in several rounds; its least
time is what a configuration is worth, as whatever else the machine does only adds to it. Then each
tool searches with a budget, from several seeds. The table says after how many evaluations, and
seconds from the call on, the configuration that the tool holds for the best is worth 95 % of the
best there is. Compilers' caches are empty for each search, and OpenCL runs on one core: with all of
a shared machine's, one launch takes twice as long as the next. Kernels compute rather than wait for
memory, for the same reason. Needs ``foretune[opencl,bench]``.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import markdown

os.environ["PYOPENCL_NO_CACHE"] = "1"

CONVOLUTION = """
#define SIZE 512
#define TAPS 11
__kernel void convolution(__global float *out, __global const float *in, __constant float *taps) {
    int x0 = get_group_id(0) * block_size_x * tile_x + get_local_id(0);
    int y0 = (get_group_id(1) * block_size_y + get_local_id(1)) * tile_y;
    float sums[tile_y][tile_x] = {0};
    for (int v = 0; v < TAPS; v++)
#if unroll
        #pragma unroll
#endif
        for (int u = 0; u < TAPS; u++)
            for (int j = 0; j < tile_y; j++)
                for (int i = 0; i < tile_x; i++)
                    sums[j][i] += taps[v * TAPS + u]
                        * in[(y0 + j + v) * (SIZE + TAPS - 1) + x0 + i * block_size_x + u];
    for (int j = 0; j < tile_y; j++)
        for (int i = 0; i < tile_x; i++)
            out[(y0 + j) * SIZE + x0 + i * block_size_x] = sums[j][i];
}
"""
REDUCTION = """
#if vector == 1
typedef float values;
#define SUM(v) (v)
#elif vector == 2
typedef float2 values;
#define SUM(v) (v.x + v.y)
#else
typedef float4 values;
#define SUM(v) (v.x + v.y + v.z + v.w)
#endif
__kernel void sums(__global float *out, __global const values *in, int n) {
    __local float part[block_size_x];
    int t = get_local_id(0);
    float sum = 0;
    for (int i = get_global_id(0); i < n / vector; i += num_blocks * block_size_x)
        sum += SUM(in[i]);
    part[t] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = block_size_x / 2; s > 0; s /= 2) {
        if (t < s) part[t] += part[t + s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (t == 0) out[get_group_id(0)] = part[0];
}
"""
PRODUCT = """
#include <chrono>
#include <cstring>
#define MIN(a, b) ((a) < (b) ? (a) : (b))
extern "C" float product(float *c, const float *a, const float *b, int n) {
    auto start = std::chrono::steady_clock::now();
    std::memset(c, 0, sizeof(float) * n * n);
    for (int i0 = 0; i0 < n; i0 += block_i)
        for (int k0 = 0; k0 < n; k0 += block_k)
            for (int j0 = 0; j0 < n; j0 += block_j)
                for (int i = i0; i < MIN(i0 + block_i, n); i++)
#if order
                    for (int k = k0; k < MIN(k0 + block_k, n); k++)
                        for (int j = j0; j < MIN(j0 + block_j, n); j++)
                            c[i * n + j] += a[i * n + k] * b[k * n + j];
#else
                    for (int j = j0; j < MIN(j0 + block_j, n); j++) {
                        float sum = c[i * n + j];
                        for (int k = k0; k < MIN(k0 + block_k, n); k++)
                            sum += a[i * n + k] * b[k * n + j];
                        c[i * n + j] = sum;
                    }
#endif
    std::chrono::duration<float, std::milli> took = std::chrono::steady_clock::now() - start;
    return took.count();
}
"""
NEEDED = 0.95
STRATEGIES = ("random_sample", "genetic_algorithm")


@dataclass
class Case:
    """A kernel, as both tools take it."""

    name: str
    positional: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)


def cases() -> list[Case]:
    rng = np.random.default_rng(0)
    image = rng.random((522, 522), dtype=np.float32)
    taps = rng.random((11, 11), dtype=np.float32)
    numbers = rng.random(2**18, dtype=np.float32)
    a, b = (rng.random((256, 256), dtype=np.float32) for _ in range(2))
    total = float(numbers.sum(dtype=np.float64))

    def sums_up(answer: Sequence[Any], contents: Sequence[Any], atol: float | None = None) -> bool:
        return bool(np.isclose(total, contents[0].sum(dtype=np.float64), rtol=1e-4))

    windows = np.lib.stride_tricks.sliding_window_view(image, taps.shape)
    convolved = np.einsum("yxvu,vu->yx", windows, taps)
    return [
        Case(
            "convolution (OpenCL)",
            (
                "convolution",
                CONVOLUTION,
                (512, 512),
                [np.zeros_like(convolved), image, taps],
                {
                    "block_size_x": [8, 16, 64],
                    "block_size_y": [1, 4],
                    "tile_x": [1, 2, 4],
                    "tile_y": [1, 4],
                    "unroll": [0, 1],
                },
            ),
            {
                "grid_div_x": ["block_size_x", "tile_x"],
                "grid_div_y": ["block_size_y", "tile_y"],
                "answer": [convolved, None, None],
                "atol": 1e-2,
            },
        ),
        Case(
            "reduction (OpenCL)",
            (
                "sums",
                REDUCTION,
                "num_blocks",
                [np.zeros(1024, np.float32), numbers, np.int32(len(numbers))],
                {
                    "block_size_x": [32, 128, 512, 1024],
                    "vector": [1, 2, 4],
                    "num_blocks": [4, 16, 64, 256],
                },
            ),
            {
                "grid_div_x": [],
                "answer": [np.zeros(1024, np.float32), None, None],
                "verify": sums_up,
            },
        ),
        Case(
            "product (C++)",
            (
                "product",
                PRODUCT,
                256,
                [np.zeros((256, 256), np.float32), a, b, np.int32(256)],
                {
                    "block_i": [8, 32, 256],
                    "block_j": [8, 32, 256],
                    "block_k": [8, 32, 256],
                    "order": [0, 1],
                },
            ),
            {
                "lang": "C",
                "compiler_options": ["-O3"],
                "answer": [a @ b, None, None, None],
                "atol": 1e-2,
            },
        ),
    ]


@dataclass
class Search:
    """What a tool measured, in order: configuration, its time, and seconds since the call."""

    configs: list[tuple[Any, ...]]
    times_ms: list[float]
    seconds: list[float]
    total_s: float

    def reaches(self, worth: dict[tuple[Any, ...], float]) -> tuple[float, float]:
        """Return evaluations and seconds until the best measured is worth 95 % of the optimum."""
        least = min(worth.values())
        best = float("inf")
        held: tuple[Any, ...] | None = None
        for i, (config, time_ms) in enumerate(zip(self.configs, self.times_ms, strict=True)):
            if time_ms < best:
                best = time_ms
                held = config
            if held is not None and least / worth.get(held, float("inf")) >= NEEDED:
                return i + 1, self.seconds[i]
        return float("inf"), float("inf")


class Clock:
    """Records the time of each `tell`."""

    def __init__(self) -> None:
        self.start_s = time.perf_counter()
        self.moments: list[float] = []

    def start(self, stage: str, total: int) -> None:
        """Take no note: a search begins."""

    def advance(self, note: str = "") -> None:
        """Note the moment of a measurement."""
        self.moments.append(time.perf_counter() - self.start_s)

    def say(self, text: str) -> None:
        """Note the moment of the default's measurement, which comes first."""
        if " by default: " in text:
            self.advance()


def foretune(case: Case, budget: int, seed: int, **more: Any) -> Search:
    import foretune as ft

    clock = Clock()
    settings = {**case.named, **more, **({"budget": budget} if budget else {})}
    best = ft.tune_kernel(*case.positional, seed=seed, store=store(), progress=clock, **settings)
    rows = best.results
    keys = list(case.positional[4])
    return Search(
        [tuple(row[k] for k in keys) for row in rows],
        [row["time"] if isinstance(row["time"], float) else float("inf") for row in rows],
        clock.moments[: len(rows)],
        time.perf_counter() - clock.start_s,
    )


def kernel_tuner(case: Case, budget: int, seed: int, strategy: str | None = None) -> Search:
    import kernel_tuner as kt

    start = time.perf_counter()
    began = datetime.now().astimezone()
    options = {"max_fevals": budget} if strategy not in (None, "brute_force") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows, _ = kt.tune_kernel(
            *case.positional,
            **case.named,
            quiet=True,
            strategy=strategy,
            strategy_options=options,
            seed=seed,
        )
    keys = list(case.positional[4])
    return Search(
        [tuple(row[k] for k in keys) for row in rows],
        [float(row["time"]) if "__error__" not in row else float("inf") for row in rows],
        [(datetime.fromisoformat(row["timestamp"]) - began).total_seconds() for row in rows],
        time.perf_counter() - start,
    )


def store() -> str:
    return str(Path(tempfile.mkdtemp(dir=os.environ["FORETUNE_BENCH"])) / "tuned.db")


def apart(call: str, case: int, budget: int, seed: int, strategy: str | None) -> Search:
    """Run one search in a separate process, with empty compiler caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "POCL_MAX_PTHREAD_COUNT": "1",
            "POCL_CACHE_DIR": f"{folder}/pocl",
            "XDG_CACHE_HOME": f"{folder}/cache",
            "FORETUNE_BENCH": folder,
        }
        request = json.dumps([call, case, budget, seed, strategy])
        os.mkdir(f"{folder}/pocl")
        done = subprocess.run(
            [sys.executable, __file__, "--one", request],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    found = json.loads(done.stdout.splitlines()[-1])
    return Search([tuple(c) for c in found[0]], *found[1:])


def one(request: str) -> None:
    call, number, budget, seed, strategy = json.loads(request)
    tools: dict[str, Callable[..., Search]]
    tools = {"foretune": foretune, "kernel_tuner": kernel_tuner}
    found = tools[call](
        cases()[number], budget, seed, **({"strategy": strategy} if strategy else {})
    )
    print(json.dumps([found.configs, found.times_ms, found.seconds, found.total_s]))


def agreement(a: Search, b: Search) -> float:
    """Return Spearman's correlation of two tools' times of the same configurations."""
    from scipy.stats import spearmanr

    other = dict(zip(b.configs, b.times_ms, strict=True))
    pairs = [(t, other[c]) for c, t in zip(a.configs, a.times_ms, strict=True) if c in other]
    both = [pair for pair in pairs if np.isfinite(pair).all()]
    return float(spearmanr(*zip(*both, strict=True)).statistic)


def scores(found: Sequence[Search], worth: dict[tuple[Any, ...], float]) -> list[float]:
    reached = [search.reaches(worth) for search in found]
    return [
        statistics.median(n for n, _ in reached),
        statistics.median(s for _, s in reached),
        statistics.median(search.total_s for search in found),
    ]


def everything(number: int, rounds: int) -> tuple[list[Search], list[Search]]:
    """Return Foretune's and Kernel Tuner's measurements of all configurations, taken in turn."""
    ours = []
    theirs = []
    for _ in range(rounds):
        ours.append(apart("foretune", number, 0, 0, "brute_force"))
        theirs.append(apart("kernel_tuner", number, 0, 0, "brute_force"))
    return ours, theirs


def least_times(searches: Sequence[Search]) -> dict[tuple[Any, ...], float]:
    """Return the least time of each configuration, in milliseconds."""
    least: dict[tuple[Any, ...], float] = {}
    for search in searches:
        for config, time_ms in zip(search.configs, search.times_ms, strict=True):
            least[config] = min(time_ms, least.get(config, time_ms))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="searches of each kind")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of all, by each tool")
    parser.add_argument("--budget", type=int, default=30, help="evaluations of a search")
    parser.add_argument("--case", type=int, action="append", help="only these kernels, by number")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(asked.one)
        return
    if shutil.which("g++") is None:
        sys.exit("needs g++")
    results: dict[str, Any] = {}
    rows = []
    for number, case in enumerate(cases()):
        if asked.case and number not in asked.case:
            continue
        ours, theirs = everything(number, asked.rounds)
        worth = least_times([*ours, *theirs])
        same = statistics.median(map(agreement, ours, theirs))
        found = {"Kernel Tuner, all": theirs}
        seeds = range(asked.repeats)
        found["Foretune"] = [apart("foretune", number, asked.budget, s, None) for s in seeds]
        for strategy in STRATEGIES:
            found[f"Kernel Tuner, {strategy}"] = [
                apart("kernel_tuner", number, asked.budget, s, strategy) for s in seeds
            ]
        near = sum(min(worth.values()) / t >= NEEDED for t in worth.values())
        results[case.name] = {
            "configurations": len(worth),
            "within_5_percent": near,
            "agreement": same,
        }
        for tool, searches in found.items():
            n, seconds, total = scores(searches, worth)
            results[case.name][tool] = {"evaluations": n, "seconds": seconds, "total_s": total}
            rows.append([case.name, tool, *_shown(n, seconds, asked.budget), f"{total:.0f}"])
        print(
            f"{case.name}: {len(worth)} configurations, {near} within 5 % of the best; "
            f"rank correlation of the tools {same:.2f}",
            file=sys.stderr,
        )
    if asked.json:
        print(json.dumps(results))
        return
    print(markdown(["kernel", "tool", "evaluations to 95 %", "s to 95 %", "s in all"], rows))


def _shown(n: float, seconds: float, budget: int) -> tuple[str, str]:
    if n == float("inf"):
        return f">{budget}", "–"
    return f"{n:g}", f"{seconds:.1f}"


if __name__ == "__main__":
    main()
