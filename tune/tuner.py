"""The tuner: predict every configuration of a problem, measure a few, verify the best."""

import math
import time
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from foretune.collect import Runner
from foretune.collect.collection import find_current
from foretune.collect.meters import find_meter, why_no_meter
from foretune.collect.timer import median_interval
from foretune.datasets import RunLog
from foretune.device import Device
from foretune.errors import MeasurementError, MeterUnavailable, PredictorError, UsageError
from foretune.kernel import Kernel
from foretune.limit import Limit, Limited, broken_limits, figures_of
from foretune.measurement import Measurement
from foretune.models import Predictor
from foretune.models.saved.pretrained import Auto
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.search import Prior, make_searcher
from foretune.search.factory import searcher_name
from foretune.search.prior import prior_of
from foretune.space import Configuration, SearchSpace
from foretune.tune.prior import predictor_for
from foretune.tune.results import Step, TuneResult, status_of
from foretune.tune.verify import verify

if TYPE_CHECKING:
    from foretune.search.factory import SearcherKind

FINALISTS = 3
LIMIT_RUNS = 3
"""Fresh runs of a finalist whose medians must keep to the limits."""


def tune_problem(
    kernel: Kernel,
    problem: Problem,
    runner: Runner,
    predictor: Predictor | Auto | None = None,
    *,
    budget: int = 10,
    objective: Objective = Objective.TIME,
    limits: Sequence[Limit] = (),
    searcher: "SearcherKind" = "surrogate",
    seed: int = 0,
    log: RunLog | None = None,
    verify_s: float = 2.0,
    progress: Progress = SILENT,
) -> TuneResult:
    """Search the configurations of ``problem`` with ``budget`` measurements and verify the best.

    Args:
        kernel: what is tuned.
        problem: for what.
        runner: measures; its device is the one tuned for.
        predictor: predicts every configuration first; ``"auto"`` is the one that comes with
            Foretune if it is of this code and device; None starts from nothing.
        budget: measurements of the search; the verification comes on top.
        objective: what is minimised.
        limits: what breaks one of them failed, to the search, and never wins; the run table has it
            as it was measured.
        searcher: registered name, `Searcher` class, or a sampler of Optuna.
        seed: of the searcher.
        log: measurements go there, and those it has already are not made again.
        verify_s: seconds of interleaved comparison.
        progress: told about every measurement.

    Raises:
        MeterUnavailable: objective or limits need power, which this machine cannot measure.
        MeasurementError: no configuration runs, not even the default, or none within the limits.
        PredictorError: the predictor is of another kernel or has not learned power.
        UsageError: a limit is on something that runs of this kernel do not say.
    """
    require_meter(objective, runner.device, limits)
    start = time.perf_counter()
    space, goal = kernel.space(problem), Limited(objective, tuple(limits))
    known = predictor_for(predictor, kernel, runner.device, [objective], progress)
    prior = known and make_prior(known, kernel, problem, space, runner.device, objective, limits)
    search = make_searcher(searcher, space, goal, seed, prior, problem, runner.device)
    trace: list[Step] = []
    incumbent: Measurement | None = None
    progress.start(f"tuning {problem}", budget)
    while len(trace) < budget and (asked := search.ask(1)):
        bound_ms = _upper_bound_ms(incumbent)
        measurement = measure(kernel, problem, asked[0], runner, [goal], log, bound_ms)
        search.tell([measurement])
        trace.append(_step(measurement, goal, known, runner.device))
        if measurement.config == search.best():
            incumbent = measurement
        best = min(s.objective for s in trace)
        progress.advance(f"best {best:.3g} {objective.unit}" if best < math.inf else "")

    def breaks(config: Configuration) -> str:
        runs = runner.run(kernel, problem, [config] * LIMIT_RUNS) if limits else ()
        return broken_limits(limits, list(runs))

    within = (config for config in _worked(trace) if not breaks(config))
    finalists, default_breaks = list(islice(within, FINALISTS)), breaks(kernel.default(problem))
    contenders, rounds = verify(kernel, problem, finalists, runner, objective, verify_s)
    result = TuneResult(
        kernel=kernel.name,
        problem=problem,
        device=runner.device.name,
        objective=objective,
        searcher=searcher_name(searcher),
        trace=tuple(trace),
        contenders=tuple(contenders),
        rounds=rounds,
        seconds=time.perf_counter() - start,
        limits=goal.limits,
        default_breaks=default_breaks,
    )
    if default_breaks and not result.verified:
        raise none_within(limits, len(trace), default_breaks)
    return result


