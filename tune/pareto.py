"""Tuning for several objectives: search their Pareto front, measure it again, report its volume.

Every configuration that the search found on the front runs again, interleaved with the others and
the default, as often as a verification takes; the front that counts is the one of those medians.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from foretune.collect import Runner
from foretune.datasets import RunLog
from foretune.errors import MeasurementError, UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.objective import Limit, Objective, violated_limits
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.search.pareto import ParetoSearcher, hypervolume, pareto_front
from foretune.space import Configuration
from foretune.tune.guiding import find_predictor, prior_for
from foretune.tune.job import TuningJob, make_stopping
from foretune.tune.record import SharedMeasurementCache
from foretune.tune.results import REJECTED, Comparison, step_status
from foretune.tune.store.optional import StoreLocation
from foretune.tune.verifier import METERED_ROUNDS, compare, measure_rounds

if TYPE_CHECKING:
    from foretune.models.saved.lookup import PredictorSource

    pass

REFERENCE_RATIO = 2.0
"""The hypervolume's reference point is this many times the default in every objective."""


@dataclass(frozen=True)
class ParetoPoint:
    """A configuration as it was measured again, beside the default.

    Attributes:
        config: which.
        time_ms: median over the rounds.
        power_w: likewise.
        energy_mj: likewise.
        against_default: the comparison by each objective, in their order; its value is the median.
        violations: which limits the medians break; empty if none.
    """

    config: Configuration
    time_ms: float
    power_w: float
    energy_mj: float
    against_default: tuple[Comparison, ...]
    violations: str

    @property
    def values(self) -> list[float]:
        """The objectives; infinite if a limit is broken."""
        return [math.inf if self.violations else c.value for c in self.against_default]

    def summary(self, objectives: Sequence[Objective]) -> dict[str, Any]:
        """Return it as the command line's JSON gives it."""
        return {
            "config": dict(self.config),
            "time_ms": self.time_ms,
            "power_w": self.power_w,
            "energy_mj": self.energy_mj,
            "against_default": {
                objective.value: {"ratio": c.ratio, "interval": [c.ratio_low, c.ratio_high]}
                for objective, c in zip(objectives, self.against_default, strict=True)
            },
        }


@dataclass(frozen=True)
class ParetoResult:
    """The outcome of tuning one problem for several objectives.

    Attributes:
        kernel: its name.
        problem: what was tuned.
        device: on what.
        objectives: what was minimised.
        limits: what everything on the front keeps to.
        searcher: who searched, for one weighting of the objectives at a time.
        trace: what the store knew of the problem, then the search's measurements in order.
        known: how many of the trace the store knew.
        default: the default configuration, measured again.
        candidates: those on the search's front, measured again in the same rounds.
        rounds: how many.
        seconds: wall time of search and verification.
        unstable: what disturbed the machine meanwhile; empty if nothing.
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
    rounds: int
    seconds: float
    unstable: str = ""

    @cached_property
    def front(self) -> tuple[ParetoPoint, ...]:
        """Those, the default among them, that no other dominates by the medians.

        Least of the first objective first.
        """
        everyone = (self.default, *self.candidates)
        on_it = np.flatnonzero(pareto_front([t.values for t in everyone]))
        return tuple(sorted((everyone[i] for i in on_it), key=lambda t: t.values[0]))

    @property
    def reference(self) -> tuple[float, ...]:
        """The hypervolume's reference point: `REFERENCE` times the default."""
        return tuple(REFERENCE_RATIO * c.value for c in self.default.against_default)

    @property
    def hypervolume(self) -> float:
        """The share of the box from zero to `reference` that the front dominates."""
        shares = np.array([t.values for t in self.front]) / self.reference
        return hypervolume(shares, np.ones(len(self.objectives)))

    def summary(self) -> dict[str, Any]:
        """Return the outcome as the command line's JSON gives it."""
        names = [objective.value for objective in self.objectives]
        return {
            "problem": dict(self.problem),
            "pareto": [t.summary(self.objectives) for t in self.front],
            "hypervolume": self.hypervolume,
            "reference": dict(zip(names, self.reference, strict=True)),
            "default": self.default.summary(self.objectives),
            "limits": {limit.column: limit.maximum for limit in self.limits},
            "rejected": sum(step_status(m, self.limits) == REJECTED for m in self.trace),
            "trace": [
                {
                    "config": dict(m.config),
                    "status": step_status(m, self.limits),
                    "time_ms": m.time_ms,
                    "power_w": m.power_w,
                    "energy_mj": Objective.ENERGY.compute(m.time_ms, m.power_w),
                }
                for m in self.trace
            ],
            "measurements": len(self.trace) - self.known,
            "known": self.known,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "unstable": self.unstable,
        }


