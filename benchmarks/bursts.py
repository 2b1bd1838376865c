"""Does timing calls in bursts show more than one call a round does?

    python benchmarks/bursts.py [--cells roots:0.02,temporaries:1,blas:3] [--sessions 12]

A cell is a function of `known_work.FUNCTIONS` and the milliseconds of its launch. Sessions of the
product's own comparison run in fresh processes: the default, the default once more, and a candidate
that does 3 % less work. Sessions with bursts and with one call a round take turns.

Prints how much the two equal launches differ, the gain that is found and its deviation, from the
10 % quantile of each process, and the seconds of a session.
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from known_work import FUNCTIONS
from machine import heading, markdown

from foretune.collect import InProcessRunner, burst, local_device
from foretune.collect.comparison import DEFAULT_REPEATED
from foretune.tune.verifier import QUANTILE

GAIN = 0.03
SESSION_S = 0.5
WAYS = {"one call a round": 0, "bursts": burst.MAX_CALLS}
"""Way -> most calls of a contender in a burst."""


@dataclass
class Found:
    """What the sessions of one way found: logarithms of ratios, and seconds."""

    equal: list[float] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def session(name: str, total: int, seed: int, max_calls: int) -> Found:
    """Compare in this process, which is a fresh one."""
    burst.MAX_CALLS = max_calls
    work = FUNCTIONS[name]
    kernel = work.kernel((GAIN,), 1)
    problem = kernel.problem(total=total)
    default = kernel.default(problem)
    candidate = next(c for c in kernel.space(problem) if c["gain"] == GAIN)
    start = time.perf_counter()
    rounds = InProcessRunner(local_device("cpu"), power=False).compare_interleaved(
        kernel, problem, [default, candidate], SESSION_S, seed
    )
    seconds = time.perf_counter() - start
    if rounds.failures:
        raise RuntimeError(f"a contender failed: {rounds.failures}")
    log_ms = {k: float(np.log(np.nanquantile(t, QUANTILE))) for k, t in rounds.time_ms.items()}
    defaults = [log_ms[default.id], log_ms[DEFAULT_REPEATED]]
    return Found(
        equal=[defaults[0] - defaults[1]],
        gain=[float(np.mean(defaults)) - log_ms[candidate.id]],
        calls=[len(rounds.time_ms[default.id])],
        seconds=[seconds],
    )


def run_cell(name: str, time_ms: float, sessions: int) -> dict[str, Found]:
    """Return what each way finds."""
    total = dict(FUNCTIONS[name].problem(FUNCTIONS[name].kernel((GAIN,), 1), time_ms))["total"]
    found = {way: Found() for way in WAYS}
    for seed in range(sessions):
        for way, max_calls in WAYS.items():
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                one = pool.submit(session, name, int(total), seed, max_calls).result()
            for values, new in zip(vars(found[way]).values(), vars(one).values(), strict=True):
                values.extend(new)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", default="roots:0.02,roots:1,temporaries:1,streams:3,blas:3")
    parser.add_argument("--sessions", type=int, default=12, help="of each cell and way")
    options = parser.parse_args()
    rows = []
    for cell in options.cells.split(","):
        name, _, time_ms = cell.partition(":")
        for way, found in run_cell(name, float(time_ms), options.sessions).items():
            equal, gain = 100 * np.array(found.equal), 100 * np.array(found.gain)
            rows.append(
                [
                    f"{name}, {time_ms} ms",
                    way,
                    f"{np.median(found.calls):g}",
                    f"{equal.std(ddof=1):.2f} %",
                    f"{gain.mean():.2f} ± {gain.std(ddof=1):.2f} %",
                    f"{np.median(found.seconds):.1f}",
                ]
            )
    print(heading("Bursts", local_device("cpu")))
    columns = ["launch", "timed", "calls", "equals differ by", "gain of 3 %", "seconds"]
    print(markdown(columns, rows))


if __name__ == "__main__":
    main()