def require_meter(objective: Objective, device: Device, limits: Sequence[Limit] = ()) -> None:
    """Do nothing if ``objective`` and ``limits`` can be measured on ``device``.

    Raises:
        MeterUnavailable: one needs power, and no meter works here; the message says why.
    """
    needs = [f"limit {limit.column!r}" for limit in limits if limit.needs_power]
    way_out = "leave that limit out"
    if objective.needs_power:
        needs, way_out = [f"objective {objective.value!r}"], "use --objective time"
    if needs and find_meter(device.kind, device.index) is None:
        raise MeterUnavailable(
            f"{needs[0]} needs a power meter: {why_no_meter(device.kind)}; {way_out}"
        )


def none_within(limits: Sequence[Limit], measured: int, default_breaks: str) -> MeasurementError:
    """Return the error of a search that found nothing within its limits."""
    listed = ", ".join(map(str, limits))
    return MeasurementError(
        f"none of {measured} configurations measured keeps to {listed}, nor does the default "
        f"({default_breaks}): raise the limit or --budget"
    )


def make_prior(
    predictor: Predictor,
    kernel: Kernel,
    problem: Problem,
    space: SearchSpace,
    device: Device,
    objective: Objective,
    limits: Sequence[Limit] = (),
) -> Prior:
    """Return what ``predictor`` believes about every configuration of ``space``.

    Raises:
        PredictorError: it is of another kernel, or has not learned what ``objective`` needs.
    """
    if predictor.kernel_name_ != kernel.name:
        raise PredictorError(
            f"the predictor knows {predictor.kernel_name_!r}, not {kernel.name!r}: train one on "
            f"runs of {kernel.name}"
        )
    return prior_of(predictor, problem, space, device, objective, limits=limits)


def measure(
    kernel: Kernel,
    problem: Problem,
    config: Configuration,
    runner: Runner,
    goals: Sequence[Limited],
    log: RunLog | None = None,
    incumbent_ms: float = math.inf,
) -> Measurement:
    """Return what ``log`` has of a configuration if it says all ``goals`` ask; else measure it.

    Raises:
        UsageError: a limit is on something that runs of this kernel do not say.
    """
    device = runner.device.name
    known = None if log is None else find_current(log, kernel, device, problem, config)
    if known is not None and all(goal.is_known(known) for goal in goals):
        return known
    (measurement,) = runner.run(kernel, problem, [config], incumbent_ms)
    if log is not None:
        log.append(measurement)
    for limit in goals[0].limits:  # a meter may miss a run; anything else is never there or always
        if measurement.ok and not limit.needs_power and math.isnan(limit.of(measurement)):
            raise UsageError(
                f"limit {limit}: runs of {kernel.name} do not say their {limit.column}; they say "
                + ", ".join(figures_of(measurement))
            )
    return measurement


def _upper_bound_ms(incumbent: Measurement | None) -> float:
    if incumbent is None or not incumbent.time_ms_samples:
        return math.inf
    return median_interval(np.array(incumbent.time_ms_samples))[1]


def _step(m: Measurement, goal: Limited, predictor: Predictor | None, device: Device) -> Step:
    predicted = {}
    if predictor is not None:
        row = predictor.predict_one(m.problem, m.config, device)
        predicted = {
            "predicted_ms": row["time_ms"],
            "low_ms": row["time_ms_low"],
            "high_ms": row["time_ms_high"],
        }
    status = status_of(m, goal.limits)
    return Step(m.config, status, m.time_ms, m.power_w, goal.measured(m), **predicted)


def _worked(trace: list[Step]) -> list[Configuration]:
    """Return what ran within the limits, the best first."""
    worked = [s for s in trace if math.isfinite(s.objective)]
    return [s.config for s in sorted(worked, key=lambda s: s.objective)]
