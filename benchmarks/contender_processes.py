"""Should contenders of a comparison share a process, have one each, or both?

    python benchmarks/contender_processes.py [--cells roots:0.02,roots:1] [--sessions 12]

`one process` times interleaved rounds in one fresh process, `one each` in processes forked for each
contender (`collect/forked_comparison.py`), with the same seconds. `both` is the product: rounds in
one process, and a few in processes of their own, which must confirm a gain. Verifications are
formed of the sessions as in `verification.py`.

Prints seconds of a session, by how much equal contenders differ in a session, wins among
comparisons of equals, and the share of gains of 3 and 10 % that were found. The last column is how
often a cache wins that the default fills: its own code computes as much as the default's.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from known_work import FUNCTIONS
from machine import heading, markdown

import foretune as ft
from foretune.collect import IsolatedRunner, local_device
from foretune.collect.benchmark import Benchmarker
from foretune.collect.comparison import DEFAULT_REPEATED, InterleavedComparison, Rounds
from foretune.collect.forked_comparison import compare_in_processes
from foretune.collect.timing import CPU_TIMER
from foretune.collect.worker_process import WorkerProcess
from foretune.collect.wrapped.function import FunctionKernel
from foretune.tune.verifier import gather

GAINS = (0.03, 0.1)
TWINS = 4
SESSION_S = 1.5
KEPT: dict[int, Any] = {}


def kept_by_content(x, wrong=0):
    """Sum slowly; with ``wrong``, look up what another contender computed for these values."""
    key = hash(x.tobytes())
    if wrong and key in KEPT:
        return KEPT[key]
    KEPT[key] = float(np.sort(np.sort(x)[::-1]).sum())
    return KEPT[key]


class OneProcess(Benchmarker):
    """Times all contenders in this process."""

    def compare_interleaved(self, kernel, problem, configs, max_seconds, seed=0):
        """Return the rounds of one process."""
        comparison = InterleavedComparison.of_configs(kernel, problem, configs, CPU_TIMER, seed)
        times = comparison.run(max_seconds)
        return Rounds(times, {key: str(e) for key, e in comparison.failures.items()})


class OneEach(Benchmarker):
    """Times each contender in a process of its own."""

    def compare_interleaved(self, kernel, problem, configs, max_seconds, seed=0):
        """Return the rounds of several processes."""
        return compare_in_processes(kernel, problem, configs, max_seconds, seed)


SCHEMES = {"one process": OneProcess, "one each": OneEach, "both": Benchmarker}


def sessions_of(
    scheme: str, kernel: FunctionKernel, problem: ft.Problem, count: int
) -> tuple[list[Rounds], list[float]]:
    """Return the rounds of fresh processes, and the seconds that each took."""
    device = local_device("cpu")
    runner = IsolatedRunner(device, power=False)
    runner._worker = WorkerProcess(
        partial(SCHEMES[scheme], device, power=False), ("the kernel", "")
    )
    default = kernel.default(problem)
    configs = [default, *(c for c in kernel.space(problem) if c != default)]
    found = []
    seconds = []
    with runner:
        for seed in range(count):
            start = time.perf_counter()
            found.append(runner.compare_interleaved(kernel, problem, configs, SESSION_S, seed))
            seconds.append(time.perf_counter() - start)
    return found, seconds


def wins(
    recorded: Sequence[Rounds], default: ft.Configuration, config: ft.Configuration
) -> list[bool]:
    """Return whether each verification that the sessions give is a win."""
    waiting = iter(recorded)
    found = []
    try:
        while True:
            (comparison,) = gather(
                lambda keys, seed: next(waiting), default.id, {config.id: config}, 0
            )[1]
            found.append(comparison.wins)
    except (StopIteration, RuntimeError):  # the sessions are used up
        return found


def row(scheme: str, cell: str, count: int) -> list[str]:
    """Return the line of a scheme and a function."""
    name, _, time_ms = cell.partition(":")
    work = FUNCTIONS[name]
    kernel = work.kernel(GAINS, TWINS)
    problem = work.problem(kernel, float(time_ms))
    recorded, seconds = sessions_of(scheme, kernel, problem, count)
    default = kernel.default(problem)
    configs = [c for c in kernel.space(problem) if c != default]
    equal = [c.id for c in configs if not c["gain"]] + [default.id, DEFAULT_REPEATED]
    logs = np.log(
        [[np.nanquantile(rounds.time_ms[key], 0.1) for key in equal] for rounds in recorded]
    )
    by_gain = {
        gain: [w for c in configs if c["gain"] == gain for w in wins(recorded, default, c)]
        for gain in (0.0, *GAINS)
    }

    cheat = FunctionKernel(kept_by_content, {"wrong": [0, 1]}, (np.random.rand(20_000),))  # noqa: NPY002
    cheated, _ = sessions_of(scheme, cheat, cheat.problem(), count)
    cheat_default = cheat.default(cheat.problem())
    (wrong,) = [c for c in cheat.space(cheat.problem()) if c != cheat_default]
    cheat_wins = wins(cheated, cheat_default, wrong)
    return [
        cell,
        scheme,
        f"{np.median(seconds):.1f}",
        f"{100 * np.sqrt(logs.var(axis=1, ddof=1).mean()):.2f} %",
        *(f"{sum(found)} of {len(found)}" for found in by_gain.values()),
        f"{sum(cheat_wins)} of {len(cheat_wins)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", default="roots:0.02,roots:1")
    parser.add_argument("--sessions", type=int, default=12)
    options = parser.parse_args()
    rows = [
        row(scheme, cell, options.sessions)
        for cell in options.cells.split(",")
        for scheme in SCHEMES
    ]
    print(heading("Processes of contenders", local_device("cpu")))
    columns = ["launch", "processes", "seconds", "equal differ by", "false wins"]
    columns += [*(f"{gain:.0%} found" for gain in GAINS), "cache wins"]
    print(markdown(columns, rows))


if __name__ == "__main__":
    main()
