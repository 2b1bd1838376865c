"""Does "verified" hold: are gains found, and none invented, on a quiet machine and a busy one?

    python benchmarks/verification.py [--sessions 60] [--times 0.02,1,50] [--out FILE.json]
                                      [--function roots|temporaries]

A function's work is known exactly: candidates do 0, 1, 3, 10 or 30 % less of it than the default,
four of them nothing less (A/A). Every session is a fresh process of the product's own runner, in
which all of them run in interleaved rounds. Verifications are formed of the recorded sessions in
order, by the product's own code, each candidate alone: sessions that one used, it does not use
again. "Busy" means three other processes that compute all the time. "Biased" multiplies every
launch of a session by a random factor with a deviation of 1 %, as the place of its memory may do.

Prints, by time of a launch: wins among A/A comparisons, the share of gains that were found, and
seconds and processes of real verifications of one candidate (3 % less work). Then what the parts
gain: by how much equal launches of a process differ, by several statistics of its rounds; and a
busy machine's 50 ms by wall time and by CPU time.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from machine import heading, markdown

import foretune as ft
from foretune.collect import IsolatedRunner, local_device
from foretune.collect.comparison import DEFAULT_REPEATED, Rounds
from foretune.collect.wrapped.function import FunctionKernel
from foretune.tune.results import Comparison
from foretune.tune.verifier import gather

BLOCK = 4096
GAINS = (0.0, 0.01, 0.03, 0.1, 0.3)
TWINS = 4
SESSION_S = 0.5
BIAS = 0.01
BUSY_PROCESSES = 3
STATISTICS = {"minimum": 0.0, "10 %": 0.1, "25 %": 0.25, "median": 0.5}
GROUPS = 20


def roots(x, out, total, gain=0.0, twin=0):
    """Write the roots of ``x``, and take ``total × (1 − gain)`` roots in all."""
    np.sqrt(x, out=out)
    left = int(total * (1.0 - gain)) - len(x)
    while left > 0:
        n = min(left, len(x))
        np.sqrt(x[:n], out=out[:n])
        left -= n


def inputs(total=1, seed=0):
    """Return the arguments of `roots`."""
    return np.random.default_rng(seed).random(BLOCK), np.zeros(BLOCK), total


def temporaries(x, gain=0.0, twin=0):
    """Compute with arrays of the input's size, which a gain makes smaller: malloc serves them.

    A candidate's arrays have another size than the inputs, and than the harness's copies of them.
    """
    shorter = int(len(x) * (1.0 - gain))
    for _ in range(4):
        np.sin(x[:shorter] * 1.0001)
    return float(x.sum())


def inputs_of_temporaries(total=1, seed=0):
    """Return the arguments of `temporaries`."""
    return (np.random.default_rng(seed).random(total),)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "roots": (roots, inputs),
    "temporaries": (temporaries, inputs_of_temporaries),
}


def problem_of(kernel: FunctionKernel, time_ms: float) -> ft.Problem:
    """Return the problem whose default takes about ``time_ms``."""
    if kernel.function is temporaries:
        (x,) = inputs_of_temporaries(30_000)
        start = time.perf_counter()
        temporaries(x)
        elements_per_s = len(x) / (time.perf_counter() - start)
        return kernel.problem(total=max(1, round(time_ms * 1e-3 * elements_per_s)))
    x, out, _ = inputs()
    total = 100 * BLOCK
    times = []
    for _ in range(20):
        start = time.perf_counter()
        roots(x, out, total)
        times.append(time.perf_counter() - start)
    return kernel.problem(total=max(BLOCK, round(total * time_ms * 1e-3 / min(times))))


@contextmanager
def other_load(processes: int) -> Iterator[None]:
    """Keep ``processes`` other processes computing."""
    code = "while True: sum(range(10000))"
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


class Cell:
    """One time of a launch on a quiet or busy machine.

    Args:
        time_ms: about the time of the default.
        busy: whether other processes compute.
    """

    def __init__(self, kernel: FunctionKernel, time_ms: float, busy: bool) -> None:
        self.kernel, self.time_ms, self.busy = kernel, time_ms, busy
        self.problem = problem_of(kernel, time_ms)
        space = kernel.space(self.problem)
        self.default = kernel.default(self.problem)
        self.candidates = [c for c in space if c != self.default and (c["gain"] or c["twin"])]
        self.sessions: list[dict[str, dict[str, float]]] = []
        self.seconds: list[float] = []
        self.processes: list[int] = []

    def record(self, runner: IsolatedRunner, count: int, real: int) -> None:
        """Record sessions of all candidates, and verify one alone."""
        configs = [self.default, *self.candidates]
        share = (len(configs) + 1) / 3
        with other_load(BUSY_PROCESSES * self.busy):
            for seed in range(count):
                rounds = runner.compare_interleaved(
                    self.kernel, self.problem, configs, SESSION_S * share, seed
                )
                if rounds.failures:
                    raise RuntimeError(f"a contender failed: {rounds.failures}")
                self.sessions.append(
                    {
                        key: {name: float(np.nanquantile(t, q)) for name, q in STATISTICS.items()}
                        for key, t in rounds.time_ms.items()
                    }
                )
            three = next(c for c in self.candidates if c["gain"] == 0.03)

            def session(keys: Sequence[str], seed: int) -> Rounds:
                chosen = [self.default, *([three] if keys else [])]
                return runner.compare_interleaved(
                    self.kernel, self.problem, chosen, SESSION_S, seed
                )

            for seed in range(real):
                start = time.perf_counter()
                evidence, _ = gather(session, self.default.id, {three.id: three}, seed)
                self.seconds.append(time.perf_counter() - start)
                self.processes.append(len(evidence))

    def verdicts(self, config: ft.Configuration, biased: bool = False) -> list[Comparison]:
        """Return the verifications of a candidate that its recorded sessions give."""
        rng = np.random.default_rng(int(config["twin"]) + 100 * int(1000 * config["gain"]))
        sessions = iter(self.sessions)
        found = []

        def session(keys: Sequence[str], seed: int) -> Rounds:
            recorded = next(sessions)
            wanted = (self.default.id, DEFAULT_REPEATED, config.id)
            factors = np.exp(rng.normal(0, BIAS, len(wanted)) * biased)
            return Rounds(
                {
                    key: np.array([recorded[key]["10 %"] * factor])
                    for key, factor in zip(wanted, factors, strict=True)
                }
            )

        try:
            while True:
                found += gather(session, self.default.id, {config.id: config}, 0)[1]
        except (StopIteration, RuntimeError):  # the sessions are used up
            return found

    def deviations(self) -> dict[str, float]:
        """Return how equal launches of a process differ, in per cent, by each statistic."""
        equal = [c.id for c in self.candidates if not c["gain"]]
        equal += [self.default.id, DEFAULT_REPEATED]
        found = {}
        for name in STATISTICS:
            logs = np.log([[session[key][name] for key in equal] for session in self.sessions])
            found[name] = 100 * float(np.sqrt(logs.var(axis=1, ddof=1).mean()))
        return found

    def row(self, biased: bool = False) -> dict[str, Any]:
        """Return the line of the table."""
        name = f"{self.time_ms:g} ms, {'busy' if self.busy else 'quiet'}"
        row: dict[str, Any] = {"launch": name + (", biased" if biased else "")}
        for gain in GAINS:
            found = [
                verdict
                for config in self.candidates
                if config["gain"] == gain
                for verdict in self.verdicts(config, biased)
            ]
            row[f"{gain:.0%}"] = [sum(v.wins for v in found), len(found)]
            if not gain:
                row["equal"] = [sum(v.verdict == "no_win" for v in found), len(found)]
        return row | {
            "seconds": self.seconds,
            "processes": self.processes,
            "deviations": self.deviations(),
        }


def clocks(kernel: FunctionKernel) -> dict[str, float]:
    """Return by how much groups of five launches of 50 ms differ on a busy machine, in per cent.

    By the 10 % quantile of each group's wall times and CPU times.
    """
    x, out, _ = inputs()
    total = int(problem_of(kernel, 50.0)["total"])
    found: dict[str, list[float]] = {"wall time": [], "CPU time": []}
    with other_load(BUSY_PROCESSES):
        for _ in range(GROUPS):
            walls, cpus = [], []
            for _ in range(5):
                wall, cpu = time.perf_counter(), time.thread_time()
                roots(x, out, total)
                walls.append(time.perf_counter() - wall)
                cpus.append(time.thread_time() - cpu)
            for name, times in (("wall time", walls), ("CPU time", cpus)):
                found[name].append(float(np.log(np.quantile(times, 0.1))))
    return {name: 100 * float(np.std(logs, ddof=1)) for name, logs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=60, help="recorded in each cell")
    parser.add_argument("--real", type=int, default=5, help="real verifications in each cell")
    parser.add_argument("--times", default="0.02,1,50", help="milliseconds of a launch")
    parser.add_argument("--loads", default="quiet,busy")
    parser.add_argument("--out", type=Path, help="also write the counts to this JSON file")
    parser.add_argument("--function", choices=FUNCTIONS, default="roots")
    options = parser.parse_args()
    function, make_inputs = FUNCTIONS[options.function]
    kernel = FunctionKernel(
        function,
        {"gain": GAINS, "twin": tuple(range(TWINS + 1))},
        make_inputs,
        restrictions=["twin == 0 or gain == 0"],
        default={"gain": 0.0, "twin": 0},
    )
    device = local_device("cpu")
    rows = []
    with IsolatedRunner(device, power=False) as runner:
        for load in options.loads.split(","):
            for time_ms in map(float, options.times.split(",")):
                cell = Cell(kernel, time_ms, load == "busy")
                cell.record(runner, options.sessions, options.real)
                rows += [cell.row(), *([] if cell.busy else [cell.row(biased=True)])]
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                if options.out:
                    options.out.write_text(json.dumps(rows))
    print(heading("What verified means", device))
    columns = [
        "launch",
        "false wins",
        "equal, and said so",
        *(f"{g:.0%} found" for g in GAINS[1:]),
        "seconds: median (range)",
        "processes",
    ]
    lines = []
    for row in rows:
        seconds, processes = row["seconds"], row["processes"]
        lines.append(
            [
                row["launch"],
                "{} of {}".format(*row["0%"]),
                "{} of {}".format(*row["equal"]),
                *("{} of {}".format(*row[f"{g:.0%}"]) for g in GAINS[1:]),
                f"{np.median(seconds):.1f} ({min(seconds):.1f}–{max(seconds):.1f})"
                if seconds
                else "–",
                f"{np.median(processes):g}" if processes else "–",
            ]
        )
    print(markdown(columns, lines))
    plain = [row for row in rows if "biased" not in row["launch"]]
    print(
        markdown(
            ["launch", *STATISTICS],
            [[r["launch"], *(f"{r['deviations'][s]:.2f}" for s in STATISTICS)] for r in plain],
        )
    )
    print("50 ms, busy: " + ", ".join(f"{n} {d:.2f} %" for n, d in clocks(kernel).items()) + "\n")
    false, equal = np.sum([row["0%"] for row in rows], axis=0)
    print(f"False wins: {false} of {equal} comparisons of equals.")


if __name__ == "__main__":
    main()
