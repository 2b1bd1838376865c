"""Does "verified" hold on a GPU: are gains found, and none invented?

    PYTHONPATH=src python benchmarks/gpu/known_gains.py --out gate.jsonl
    PYTHONPATH=src python benchmarks/gpu/known_gains.py --replay  # compiles; made-up times, no GPU

As benchmarks/verification.py on a CPU: the work of two kernels is known exactly, and candidates do
0, 1, 3 or 10 % less of it than the default; many do exactly as much (A/A). Every session is a fresh
process of the product's runner, in which all candidates run in interleaved rounds. The product's
code forms verifications of the recorded sessions in order, one candidate at a time; a candidate
uses no session twice. The default and its repetition are two random ones of the equal launches, so
that not all comparisons share the same two.

All candidates of a kernel run one compiled program, and give the same checked result. GEMM: the
last tenth of A's columns is zero, and a candidate leaves out 1, 3 or 10 of 100 steps; one row of
each tile is checked. Softmax, a program per row: a candidate leaves out the last rows; some of the
first nine tenths are checked.

A verification whose sessions ran out after its first look is open: it counts as a gain that was
not found, and it does not count as a comparison of equals. The measured gain is the median over
sessions and candidates of the time saved, relative to the mean of the session's equal launches.
Seconds are those of a session with one candidate (3 %), times the processes of a verification.

Each kernel gets five sessions, enough for a first look; then one of a single candidate; then
kernels with open verifications get more. Rows are written to ``--out`` at once; the next call with
the same file continues. ``--minutes 0`` prints the table of a file.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))

# Measuring processes import this file: what only the statistics need is imported where it is used.
from triton_softmax import TritonSoftmax

from foretune.collect.kernels.triton_gemm import TritonGemm
from foretune.collect.kernels.triton_kernel import JitLaunch
from foretune.kernel import Inputs, Kernel, Launch
from foretune.problem import Problem
from foretune.space import Configuration, SearchSpace

ROOT = Path(__file__).resolve().parents[2]
GAINS = {0.0: 57, 0.01: 4, 0.03: 20, 0.1: 4}
"""Share of the work left out -> number of candidates; the first of 0 is the default."""
KEPT = 0.9
"""Share of the work that all do."""
CHECKED = 65_536
"""Elements of a result that are checked: checks of all would take a third of a session."""
SESSION_S = 2.0
ALONE_S = 0.5
"""Seconds of rounds in a session of all candidates, and of one."""
MOST_SESSIONS = 12
"""Maximum number of sessions of a kernel."""
LIMIT_S = 40.0
"""A session that takes longer hangs."""
FIRST = 5
"""Sessions that each kernel gets before anything else: a verification's first look."""
MAX_FAILED = 3
"""Sessions of a kernel that may fail before it is given up."""
LOW = "10 %"
"""The product's statistic of a process's rounds."""
MADE_UP = "made-up times"
DEVICE = "NVIDIA H100 80GB HBM3"
"""What ``--replay`` compiles for."""


class Twins:
    """Knobs of a kernel whose candidates only leave out work."""

    def space(self, problem: Problem) -> SearchSpace:
        """Return all candidates."""
        rule = " or ".join(f"(gain == {gain} and twin < {n})" for gain, n in GAINS.items())
        twins = tuple(range(max(GAINS.values())))
        return SearchSpace({"gain": tuple(GAINS), "twin": twins}, [rule])

    def default(self, problem: Problem) -> Configuration:
        """Return the first of those that leave out nothing."""
        return Configuration(gain=0.0, twin=0)

    def library(self, problem: Problem, inputs: Inputs) -> tuple[str, Launch] | None:
        """Return none: it would only take time."""
        return None


