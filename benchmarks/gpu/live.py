"""What does the decorator keep of the best on six kernels that it has not learned from?

    PYTHONPATH=src python benchmarks/gpu/live.py --out runs       # again: goes on where it stopped
    PYTHONPATH=src python benchmarks/gpu/live.py --out runs --replay
    PYTHONPATH=src python benchmarks/gpu/live.py --out runs --minutes 0   # prints the tables

Whole lists are measured and checked first, so the best is known: ``live.parquet``, a run table with
the column ``case``. Then `foretune.autotune` really chooses, several times for each problem: with
an empty store and 4, 8 or "auto" measurements, and with "auto" and a store that fills from problem
to problem. For products, a list that `foretune inspect --propose` writes from the code alone is
measured too. In the end the default, the best of the list and all choices take turns, and each is
compared with the fastest of these: a list's best time is the least of many and partly luck.
Choices are in ``live.jsonl``, a line each.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton
from live_choices import BEST_LISTED, DEFAULT, LEARNING, PROPOSED, ROUNDS, Choices, report_of
from live_kernels import LiveCase, cases
from running import Stage, measured, run_stage
from stage import Deadline, Job, Table

import foretune
from foretune.datasets import to_measurements
from foretune.errors import ForetuneWarning, UsageError, describe_error
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Choice
from foretune.tune.triton.proposals import propose

BUDGETS: dict[str, int | str] = {"4": 4, "8": 8, "auto": "auto"}
"""What the decorator may measure when it knows nothing."""
CHOICES = "live.jsonl"
N_PROPOSED = 16
"""Length of a list that is written from the code alone."""
ROUNDS_S = 0.3
"""Seconds in which the choices of a problem take turns."""
WARMUP_MS = 5
REPEATS_MS = 20
"""What a tuner's benchmark may take: a fifth of Triton's, for each of a thousand measurements."""
MINUTES = 2.0


def main(argv: list[str] | None = None) -> None:
    stage = Stage(__doc__)
    stage.set_defaults(minutes=MINUTES)
    stage.add_argument("--cases", nargs="*", help="default: all; e.g. triton_stencil")
    stage.add_argument("--listed", type=int, default=40, help="configurations of a list, at most")
    stage.add_argument("--problems", type=int, default=3, help="of a kernel, at most")
    stage.add_argument("--compilers", type=int, default=0, help="processes that compile")
    run_stage(stage, argv, "live.parquet", measure, report)


def chosen_cases(options: argparse.Namespace) -> list[LiveCase]:
    """Return the cases of the command line.

    Raises:
        SystemExit: There is no such case.
    """
    known = {case.kernel.name: case for case in cases()}
    names = options.cases or list(known)
    for name in names:
        if name not in known:
            raise SystemExit(f"no case is called {name!r}: choose from {', '.join(known)}")
    return [known[name] for name in names]


def measure(options: argparse.Namespace, bench: Any, table: Table, deadline: Deadline) -> bool:
    """Measure what is left; return whether a launch broke the device's context."""
    if deadline.over:
        return False
    chosen = chosen_cases(options)
    proposed = {case.kernel.name: proposals(case, bench) for case in chosen}
    choices = Choices(options.out / CHOICES)
    for turn in range(options.problems):
        # A problem of every kernel, so an early stop leaves problems that are complete.
        jobs = [
            job
            for case in chosen
            for job in jobs_of(case, turn, proposed[case.kernel.name], options)
            if job.key not in table.done
        ]
        for _ in measured(bench, table, deadline, jobs, options.compilers, case_column):
            pass

        # The decorator's choices, where the list is complete.
        times = times_by_problem(table)
        for case in chosen:
            if deadline.over or bench.device_lost:
                return bool(bench.device_lost)
            problem = case.problems[turn]
            of_problem = times[case.kernel.name, problem]
            choose(case, problem, options, bench, choices)
            if not bench.device_lost:
                compare(case, problem, of_problem, options, bench, choices)
    return bool(bench.device_lost)


def proposals(case: LiveCase, bench: Any) -> list[Configuration]:
    """Return the list that Foretune writes from the code alone; none for most kernels."""
    kernel = case.kernel
    names = kernel.function.arg_names
    calls = []
    for problem in case.problems:
        arguments, _ = kernel.arguments(problem, kernel.inputs_without_data(problem))
        calls.append(dict(zip(names, arguments, strict=False)))
    authors = [Configuration(kernel.knobs(config)) for config in case.listed]
    try:
        return propose(kernel.function, calls, authors, bench.device, count=N_PROPOSED)
    except UsageError:  # it proposes lists for products alone
        return []


def jobs_of(
    case: LiveCase, turn: int, proposed: list[Configuration], options: argparse.Namespace
) -> Iterator[Job]:
    """Yield the list of a problem, and the proposed entries that are not on it."""
    problem = case.problems[turn]
    listed = case.listed[: options.listed]
    for config in listed:
        role = "default" if config == case.default else "list"
        yield Job(case.kernel, problem, config, role)
    for config in proposed:
        if config not in listed:
            yield Job(case.kernel, problem, config, "proposed")


