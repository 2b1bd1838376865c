"""Times of kernels on a GPU: many configurations of many problems, and whole lists of some.

    PYTHONPATH=src python benchmarks/gpu/sweep.py --out runs      # again: goes on where it stopped
    PYTHONPATH=src python benchmarks/gpu/sweep.py --out runs --replay

Writes ``sweep.parquet``, a run table. `design` has the order of measurements.
"""

import argparse
import sys
import time
from typing import Any

from running import Stage, run_stage
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
    start = time.monotonic()
    first = table.new
    waited = 0.0
    jobs = bench.compiled(design.jobs(), options.compilers)
    try:
        while not deadline.over:
            asked = time.monotonic()
            job, compiled = next(jobs, (None, None))
            waited += time.monotonic() - asked
            if job is None:
                break
            m = bench.run(job, compiled)
            table.append(m, job.role, job.repeat, **({} if bench.device_lost else bench.state()))
            bests.see(m)
            if bench.device_lost:
                return True
    finally:
        jobs.close()
    seconds = time.monotonic() - start
    print(f"{table.new - first} rows in {seconds:.0f} s, {waited:.0f} s of them compiling alone\n")
    return False


def _design(options: argparse.Namespace, bench: Any, table: Table) -> tuple[Any, Bests]:
    from design import Design, Size, kernels

    from foretune.datasets import to_measurements

    chosen = [k for k in kernels() if not options.kernels or k.name in options.kernels]
    if not chosen:
        raise SystemExit(f"no such kernel: choose from {', '.join(k.name for k in kernels())}")
    size = Size(options.problems, options.per_problem, options.listed, options.blocks)
    runs = table.runs()
    bests = Bests(to_measurements(runs) if len(runs) else [])
    return Design(chosen, bench.device, size, table.done, bests), bests


def report(options: argparse.Namespace, bench: Any, table: Table) -> str:
    """Return a table of the runs so far."""
    runs = table.runs()
    if not len(runs):
        return "nothing was measured: give it more --minutes"
    design, _ = _design(options, bench, table)
    blocks = [
        kernel.name
        for kernel, problem in design.blocks
        if all((kernel.name, problem, c, 0) in table.done for c in design.listed(kernel, problem))
    ]
    rows, runs = [], runs.assign(share=share_of_best(runs))
    for kernel, of_kernel in runs.groupby("kernel"):
        ok = of_kernel["status"] == Status.OK.value
        default = of_kernel["share"][of_kernel["role"] == "default"]
        rows.append(
            [
                str(kernel),
                str(len(of_kernel)),
                str(int((~ok).sum())),
                str(len(of_kernel.filter(like="problem.").drop_duplicates())),
                str(blocks.count(str(kernel))),
                medians(default),
                noise(of_kernel[ok], "time_ms"),
            ]
        )
    columns = ["kernel", "rows", "failed", "problems", "whole lists", "default / best", "noise, %"]
    return f"{bench.device.name}; {bench.source}\n\n" + markdown(columns, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
