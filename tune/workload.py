"""Tunes several problems with one budget, allocated by expected loss."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import pandas as pd

from foretune.collect.runner import Runner
from foretune.device import roofline_terms_ms
from foretune.errors import UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.result import Result
from foretune.search.workload import WorkloadItem, WorkloadProblem, WorkloadSearcher
from foretune.space import Configuration
from foretune.tune.job import SearchOptions, TuningJob
from foretune.tune.results import SearchStep, TuneResult, results_frame
from foretune.tune.tuner import VerificationOptions, make_step, verify_and_store
from foretune.tune.verifier import MIN_VERIFY_S

DEFAULT_BUDGET = 100
"""Measurements of a workload by default."""


@dataclass(frozen=True)
class Calls:
    """Number of calls that a program makes of a kernel with one problem."""

    kernel: Kernel
    problem: Problem
    calls: float


@dataclass(frozen=True, eq=False, repr=False)
class WorkloadResult(Result):
    """The result of tuning a workload."""

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
        """The total gain over all calls."""
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
            "default": self.default,
            "best": self.best,
            "speedup": self.default / self.best,
            "measurements": sum(result.measured for result in self.results),
            "problems": each,
        }

    def _total(self, values: Sequence[float]) -> float:
        return float(np.dot(self.calls, values))


def tune_workload(
    workload: Sequence[Calls],
    runner: Runner,
    *,
    objective: Objective = Objective.TIME,
    verify_s: float | None = None,
    verify_again: bool = False,
    **options: Unpack[SearchOptions],
) -> WorkloadResult:
    """Tune all problems of a workload with one budget, and verify each one's best.

    Each measurement goes to the problem with the largest expected loss over all calls
    (`foretune.search.workload`). A frequent, long-running problem gets many. A problem that is
    similar to measured ones gets few or none. Stored measurements are reused.

    ``budget`` counts the new measurements of all problems together; a started measurement is
    finished. The other arguments are those of `foretune.tune_problem`, but there is no ``regret``
    and no ``searcher``. Raises UsageError if the workload is empty, a problem occurs twice, or some
    calls are not positive; MeasurementError if the default of a problem does not run.
    """
    distinct = {(calls.kernel.name, calls.problem) for calls in workload}
    if not workload or len(distinct) < len(workload):
        raise UsageError("a workload needs at least one problem, each of them once")
    start = time.perf_counter()

    # One job per kernel, which its problems share.
    jobs = {
        kernel: TuningJob.from_options(
            kernel,
            runner,
            options,
            objective,
            default_budget=DEFAULT_BUDGET,
            lacks=("regret", "searcher"),
        )
        for kernel in dict.fromkeys(calls.kernel for calls in workload)
    }
    job_of_problem = {(calls.kernel.name, calls.problem): jobs[calls.kernel] for calls in workload}
    problems = [_workload_problem(calls, runner) for calls in workload]
    search = _WorkloadSearch(job_of_problem, problems)
    search.run()

    # Together, the verifications may take as long as the search.
    if verify_s is None:
        search_s = time.perf_counter() - start - search.waited_s
        verify_s = max(MIN_VERIFY_S, search_s / len(workload))
    verification_options = VerificationOptions(seconds=verify_s, again=verify_again)
    results = [
        search.verify(number, verification_options, start) for number in range(len(workload))
    ]
    return WorkloadResult(
        results=tuple(results),
        calls=tuple(calls.calls for calls in workload),
    )


class _WorkloadSearch:
    """The search over all problems, with the job of each.

    The key has the problem, too: kernels of one name may hold other arguments. ``waited_s`` is how
    long `run` waited for an idle machine, in seconds.
    """

    def __init__(
        self, jobs: Mapping[tuple[str, Problem], TuningJob], parts: Sequence[WorkloadProblem]
    ) -> None:
        self._jobs = jobs
        self._parts = parts
        self._job = self._job_of(parts[0])
        (self._objective,) = self._job.constrained_objectives
        self._searcher = WorkloadSearcher(parts, self._objective, self._job.seed, self._job.device)
        self._traces: dict[tuple[str, Problem], list[SearchStep]] = defaultdict(list)
        self.waited_s = 0.0

    def run(self) -> None:
        job = self._job
        parts = self._parts
        if job.stopping.regret is not None:
            raise UsageError("a workload takes a number or seconds as budget")

        # Start from stored measurements of all problems.
        known: list[Measurement] = []
        for part in parts:
            known += self._job_of(part).known(part.problem, part.space)
        for measurement in known:
            self._add(measurement, known=True)

        wait_start = time.perf_counter()
        job.wait_until_idle()
        self.waited_s = time.perf_counter() - wait_start

        # Without a number of measurements, the search may end with those of all spaces.
        total = job.stopping.measurements
        if total is None:
            total = sum(len(part.space) for part in parts)
        job.progress.start(f"tuning {len(parts)} problems", total)
        job.search(self._searcher, self._measure, known)

    def verify(
        self, number: int, verification_options: VerificationOptions, start: float
    ) -> TuneResult:
        """Verify the best of a problem; ``start`` is the search's by `time.perf_counter`."""
        part = self._parts[number]
        choice = self._searcher.choice(number)
        job = self._job_of(part)
        trace = self._traces[part.kernel, part.problem]

        # The choice may come from measurements of similar problems: measure it here.
        if all(step.config != choice for step in trace):
            self._searcher.tell(self._measure([(part, choice)]))
        return verify_and_store(
            job,
            part.problem,
            self._searcher.searcher(number),
            trace=trace,
            previous_choice=job.cache.choice(part.problem, self._objective),
            verification_options=verification_options,
            start=start,
        )

    def _measure(self, items: Sequence[WorkloadItem]) -> Iterator[Measurement]:
        # A job measures its kernel only: one batch per job.
        work_of_job: dict[int, list[tuple[Problem, Configuration]]] = {}
        jobs: dict[int, TuningJob] = {}
        for part, config in items:
            job = self._job_of(part)
            jobs[id(job)] = job
            work_of_job.setdefault(id(job), []).append((part.problem, config))
        for job_id, work in work_of_job.items():
            for measurement in jobs[job_id].measure(work):
                self._add(measurement)
                name = f"{measurement.kernel} {measurement.problem.shown}"
                self._job.progress.advance(name)
                yield measurement

    def _job_of(self, part: WorkloadProblem) -> TuningJob:
        return self._jobs[part.kernel, part.problem]

    def _add(self, measurement: Measurement, known: bool = False) -> None:
        step = make_step(measurement, self._objective, known=known)
        self._traces[measurement.kernel, measurement.problem].append(step)


def _workload_problem(calls: Calls, runner: Runner) -> WorkloadProblem:
    """Return a problem for the searcher; its work is its roofline time."""
    kernel = calls.kernel
    default = kernel.default(calls.problem)
    cost = kernel.cost(calls.problem, default)

    # Without rates of the device, the work is that of the cost: only ratios matter.
    limits_ms = [float(np.asarray(ms)) for ms in roofline_terms_ms(cost, runner.device.specs)]
    work = float(np.nanmax([*limits_ms, 0.0]))
    if not work:
        work = float(np.asarray(cost.flops + cost.bytes_moved))
    return WorkloadProblem(
        kernel.name,
        calls.problem,
        kernel.space(calls.problem),
        calls=calls.calls,
        work=work if work > 0 else 1.0,
        default=default,
    )
