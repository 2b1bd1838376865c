"""What does keeping measurements cost? Time and memory of a long table, a long run, and the store.

    python benchmarks/storage.py [--table 1000000] [--run 20000] [--kernel 1000000]

``--kernel`` is the number of rows of one kernel in the store with which a search begins.

Each line is a separate process. Memory is its peak, beyond the memory after its modules were
loaded.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretune.measurement import Measurement

COLUMNS = ("what", "rows", "seconds", "ms per row", "MB more", "MB at most")
SEEN = 500
"""Rows that are looked up, spread over the whole table."""
ROWS_OF_A_WRITE = 10_000
"""Rows that are put into a large store in one transaction."""


def names(rows: int) -> Iterator[dict[str, object]]:
    """Yield what each row says was run: a thousand configurations of each problem."""
    for i in range(rows):
        yield {
            "M": i // 1000,
            "N": 64,
            "dtype": "fp16",
            "BLOCK_M": i % 10,
            "BLOCK_N": i // 10 % 10,
            "stages": i // 100 % 10,
            "order": "xy"[i % 2],
            "num_warps": 4,
        }


def measurements(rows: int) -> Iterator["Measurement"]:
    """Yield what a run would have measured."""
    from foretune.measurement import Measurement, Status
    from foretune.problem import Problem
    from foretune.space import Configuration

    for i, name in enumerate(names(rows)):
        split = list(name.items())
        yield Measurement(
            "toy",
            Problem(dict(split[:3])),
            Configuration(dict(split[3:])),
            "Toy CPU",
            Status.OK,
            1.0 + i,
            (1.0, 2.0, 3.0),
            compile_s=0.1,
            relative_error=0.0,
        )


def make_table(path: Path, rows: int) -> None:
    """Write the long table."""
    import pandas as pd

    from foretune.datasets import write_runs

    runs = pd.DataFrame(names(rows))
    problem = {c: f"problem.{c}" for c in ("M", "N", "dtype")}
    runs = runs.rename(columns=lambda c: problem.get(c, f"config.{c}")).assign(
        kernel="toy",
        device="Toy CPU",
        status="ok",
        time_ms=1.5,
        compile_s=0.1,
        error="",
        source="foretune",
        recorded_at="2026-01-01T00:00:00",
        environment="abc",
        time_ms_samples=[[1.0, 2.0, 3.0]] * rows,
    )
    write_runs(path, runs.assign(**{"device.cores": 4.0, "device.power_limit_w": 100.0}))


def most_mb() -> float:
    """Return the most memory this process ever held, in megabytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(what: str, rows: int, work: Callable[[], object]) -> None:
    """Print one line of the table."""
    before = most_mb()
    begun = time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    cells = (
        what,
        f"{rows:,}",
        f"{seconds:.2f}",
        f"{1e3 * seconds / rows:.3f}",
        f"{most_mb() - before:.0f}",
        f"{most_mb():.0f}",
    )
    print("\t".join(cells), flush=True)


def table(path: Path, rows: int) -> None:
    """Open the long table, look rows up, add one, close."""
    from foretune.datasets import RunLog

    one = next(measurements(1))
    logs: list[RunLog] = []
    report("open a run log", rows, lambda: logs.append(RunLog(path)))
    (log,) = logs
    wanted = [m for i, m in enumerate(measurements(rows)) if i % max(1, rows // SEEN) == 0]

    def look() -> None:
        missing = [m for m in wanted if log.find(m) is None]
        assert not missing

    report("find rows in it", len(wanted), look)
    log.append(one)
    report("close it with one more row", rows, log.close)


def run(path: Path, rows: int) -> None:
    """Keep measurements in a log, one by one."""
    from foretune.datasets import RunLog

    with RunLog(path) as log:

        def keep(some: int) -> None:
            for m in measurements(some):
                log.append(m)

        report("keep a row (first tenth)", rows // 10, lambda: keep(rows // 10))
        report("keep a row (all)", rows, lambda: keep(rows))


def store(path: Path, rows: int) -> None:
    """Put measurements into a store, one by one."""
    from foretune.tune.store import Store, Subject

    kept = Store(path)
    subject = Subject("toy", "abc", "Toy CPU", "toy 1")
    kept.put(subject, [])

    seconds: list[float] = []

    def put(some: int) -> None:
        for m in measurements(some):
            begun = time.perf_counter()
            kept.put(subject, [m])
            seconds.append(time.perf_counter() - begun)

    report("put into a store (first tenth)", rows // 10, lambda: put(rows // 10))
    report("put into a store (all)", rows, lambda: put(rows))
    median = f"{1e3 * statistics.median(seconds):.3f}"
    print("\t".join(("the median put", f"{len(seconds):,}", "", median, "", "")), flush=True)


def large_store(path: Path, rows: int) -> None:
    """Begin a search with a store that has many rows of its kernel, a thousand per problem."""
    from foretune.objective import ConstrainedObjective, Objective
    from foretune.problem import Problem
    from foretune.tune.store import Store, Subject
    from foretune.tune.store.cache import MeasurementCache

    subject = Subject("toy", "abc", "Toy CPU", "toy 1")
    filled = Store(path)
    listed = list(measurements(rows))
    for first in range(0, rows, ROWS_OF_A_WRITE):
        filled.put(subject, listed[first : first + ROWS_OF_A_WRITE])
    filled.close()
    listed.clear()

    objective = ConstrainedObjective(Objective.TIME, ())
    known = Problem(M=rows // 2000, N=64, dtype="fp16")
    new = Problem(M=rows, N=64, dtype="fp16")
    for what, problem in (("a known problem", known), ("a new problem", new)):

        def begin(problem: Problem = problem) -> None:
            # What a tuner asks before it measures.
            cache = MeasurementCache(subject, Store(path))
            cache.choice(problem, objective)
            cache.choice(problem, objective, unfinished=True)
            cache.known_for_other_problems(problem)
            cache.known(problem)

        report(f"begin a search of {what}", rows, begin)
    report("count the rows of a kernel", rows, Store(path).summary)


def main() -> None:
    """Print the table, or one part of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=int, default=1_000_000)
    parser.add_argument("--run", type=int, default=20_000)
    parser.add_argument("--kernel", type=int, default=1_000_000)
    parser.add_argument("--part", choices=("make", "table", "run", "store", "kernel"))
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    parts = {
        "make": (make_table, options.table),
        "table": (table, options.table),
        "run": (run, options.run),
        "store": (store, options.run),
        "kernel": (large_store, options.kernel),
    }
    if options.part:
        work, rows = parts[options.part]
        work(options.path, rows)
        return
    from machine import heading, markdown

    from foretune.collect import local_device

    lines: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for part, file in (
            ("make", "a.parquet"),
            ("table", "a.parquet"),
            ("run", "b.parquet"),
            ("store", "c.db"),
            ("kernel", "d.db"),
        ):
            command = [
                sys.executable,
                __file__,
                "--part",
                part,
                "--path",
                f"{folder}/{file}",
                "--table",
                str(options.table),
                "--run",
                str(options.run),
                "--kernel",
                str(options.kernel),
            ]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            lines += [line.split("\t") for line in said.splitlines()]
    print(heading("What keeping measurements costs", local_device()))
    print(markdown(COLUMNS, lines))


if __name__ == "__main__":
    main()
