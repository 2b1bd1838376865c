"""Collection: profile a kernel into a run table."""

import math
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from foretune.collect.benchmark import environment
from foretune.collect.runner import Runner
from foretune.datasets.run_log import RunLog
from foretune.datasets.runs import configurations_of, problems_of
from foretune.device import Device
from foretune.errors import UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.result import Result
from foretune.space import Configuration
from foretune.support.progress import SILENT, Progress

SHARED_FRACTION = 0.5
"""Share of a problem's configurations that earlier problems ran too. They are already compiled, and
a configuration on several problems separates its effect from the problem's."""
FEWEST_PROBLEMS = 5
"""Problems that are measured although the time is over: a predictor cannot learn from fewer."""


class RunSink(Protocol):
    """Where `collect_runs` stores measurements, and finds those that it need not repeat."""

    def find(self, problem: Problem, config: Configuration) -> Measurement | None:
        """Return the measurement of a configuration; None if it has to be measured."""

    def append(self, measurement: Measurement, /) -> None:
        """Keep a new measurement."""


class CurrentRuns:
    """A `RunSink`: the rows of a run log that this code and these versions measured on a device."""

    def __init__(self, kernel: Kernel, device: Device, log: RunLog) -> None:
        self._kernel = kernel
        self._device = device
        self._log = log

    def find(self, problem: Problem, config: Configuration) -> Measurement | None:
        """Return the row of a configuration; None if other code or versions measured it."""
        row = self._log.find((self._kernel.name, self._device.name, problem, config))
        if row is None or row.environment != environment(self._kernel):
            return None
        return row

    def append(self, measurement: Measurement, /) -> None:
        """Add a row; see `RunLog.append`."""
        self._log.append(measurement)


@dataclass(frozen=True, eq=False, repr=False)
class CollectSummary(Result):
    """Counts of a collection: new and reused measurements, and the wall time.

    ``skipped`` is the number of planned measurements for which there was no time.
    """

    rows: int
    ok: int
    failed: int
    reused: int
    seconds: float
    skipped: int = 0


def plan_configurations(
    kernel: Kernel, problems: Sequence[Problem], per_problem: int, seed: int = 0
) -> dict[Problem, list[Configuration]]:
    """Choose configurations per problem: the default first, then random ones.

    The same arguments give the same plan, so an interrupted collection can resume.
    """
    rng = np.random.default_rng(seed)
    plan: dict[Problem, list[Configuration]] = {}
    # Here and below, the keys of a dictionary are a set that keeps its order.
    seen: dict[Configuration, None] = {}
    for problem in problems:
        space = kernel.space(problem)
        chosen = {kernel.default(problem): None}

        # Some configurations of earlier problems.
        reusable = [c for c in seen if c not in chosen and c in space]
        n_shared = min(int(SHARED_FRACTION * (per_problem - 1)), len(reusable))
        if n_shared:
            for i in rng.choice(len(reusable), size=n_shared, replace=False):
                chosen.setdefault(reusable[int(i)])

        # Random ones fill the rest. Twice as many are drawn: some may be chosen already.
        for config in space.sample(2 * per_problem, rng):
            if len(chosen) >= per_problem:
                break
            chosen.setdefault(config)

        plan[problem] = list(chosen)
        seen.update(chosen)
    return plan


def plan_rows(kernel: Kernel, rows: pd.DataFrame) -> dict[Problem, list[Configuration]]:
    """Return the problems and configurations of the rows of a table.

    Raises UsageError if the table is empty, a row is of another kernel, or a problem or
    configuration is not one of ``kernel``.
    """
    if not len(rows):
        raise UsageError("the table has no rows to measure")
    other_kernels = sorted(set(rows.get("kernel", ())) - {kernel.name})
    if other_kernels:
        raise UsageError(f"the rows are of {', '.join(map(str, other_kernels))}, not {kernel.name}")

    # A configuration of several rows is measured once: the keys are a set that keeps its order.
    configs_of: dict[Problem, dict[Configuration, None]] = {}
    for problem, config in zip(problems_of(rows), configurations_of(rows), strict=True):
        configs = configs_of.setdefault(kernel.problem(problem), {})
        configs.setdefault(config)

    for problem, configs in configs_of.items():
        space = kernel.space(problem)
        invalid = [c for c in configs if c not in space]
        if invalid:
            raise UsageError(f"{problem} has no configuration {invalid[0]}")
    return {problem: list(configs) for problem, configs in configs_of.items()}


def collect_runs(
    kernel: Kernel,
    plan: dict[Problem, list[Configuration]],
    log: RunLog | RunSink,
    runner: Runner,
    progress: Progress = SILENT,
    stage: str = "profiling",
    max_seconds: float = math.inf,
) -> CollectSummary:
    """Measure the configurations of ``plan`` that ``log`` does not have yet.

    Each row is on disk before the next one is measured. After an interruption, a call with the
    same plan and log resumes. ``stage`` names this stage in progress lines.

    After ``max_seconds``, no further problem is begun once `FEWEST_PROBLEMS` were measured, in this
    call or before. This does not limit a fleet: its machines get all work at once, and measure it.

    Raises ForetuneError if this kernel cannot be measured on this machine at all, OutputError if
    the log cannot be written.
    """
    progress.start(f"{stage} {kernel.name}", sum(map(len, plan.values())))
    start = time.perf_counter()
    sink = CurrentRuns(kernel, runner.device, log) if isinstance(log, RunLog) else log

    missing = []
    known_problems: set[Problem] = set()
    reused = 0
    for problem, configs in plan.items():
        for config in configs:
            if sink.find(problem, config) is None:
                missing.append((problem, config))
            else:
                reused += 1
                known_problems.add(problem)
                progress.advance("known already")

    measured = 0
    ok = 0
    in_time = _begun_in_time(missing, end=start + max_seconds, known_problems=known_problems)
    for measurement in runner.run_many(kernel, in_time):
        sink.append(measurement)
        measured += 1
        if measurement.ok:
            ok += 1
        progress.advance(describe(measurement))
    return CollectSummary(
        rows=measured,
        ok=ok,
        failed=measured - ok,
        reused=reused,
        seconds=time.perf_counter() - start,
        skipped=len(missing) - measured,
    )


def _begun_in_time(
    work: Sequence[tuple[Problem, Configuration]], *, end: float, known_problems: Set[Problem]
) -> Iterator[tuple[Problem, Configuration]]:
    """Yield work until the clock shows ``end``; the last problem's is completed.

    Work on further problems is yielded until there are `FEWEST_PROBLEMS`, the ``known_problems``
    included.
    """
    begun: set[Problem] = set()
    for problem, config in work:
        if problem not in begun:
            is_late = time.perf_counter() > end
            if is_late and len(begun | known_problems) >= FEWEST_PROBLEMS:
                return
            begun.add(problem)
        yield problem, config


def describe(measurement: Measurement) -> str:
    """Return a measurement in a few words, for progress lines."""
    if measurement.ok:
        return f"{measurement.problem.shown}: {measurement.time_ms:.3g} ms"
    return f"{measurement.problem.shown}: {measurement.status.value.replace('_', ' ')}"
