"""How should the processes of a gate's session take turns: in few long rounds, or many short ones?

    python benchmarks/gate_turns.py --record FILE.jsonl [--minutes 10]
    python benchmarks/gate_turns.py --read FILE.jsonl

A session times the functions of `gated/bench_work.py` in the base twice, a head that is equal to
it, and heads that do 3 and 5 % more work. Every function is timed in all ways, in random order, so
all meet the same other load. Each session is appended to the file as soon as it is known.

Printed is by how much a head's measured change is off from the known one, root mean square over
sessions and heads and then the mean over functions; and the seconds of a function in a session. The
turns were chosen on NumPy's functions. "Paired" compares two processes by the median over rounds of
the ratio of their fastest bursts in a round, instead of by quantiles of all bursts.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gate import BENCHMARKS, LIMIT_S
from machine import heading, markdown

from foretune.collect import local_device
from foretune.collect.machine_load import LoadMonitor
from foretune.collect.printed_output import PrintedOutput
from foretune.device import Device
from foretune.tune.gate.environment import AGAIN, BASE, Environment
from foretune.tune.gate.session import Session, Suite, TurnPlan
from foretune.tune.verifier import QUANTILE

SHARES = {BASE: 0.0, AGAIN: 0.0, "equal": 0.0, "3 % slower": 0.03, "5 % slower": 0.05}
HEADS = ("equal", "3 % slower", "5 % slower")
WAYS = {"4 × 8 ms": (8.0, 4), "32 × 1 ms": (1.0, 32), "32 × 0.25 ms": (0.25, 32)}
"""Milliseconds of a turn, and rounds of a function."""
FAMILIES = ("numpy", "pandas", "python")

Turns = Mapping[str, np.ndarray]
"""Milliseconds per call by role: a row per round, a column per burst; NaN if unknown."""


def record(file: Path, minutes: float) -> None:
    """Append sessions to a file until the time is over."""
    end = time.monotonic() + 60 * minutes
    calls: dict[str, TurnPlan] = {}
    with tempfile.TemporaryDirectory() as temporary:
        environments = {}
        for number, (role, share) in enumerate(SHARES.items()):
            folder = Path(temporary, f"role{number}")  # equally long names: they move memory
            folder.mkdir()
            Path(folder, "share.txt").write_text(str(share))
            environments[role] = Environment(Path(sys.executable), folder, role)
        while time.monotonic() < end:
            line = record_session(environments, calls, seed=time.time_ns() % 2**31)
            with file.open("a") as stream:
                stream.write(json.dumps(line) + "\n")


def record_session(
    environments: Mapping[str, Environment], known: dict[str, TurnPlan], seed: int
) -> dict[str, Any]:
    """Return the times of one session: by function, way and contender."""
    rng = np.random.default_rng(seed)
    suite = Suite(dict.fromkeys(environments, str(BENCHMARKS)))
    functions: dict[str, Any] = {}
    with (
        LoadMonitor(Device("CPU", "cpu")) as monitor,
        Session(
            environments, suite, seed=seed, limit_s=LIMIT_S, printed=PrintedOutput()
        ) as session,
    ):
        names = session.loaded[BASE].benchmarks
        for number in rng.permutation(len(names)):
            name = names[number]
            if name not in known:
                known[name] = session.count_calls(name)
            functions[name] = {
                way: measure(session, name, known[name], way)
                for way in rng.permutation(list(WAYS)).tolist()
            }
    return {"others": monitor.load.other_load, "functions": functions}


def measure(session: Session, name: str, known: TurnPlan, way: str) -> dict[str, Any]:
    """Return the seconds that a function took in one way, and the times of each turn."""
    turn_ms, most_rounds = WAYS[way]
    call_ns = known.call_ms * 1e6
    plan = TurnPlan.of_count(known.calls, call_ns, turn_ms=turn_ms, most_rounds=most_rounds)
    started = time.monotonic()
    rounds = session.measure(name, plan)
    if rounds.failures:
        raise RuntimeError(f"{name}: {rounds.failures}")
    times = {
        role: np.reshape(values, (plan.rounds, plan.bursts)).tolist()
        for role, values in rounds.time_ms.items()
    }
    return {"seconds": time.monotonic() - started, "times": times}


def by_quantile(turns: Turns, head: str) -> float:
    """Return the log ratio of a head to the two bases, by a low quantile of all bursts."""
    logs = {role: np.log(np.nanquantile(turns[role], QUANTILE)) for role in (BASE, AGAIN, head)}
    return float(logs[head] - (logs[BASE] + logs[AGAIN]) / 2)


def by_pairs(turns: Turns, head: str) -> float:
    """Return the same by medians over rounds."""
    roles = (BASE, AGAIN, head)
    fastest = {role: np.log(np.fmin.reduce(turns[role], axis=1)) for role in roles}
    medians = [np.nanmedian(fastest[head] - fastest[base]) for base in (BASE, AGAIN)]
    return float(np.mean(medians))


ESTIMATES: dict[str, Callable[[Turns, str], float]] = {"quantile": by_quantile, "paired": by_pairs}


def errors(
    sessions: Sequence[Mapping[str, Any]], name: str, way: str, estimate: Callable[..., float]
) -> np.ndarray:
    """Return the errors of the log ratio in each session, for each head."""
    found = []
    for session in sessions:
        times = session["functions"][name][way]["times"]
        turns = {role: np.array(values, dtype=float) for role, values in times.items()}
        found.append([estimate(turns, head) - np.log1p(SHARES[head]) for head in HEADS])
    return np.array(found)


def report(file: Path) -> None:
    """Print the table of a file."""
    sessions = [json.loads(line) for line in file.read_text().splitlines()]
    names = sorted(sessions[0]["functions"])
    print(heading("Turns of a gate's session", local_device("cpu", measure=False)))
    others = np.mean([session["others"] for session in sessions])
    print(f"{len(sessions)} sessions; other processes used {others:.0%} of the CPUs.\n")
    rows = []
    for family in FAMILIES:
        of_family = [name for name in names if f"bench_{family}" in name]
        for way in WAYS:
            taken = [s["functions"][name][way]["seconds"] for s in sessions for name in of_family]
            row = [family, str(len(of_family)), way, f"{np.mean(taken):.2f}"]
            for estimate in ESTIMATES.values():
                squares = [errors(sessions, name, way, estimate) ** 2 for name in of_family]
                roots = [np.sqrt(np.nanmean(square)) for square in squares]
                row.append(f"{100 * np.mean(roots):.1f}")
            rows.append(row)
    columns = ["functions", "number", "rounds × turn", "seconds"]
    print(markdown([*columns, *(f"error, {title}, %" for title in ESTIMATES)], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", type=Path, metavar="FILE", help="append sessions to this file")
    parser.add_argument("--read", type=Path, metavar="FILE", help="print the table of this file")
    parser.add_argument("--minutes", type=float, default=10.0, help="of recording")
    options = parser.parse_args()
    if options.record:
        record(options.record, options.minutes)
    if options.read:
        report(options.read)
    if not (options.record or options.read):
        parser.error("give --record FILE or --read FILE")


if __name__ == "__main__":
    main()
