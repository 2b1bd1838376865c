"""Running a stage: its options, the GPU or its replay, and a new process if a launch broke it."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "replay_gpu"))

from stage import Deadline, Job, Table

from foretune.datasets import read_runs
from foretune.datasets.journal import journal_path
from foretune.device import Device, find_device_or_none
from foretune.measurement import Measurement


class Stage(argparse.ArgumentParser):
    """The command line of a stage: ``--minutes``, ``--out``, ``--replay``, and its own options."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=(description or "").partition("\n")[0])
        self.add_argument(
            "--minutes", type=float, default=8.0, help="begin nothing new after them; 0: print"
        )
        self.add_argument("--out", type=Path, default=Path("gpu-runs"), metavar="FOLDER")
        self.add_argument("--replay", action="store_true", help="made-up numbers, no GPU")


@dataclass(frozen=True)
class RecordedBench:
    """The GPU on which a table was measured, for its report.

    Attributes:
        device: The device; without specs if Foretune does not know it.
        source: What measured the rows.
    """

    device: Device
    source: str


def bench_of(options: argparse.Namespace) -> Any:
    """Return the bench that the options ask for.

    Raises:
        SystemExit: there is no GPU, and no replay is wanted.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    if options.replay:
        from replay import ReplayBench

        return ReplayBench()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit(
            "no GPU here: --replay shows that the stage runs, with made-up numbers, and "
            "--minutes 0 prints the table of a run"
        )
    from bench import Bench

    return Bench()


def report_of(
    options: argparse.Namespace,
    path: Path,
    report: Callable[[argparse.Namespace, Any, Table], str],
) -> str:
    """Return the report of a table that is there; its file is not changed.

    Raises:
        SystemExit: there is no table.
    """
    if not path.exists() and not journal_path(path).exists():
        raise SystemExit(f"there is no table {path}: give --out the folder of a run")
    runs = read_runs(path)
    name = str(runs["device"].iloc[0])
    known = find_device_or_none(name)
    bench = RecordedBench(known or Device(name, "gpu"), str(runs["source"].iloc[0]))

    # Reports look at launches of kernels, which need a driver, and run nothing.
    from replay_driver import ReplayDriver

    launching_nothing: AbstractContextManager[Any] = nullcontext()
    if known is not None:
        launching_nothing = ReplayDriver(lambda launch: 0.0, device=known.name).active()
    with launching_nothing:
        return report(options, bench, Table(path, bench.device))


def run_stage(
    stage: Stage,
    argv: list[str] | None,
    table: str,
    measure: Callable[[argparse.Namespace, Any, Table, Deadline], bool],
    report: Callable[[argparse.Namespace, Any, Table], str],
) -> None:
    """Measure into a table until all is done or the time is over, then print a report.

    With ``--minutes 0``, only print it: that needs no GPU.

    Args:
        stage: The stage's options.
        argv: Arguments of the command.
        table: Name of the stage's file in ``--out``.
        measure: Measures the jobs that are left; returns whether a launch broke the device.
        report: Returns a report of the rows so far.
    """
    options = stage.parse_args(argv)
    if options.minutes <= 0:
        print(report_of(options, options.out / table, report))
        return

    bench = bench_of(options)
    deadline = Deadline(options.minutes)
    with bench.active(), Table(options.out / table, bench.device) as rows:
        lost = measure(options, bench, rows, deadline)
        if not lost:
            print(report(options, bench, rows))
    if lost:
        restart(argv, deadline.left_s / 60)


def measured(
    bench: Any,
    table: Table,
    deadline: Deadline,
    jobs: Iterable[Job],
    compilers: int,
    columns: Callable[[Job], dict[str, Any]] = lambda job: {},
) -> Iterator[Measurement]:
    """Yield the measurements of jobs, each of which is a row of the table by then.

    It ends with the jobs, after the deadline, or when a launch broke the device; ask
    ``bench.device_lost``. Says at the end how long it took.

    Args:
        bench: Measures.
        table: Gets the rows.
        deadline: When nothing new begins.
        jobs: What to measure; read ahead, because they are compiled ahead.
        compilers: Number of processes that compile; 0: one less than the cores.
        columns: Returns more columns of a job's row.
    """
    start_s = time.monotonic()
    rows_before = table.new
    waited_s = 0.0
    compiled = bench.compiled(iter(jobs), compilers)
    try:
        while not deadline.over and not bench.device_lost:
            asked_s = time.monotonic()
            job, program = next(compiled, (None, None))
            waited_s += time.monotonic() - asked_s
            if job is None:
                break
            measurement = bench.run(job, program)
            state = {} if bench.device_lost else bench.state()
            table.append(measurement, job.role, job.repeat, **columns(job), **state)
            yield measurement
    finally:
        compiled.close()
    if not bench.device_lost:
        n_rows = table.new - rows_before
        seconds = time.monotonic() - start_s
        print(f"{n_rows} rows in {seconds:.0f} s, {waited_s:.0f} s of them compiling alone\n")


def restart(argv: list[str] | None, minutes: float) -> None:
    """Start this stage again for the time that is left: a launch broke the process's device."""
    given = sys.argv[1:] if argv is None else argv
    print("a launch broke the device's context: starting again", flush=True)
    more = ["--minutes", f"{minutes:.3f}"]  # the last of several counts
    os.execv(sys.executable, [sys.executable, sys.argv[0], *given, *more])
