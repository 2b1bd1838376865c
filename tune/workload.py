"""Tunes several problems with one budget, allocated by expected loss."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from foretune.collect.runner import Runner
from foretune.device import roofline_terms_ms
from foretune.errors import UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.objective import Limit, Objective
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.result import Result
from foretune.search.stopping import Stopping
from foretune.search.workload import WorkloadItem, WorkloadProblem, WorkloadSearcher
from foretune.tune.job import TuningJob
from foretune.tune.results import SearchStep, TuneResult, results_frame
from foretune.tune.store.cache import MeasurementCache, StoreLocation
from foretune.tune.tuner import make_step, verify_and_store

DEFAULT_BUDGET = 100
"""Default number of measurements of a workload."""


@dataclass(frozen=True)
class Calls:
    """Number of a program's calls of a kernel with one problem."""

    kernel: Kernel
    problem: Problem
    calls: float


@dataclass(frozen=True, eq=False, repr=False)
class WorkloadResult(Result):
    """The result for a workload."""

    results: tuple[TuneResult, ...]
    calls: tuple[float, ...]

    @property
    def default(self) -> float:
        """Total objective of all calls with the defaults."""
        return self._total([result.baseline.value for result in self.results])

    @property
    def best(self) -> float:
        """Total objective of all calls with the verified winners."""
        return self._total([result.winner.value for result in self.results])

    @property
    def headline(self) -> str:
        """The gain of all calls together."""
        n = len(self.results)
        return f"{n} problems: {self.default:.4g} by default, {self.best:.4g} tuned, all calls"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per problem, see `results_frame`."""
        return results_frame(self.results).assign(calls=self.calls)

    def to_dict(self) -> dict[str, Any]:
        """Return totals, and each problem's result."""
        each = [
            {"kernel": result.kernel, "calls": calls, **result.summary()}
            for result, calls in zip(self.results, self.calls, strict=True)
        ]
        return {
            "default": self.default, "best": self.best, "speedup": self.default / self.best,
            "measurements": sum(result.measured for result in self.results), "problems": each,
        }  # fmt: skip

    def _total(self, values: Sequence[float]) -> float:
        return float(np.dot(self.calls, values))


def tune_workload(
    workload: Sequence[Calls],
    runner: Runner,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    objective: Objective = Objective.TIME,
    limits: Sequence[Limit] = (),
    seed: int = 0,
    store: StoreLocation = None,
    verify_s: float = 0.5,
    patience_s: float = 0.0,
    progress: Progress | Literal[False] = False,
) -> WorkloadResult:
    """Tune all problems of a workload with one budget, and verify each one's best.

    Each measurement goes to the problem with the largest expected loss over all calls
    (`foretune.search.workload`). A frequent, long-running problem gets many. A problem that
    resembles measured ones gets few or none. Stored measurements are reused.

    The default of ``budget`` is 100 new measurements of all problems together, or no limit if
    ``seconds`` is given; a started measurement is finished. The other arguments are those of
    `foretune.tune_problem`.

    Raises:
        UsageError: the workload is empty, has a problem twice, or calls are not positive.
        MeasurementError: the default of a problem does not run.
    """
    progress = progress or SILENT
    if not workload or len({(w.kernel.name, w.problem) for w in workload}) < len(workload):
        raise UsageError("a workload has at least one problem, and none of them twice")
    start = time.perf_counter()
    stopping = Stopping(
        DEFAULT_BUDGET if budget is None and seconds is None else budget, None, seconds
    )
    jobs = {
        w.kernel.name: TuningJob(
            w.kernel, runner, MeasurementCache.for_kernel(w.kernel, runner.device, store),
            (objective,), tuple(limits), "surrogate", stopping, seed, progress, patience_s,
        )
        for w in workload
    }  # fmt: skip
    parts = [_workload_problem(w, runner) for w in workload]
    job = jobs[parts[0].kernel]
    constrained = job.constrained_objectives[0]
    searcher = WorkloadSearcher(parts, constrained, seed, runner.device)
    known = [m for part in parts for m in jobs[part.kernel].known(part.problem, part.space)]
    traces: dict[tuple[str, Problem], list[SearchStep]] = {(p.kernel, p.problem): [] for p in parts}
    for m in known:
        traces[m.kernel, m.problem].append(
            make_step(m, constrained, None, runner.device, known=True)
        )

    def measure(items: Sequence[WorkloadItem]) -> Iterator[Measurement]:
        for kernel in dict.fromkeys(part.kernel for part, _ in items):
            work = [(part.problem, config) for part, config in items if part.kernel == kernel]
            for m in jobs[kernel].measure(work):
                traces[kernel, m.problem].append(make_step(m, constrained, None, runner.device))
                progress.advance(f"{kernel} {m.problem}")
                yield m

    job.wait_until_idle()
    total = sum(len(part.space) for part in parts)
    if stopping.measurements is not None:
        total = stopping.measurements
    progress.start(f"tuning {len(parts)} problems", total)
    job.search(searcher, measure, known)
    results = []
    for i, part in enumerate(parts):
        job, trace = jobs[part.kernel], traces[part.kernel, part.problem]
        choice = searcher.choice(i)
        if all(step.config != choice for step in trace):  # no choice is left unmeasured
            searcher.tell(measure([(part, choice)]))
        previous_choice = job.cache.choice(part.problem, constrained)
        found = verify_and_store(
            job, part.problem, searcher.searcher(i), trace, previous_choice, verify_s, start
        )
        results.append(found)
    return WorkloadResult(tuple(results), tuple(w.calls for w in workload))


def _workload_problem(w: Calls, runner: Runner) -> WorkloadProblem:
    """Return a problem for the searcher; its work is its roofline time."""
    default = w.kernel.default(w.problem)
    cost = w.kernel.cost(w.problem, default)
    limits = [float(np.asarray(ms)) for ms in roofline_terms_ms(cost, runner.device.specs)]
    work = float(np.nanmax([*limits, 0.0])) or float(np.asarray(cost.flops + cost.bytes_moved))
    return WorkloadProblem(
        w.kernel.name, w.problem, w.kernel.space(w.problem), w.calls, work or 1.0, default
    )
