"""Does "verified" hold: are gains found, and none invented, on a quiet machine and a busy one?

    python benchmarks/verification.py [--cells roots:0.02,temporaries:1,blas:20] [--sessions 60]
                                      [--loads quiet,busy] [--out FILE.jsonl]
    python benchmarks/verification.py --read FILE.jsonl

A cell is a function and the milliseconds of its launch. The function's work is known exactly:
candidates do 0, 3, 10 or more % less of it than the default, four of them nothing less (A/A).
`FUNCTIONS` are of several kinds: with and without temporary arrays, with two BLAS threads, a thread
pool, or a file. Every session is a fresh process of the
product's own runner, in which all of them run in interleaved rounds. Verifications are formed of
the recorded sessions in order, by the product's own code, each candidate alone: sessions that one
used, it does not use again. "Busy" means three other processes that compute all the time, or a
machine that was busy anyway: ``others`` is the share of CPU time that processes outside this
benchmark used. "Biased" multiplies every launch of a session by a random factor with a deviation of
1 %, as the place of its memory may do.

Prints, by function and time of a launch: wins among A/A comparisons, the share of gains that were
found, and seconds and processes of real verifications of one candidate (3 % less work). Then by how
much equal launches of a process differ, by several statistics of its rounds; and, for roots, a busy
machine's 50 ms by wall time and by CPU time. A row is appended to the file as soon as it is known;
``--read`` prints the table of all rows in a file, added up by launch.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from busy_processes import other_load
from known_work import FUNCTIONS, KnownWork, inputs_of_roots, roots
from machine import heading, markdown

import foretune as ft
from foretune.collect import IsolatedRunner, local_device
from foretune.collect.comparison import DEFAULT_REPEATED, Rounds
from foretune.collect.machine_load import MAX_OTHER_LOAD, LoadMonitor
from foretune.tune.results import Comparison
from foretune.tune.verifier import gather

SESSION_S = 0.5
BIAS = 0.01
BUSY_PROCESSES = 3
STATISTICS = {"minimum": 0.0, "10 %": 0.1, "25 %": 0.25, "median": 0.5}
GROUPS = 20
VERIFIED_GAIN = 0.03
"""Gain of the candidate of the real verifications."""


def quantiles(time_ms: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return the `STATISTICS` of each contender's rounds, by key."""
    return {
        key: {name: float(np.nanquantile(times, q)) for name, q in STATISTICS.items()}
        for key, times in time_ms.items()
        if np.isfinite(times).any()
    }