class GateGemm(Twins, TritonGemm):
    """Foretune's GEMM with its default tile; the last tenth of A's columns is zero."""

    name = "gate_gemm"

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return A and B; nothing is lost where the last steps are left out."""
        inputs = super().make_inputs(problem, seed)
        inputs["a"][:, round(KEPT * int(problem["K"])) :] = 0
        return inputs

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch over the first columns of A and rows of B, and checked rows of C."""
        k = done(problem["K"], config)
        tile = TritonGemm.default(self, problem)
        whole = {"a": inputs["a"][:, :k], "b": inputs["b"][:k]}
        launches, c = super().launches(problem, tile, whole)
        return launches, some_rows(c)

    def reference(self, inputs: Inputs) -> Any:
        """Return the checked rows of the product in single precision."""
        a = inputs["a"]
        b = inputs["b"]
        rows = some_rows(a, columns=b.shape[1])
        return super().reference({"a": rows, "b": b})


class GateSoftmax(Twins, TritonSoftmax):
    """The example's softmax, a row per program; the result is a part of the rows that all do."""

    name = "gate_softmax"

    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launch over the first rows, and the checked rows."""
        rows = done(problem["R"], config)
        tile = Configuration(
            ROWS=1,
            BLOCK=0,
            REDUCE="each",
            PROGRAMS=0,
            num_stages=1,
            num_warps=min(max(int(problem["C"]) // 512, 1), 16),
        )
        smaller = Problem({**problem, "R": rows})
        launches, y = super().launches(smaller, tile, {"x": inputs["x"][:rows]})
        return launches, some_rows(y[: round(KEPT * int(problem["R"]))])

    def reference(self, inputs: Inputs) -> Any:
        """Return the softmax of the checked rows in double precision."""
        x = inputs["x"]
        return super().reference({"x": some_rows(x[: round(KEPT * len(x))])})


def done(total: Any, config: Mapping[str, Any]) -> int:
    """Return how much of ``total``, a multiple of 100, a candidate does."""
    return int(total) - round(int(total) * float(config["gain"]))


def some_rows(matrix: Any, columns: int = 0) -> Any:
    """Return evenly spaced rows, those with `CHECKED` elements of a result of ``columns``."""
    return matrix[:: max(1, len(matrix) * (columns or matrix.shape[1]) // CHECKED)]


PROBLEMS: dict[str, dict[str, Any]] = {
    "GateGemm": {"M": 4096, "N": 2048, "K": 6400, "dtype": "fp16", "layout": "nt"},
    "GateSoftmax": {"R": 102_400, "C": 1024, "dtype": "fp16"},
}
"""Problem of each kernel: K is 100 blocks, R 100 times 1024. About 0.2 ms on an H100."""


def name_of(config: Mapping[str, Any]) -> str:
    """Return the name of a candidate in the file: gain/twin."""
    return f"{config['gain']:g}/{config['twin']}"


def candidates(gain: float) -> list[Configuration]:
    """Return the candidates of a gain; the default is among those of 0."""
    return [Configuration(gain=gain, twin=i) for i in range(GAINS[gain])]


@dataclass
class Cell:
    """One kernel's problem and sessions.

    Attributes:
        sessions: Times in ms, by name of a launch and statistic.
        rounds: Number of rounds of each session.
        alone_s: Seconds of sessions with one candidate.
        session_s: Seconds of the other sessions.
    """

    kernel: Kernel
    problem: Problem
    sessions: list[dict[str, dict[str, float]]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    session_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    failed: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Take a row of the file."""
        if row.get("error"):
            self.failed += 1
        elif row["alone"]:
            self.alone_s.append(row["seconds"])
        else:
            self.sessions.append(row["time_ms"])
            self.rounds.append(row["rounds"])
            self.session_s.append(row["seconds"])

    def names(self, gain: float) -> list[str]:
        """Return the launches that leave out ``gain`` and have times in every session."""
        from foretune.collect.comparison import DEFAULT_REPEATED

        wanted = [name_of(c) for c in candidates(gain)] + ([] if gain else [DEFAULT_REPEATED])
        return [name for name in wanted if all(name in s for s in self.sessions)]

    def verdicts(self, gain: float) -> "Verdicts":
        """Return the verifications of the candidates of a gain that the sessions give."""
        from foretune.tune.verifier import LOOKS

        equal = self.names(0.0)
        found = Verdicts()
        for number, name in enumerate(self.names(gain)):
            rng = np.random.default_rng([round(1000 * gain), number])
            others = [other for other in equal if other != name]
            at = 0
            while len(others) > 1 and len(self.sessions) - at >= min(LOOKS):
                default, again = rng.choice(others, 2, replace=False)
                at += found.verify(self.sessions[at:], default, again, name)
        return found

    def open(self) -> int:
        """Return how many verifications are open."""
        return sum(self.verdicts(gain).open for gain in GAINS)

    def measured_gains(self, gain: float) -> list[float]:
        """Return the share of the time that each candidate saved in each session."""
        equal = self.names(0.0)
        names = self.names(gain)
        found = []
        for session in self.sessions:
            whole = np.exp(np.mean([np.log(session[name][LOW]) for name in equal]))
            found += [float(1 - session[name][LOW] / whole) for name in names]
        return found

    def deviation(self) -> float:
        """Return how equal launches of a process differ, in per cent."""
        logs = np.log([[s[name][LOW] for name in self.names(0.0)] for s in self.sessions])
        return 100 * float(np.sqrt(logs.var(axis=1, ddof=1).mean()))


