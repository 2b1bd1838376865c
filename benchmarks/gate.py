"""Is a red light of `foretune gate` right? Equal code, and code that is 3 or 5 % slower.

    python benchmarks/gate.py --record FILE.jsonl [--minutes 60] [--busy 0]
    python benchmarks/gate.py --read FILE.jsonl

`gated/bench_work.py` has twenty functions of NumPy, pandas and pure Python, of 10 µs to 50 ms,
whose work is known exactly. A session of the product's own code times them in fresh processes: the
base twice, eight heads that are equal to it, and one each that does 3 and 5 % more work. Each
session is appended to the file as soon as it is known, so several runs add up.

Reading forms gates of the recorded sessions in order, by the product's own verdicts, for each head
alone: sessions that one gate used, no other gate of this head uses. It prints, for suites of 5 and
20 functions: how many gates have any red light, and how many comparisons are red, same or open.
Beside it stand rules that others use, on the same processes, one process of each revision: the mean
is 5 % larger (as ``--benchmark-compare-fail=mean:5%`` of pytest-benchmark); the median is 5 %
larger; the means differ by more than two standard errors (hyperfine shows mean ± σ). ``--busy``
starts other processes that compute all the time.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from busy_processes import other_load
from machine import heading, markdown

from foretune.collect import local_device
from foretune.collect.comparison import Rounds
from foretune.collect.machine_load import LoadMonitor
from foretune.collect.printed_output import PrintedOutput
from foretune.device import Device
from foretune.tune.gate.case import Case
from foretune.tune.gate.environment import AGAIN, BASE, HEAD, Environment
from foretune.tune.gate.session import Session, Suite, TurnPlan
from foretune.tune.gate.verdicts import LOOKS, RED_ERROR, RELEVANT
from foretune.tune.verifier import QUANTILE

BENCHMARKS = Path(__file__).parent / "gated"
TWINS = tuple(f"equal {number}" for number in range(1, 9))
SLOWER = {"3 % slower": 0.03, "5 % slower": 0.05}
SHARES = {BASE: 0.0, AGAIN: 0.0, **dict.fromkeys(TWINS, 0.0), **SLOWER}
SUITES = {"20 functions": 1, "5 functions": 4}
"""Kinds of suites, and into how many suites the functions are divided."""
LIMIT_S = 600.0
RULE = 0.05


def record(file: Path, minutes: float, busy: int) -> None:
    """Append sessions to a file until the time is over."""
    end = time.monotonic() + 60 * minutes
    plans: dict[str, TurnPlan] = {}
    with tempfile.TemporaryDirectory() as temporary, other_load(busy):
        environments = {}
        for role, share in SHARES.items():
            folder = Path(temporary, role.replace(" ", "-").replace("%", "percent"))
            folder.mkdir()
            Path(folder, "share.txt").write_text(str(share))
            environments[role] = Environment(Path(sys.executable), folder, role)
        while time.monotonic() < end:
            line = record_session(environments, plans, seed=time.time_ns() % 2**31)
            with file.open("a") as stream:
                stream.write(json.dumps({"busy": busy, **line}) + "\n")


def record_session(
    environments: Mapping[str, Environment], plans: dict[str, TurnPlan], seed: int
) -> dict[str, Any]:
    """Return the figures of one session: by function and contender."""
    suite = Suite(dict.fromkeys(environments, str(BENCHMARKS)))
    started = time.monotonic()
    figures: dict[str, Any] = {}
    with (
        LoadMonitor(Device("CPU", "cpu")) as monitor,
        Session(
            environments, suite, seed=seed, limit_s=LIMIT_S, printed=PrintedOutput()
        ) as session,
    ):
        names = session.loaded[BASE].benchmarks
        for number in np.random.default_rng(seed).permutation(len(names)):
            name = names[number]
            if name not in plans:
                plans[name] = session.count_calls(name)
            rounds = session.measure(name, plans[name])
            if rounds.failures:
                raise RuntimeError(f"{name}: {rounds.failures}")
            figures[name] = {
                role: figures_of(rounds.time_ms[role], np.array(session.wall_ms[role]))
                for role in environments
            }
    load = monitor.load
    return {
        "seconds": time.monotonic() - started,
        "others": load.other_load,
        "stolen": load.steal,
        "figures": figures,
    }


def figures_of(used_ms: np.ndarray, wall_ms: np.ndarray) -> dict[str, float]:
    """Return what the gate uses of a process's times, and what other rules use."""
    return {
        "used": float(np.nanquantile(used_ms, QUANTILE)),
        "wall": float(np.quantile(wall_ms, QUANTILE)),
        "mean": float(wall_ms.mean()),
        "median": float(np.median(wall_ms)),
        "error": float(wall_ms.std(ddof=1) / np.sqrt(len(wall_ms))),
    }


@dataclass
class Counts:
    """Verdicts over all gates of one kind."""

    gates: int = 0
    red_gates: int = 0
    comparisons: int = 0
    red: int = 0
    same: int = 0
    open: int = 0
    sessions: int = 0


