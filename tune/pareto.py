"""Tuning for several objectives: search their Pareto front, measure it again, report its volume.

Every configuration that the search found on the front runs again, interleaved with the others and
the default, as often as a verification takes; the front that counts is the one of those medians.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from foretune.collect import Runner
from foretune.datasets import RunLog
from foretune.errors import MeasurementError, UsageError
from foretune.kernel import Kernel
from foretune.limit import Limit, broken_limits
from foretune.measurement import Measurement
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.search.optuna.pareto import ParetoSearcher, hypervolume, pareto_front
from foretune.space import Configuration
from foretune.tune.guiding import guide_for, prior_for
from foretune.tune.record import StoredRecord
from foretune.tune.results import REJECTED, Contender, status_of
from foretune.tune.session import Session, stopping_of
from foretune.tune.store.optional import Where
from foretune.tune.verify import METERED_ROUNDS, compare, measured_rounds

if TYPE_CHECKING:
    from foretune.models.saved.named import Named

REFERENCE = 2.0
"""The hypervolume's reference point is this many times the default in every objective."""


@dataclass(frozen=True)
class Tradeoff:
    """A configuration as it was measured again, beside the default.

    Attributes:
        config: which.
        time_ms: median over the rounds.
        power_w: likewise.
        energy_mj: likewise.
        against_default: the comparison by each objective, in their order; its value is the median.
        breaks: which limits the medians break; empty if none.
    """

    config: Configuration
    time_ms: float
    power_w: float
    energy_mj: float
    against_default: tuple[Contender, ...]
    breaks: str

    @property
    def values(self) -> list[float]:
        """The objectives; infinite if a limit is broken."""
        return [math.inf if self.breaks else c.value for c in self.against_default]

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
    default: Tradeoff
    candidates: tuple[Tradeoff, ...]
    rounds: int
    seconds: float
    unstable: str = ""

    @cached_property
    def front(self) -> tuple[Tradeoff, ...]:
        """Those, the default among them, that no other dominates by the medians.

        Least of the first objective first.
        """
        everyone = (self.default, *self.candidates)
        on_it = np.flatnonzero(pareto_front([t.values for t in everyone]))
        return tuple(sorted((everyone[i] for i in on_it), key=lambda t: t.values[0]))

    @property
    def reference(self) -> tuple[float, ...]:
        """The hypervolume's reference point: `REFERENCE` times the default."""
        return tuple(REFERENCE * c.value for c in self.default.against_default)

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
            "limits": {limit.column: limit.most for limit in self.limits},
            "rejected": sum(status_of(m, self.limits) == REJECTED for m in self.trace),
            "trace": [
                {
                    "config": dict(m.config),
                    "status": status_of(m, self.limits),
                    "time_ms": m.time_ms,
                    "power_w": m.power_w,
                    "energy_mj": Objective.ENERGY.of(m.time_ms, m.power_w),
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
    predictor: "Named" = None,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    objectives: Sequence[Objective] = (Objective.TIME, Objective.ENERGY),
    limits: Sequence[Limit] = (),
    searcher: str = "surrogate",
    seed: int = 0,
    store: Where = None,
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
            (`foretune.models.saved.named`); None starts from nothing.
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
    record = StoredRecord(kernel, runner.device, store, log)
    session = Session(
        kernel, runner, record, objectives, tuple(limits), searcher,
        stopping_of(budget, None, seconds), seed, progress, patience_s,
    )  # fmt: skip
    start = time.perf_counter()
    session.wait_until_quiet()
    space, device, goals = kernel.space(problem), runner.device, list(session.goals)
    guide = guide_for(session, predictor)
    believed = (prior_for(session, problem, space, guide, o) for o in objectives)
    priors = [prior for prior in believed if prior is not None]
    search = ParetoSearcher(space, goals, seed, priors or None, problem, device, searcher)
    session.start(problem, space)
    trace = session.known(problem, space)
    known = len(trace)
    search.tell(trace)
    begun, stopping = session.clock(), session.stopping
    while not stopping.is_spent(len(trace) - known, session.clock() - begun):
        if not (asked := search.ask(session.batch(len(trace) - known))):
            break
        for measurement in session.measure(problem, asked):
            trace.append(measurement)
            search.tell([measurement])
            progress.advance(f"{len(search.front())} on the front")
    configs = dict.fromkeys([kernel.default(problem), *(m.config for m in search.front())])
    session.wait_until_quiet()
    with runner.watch() as watch:
        (default, *candidates), rounds = _measure_again(session, problem, [*configs])
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
        unstable=watch.conditions.disturbed,
    )
    if not result.front:
        raise session.none_within(len(trace), default.breaks)
    return result


def _measure_again(
    session: Session, problem: Problem, configs: Sequence[Configuration]
) -> tuple[list[Tradeoff], int]:
    """Compare ``configs`` with the first of them, the default, in interleaved rounds.

    All comparisons by all objectives share an error of 5 % (Bonferroni), and there are rounds
    enough for each to have its interval: more than log2(2 / error).

    Returns:
        One per configuration, in order; and the number of rounds.

    Raises:
        MeasurementError: the default no longer runs.
    """
    goals = session.goals
    error = 0.05 / (max(1, len(configs) - 1) * len(goals))
    rounds = max(METERED_ROUNDS, 1 + int(math.log2(2 / error)))
    runs = measured_rounds(session, problem, configs, rounds)
    values = {
        c: [np.array([goal.objective.measured(m) for m in runs[c]]) for goal in goals]
        for c in configs
    }
    found = []
    for i, config in enumerate(configs):
        name = f"candidate {i}" if i else "default"
        pairs = zip(values[configs[0]], values[config], strict=True)
        comparisons = tuple(compare(name, config, base, own, 1 - error) for base, own in pairs)
        breaks = broken_limits(goals[0].limits, runs[config])
        found.append(Tradeoff(config, *_medians(runs[config]), comparisons, breaks))
    if not all(math.isfinite(c.value) for c in found[0].against_default):
        raise MeasurementError(
            f"the default configuration of {session.kernel.name} does not run on {problem}, or no "
            "meter sees it"
        )
    return found, rounds


def _medians(runs: Sequence[Measurement]) -> tuple[float, float, float]:
    """Return milliseconds, watts and millijoules of those that ran and were metered."""
    figures = np.array([(m.time_ms, m.power_w, Objective.ENERGY.measured(m)) for m in runs])
    whole = figures[np.isfinite(figures).all(axis=1)]
    time_ms, power_w, energy_mj = np.median(whole, axis=0) if len(whole) else [math.nan] * 3
    return float(time_ms), float(power_w), float(energy_mj)