@dataclass
class Verdicts:
    """Verifications of equal candidates.

    Attributes:
        wins: Candidates that were found to be faster.
        equal: Candidates that were found to be no faster.
        finished: Verifications with a verdict, inconclusive ones included.
        open: Verifications without a verdict when the sessions ran out.
        processes: Number of processes of each finished verification.
    """

    wins: int = 0
    equal: int = 0
    finished: int = 0
    open: int = 0
    processes: list[float] = field(default_factory=list)

    def verify(
        self,
        sessions: Sequence[Mapping[str, Mapping[str, float]]],
        default: str,
        again: str,
        name: str,
    ) -> int:
        """Verify a candidate by the product's own code; return how many sessions it took."""
        from foretune.collect.comparison import DEFAULT_REPEATED, Rounds
        from foretune.tune.verifier import gather

        roles = {"default": default, DEFAULT_REPEATED: again, "candidate": name}
        left = iter(sessions)

        def session(keys: Sequence[str], seed: int) -> Rounds:
            recorded = next(left)
            return Rounds({role: np.array([recorded[n][LOW]]) for role, n in roles.items()})

        try:
            evidence, (verdict,) = gather(session, "default", {"candidate": Configuration()}, 0)
        except StopIteration:
            self.open += 1
            return len(sessions)
        self.wins += verdict.wins
        self.equal += verdict.verdict == "no_win"
        self.finished += 1
        self.processes.append(len(evidence))
        return len(evidence)


def measured(runner: Any, cell: Cell, seed: int, alone: bool) -> dict[str, Any]:
    """Return the row of a session in a fresh process: of all candidates, or of one."""
    from verification import STATISTICS

    from foretune.collect.comparison import DEFAULT_REPEATED

    configs = [c for gain in GAINS for c in candidates(gain)]  # the default is the first
    if alone:
        configs = [configs[0], candidates(0.03)[0]]
    names = {c.id: name_of(c) for c in configs} | {DEFAULT_REPEATED: DEFAULT_REPEATED}
    row: dict[str, Any] = {"kernel": cell.kernel.name, "alone": alone, "seed": seed}
    runner.limit_s = LIMIT_S / (len(configs) + 1)  # it is a limit per configuration
    start = time.perf_counter()
    try:
        rounds = runner.compare_interleaved(
            cell.kernel, cell.problem, configs, ALONE_S if alone else SESSION_S, seed
        )
    except Exception as e:  # the next session has another process
        return row | {"error": f"{type(e).__name__}: {e}"[:500]}
    row["seconds"] = time.perf_counter() - start
    times = {names[k]: t for k, t in rounds.time_ms.items() if k in names and len(t)}
    row["rounds"] = max(map(len, times.values()), default=0)
    row["failures"] = {names.get(k, k): why for k, why in rounds.failures.items()}
    if row["failures"] and not {name_of(configs[0]), DEFAULT_REPEATED} <= times.keys():
        return row | {"error": f"the default failed: {row['failures']}"[:500]}
    row["time_ms"] = {
        name: {statistic: float(np.nanquantile(t, q)) for statistic, q in STATISTICS.items()}
        for name, t in times.items()
    }
    return row


