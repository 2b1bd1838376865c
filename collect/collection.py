"""Collection: profile a kernel over problems and configurations into a run table."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from foretune.collect.record import MeasurementCache
from foretune.collect.runner import Runner
from foretune.datasets import RunLog
from foretune.datasets.runs import configurations_of, problems_of
from foretune.errors import UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.space import Configuration

SHARED_FRACTION = 0.5
"""Share of a problem's configurations that earlier problems ran too: they are compiled already,
and the same configuration on several problems separates what is due to which."""


@dataclass(frozen=True)
class CollectSummary:
    """What a collection added.

    Attributes:
        rows: measurements made now, failures included.
        ok: those that succeeded.
        failed: those that did not.
        reused: asked for, but known already.
        seconds: wall time.
    """

    rows: int
    ok: int
    failed: int
    reused: int
    seconds: float


def plan_configurations(
    kernel: Kernel, problems: Sequence[Problem], per_problem: int, seed: int = 0
) -> dict[Problem, list[Configuration]]:
    """Choose which configurations to run on which problem: the default first, then random ones.

    The same arguments give the same plan, so that an interrupted collection finds its place.
    """
    rng = np.random.default_rng(seed)
    plan: dict[Problem, list[Configuration]] = {}
    seen: dict[Configuration, None] = {}
    for problem in problems:
        space = kernel.space(problem)
        chosen = {kernel.default(problem): None}
        known = [c for c in seen if c not in chosen and c in space]
        shared = min(int(SHARED_FRACTION * (per_problem - 1)), len(known))
        for i in rng.choice(len(known), size=shared, replace=False) if shared else ():
            chosen.setdefault(known[int(i)])
        for config in space.sample(2 * per_problem, rng):
            if len(chosen) >= per_problem:
                break
            chosen.setdefault(config)
        plan[problem] = list(chosen)
        seen.update(chosen)
    return plan


def plan_rows(kernel: Kernel, rows: pd.DataFrame) -> dict[Problem, list[Configuration]]:
    """Return what a table asks for: the problem and configuration of every row of ``kernel``.

    Raises:
        UsageError: there are none, or one is of another kernel, or of no problem or configuration
            of this one.
    """
    if not len(rows):
        raise UsageError("the table has no rows to measure")
    if other_kernels := sorted(set(rows.get("kernel", ())) - {kernel.name}):
        raise UsageError(
            f"the rows are of {', '.join(map(str, other_kernels))}, not of {kernel.name}"
        )
    plan: dict[Problem, dict[Configuration, None]] = {}
    for problem, config in zip(problems_of(rows), configurations_of(rows), strict=True):
        plan.setdefault(kernel.problem(problem), {}).setdefault(config)
    for problem, configs in plan.items():
        space = kernel.space(problem)
        if invalid := [c for c in configs if c not in space]:
            raise UsageError(f"{problem} has no configuration {invalid[0]}")
    return {problem: list(configs) for problem, configs in plan.items()}


def collect_runs(
    kernel: Kernel,
    plan: dict[Problem, list[Configuration]],
    log: RunLog | MeasurementCache,
    runner: Runner,
    progress: Progress = SILENT,
    stage: str = "profiling",
) -> CollectSummary:
    """Measure what ``plan`` asks for and ``log`` does not have; each row is on disk at once.

    Interrupting it loses at most the configuration that is running; calling it again with the same
    plan and log goes on where it stopped.

    Args:
        kernel: what is measured.
        plan: with which configurations on which problems.
        log: where measurements go; or a record of more than one log.
        runner: measures.
        progress: told about every measurement.
        stage: what this is called in progress.

    Raises:
        ForetuneError: nothing of this kernel can be measured on this machine.
        OutputError: the log cannot be written.
    """
    progress.start(f"{stage} {kernel.name}", sum(map(len, plan.values())))
    start, ok, failed, reused = time.perf_counter(), 0, 0, 0
    cache = (
        log if isinstance(log, MeasurementCache) else MeasurementCache(kernel, runner.device, log)
    )
    missing = []
    for problem, config in ((p, c) for p, configs in plan.items() for c in configs):
        if cache.find(problem, config) is None:
            missing.append((problem, config))
        else:
            reused += 1
            progress.advance("known already")
    for measurement in runner.run_many(kernel, missing):
        cache.append(measurement)
        ok, failed = ok + measurement.ok, failed + (not measurement.ok)
        progress.advance(describe(measurement))
    return CollectSummary(ok + failed, ok, failed, reused, time.perf_counter() - start)


def describe(m: Measurement) -> str:
    """Return a measurement in a few words, for progress lines."""
    result = f"{m.time_ms:.3g} ms" if m.ok else m.status.value.replace("_", " ")
    return f"{m.problem}: {result}"