def case_column(job: Job) -> dict[str, Any]:
    """Return the column that says that a list is whole."""
    return {"case": job.kernel.name}


def times_by_problem(table: Table) -> dict[tuple[str, Problem], dict[Configuration, float]]:
    """Return the time of each configuration that ran, by kernel and problem."""
    times = defaultdict[tuple[str, Problem], dict[Configuration, float]](dict)
    for m in to_measurements(table.runs()):
        if m.ok:
            times[m.kernel, m.problem][m.config] = m.time_ms
    return times


def choose(
    case: LiveCase, problem: Problem, options: argparse.Namespace, bench: Any, choices: Choices
) -> None:
    """Let the decorator choose in every way that is left."""
    done = choices.of(case.kernel.name, problem)
    ways = {**BUDGETS, LEARNING: "auto"}
    for way, budget in ways.items():
        if way in done or bench.device_lost:
            continue
        if way == LEARNING:
            store = options.out / "live-stores" / f"{case.kernel.name}.db"
            store.parent.mkdir(exist_ok=True)
            found = chosen_by_decorator(case, problem, budget, store, options, bench)
        else:
            with tempfile.TemporaryDirectory() as folder:
                store = Path(folder) / "tuned.db"
                found = chosen_by_decorator(case, problem, budget, store, options, bench)
        choices.append(case.kernel.name, problem, way, **found)


def chosen_by_decorator(
    case: LiveCase,
    problem: Problem,
    budget: int | str,
    store: Path,
    options: argparse.Namespace,
    bench: Any,
) -> dict[str, Any]:
    """Return what the decorator chose and measured, and whether the result was right."""
    quick = {"do_bench": partial(triton.testing.do_bench, warmup=WARMUP_MS, rep=REPEATS_MS)}
    tuner = case.decorated(
        foretune.autotune,
        options.listed,
        store=store,
        budget=budget,
        **({} if bench.replayed else quick),
    )
    prepared = bench.prepared(case.kernel, problem)
    start_s = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ForetuneWarning)  # falling back would be no result
            output = case.launch(tuner, problem, prepared.inputs)
        bench.synchronize()
    except Exception as e:
        bench.failed(Job(case.kernel, problem, case.default, "default"), e)
        return {"failed": describe_error(e)}
    seconds = time.monotonic() - start_s

    config = case.listed[tuner.configs.index(tuner.best_config)]
    limit = case.kernel.error_limit(problem, config)
    error = 0.0
    if not bench.replayed:
        error = case.kernel.relative_error(output, prepared.expected)
    choice = latest_choice(store)
    found = {
        "config": dict(config),
        "measured": len(tuner.configs_timings),
        "promised": choice.regret,
        "seconds": seconds,
        "error": error,
    }
    return found if error <= limit else {**found, "failed": f"its error is {error:.2g}"}


def compare(
    case: LiveCase,
    problem: Problem,
    times: dict[Configuration, float],
    options: argparse.Namespace,
    bench: Any,
    choices: Choices,
) -> None:
    """Let the default, the best of the list, the best proposed entry and all choices take turns."""
    found = choices.of(case.kernel.name, problem)
    if ROUNDS in found:
        return
    listed = [config for config in case.listed[: options.listed] if config in times]
    others = [config for config in times if config not in listed]
    contenders = {DEFAULT: case.default}
    if listed:
        contenders[BEST_LISTED] = min(listed, key=times.__getitem__)
    if others:
        contenders[PROPOSED] = min(others, key=times.__getitem__)
    for way, row in found.items():
        if "failed" not in row:
            contenders[way] = Configuration(row["config"])

    box_s = 0.0 if bench.replayed else ROUNDS_S
    once = dict.fromkeys(contenders.values())
    try:
        rounds = bench.compare_interleaved(case.kernel, problem, once, box_s)
    except Exception as e:
        bench.failed(Job(case.kernel, problem, case.default, "default"), e)
        choices.append(case.kernel.name, problem, ROUNDS, failed=describe_error(e))
        return
    # A contender with a wrong result has no times, and a disturbed call has none.
    medians_ms = {
        way: float(np.nanmedian(rounds.time_ms[config.id]))
        for way, config in contenders.items()
        if np.isfinite(rounds.time_ms.get(config.id, [])).any()
    }
    choices.append(case.kernel.name, problem, ROUNDS, time_ms=medians_ms)


def latest_choice(store: Path) -> Choice:
    """Return the choice that was stored last."""
    with closing(foretune.Store(store)) as opened:
        found = [c for subject in opened.subjects() for c in opened.choices(subject).values()]
    return max(found, key=lambda choice: choice.chosen_at)


def report(options: argparse.Namespace, bench: Any, table: Table) -> str:
    """Return the table of choices so far."""
    choices = Choices(options.out / CHOICES)
    return f"{bench.device.name}; {bench.source}\n\n{report_of(choices)}"


if __name__ == "__main__":
    main(sys.argv[1:])
