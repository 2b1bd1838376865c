"""What does the decorator cost: a call with a known choice, and the first call of a problem?

Times `foretune.autotune` and `triton.autotune` in turn, in one process, on a kernel of twelve
arguments and a key of three values. The launch does nothing. Prints microseconds per call and the
ratio of rounds: for a list, for a list with hooks, and for one configuration. Then prints the time
that the first call of a problem adds with ``budget=0`` and 100 configurations (nothing is
compiled): of an unmeasured kernel, and of one that was tuned on eight other problems.

    python benchmarks/decorator.py

Needs no GPU: launches are replayed (`tests/replay_gpu`).
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from machine import heading, markdown

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "replay_gpu"))

from replay_driver import ReplayDriver

import foretune
from foretune.collect import local_device

CALLS = 200
ROUNDS = 400


@triton.jit
def _kernel(a, b, c, M, N, K, s0, s1, s2, s3, s4, s5, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    tl.store(c + tl.program_id(0), tl.load(a) + tl.load(b))


CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=w, num_stages=s)
    for m in (16, 32, 64, 128, 256)
    for n in (16, 32, 64, 128, 256)
    for w in (4, 8)
    for s in (2, 3)
]


class Nothing:
    """Stands for the kernel below a tuner: launching it does nothing."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.arg_names = fn.arg_names

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Launch nothing."""


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    print(heading("What the decorator costs", local_device()))
    with ReplayDriver(lambda launch: 1.0).active():
        rows = hit_path()
        print(
            f"A known call, {CALLS:,} calls a round, {ROUNDS} rounds in turn; least and median.\n"
        )
        columns = ["list", "decorator", "µs, least", "µs, median", "ratio to stock (5–95 %)"]
        print(markdown(columns, rows))
        print(
            f"First call of a problem with budget=0, {len(CONFIGS)} configurations, the launch and "
            "its compilation left out; 20 problems.\n"
        )
        print(markdown(["kernel", "ms, least", "ms, median", "ms, most"], first_calls()))


def hit_path() -> list[list[str]]:
    """Return a table row per decorator and kind of list."""
    hooked = [triton.Config(c.kwargs, c.num_warps, c.num_stages, pre_hook=_hook) for c in CONFIGS]
    lists = {"a list": CONFIGS, "hooks": hooked, "one configuration": CONFIGS[:1]}
    rows = []
    for label, configs in lists.items():
        tuners = {
            "triton.autotune": triton.autotune(configs, ["M", "N", "K"], do_bench=_answer),
            "foretune.autotune": foretune.autotune(configs, ["M", "N", "K"], store=False, budget=0),
            'foretune.autotune, budget="all"': foretune.autotune(
                configs, ["M", "N", "K"], store=False, budget="all", do_bench=_answer
            ),
        }
        rows += [[label, *row] for row in _timed_in_turn(tuners)]
    return rows


def _timed_in_turn(tuners: dict[str, Any]) -> list[list[str]]:
    """Return a table row per decorator; the first is the one the others are divided by."""
    calls = {name: decorate(Nothing(_kernel)).run for name, decorate in tuners.items()}
    args = arguments(512)
    for run in calls.values():
        run(*args, grid=(4,), warmup=False)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, run in calls.items():
            found[name].append(_microseconds(run, args))
    stock = np.array(next(iter(found.values())))
    rows = []
    for name, times in found.items():
        low, middle, high = np.quantile(np.array(times) / stock, [0.05, 0.5, 0.95])
        ratio = f"{middle:.2f} ({low:.2f}–{high:.2f})" if name != "triton.autotune" else "1"
        rows.append([name, f"{min(times):.2f}", f"{statistics.median(times):.2f}", ratio])
    return rows


def _hook(arguments: dict[str, Any]) -> None:
    """Stand for a hook of a configuration."""


def first_calls() -> list[list[str]]:
    """Return a table row for an unmeasured kernel and for one that was tuned."""
    rows = []
    for label, tuned in (("never measured", 0), ("tuned on 8 other problems", 8)):
        decorate = foretune.autotune(
            CONFIGS, ["M", "N", "K"], store=False, budget=8 if tuned else 0
        )
        tuner = decorate(Nothing(_kernel))
        tuner._do_bench = _answer
        for i in range(tuned):
            tuner.run(*arguments(512 * (i + 1)), grid=grid, warmup=False)
        predicts = foretune.autotune(CONFIGS, ["M", "N", "K"], store=False, budget=0)
        other = predicts(Nothing(_kernel))
        other.tuner_factory.caches = tuner.tuner_factory.caches
        other.run(*arguments(16), grid=grid, warmup=False)  # imports, and the fit of a tuned kernel
        times = []
        for i in range(20):
            start = time.perf_counter()
            other.run(*arguments(768 + 512 * i), grid=grid, warmup=False)
            times.append((time.perf_counter() - start) * 1e3)
        values = min(times), statistics.median(times), max(times)
        rows.append([label, *(f"{v:.1f}" for v in values)])
    return rows


def arguments(size: int) -> tuple[Any, ...]:
    tensors = [torch.zeros(64) for _ in range(3)]
    return (*tensors, size, size, size, size, 1, size, 1, size, 1)


def grid(meta: dict[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(meta["M"], meta["BLOCK_M"]) * triton.cdiv(meta["N"], meta["BLOCK_N"]),)


def _answer(kernel_call: Callable[[], Any], quantiles: tuple[float, ...]) -> list[float]:
    return [float(np.random.default_rng().uniform(1, 2))] * 3


def _microseconds(run: Callable[..., Any], args: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        run(*args, grid=(4,), warmup=False)
    return (time.perf_counter() - start) / CALLS * 1e6


if __name__ == "__main__":
    main()
