"""Tuning for several objectives: search the Pareto front and verify it.

Each configuration on the search's front is measured again in several fresh processes, interleaved
with the others and the default. The reported front is that of the new medians.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Unpack

import numpy as np
import pandas as pd

from foretune.collect.comparison import DEFAULT_REPEATED, Rounds
from foretune.collect.runner import Runner
from foretune.datasets.run_log import RunLog
from foretune.errors import MeasurementError, UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.models.guides.guide import Guide
from foretune.models.saved.lookup import PredictorSource
from foretune.objective import Limit, Objective, violated_limits
from foretune.problem import Problem
from foretune.result import Result
from foretune.search.factory import searcher_name
from foretune.search.pareto import ParetoSearcher
from foretune.search.pareto_front import hypervolume, pareto_front
from foretune.space import Configuration
from foretune.tune.job import SearchOptions, TuningJob
from foretune.tune.results import REJECTED, Comparison, step_status
from foretune.tune.verifier import Evidence, measure_once

PARETO_PROCESSES = 9
"""Number of fresh processes that remeasure the front; each run fills a power meter's window."""
REFERENCE_RATIO = 2.0
"""The hypervolume's reference point is this multiple of the default in every objective."""
ERROR = 0.025
"""One-sided error of all comparisons together."""


@dataclass(frozen=True, eq=False, repr=False)
class ParetoPoint(Result):
    """A configuration of the front: medians of its runs in the same processes as the default's.

    `against_default` compares by each objective; `violations` names limits that the medians exceed.
    """

    config: Configuration
    time_ms: float
    power_w: float
    energy_mj: float
    against_default: tuple[Comparison, ...]
    violations: str

    @property
    def values(self) -> list[float]:
        """The objectives; infinite if a limit is violated."""
        return [math.inf if self.violations else c.value for c in self.against_default]

    def summary(self, objectives: Sequence[Objective]) -> dict[str, Any]:
        """Return the point for the command line's JSON output."""
        against = zip(objectives, self.against_default, strict=True)
        return {
            "config": dict(self.config),
            "time_ms": self.time_ms,
            "power_w": self.power_w,
            "energy_mj": self.energy_mj,
            "against_default": {
                objective.value: {"ratio": c.ratio, "interval": [c.ratio_low, c.ratio_high]}
                for objective, c in against
            },
        }


@dataclass(frozen=True, eq=False, repr=False)
class ParetoResult(Result):
    """The result of tuning one problem for several objectives.

    Attributes:
        searcher: the single-objective searcher, used for one weighting at a time.
        trace: stored measurements, then the search's in order.
        known: number of stored measurements in the trace.
        default: the remeasured default configuration.
        candidates: the search's front, remeasured in the same processes.
        processes: number of fresh processes.
        disturbed: other load on the machine, as text; empty if none.
    """

    kernel: str
    problem: Problem
    device: str
    objectives: tuple[Objective, ...]
    limits: tuple[Limit, ...]
    searcher: str
    trace: tuple[Measurement, ...]
    known: int
    default: ParetoPoint
    candidates: tuple[ParetoPoint, ...]
    processes: int
    seconds: float
    disturbed: str = ""

    @property
    def headline(self) -> str:
        """The size of the front."""
        names = " and ".join(objective.value for objective in self.objectives)
        return f"{self.kernel}: {len(self.front)} configurations on the front of {names}"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per verified configuration; ``front`` marks those on the front."""
        rows = [
            {
                **{f"config.{k}": v for k, v in p.config.items()},
                "time_ms": p.time_ms,
                "power_w": p.power_w,
                "energy_mj": p.energy_mj,
                "front": p in self.front,
            }
            for p in (self.default, *self.candidates)
        ]
        return pd.DataFrame(rows)

    @cached_property
    def front(self) -> tuple[ParetoPoint, ...]:
        """The points that no other dominates by the medians, sorted by the first objective."""
        everyone = (self.default, *self.candidates)
        on_it = np.flatnonzero(pareto_front([t.values for t in everyone]))
        return tuple(sorted((everyone[i] for i in on_it), key=lambda t: t.values[0]))

    @property
    def reference(self) -> tuple[float, ...]:
        """The hypervolume's reference point: `REFERENCE_RATIO` times the default."""
        return tuple(REFERENCE_RATIO * c.value for c in self.default.against_default)

    @property
    def hypervolume(self) -> float:
        """Share of the box from zero to `reference` that the front dominates."""
        shares = np.array([t.values for t in self.front]) / self.reference
        return hypervolume(shares, np.ones(len(self.objectives)))

    def summary(self) -> dict[str, Any]:
        """Return the result for the command line's JSON output."""
        names = [objective.value for objective in self.objectives]
        trace = [
            {
                "config": dict(m.config),
                "status": step_status(m, self.limits),
                "time_ms": m.time_ms,
                "power_w": m.power_w,
                "energy_mj": Objective.ENERGY.compute(m.time_ms, m.power_w),
            }
            for m in self.trace
        ]
        return {
            "problem": dict(self.problem),
            "pareto": [t.summary(self.objectives) for t in self.front],
            "hypervolume": self.hypervolume,
            "reference": dict(zip(names, self.reference, strict=True)),
            "default": self.default.summary(self.objectives),
            "limits": {limit.column: limit.maximum for limit in self.limits},
            "rejected": sum(step["status"] == REJECTED for step in trace),
            "trace": trace,
            "measurements": len(trace) - self.known,
            "known": self.known,
            "processes": self.processes,
            "seconds": self.seconds,
            "disturbed": self.disturbed,
        }


