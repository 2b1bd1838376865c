"""Times of 24 kernels that differ in kind: whole lists of five problems each.

    PYTHONPATH=src python benchmarks/gpu/breadth.py --out runs    # again: goes on where it stopped
    PYTHONPATH=src python benchmarks/gpu/breadth.py --out runs --replay
    PYTHONPATH=src python benchmarks/gpu/breadth.py --compile-for "NVIDIA H200"    # needs no GPU

Writes ``breadth.parquet``, a run table with the columns of the sweep's, and ``case``. The first two
problems of a kernel have less than a wave of the GPU's programs. All results are checked against a
plain reference in torch. An early stop leaves whole lists of fewer problems, of every kernel.

``--compile-for`` compiles the programs for a GPU that need not be there, fills Triton's cache, and
prints how many compile.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from running import Stage, measured, run_stage
from stage import Deadline, Job, Table, markdown, medians, noise, share_of_best

from foretune.measurement import Status

TURNS = (2, 0, 3, 1, 4)
"""The order of a kernel's problems: a large one, a small one, and so on."""
CHUNK = 12
"""Configurations of one kernel before the next has its turn."""
REPEAT_EVERY = 10
"""Of so many configurations, one is measured again after the list."""
MINUTES = 6.0


def main(argv: list[str] | None = None) -> None:
    stage = Stage(__doc__)
    stage.set_defaults(minutes=MINUTES)
    stage.add_argument("--cases", nargs="*", help="default: all; e.g. 'GEMM fp16'")
    stage.add_argument("--listed", type=int, default=48, help="configurations of a list, at most")
    stage.add_argument("--problems", type=int, default=len(TURNS), help="of a kernel, at most")
    stage.add_argument("--compilers", type=int, default=0, help="processes that compile")
    stage.add_argument("--compile-for", metavar="GPU", help="compile only; no GPU, no table")
    options = stage.parse_args(argv)
    if options.compile_for:
        print(compile_report(options))
    else:
        run_stage(stage, argv, "breadth.parquet", measure, report)


def all_cases() -> list[Any]:
    """Return the 24 cases."""
    import breadth_attention
    import breadth_elements
    import breadth_products
    import breadth_recurrent
    import breadth_rows

    files = (
        breadth_products,
        breadth_attention,
        breadth_recurrent,
        breadth_rows,
        breadth_elements,
    )
    return [case for file in files for case in file.cases()]


def problems_by_kernel() -> dict[str, list[Any]]:
    """Return the problems of each kernel; one may have several cases."""
    problems: dict[str, list[Any]] = {}
    for case in all_cases():
        problems.setdefault(case.kernel.name, []).extend(case.problems)
    return problems


def kernel_by_name() -> dict[str, Any]:
    """Return the kernels of this stage and of the sweep by their names."""
    from design import kernels

    of_cases = [case.kernel for case in all_cases()]
    return {kernel.name: kernel for kernel in (*of_cases, *kernels())}


def chosen_cases(options: argparse.Namespace) -> list[Any]:
    """Return the cases of the command line.

    Raises:
        SystemExit: There is no such case.
    """
    cases = all_cases()
    if not options.cases:
        return cases
    unknown = set(options.cases) - {case.name for case in cases}
    if unknown:
        known = ", ".join(case.name for case in cases)
        raise SystemExit(f"no case is called {min(unknown)!r}: choose from {known}")
    return [case for case in cases if case.name in options.cases]


def jobs(
    cases: list[Any], options: argparse.Namespace, done: set[Any]
) -> Iterator[tuple[Any, Job]]:
    """Yield what is left to measure, with its case: a problem of every kernel, then the next."""
    for turn in TURNS[: options.problems]:
        planned: list[tuple[Any, Job]] = []
        lists = [case.listed[: options.listed] for case in cases]

        # All kernels take turns along their lists.
        for start in range(0, max(map(len, lists)), CHUNK):
            for case, configs in zip(cases, lists, strict=True):
                problem = case.problems[turn]
                for config in configs[start : start + CHUNK]:
                    role = "default" if config == case.default else "list"
                    planned.append((case, Job(case.kernel, problem, config, role)))

        # The noise floor: the same again, some time later.
        for case, configs in zip(cases, lists, strict=True):
            problem = case.problems[turn]
            again = configs[::REPEAT_EVERY]
            planned += [(case, Job(case.kernel, problem, c, "repeat", 1)) for c in again]

        yield from ((case, job) for case, job in planned if job.key not in done)