class Cell:
    """One function and time of a launch, on a quiet or busy machine.

    Args:
        name: of `FUNCTIONS`.
        time_ms: about the time of the default.
        gains: shares of the work that candidates leave out.
        twins: number of candidates that are equal to the default.
        busy: whether other processes compute.
    """

    def __init__(
        self, name: str, time_ms: float, *, gains: Sequence[float], twins: int, busy: bool
    ) -> None:
        work: KnownWork = FUNCTIONS[name]
        self.name = name
        self.gains = (0.0, *gains)
        self.kernel = work.kernel(tuple(gains), twins)
        self.time_ms = time_ms
        self.busy = busy
        self.problem = work.problem(self.kernel, time_ms)
        space = self.kernel.space(self.problem)
        self.default = self.kernel.default(self.problem)
        self.candidates = [c for c in space if c != self.default and (c["gain"] or c["twin"])]
        self.sessions: list[dict[str, dict[str, float]]] = []
        self.separate: list[dict[str, dict[str, float]]] = []
        """The same of the few rounds in which each contender had a process of its own."""
        self.seconds: list[float] = []
        self.processes: list[int] = []
        self.others = 0.0

    def record(self, runner: IsolatedRunner, count: int, real: int) -> None:
        """Record sessions of all candidates, and verify one alone."""
        configs = [self.default, *self.candidates]
        # As many seconds for each launch as in a verification of one candidate.
        session_s = SESSION_S * (len(configs) + 1) / 3
        with other_load(BUSY_PROCESSES * self.busy), LoadMonitor(runner.device) as load:
            for seed in range(count):
                rounds = runner.compare_interleaved(
                    self.kernel, self.problem, configs, session_s, seed
                )
                if rounds.failures:
                    raise RuntimeError(f"a contender failed: {rounds.failures}")
                self.sessions.append(quantiles(dict(rounds.time_ms)))
                self.separate.append(quantiles(dict(rounds.separate_ms)))
            for seed in range(real):
                self._verify(runner, seed)
        self.others = load.load.other_load

    def _verify(self, runner: IsolatedRunner, seed: int) -> None:
        candidate = next(c for c in self.candidates if c["gain"] == VERIFIED_GAIN)

        def session(keys: Sequence[str], seed: int) -> Rounds:
            chosen = [self.default, *([candidate] if keys else [])]
            return runner.compare_interleaved(self.kernel, self.problem, chosen, SESSION_S, seed)

        start = time.perf_counter()
        evidence, _ = gather(session, self.default.id, {candidate.id: candidate}, seed)
        self.seconds.append(time.perf_counter() - start)
        self.processes.append(len(evidence))

    def verdicts(self, config: ft.Configuration, biased: bool = False) -> list[Comparison]:
        """Return the verifications of a candidate that its recorded sessions give."""
        rng = np.random.default_rng(int(config["twin"]) + 100 * int(1000 * config["gain"]))
        sessions = iter(zip(self.sessions, self.separate, strict=True))
        found = []

        def session(keys: Sequence[str], seed: int) -> Rounds:
            recorded, separate = next(sessions)
            wanted = (self.default.id, DEFAULT_REPEATED, config.id)
            factors = np.exp(rng.normal(0, BIAS, len(wanted)) * biased)
            return Rounds(
                {
                    key: np.array([recorded[key]["10 %"] * factor])
                    for key, factor in zip(wanted, factors, strict=True)
                },
                separate_ms={
                    key: np.array([separate[key]["10 %"] * factor])
                    for key, factor in zip(wanted, factors, strict=True)
                    if key in separate
                },
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
        is_busy = self.busy or self.others > MAX_OTHER_LOAD
        name = f"{self.name}, {self.time_ms:g} ms, {'busy' if is_busy else 'quiet'}"
        verdicts = {config.id: self.verdicts(config, biased=biased) for config in self.candidates}
        found = {}
        for gain in self.gains:
            of_gain = [
                verdict
                for config in self.candidates
                if config["gain"] == gain
                for verdict in verdicts[config.id]
            ]
            found[f"{gain:.0%}"] = [sum(v.wins for v in of_gain), len(of_gain)]
            if gain == 0.0:
                equal = [sum(v.verdict == "no_win" for v in of_gain), len(of_gain)]
        return {
            "launch": name + (", biased" if biased else ""),
            "found": found,
            "equal": equal,
            "others": self.others,
            "sessions": len(self.sessions),
            "seconds": self.seconds,
            "processes": self.processes,
            "deviations": self.deviations(),
        }


def clocks() -> dict[str, float]:
    """Return by how much groups of five launches of 50 ms differ on a busy machine, in per cent.

    By the 10 % quantile of each group's wall times and CPU times.
    """
    x, out, _ = inputs_of_roots()
    work = FUNCTIONS["roots"]
    total = int(work.problem(work.kernel((0.1,)), 50.0)["total"])
    found: dict[str, list[float]] = {"wall time": [], "CPU time": []}
    with other_load(BUSY_PROCESSES):
        for _ in range(GROUPS):
            walls = []
            cpus = []
            for _ in range(5):
                wall = time.perf_counter()
                cpu = time.thread_time()
                roots(x, out, total)
                walls.append(time.perf_counter() - wall)
                cpus.append(time.thread_time() - cpu)
            for name, times in (("wall time", walls), ("CPU time", cpus)):
                found[name].append(float(np.log(np.quantile(times, 0.1))))
    return {name: 100 * float(np.std(logs, ddof=1)) for name, logs in found.items()}


def added_up(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each kind of launch; loads and deviations are means."""
    by_launch: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_launch.setdefault(row["launch"], []).append(row)
    return [
        {
            "launch": launch,
            "found": {
                gain: [sum(row["found"].get(gain, (0, 0))[i] for row in alike) for i in (0, 1)]
                for gain in dict.fromkeys(gain for row in alike for gain in row["found"])
            },
            "equal": [sum(row["equal"][i] for row in alike) for i in (0, 1)],
            "others": float(np.mean([row["others"] for row in alike])),
            "seconds": [s for row in alike for s in row["seconds"]],
            "processes": [n for row in alike for n in row["processes"]],
            "deviations": {
                name: float(np.mean([row["deviations"][name] for row in alike]))
                for name in STATISTICS
            },
        }
        for launch, alike in by_launch.items()
    ]


def print_tables(rows: list[dict[str, Any]]) -> None:
    """Print what `Cell.row` returned."""
    gains = list(dict.fromkeys(gain for row in rows for gain in row["found"] if gain != "0%"))
    columns = ["launch", "false wins", "equal, and said so", *(f"{gain} found" for gain in gains)]
    columns += ["seconds: median (range)", "processes", "others"]
    lines = []
    for row in rows:
        seconds = row["seconds"]
        range_s = f"{np.median(seconds):.1f} ({min(seconds):.1f}–{max(seconds):.1f})"
        lines.append(
            [
                row["launch"],
                "{} of {}".format(*row["found"]["0%"]),
                "{} of {}".format(*row["equal"]),
                *("{} of {}".format(*row["found"].get(gain, "––")) for gain in gains),
                range_s if seconds else "–",
                f"{np.median(row['processes']):g}" if seconds else "–",
                f"{row['others']:.0%}",
            ]
        )
    print(markdown(columns, lines))
    plain = [row for row in rows if "biased" not in row["launch"]]
    deviations = [
        [row["launch"], *(f"{row['deviations'][name]:.2f}" for name in STATISTICS)] for row in plain
    ]
    print(markdown(["launch", *STATISTICS], deviations))
    false, equal = np.sum([row["found"]["0%"] for row in rows], axis=0)
    print(f"False wins: {false} of {equal} comparisons of equals.")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--cells",
        default="roots:0.02,roots:1,roots:50",
        help=f"functions and milliseconds of a launch: {', '.join(FUNCTIONS)}",
    )
    parser.add_argument("--loads", default="quiet,busy")
    parser.add_argument("--gains", default="0.01,0.03,0.1,0.3", help="0.03 is needed")
    parser.add_argument("--twins", type=int, default=4, help="candidates equal to the default")
    parser.add_argument("--sessions", type=int, default=60, help="recorded in each cell")
    parser.add_argument("--real", type=int, default=5, help="real verifications in each cell")
    parser.add_argument("--out", type=Path, help="append the rows to this file, a JSON per line")
    parser.add_argument("--read", type=Path, help="print the table of such a file")
    options = parser.parse_args()
    device = local_device("cpu")
    if options.read:
        print(heading("What verified means", device))
        lines = options.read.read_text().splitlines()
        print_tables(added_up(json.loads(line) for line in lines))
        return

    rows = []
    gains = [float(gain) for gain in options.gains.split(",")]
    with IsolatedRunner(device, power=False) as runner:
        for load in options.loads.split(","):
            for text in options.cells.split(","):
                name, _, time_ms = text.partition(":")
                cell = Cell(
                    name, float(time_ms), gains=gains, twins=options.twins, busy=load == "busy"
                )
                cell.record(runner, options.sessions, options.real)
                new_rows = [cell.row()]
                if not cell.busy and cell.others <= MAX_OTHER_LOAD:
                    new_rows.append(cell.row(biased=True))
                rows += new_rows
                for row in new_rows:
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    if options.out:
                        with options.out.open("a") as file:
                            file.write(json.dumps(row) + "\n")
    print(heading("What verified means", device))
    print_tables(rows)
    if "roots" in options.cells:
        text = ", ".join(f"{name} {deviation:.2f} %" for name, deviation in clocks().items())
        print(f"50 ms, busy: {text}")


if __name__ == "__main__":
    main()