def tune_pareto(
    kernel: Kernel,
    problem: Problem,
    runner: Runner,
    predictor: PredictorSource = None,
    *,
    objectives: Sequence[Objective] = (Objective.TIME, Objective.ENERGY),
    log: RunLog | None = None,
    **options: Unpack[SearchOptions],
) -> ParetoResult:
    """Search the Pareto front of ``problem`` and verify it.

    At least two ``objectives`` are minimized; ``searcher`` searches one weighting at a time. The
    other arguments are those of `foretune.tune_problem`, but there is no ``regret``.

    Raises:
        UsageError: there is one objective only, or measurements lack the column of a limit.
        MeterUnavailable: power is needed, and no meter works on this machine.
        MeasurementError: the default does not run, or no configuration within the limits does.
        PredictorError, TrackingError: there is no such predictor, it is of another kernel or has
            not learned power.
    """
    objectives = tuple(dict.fromkeys(objectives))
    if len(objectives) < 2:
        raise UsageError("a Pareto front needs two objectives: use tune_problem for one")
    if options.get("budget") == "auto":
        raise UsageError("a Pareto search has no regret: give a number as budget")
    job = TuningJob.from_options(kernel, runner, options, *objectives, log=log, lacks=("regret",))
    start = time.perf_counter()
    job.wait_until_idle()
    known = job.known(problem, kernel.space(problem))
    trace, front = _search(job, problem, job.find_predictor(predictor), known)
    job.wait_until_idle()
    with runner.watch() as watch:
        configs = [*dict.fromkeys([kernel.default(problem), *front])]
        default, *candidates = _remeasure(job, problem, configs)
    result = ParetoResult(
        kernel=kernel.name,
        problem=problem,
        device=job.device.name,
        objectives=objectives,
        limits=job.limits,
        searcher=searcher_name(job.searcher),
        trace=trace,
        known=len(known),
        default=default,
        candidates=tuple(candidates),
        processes=PARETO_PROCESSES,
        seconds=time.perf_counter() - start,
        disturbed=watch.load.disturbance,
    )
    if not result.front:
        raise job.no_feasible_error(len(trace), default.violations)
    return result


def _search(
    job: TuningJob, problem: Problem, guide: Guide | None, known: list[Measurement]
) -> tuple[tuple[Measurement, ...], list[Configuration]]:
    """Return the known and the new measurements, and the configurations of their front."""
    space = job.kernel.space(problem)
    constrained = job.constrained_objectives
    priors = [
        prior
        for objective in job.objectives
        if (prior := job.prior(problem, space, guide, objective)) is not None
    ]
    search = ParetoSearcher(
        space,
        objectives=constrained,
        seed=job.seed,
        priors=priors or None,
        problem=problem,
        device=job.device,
        kind=job.searcher,
    )
    job.start_progress(problem, space)
    trace = known.copy()

    def measure(configs: Sequence[Configuration]) -> Iterator[Measurement]:
        for measurement in job.measure([(problem, config) for config in configs]):
            trace.append(measurement)
            front = pareto_front([[o.value_of(m) for o in constrained] for m in trace])
            job.progress.advance(f"{front.sum()} on the front")
            yield measurement

    job.search(search, measure, known)
    return tuple(trace), [m.config for m in search.front()]


def _remeasure(
    job: TuningJob, problem: Problem, configs: Sequence[Configuration]
) -> list[ParetoPoint]:
    """Measure each of ``configs`` once per process; compare with the first, the default.

    All comparisons together have an error of 5 % (Bonferroni).
    """
    objectives = job.constrained_objectives
    error = ERROR / (max(1, len(configs) - 1) * len(objectives))
    default = configs[0].id
    evidence = [Evidence(default, DEFAULT_REPEATED) for _ in objectives]
    runs: dict[str, list[Measurement]] = {config.id: [] for config in configs}
    for number in range(PARETO_PROCESSES):
        measured = measure_once(job, problem, configs, job.seed + number)
        for objective, of_objective in zip(objectives, evidence, strict=True):
            value_of = objective.objective.value_of
            values = {key: np.array([value_of(run)]) for key, run in measured.items()}
            of_objective.add(Rounds(values))
        for config in configs:
            runs[config.id].append(measured[config.id])

    points = []
    for number, config in enumerate(configs):
        name = f"candidate {number}" if number else "default"
        comparisons = tuple(e.compare(default, config.id, name, config, error) for e in evidence)
        points.append(_point(config, runs[config.id], comparisons, objectives[0].limits))
    if not all(math.isfinite(c.value) for c in points[0].against_default):
        raise MeasurementError(
            f"the default configuration of {job.kernel.name} does not run on {problem}, or "
            "is not metered"
        )
    return points


def _point(
    config: Configuration,
    runs: Sequence[Measurement],
    comparisons: tuple[Comparison, ...],
    limits: Sequence[Limit],
) -> ParetoPoint:
    """Return a configuration with the medians of its successful, metered runs."""
    rows = [(m.time_ms, m.power_w, Objective.ENERGY.value_of(m)) for m in runs]
    figures = np.array(rows)
    complete = figures[np.isfinite(figures).all(axis=1)]
    medians = np.median(complete, axis=0) if len(complete) else np.full(3, np.nan)
    time_ms, power_w, energy_mj = medians.tolist()
    return ParetoPoint(
        config=config,
        time_ms=time_ms,
        power_w=power_w,
        energy_mj=energy_mj,
        against_default=comparisons,
        violations=violated_limits(limits, runs),
    )