def measure(options: argparse.Namespace, bench: Any, table: Table, deadline: Deadline) -> bool:
    """Measure what is left; return whether a launch broke the device's context."""
    cases = chosen_cases(options)
    planned = list(jobs(cases, options, table.done))
    names = {job.key: case.name for case, job in planned}
    in_turn = (job for _, job in planned)
    for _ in measured(
        bench,
        table,
        deadline,
        in_turn,
        options.compilers,
        lambda job: {"case": names[job.key]},
    ):
        pass
    return bool(bench.device_lost)


def report(options: argparse.Namespace, bench: Any, table: Table) -> str:
    """Return a table of the runs so far."""
    runs = table.runs()
    if not len(runs):
        return "nothing was measured: give it more --minutes"
    with_share = runs.assign(share=share_of_best(runs))
    rows = []
    for case in all_cases():
        of_case = with_share[with_share["case"] == case.name]
        if len(of_case):
            rows.append(_row(case, of_case, options, table))
    columns = ["kernel", "rows", "failed", "wrong", "whole lists", "default / best", "noise, %"]
    return f"{bench.device.name}; {bench.source}\n\n" + markdown(columns, rows)


def _row(case: Any, runs: pd.DataFrame, options: argparse.Namespace, table: Table) -> list[str]:
    is_ok = runs["status"] == Status.OK.value
    is_wrong = runs["status"] == Status.WRONG_RESULT.value
    n_whole = 0
    for problem in case.problems:
        listed = case.listed[: options.listed]
        keys = [(case.kernel.name, problem, config, 0) for config in listed]
        n_whole += table.done.issuperset(keys)
    return [
        case.name,
        str(len(runs)),
        str(int((~is_ok).sum())),
        str(int(is_wrong.sum())),
        str(n_whole),
        medians(runs.loc[runs["role"] == "default", "share"]),
        noise(runs[is_ok], "time_ms"),
    ]


def compile_report(options: argparse.Namespace) -> str:
    """Compile what the stage would launch on a GPU; return a table of what came of it."""
    from compiling import compile_in_process, compiled_ahead, processes

    from foretune.device import find_device

    device = find_device(options.compile_for)
    planned = [(case, job) for case, job in jobs(chosen_cases(options), options, set())]
    once = [(case, job) for case, job in planned if job.repeat == 0]
    names = {job.key: case.name for case, job in once}

    total: Counter[str] = Counter()
    compiling: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {name: Counter() for name in names.values()}
    default_fails: set[str] = set()
    workers = processes(device.name)
    work = (job for _, job in once)
    for job, compiled in compiled_ahead(workers, compile_in_process, work, options.compilers):
        name = names[job.key]
        total[name] += 1
        if not compiled.error:
            compiling[name] += 1
            continue
        reasons[name][compiled.error] += 1
        if job.role == "default":
            default_fails.add(name)

    rows = []
    for name, count in total.items():
        reason = "".join(text for text, _ in reasons[name].most_common(1))
        default = "no" if name in default_fails else "yes"
        rows.append([name, str(count), str(compiling[name]), default, reason])
    columns = ["kernel", "launches", "compile", "default", "most frequent reason"]
    return (
        f"{device.name}, {device.architecture}\n\n{markdown(columns, rows)}\n"
        f"{compiling.total()} of {total.total()} compile; the default of "
        f"{len(total) - len(default_fails)} of {len(total)} kernels does."
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    main(sys.argv[1:])
