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
from foretune.space import Configuration

KEPT_SAMPLES = 50
LIBRARY_COLUMN = "counter.library_ms"


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
    # The default is the last of a race: if its row is there, the race is over.
    races = [race for race in plan(options) if race[-1].key not in table.done]
    jobs = [job for race in races for job in race]
    ahead = bench.compiled(jobs, options.compilers)
    race: list[Job] = []
    try:
        for job, compiled in ahead:
            if not compiled.error:
                race.append(job)
            is_last_of_race = job.role == "default"
            if is_last_of_race:
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

    columns = bench.state() | library_columns(times)
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
        table.append(row, job.role, **columns)
    bench.synchronize()


def plan(options: argparse.Namespace) -> list[list[Job]]:
    """Return problems in random order with what is raced: the fastest, and last the default."""
    from design import kernels
    from stage import share_of_best

    from foretune.datasets import read_runs, to_measurements

    all_runs = read_runs(options.out / "sweep.parquet")
    is_first = (all_runs["status"] == "ok") & (all_runs["counter.repeat"] == 0)
    runs = all_runs[is_first].reset_index(drop=True)
    candidates: dict[tuple[str, Problem], list[tuple[float, Configuration]]] = {}
    for share, measured in zip(share_of_best(runs), to_measurements(runs), strict=True):
        of_problem = candidates.setdefault((measured.kernel, measured.problem), [])
        of_problem.append((share, measured.config))

    kernel_of_name = {kernel.name: kernel for kernel in kernels()}
    races = []
    for name, problem in sorted(candidates, key=str):
        kernel = kernel_of_name[name]
        default = kernel.default(problem)
        fastest_first = sorted(candidates[name, problem], key=lambda candidate: -candidate[0])
        others = [config for _, config in fastest_first if config != default]
        race = [Job(kernel, problem, config, "finalist") for config in others[: options.finalists]]
        races.append([*race, Job(kernel, problem, default, "default")])
    order = np.random.default_rng(0).permutation(len(races))
    return [races[int(i)] for i in order]


def report(options: argparse.Namespace, bench: Any, table: Table) -> str:
    """Return a table of the comparisons so far."""
    runs = table.runs()
    if not len(runs) or not (runs["status"] == "ok").any():
        return "nothing was measured: give it more --minutes"
    is_ok = runs["status"] == "ok"
    raced = runs[is_ok].assign(key=labels(runs[is_ok], "problem"))
    by_problem = raced.groupby("key")
    best = by_problem["time_ms"].min()
    kernel = by_problem["kernel"].first()
    default = raced[raced["role"] == "default"].set_index("key")["time_ms"]
    # No row has a library's time if no kernel has a library.
    with_library = raced.reindex(columns=["key", LIBRARY_COLUMN])
    library = with_library.groupby("key")[LIBRARY_COLUMN].first()

    rows = []
    for name in sorted(kernel.unique()):
        problems = kernel.index[kernel == name]
        of_default = default.reindex(problems) / best.reindex(problems)
        of_library = (library.reindex(problems) / best.reindex(problems)).dropna()
        n_faster = (of_library < 1).sum()
        rows.append(
            [
                name,
                str(len(problems)),
                medians(of_default, "{:.2f}×"),
                medians(of_library, "{:.2f}×"),
                f"{n_faster} of {len(of_library)}",
            ]
        )
    columns = ["kernel", "problems", "default / best", "library / best", "library faster"]
    return f"{bench.device.name}; {bench.source}\n\n" + markdown(columns, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