class MadeUpRunner:
    """Answers as `foretune.collect.IsolatedRunner` does, with times that say nothing."""

    limit_s = 0.0

    def compare_interleaved(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Sequence[Configuration],
        max_seconds: float,
        seed: int,
    ) -> Any:
        """Return 25 rounds; launches of a process differ by 0.2 %."""
        from foretune.collect.comparison import DEFAULT_REPEATED, Rounds

        rng = np.random.default_rng([seed, len(kernel.name)])
        gains = {c.id: float(c["gain"]) for c in configs} | {DEFAULT_REPEATED: 0.0}
        return Rounds(
            {
                key: 0.2 * (1 - gain) * np.exp(rng.normal(0, 0.002) + rng.exponential(0.005, 25))
                for key, gain in gains.items()
            }
        )


def compile_programs(cells: Sequence[Cell]) -> None:
    """Compile for `DEVICE` what the kernels run, into Triton's cache."""
    sys.path.append(str(ROOT / "tests" / "replay_gpu"))
    from replay_driver import ReplayDriver

    for cell in cells:
        kernel: Any = cell.kernel
        driver = ReplayDriver(lambda launch: 1.0, device=DEVICE, compile=True)
        with driver.active():
            inputs = kernel.inputs_without_data(cell.problem)
            for gain in GAINS:
                kernel.build(cell.problem, candidates(gain)[0], inputs)
        print(f"{kernel.name}: {len(driver.compilations)} program(s)", file=sys.stderr)


def turn(cell: Cell) -> tuple[int, ...]:
    """Return what is least for the kernel whose turn it is."""
    if len(cell.sessions) < FIRST:
        return 0, len(cell.sessions) + cell.failed
    if not cell.alone_s:
        return 1, 0
    return 2, not cell.open(), -len(cell.sessions)  # kernels with more sessions are finished first


def record(
    cells: Sequence[Cell], runner: Any, minutes: float, write: Callable[[dict[str, Any]], None]
) -> None:
    """Record sessions until each kernel has enough or the time is over."""
    end = time.monotonic() + 60 * minutes
    while True:
        waiting = [c for c in cells if len(c.sessions) < MOST_SESSIONS and c.failed < MAX_FAILED]
        if not waiting:
            return
        cell = min(waiting, key=turn)
        alone = not cell.alone_s and len(cell.sessions) >= FIRST
        # what would end too late does not begin
        known = [s for c in cells for s in (c.alone_s if alone else c.session_s)[-1:]]
        if time.monotonic() + max(known, default=0.0) >= end:
            return
        seed = 1000 * cell.failed + len(cell.sessions)
        row = measured(runner, cell, seed, alone)
        cell.add(row)
        write(row)


