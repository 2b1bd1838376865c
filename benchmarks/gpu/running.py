"""Running a stage: its options, the GPU or its replay, and a new process if a launch broke it."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stage import Deadline, Table


class Stage(argparse.ArgumentParser):
    """The command line of a stage: ``--minutes``, ``--out``, ``--replay``, and its own options."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=(description or "").partition("\n")[0])
        self.add_argument("--minutes", type=float, default=8.0, help="begin nothing new after them")
        self.add_argument("--out", type=Path, default=Path("gpu-runs"), metavar="FOLDER")
        self.add_argument("--replay", action="store_true", help="made-up numbers, no GPU")


def options_of(stage: Stage, argv: list[str] | None) -> tuple[argparse.Namespace, Any]:
    """Return the options and the bench they ask for.

    Raises:
        SystemExit: there is no GPU, and no replay is wanted.
    """
    options = stage.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.replay:
        from replay import ReplayBench

        return options, ReplayBench()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("no GPU here: --replay shows that the stage runs, with made-up numbers")
    from bench import Bench

    return options, Bench()


def run_stage(
    stage: Stage,
    argv: list[str] | None,
    table: str,
    measure: Callable[[argparse.Namespace, Any, Table, Deadline], bool],
    report: Callable[[argparse.Namespace, Any, Table], str],
) -> None:
    """Measure into a table until all is done or the time is over, then print a report.

    Args:
        stage: The stage's options.
        argv: Arguments of the command.
        table: Name of the stage's file in ``--out``.
        measure: Measures the jobs that are left; returns whether a launch broke the device.
        report: Returns a report of the rows so far.
    """
    options, bench = options_of(stage, argv)
    deadline = Deadline(options.minutes)
    with bench.active(), Table(options.out / table, bench.device) as rows:
        lost = measure(options, bench, rows, deadline)
        if not lost:
            print(report(options, bench, rows))
    if lost:
        restart(argv, deadline.left_s / 60)


def restart(argv: list[str] | None, minutes: float) -> None:
    """Start this stage again for the time that is left: a launch broke the process's device."""
    given = sys.argv[1:] if argv is None else argv
    print("a launch broke the device's context: starting again", flush=True)
    more = ["--minutes", f"{minutes:.3f}"]  # the last of several counts
    os.execv(sys.executable, [sys.executable, sys.argv[0], *given, *more])
