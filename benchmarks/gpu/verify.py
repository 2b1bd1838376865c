"""Finalists against the default and the vendor's library on a GPU, interleaved.

    PYTHONPATH=src python benchmarks/gpu/verify.py --out runs      # after sweep.py
    PYTHONPATH=src python benchmarks/gpu/verify.py --out runs --replay

Times of a sweep are minutes apart and some are the fastest by luck. Here the fastest of a problem,
its default and the library's call take turns, in a new order each round. Writes ``verify.parquet``,
a run table, with the library's time in ``counter.library_ms``.
"""

import argparse
import sys
from typing import Any

import numpy as np
from running import Stage, run_stage
from stage import Deadline, Job, Table, labels, library_columns, markdown, medians

from foretune.measurement import Status
from foretune.problem import Problem

KEPT_SAMPLES = 50


def main(argv: list[str] | None = None) -> None:
    stage = Stage(__doc__)
    stage.add_argument("--finalists", type=int, default=3, help="per problem")
    stage.add_argument("--box-s", type=float, default=0.6, help="seconds per problem")
    stage.add_argument("--compilers", type=int, default=0, help="processes that compile")
    run_stage(stage, argv, "verify.parquet", verify, report)


def verify(options: argparse.Namespace, bench: Any, table: Table, deadline: Deadline) -> bool:
    """Race what is left; return whether a launch broke the device's context."""
    if not (options.out / "sweep.parquet").exists():
        raise SystemExit(f"{options.out} holds no sweep.parquet: run sweep.py first")
    jobs = [job for race in plan(options) if race[-1].key not in table.done for job in race]
    ahead = bench.compiled(jobs, options.compilers)
    race = list[Job]()
    try:
        for job, compiled in ahead:
            if not compiled.error:
                race.append(job)
            if job.role == "default":  # the last of its problem
                if deadline.over:
                    break
                _race(options, bench, table, race or [job])
                race = []
            if bench.device_lost:
                return True
    finally:
        ahead.close()
    return False


def _race(options: argparse.Namespace, bench: Any, table: Table, jobs: list[Job]) -> None:
    """Race a problem's configurations and the library, and write rows, the default's last."""
    kernel = jobs[0].kernel
    problem = jobs[0].problem
    try:
        box_s = 0.0 if bench.replayed else options.box_s
        configs = [job.config for job in jobs]
        times = bench.compare_interleaved(kernel, problem, configs, box_s).time_ms
    except Exception as e:
        table.append(bench.failed(jobs[-1], e), jobs[-1].role)
        return
    more = bench.state() | library_columns(times)
    for job in jobs:
        if job.config.id in times:
            samples = times[job.config.id]
            row = bench.row(
                job,
                time_ms=float(np.median(samples)),
                time_ms_samples=tuple(map(float, samples[:KEPT_SAMPLES])),
            )
        else:
            row = bench.row(job, Status.WRONG_RESULT, error="its result was wrong in the race")
        table.append(row, job.role, **more)
    bench.synchronize()


def plan(options: argparse.Namespace) -> list[list[Job]]:
    """Return problems in random order with what is raced: the fastest, and last the default."""
    from design import kernels
    from stage import share_of_best

    from foretune.datasets import read_runs, to_measurements

    known = {kernel.name: kernel for kernel in kernels()}
    runs = read_runs(options.out / "sweep.parquet")
    runs = runs[(runs["status"] == "ok") & (runs["counter.repeat"] == 0)].reset_index(drop=True)
    shares = share_of_best(runs)
    found: dict[tuple[str, Problem], list[tuple[float, Any]]] = {}
    for share, m in zip(shares, to_measurements(runs), strict=True):
        found.setdefault((m.kernel, m.problem), []).append((share, m.config))
    plans = []
    for (name, problem), offered in sorted(found.items(), key=lambda item: str(item[0])):
        kernel = known[name]
        default = kernel.default(problem)
        fastest = [c for _, c in sorted(offered, key=lambda o: -o[0]) if c != default]
        jobs = [Job(kernel, problem, c, "finalist") for c in fastest[: options.finalists]]
        plans.append([*jobs, Job(kernel, problem, default, "default")])
    order = np.random.default_rng(0).permutation(len(plans))
    return [plans[int(i)] for i in order]


def report(options: argparse.Namespace, bench: Any, table: Table) -> str:
    """Return a table of the comparisons so far."""
    runs = table.runs()
    if not len(runs) or not (runs["status"] == "ok").any():
        return "nothing was measured: give it more --minutes"
    ok = runs[runs["status"] == "ok"]
    named = ok.assign(key=labels(ok, "problem"))
    best = named.groupby("key")["time_ms"].min()
    default = named[named["role"] == "default"].set_index("key")["time_ms"]
    library = named.reindex(columns=["key", "counter.library_ms"]).groupby("key").first().iloc[:, 0]
    kernel = named.groupby("key")["kernel"].first()
    rows = []
    for name in sorted(kernel.unique()):
        keys = kernel.index[kernel == name]
        against = (library.reindex(keys) / best.reindex(keys)).dropna()
        rows.append(
            [
                name,
                str(len(keys)),
                medians(default.reindex(keys) / best.reindex(keys), "{:.2f}×"),
                medians(against, "{:.2f}×"),
                f"{(against < 1).sum()} of {len(against)}",
            ]
        )
    columns = ["kernel", "problems", "default / best", "library / best", "library faster"]
    return f"{bench.device.name}; {bench.source}\n\n" + markdown(columns, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