def count_gates(
    sessions: Sequence[Mapping[str, Any]], heads: Sequence[str], suites: int, most_sessions: int
) -> Counts:
    """Return the verdicts of all gates that the recorded sessions give."""
    counts = Counts()
    names = sorted(sessions[0]["figures"])
    for head in heads:
        for number in range(suites):
            suite = names[number::suites]
            rest = list(sessions)
            while cases := replay_gate(rest, head, suite, most_sessions):
                used = max(len(case.evidence) for case in cases)
                rest = rest[used:]
                words = [case.word for case in cases]
                counts.gates += 1
                counts.red_gates += "slower" in words
                counts.comparisons += len(words)
                counts.red += words.count("slower")
                counts.same += words.count("same")
                counts.open += words.count("cannot tell")
                counts.sessions += used
    return counts


def replay_gate(
    sessions: Sequence[Mapping[str, Any]], head: str, suite: Sequence[str], most_sessions: int
) -> list[Case]:
    """Return the cases of one gate; none if the sessions end before it does."""
    cases = [Case(name, "time") for name in suite]
    spent_share = 0.0
    for look, share in LOOKS.items():
        is_last = look >= most_sessions
        until = min(look, most_sessions)
        if until > len(sessions):
            return []
        for case in cases:
            if case.is_open:
                for session in sessions[len(case.evidence) : until]:
                    figures = session["figures"][case.name]
                    roles = {BASE: BASE, AGAIN: AGAIN, HEAD: head}
                    times = {role: np.array([figures[r]["used"]]) for role, r in roles.items()}
                    case.add(Rounds(times), took_s=0.0)
                used_share = 1.0 - spent_share if is_last else share
                case.look(RED_ERROR * used_share / len(suite), RELEVANT)
        spent_share += share
        if is_last or not any(case.is_open for case in cases):
            break
    return cases


RULES: dict[str, Callable[[Mapping[str, float], Mapping[str, float]], bool]] = {
    "mean:5%": lambda base, head: head["mean"] > (1 + RULE) * base["mean"],
    "median, 5 %": lambda base, head: head["median"] > (1 + RULE) * base["median"],
    "mean, 2 σ": lambda base, head: (
        head["mean"] - base["mean"] > 2 * np.hypot(base["error"], head["error"])
    ),
}
"""Rules for one process of each revision: whether the head is red."""


def count_rule(
    sessions: Sequence[Mapping[str, Any]], heads: Sequence[str], suites: int, rule: str
) -> Counts:
    """Return the verdicts of a rule; every session is a gate."""
    counts = Counts()
    names = sorted(sessions[0]["figures"])
    for session in sessions:
        for head in heads:
            for number in range(suites):
                suite = names[number::suites]
                figures = [session["figures"][name] for name in suite]
                red = sum(bool(RULES[rule](f[BASE], f[head])) for f in figures)
                counts.gates += 1
                counts.red_gates += red > 0
                counts.comparisons += len(suite)
                counts.red += red
                counts.sessions += 1
    return counts


def deviations(sessions: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return by how much equal processes differ in each function, in per cent."""
    equal = (BASE, AGAIN, *TWINS)
    rows = []
    for name in sorted(sessions[0]["figures"]):
        row = [name.partition("::")[2]]
        median_ms = np.median([s["figures"][name][BASE]["used"] for s in sessions])
        row.append(f"{median_ms:.3g}")
        for figure in ("used", "wall", "median", "mean"):
            logs = np.log([[s["figures"][name][r][figure] for r in equal] for s in sessions])
            row.append(f"{100 * np.sqrt(logs.var(axis=1, ddof=1).mean()):.2f}")
        rows.append(row)
    return rows


def report(file: Path, most_sessions: int) -> None:
    """Print the tables of a file."""
    sessions = [json.loads(line) for line in file.read_text().splitlines()]
    print(heading("What a red light means", local_device("cpu", measure=False)))
    others = np.mean([session["others"] for session in sessions])
    seconds = np.median([session["seconds"] for session in sessions])
    print(
        f"{len(sessions)} sessions of {len(SHARES)} contenders; other processes used {others:.0%} "
        f"of the CPUs; a session took {seconds:.0f} s.\n"
    )
    columns = ["suite", "rule", "head", "gates", "any red", "comparisons", "red", "same", "open"]
    rows = []
    for suite, divided in SUITES.items():
        for rule in ("foretune gate", *RULES):
            for title, heads in (("equal", TWINS), *((head, (head,)) for head in SLOWER)):
                if rule == "foretune gate":
                    counts = count_gates(sessions, heads, divided, most_sessions)
                else:
                    counts = count_rule(sessions, heads, divided, rule)
                numbers = (counts.gates, counts.red_gates, counts.comparisons, counts.red)
                rest = (counts.same, counts.open) if rule == "foretune gate" else ("–", "–")
                rows.append([suite, rule, title, *map(str, (*numbers, *rest))])
    print(markdown(columns, rows))
    figures = ["function", "ms", "used by the gate", "by the clock", "median", "mean"]
    print("Deviation between equal processes, %:\n")
    print(markdown(figures, deviations(sessions)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", type=Path, metavar="FILE", help="append sessions to this file")
    parser.add_argument("--read", type=Path, metavar="FILE", help="print the tables of this file")
    parser.add_argument("--minutes", type=float, default=60.0, help="of recording")
    parser.add_argument("--busy", type=int, default=0, help="number of other processes")
    parser.add_argument("--sessions", type=int, default=12, help="at most, of one gate")
    options = parser.parse_args()
    if options.record:
        record(options.record, options.minutes, options.busy)
    if options.read:
        report(options.read, options.sessions)
    if not (options.record or options.read):
        parser.error("give --record FILE or --read FILE")


if __name__ == "__main__":
    main()
