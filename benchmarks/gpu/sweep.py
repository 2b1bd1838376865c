"""Times of kernels on a GPU: many configurations of many problems, and whole lists of some.

    PYTHONPATH=src python benchmarks/gpu/sweep.py --out runs      # again: goes on where it stopped
    PYTHONPATH=src python benchmarks/gpu/sweep.py --out runs --replay

Writes ``sweep.parquet``, a run table. `design` has the order of measurements.
"""

import argparse
import sys
from typing import Any

from running import Stage, measured, run_stage
from stage import Bests, Deadline, Table, markdown, medians, noise, share_of_best

from foretune.measurement import Status


def main(argv: list[str] | None = None) -> None:
    stage = Stage(__doc__)
    stage.add_argument("--kernels", nargs="*", help="default: all; e.g. triton_gemm")
    stage.add_argument("--problems", type=int, default=100, help="at most, per kernel")
    stage.add_argument("--per-problem", type=int, default=144, help="configurations, blocks aside")
    stage.add_argument("--listed", type=int, default=240, help="configurations on a list")
    stage.add_argument("--blocks", type=int, default=9, help="whole lists per kernel, at most")
    stage.add_argument("--compilers", type=int, default=0, help="processes that compile")
    run_stage(stage, argv, "sweep.parquet", sweep, report)


def sweep(options: argparse.Namespace, bench: Any, table: Table, deadline: Deadline) -> bool:
    """Measure what is left; return whether a launch broke the device's context."""
    design, bests = _design(options, bench, table)
    for measurement in measured(bench, table, deadline, design.jobs(), options.compilers):
        bests.see(measurement)
    return bool(bench.device_lost)


def _design(options: argparse.Namespace, bench: Any, table: Table) -> tuple[Any, Bests]:
    """Return the order of measurements, and the fastest configurations that it asks for."""
    from design import Design, Size, kernels

    from foretune.datasets import to_measurements

    chosen = [k for k in kernels() if not options.kernels or k.name in options.kernels]
    if not chosen:
        raise SystemExit(f"no such kernel: choose from {', '.join(k.name for k in kernels())}")
    size = Size(
        problems=options.problems,
        per_problem=options.per_problem,
        listed=options.listed,
        blocks=options.blocks,
    )
    runs = table.runs()
    bests = Bests(to_measurements(runs) if len(runs) else [])
    return Design(chosen, bench.device, size, table.done, bests), bests


def report(options: argparse.Namespace, bench: Any, table: Table) -> str:
    """Return a table of the runs so far."""
    runs = table.runs()
    if not len(runs):
        return "nothing was measured: give it more --minutes"

    # Kernels of the problems whose whole list was measured.
    design, _ = _design(options, bench, table)
    complete = []
    for kernel, problem in design.blocks:
        keys = [(kernel.name, problem, c, 0) for c in design.listed(kernel, problem)]
        if table.done.issuperset(keys):
            complete.append(kernel.name)

    with_share = runs.assign(share=share_of_best(runs))
    rows = []
    for name, of_kernel in with_share.groupby("kernel"):
        is_ok = of_kernel["status"] == Status.OK.value
        is_default = of_kernel["role"] == "default"
        n_problems = len(of_kernel.filter(like="problem.").drop_duplicates())
        rows.append(
            [
                str(name),
                str(len(of_kernel)),
                str(int((~is_ok).sum())),
                str(n_problems),
                str(complete.count(str(name))),
                medians(of_kernel.loc[is_default, "share"]),
                noise(of_kernel[is_ok], "time_ms"),
            ]
        )
    columns = ["kernel", "rows", "failed", "problems", "whole lists", "default / best", "noise, %"]
    return f"{bench.device.name}; {bench.source}\n\n" + markdown(columns, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
