"""Tune all that a program calls with one budget: measure where the whole workload gains most."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.collect import Runner
from foretune.device import roofline_terms_ms
from foretune.errors import UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.objective import Limit, Objective
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.search.stopping import Stopping
from foretune.search.workload import WorkloadItem, WorkloadProblem, WorkloadSearcher
from foretune.tune.job import TuningJob
from foretune.tune.record import SharedMeasurementCache
from foretune.tune.results import SearchStep, TuneResult
from foretune.tune.store.optional import StoreLocation
from foretune.tune.tuner import make_step, verify_and_store

DEFAULT_BUDGET = 100
"""Measurements of a workload, where nobody says how many, nor how long."""


@dataclass(frozen=True)
class Calls:
    """How often a program calls a kernel with a problem."""

    kernel: Kernel
    problem: Problem
    calls: float


@dataclass(frozen=True)
class WorkloadResult:
    """The outcome for a whole workload.

    Attributes:
        results: for each problem, in the order in which they were given.
        calls: of each.
    """

    results: tuple[TuneResult, ...]
    calls: tuple[float, ...]

    @property
    def default(self) -> float:
        """What all calls take with the defaults, in the objective's unit."""
        return self._total([result.baseline.value for result in self.results])

    @property
    def best(self) -> float:
        """What all calls take with the verified winners."""
        return self._total([result.winner.value for result in self.results])

    def to_json(self) -> dict[str, Any]:
        """Return totals, and what each problem's result says."""
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
    verify_s: float = 2.0,
    patience_s: float = 0.0,
    progress: Progress = SILENT,
) -> WorkloadResult:
    """Spend one budget on all problems of a workload, and verify each one's best.

    Every next measurement goes where the calls altogether are expected to lose most
    (`foretune.search.workload`): a problem that is called often and takes long gets many, one that
    is like others that were measured few or none. What the store knows is not measured again.

    Args:
        workload: kernels, problems and how often each is called; no problem twice.
        runner: measures; all kernels are of its device.
        budget: new measurements in all; verification comes on top. None is 100, or what
            ``seconds`` allow.
        seconds: wall time of measuring at most; what is under way then is finished.
        objective: what is minimised.
        limits: what breaks one of them never wins.
        seed: of everything random.
        store: as in `tune_problem`.
        verify_s: seconds of comparison per problem.
        patience_s: how long to wait for a quiet machine.
        progress: told about every measurement.

    Raises:
        UsageError: there is nothing to tune, a problem is given twice, or calls are not above 0.
        MeasurementError: not even the default of a problem runs.
    """
    if not workload or len({(w.kernel.name, w.problem) for w in workload}) < len(workload):
        raise UsageError("a workload has at least one problem, and none of them twice")
    start = time.perf_counter()
    stopping = Stopping(
        DEFAULT_BUDGET if budget is None and seconds is None else budget, None, seconds
    )
    jobs = {
        w.kernel.name: TuningJob(
            w.kernel, runner, SharedMeasurementCache(w.kernel, runner.device, store), (objective,),
            tuple(limits), "transfer", stopping, seed, progress, patience_s,
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
    """Return a problem as the search sees it: its work is the least time that it can take."""
    default = w.kernel.default(w.problem)
    cost = w.kernel.cost(w.problem, default)
    limits = [float(np.asarray(ms)) for ms in roofline_terms_ms(cost, runner.device.specs)]
    work = float(np.nanmax([*limits, 0.0])) or float(np.asarray(cost.flops + cost.bytes_moved))
    return WorkloadProblem(
        w.kernel.name, w.problem, w.kernel.space(w.problem), w.calls, work or 1.0, default
    )