def report(cells: Sequence[Cell]) -> str:
    """Return the table and its totals."""
    from machine import markdown

    columns = [
        "kernel",
        "false wins",
        "equal, and said so",
        "1% found",
        "3% found",
        "10% found",
        "open",
        "measured gains",
        "equal differ by",
        "ms",
        "processes",
        "seconds per verification",
        "sessions",
        "rounds",
        "seconds of a session",
    ]
    lines = []
    totals = {gain: Verdicts() for gain in GAINS}
    for cell in cells:
        if not cell.sessions or len(cell.names(0.0)) < 3:
            lines.append([cell.kernel.name, *["–"] * (len(columns) - 1)])
            continue
        found = {gain: cell.verdicts(gain) for gain in GAINS}
        for gain, verdicts in found.items():
            for name in ("wins", "finished", "open"):
                total = totals[gain]
                setattr(total, name, getattr(total, name) + getattr(verdicts, name))
        saved = [f"{100 * np.median(cell.measured_gains(g)):.2f} %" for g in GAINS if g]
        equal_ms = np.median([s[n][LOW] for s in cell.sessions for n in cell.names(0.0)])
        processes = float(np.median(found[0.03].processes or [np.nan]))
        seconds = f"{processes * np.median(cell.alone_s):.1f}" if cell.alone_s else "–"
        lines.append(
            [
                cell.kernel.name,
                f"{found[0.0].wins} of {found[0.0].finished}",
                f"{found[0.0].equal} of {found[0.0].finished}",
                *(share(found[gain]) for gain in GAINS if gain),
                " + ".join(str(found[gain].open) for gain in GAINS),
                ", ".join(saved),
                f"{cell.deviation():.2f} %",
                f"{equal_ms:.3f}",
                f"{processes:g}",
                seconds,
                f"{len(cell.sessions)}",
                f"{np.median(cell.rounds):g}",
                f"{np.median(cell.session_s):.1f}",
            ]
        )
    false = totals[0.0]
    three = totals[0.03]
    return (
        f"{markdown(columns, lines)}\n"
        f"False wins: {false.wins} of {false.finished} comparisons of equals, {false.open} open. "
        f"3 %: {share(three)} found."
    )


def share(verdicts: Verdicts) -> str:
    """Return how many of the verifications found a gain; open ones did not."""
    return f"{verdicts.wins} of {verdicts.finished + verdicts.open}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.8, help="begin nothing that ends later")
    parser.add_argument("--out", type=Path, default=Path("gate.jsonl"))
    parser.add_argument("--replay", action="store_true", help="compile; made-up times, no GPU")
    options = parser.parse_args(argv)
    sys.path.append(str(ROOT / "benchmarks"))
    from foretune.collect import IsolatedRunner
    from foretune.collect.devices import local_gpus
    from foretune.collect.versions import versions
    from foretune.registry import kernel_at

    # Measuring processes import the kernels by the name of this file.
    kernels = {name: kernel_at(f"{Path(__file__).resolve()}:{name}") for name in PROBLEMS}
    cells = [Cell(kernels[name], kernels[name].problem(PROBLEMS[name])) for name in PROBLEMS]
    by_name = {cell.kernel.name: cell for cell in cells}
    where = ""
    for line in options.out.read_text().splitlines() if options.out.exists() else []:
        row = json.loads(line)
        where = f"{row['device']}; {row['versions']}"
        if not row.get("error"):
            by_name[row["kernel"]].add(row)
    if options.minutes <= 0 and not options.out.exists():
        raise SystemExit(f"there is no file {options.out}")
    if options.minutes > 0:
        gpus = local_gpus()
        if not options.replay and not gpus:
            raise SystemExit("no GPU here: --replay shows that it runs, with made-up times")
        here = {"device": MADE_UP if options.replay else gpus[0].name, "versions": versions()}
        if where not in ("", f"{here['device']}; {here['versions']}"):
            raise SystemExit(f"{options.out} is of {where}")
        where = f"{here['device']}; {here['versions']}"
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as out:

            def write(row: dict[str, Any]) -> None:
                out.write(json.dumps(here | row) + "\n")
                out.flush()
                said = row.get("error") or f"{row['seconds']:.1f} s, {row['rounds']} rounds"
                print(f"{row['kernel']} {row['seed']}: {said}", file=sys.stderr, flush=True)

            if options.replay:
                compile_programs(cells)
                record(cells, MadeUpRunner(), options.minutes, write)
            else:
                with IsolatedRunner(gpus[0], power=False) as runner, runner.watch() as watch:
                    record(cells, runner, options.minutes, write)
                if watch.load.disturbance:
                    print(watch.load.disturbance, file=sys.stderr)
    print(f"### What verified means on a GPU\n\n{where}\n\n{report(cells)}")


if __name__ == "__main__":
    main()