def tune_pareto(
    kernel: Kernel,
    problem: Problem,
    runner: Runner,
    predictor: "PredictorSource" = None,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    objectives: Sequence[Objective] = (Objective.TIME, Objective.ENERGY),
    limits: Sequence[Limit] = (),
    searcher: str = "surrogate",
    seed: int = 0,
    store: StoreLocation = None,
    log: RunLog | None = None,
    patience_s: float = 0.0,
    progress: Progress = SILENT,
) -> ParetoResult:
    """Search the Pareto front of ``problem`` and verify it.

    Args:
        kernel: what is tuned.
        problem: for what.
        runner: measures; its device is the one tuned for.
        predictor: predicts every configuration first: an object or a name
            (`foretune.models.saved.lookup`); None starts from nothing.
        budget: new measurements of the search; the verification comes on top. None is 10, or what
            ``seconds`` allow.
        seconds: wall time of the search at most.
        objectives: two or more, all minimised.
        limits: what breaks one of them failed, to the search, and is on no front.
        searcher: registered name of who searches for one weighting of the objectives at a time.
        seed: of the searcher.
        store: where everybody finds measurements; see `foretune.tune_problem`.
        log: measurements go there, too, and those it has already are not made again.
        patience_s: how long to wait for a quiet machine, see `foretune.tune_problem`.
        progress: told about every measurement.

    Raises:
        UsageError: a single objective, or a limit that runs of this kernel do not say.
        MeterUnavailable: power is needed, which this machine cannot measure.
        MeasurementError: the default does not run, or nothing within the limits does.
        PredictorError, TrackingError: there is no such predictor, it is of another kernel or has
            not learned power.
    """
    objectives = tuple(dict.fromkeys(objectives))
    if len(objectives) < 2:
        raise UsageError("a Pareto front needs two objectives: use tune_problem for one")
    cache = SharedMeasurementCache(kernel, runner.device, store, log)
    job = TuningJob(
        kernel, runner, cache, objectives, tuple(limits), searcher,
        make_stopping(budget, None, seconds), seed, progress, patience_s,
    )  # fmt: skip
    start = time.perf_counter()
    job.wait_until_idle()
    space, device, constrained = (
        kernel.space(problem),
        runner.device,
        list(job.constrained_objectives),
    )
    guide = find_predictor(job, predictor)
    optional_priors = (prior_for(job, problem, space, guide, o) for o in objectives)
    priors = [prior for prior in optional_priors if prior is not None]
    search = ParetoSearcher(space, constrained, seed, priors or None, problem, device, searcher)
    job.start_progress(problem, space)
    trace = job.known(problem, space)
    known = len(trace)

    def measure(configs: Sequence[Configuration]) -> Iterator[Measurement]:
        for measurement in job.measure([(problem, config) for config in configs]):
            trace.append(measurement)
            front = pareto_front([[o.value_of(m) for o in constrained] for m in trace])
            progress.advance(f"{front.sum()} on the front")
            yield measurement

    job.search(search, measure, trace.copy())
    configs = dict.fromkeys([kernel.default(problem), *(m.config for m in search.front())])
    job.wait_until_idle()
    with runner.watch() as watch:
        (default, *candidates), rounds = _remeasure(job, problem, [*configs])
    result = ParetoResult(
        kernel=kernel.name,
        problem=problem,
        device=device.name,
        objectives=objectives,
        limits=tuple(limits),
        searcher=searcher,
        trace=tuple(trace),
        known=known,
        default=default,
        candidates=tuple(candidates),
        rounds=rounds,
        seconds=time.perf_counter() - start,
        unstable=watch.load.disturbance,
    )
    if not result.front:
        raise job.no_feasible_error(len(trace), default.violations)
    return result


def _remeasure(
    job: TuningJob, problem: Problem, configs: Sequence[Configuration]
) -> tuple[list[ParetoPoint], int]:
    """Compare ``configs`` with the first of them, the default, in interleaved rounds.

    All comparisons by all objectives share an error of 5 % (Bonferroni), and there are rounds
    enough for each to have its interval: more than log2(2 / error).

    Returns:
        One per configuration, in order; and the number of rounds.

    Raises:
        MeasurementError: the default no longer runs.
    """
    objectives = job.constrained_objectives
    error = 0.05 / (max(1, len(configs) - 1) * len(objectives))
    rounds = max(METERED_ROUNDS, 1 + int(math.log2(2 / error)))
    runs = measure_rounds(job, problem, configs, rounds)
    values = {
        c: [
            np.array([objective.objective.value_of(m) for m in runs[c]]) for objective in objectives
        ]
        for c in configs
    }
    found = []
    for i, config in enumerate(configs):
        name = f"candidate {i}" if i else "default"
        pairs = zip(values[configs[0]], values[config], strict=True)
        comparisons = tuple(
            compare(name, config, base, config_values, 1 - error) for base, config_values in pairs
        )
        breaks = violated_limits(objectives[0].limits, runs[config])
        found.append(ParetoPoint(config, *_medians(runs[config]), comparisons, breaks))
    if not all(math.isfinite(c.value) for c in found[0].against_default):
        raise MeasurementError(
            f"the default configuration of {job.kernel.name} does not run on {problem}, or no "
            "meter sees it"
        )
    return found, rounds


def _medians(runs: Sequence[Measurement]) -> tuple[float, float, float]:
    """Return milliseconds, watts and millijoules of those that ran and were metered."""
    figures = np.array([(m.time_ms, m.power_w, Objective.ENERGY.value_of(m)) for m in runs])
    complete = figures[np.isfinite(figures).all(axis=1)]
    time_ms, power_w, energy_mj = np.median(complete, axis=0) if len(complete) else [math.nan] * 3
    return float(time_ms), float(power_w), float(energy_mj)
