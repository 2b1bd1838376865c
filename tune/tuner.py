"""The tuner: predict every configuration of a problem, measure a few, verify the best."""

import math
import time

import numpy as np
import pandas as pd

from foretune.collect import Runner
from foretune.collect.collection import find_current
from foretune.collect.meters import find_meter, why_no_meter
from foretune.collect.timer import median_interval
from foretune.datasets import RunLog
from foretune.device import Device
from foretune.errors import MeterUnavailable, PredictorError
from foretune.features import rows_of
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.models import Predictor
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.search import Prior, make_searcher
from foretune.space import Configuration, SearchSpace
from foretune.tune.results import Step, TuneResult
from foretune.tune.verify import verify

FINALISTS = 3


def tune_problem(
    kernel: Kernel,
    problem: Problem,
    runner: Runner,
    predictor: Predictor | None = None,
    *,
    budget: int = 10,
    objective: Objective = Objective.TIME,
    searcher: str = "surrogate",
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
        predictor: predicts every configuration first; None starts from nothing.
        budget: measurements of the search; the verification comes on top.
        objective: what is minimised.
        searcher: registered name.
        seed: of the searcher.
        log: measurements go there, and those it has already are not made again.
        verify_s: seconds of interleaved comparison.
        progress: told about every measurement.

    Raises:
        MeterUnavailable: the objective needs power, which this machine cannot measure.
        MeasurementError: no configuration runs, not even the default.
        PredictorError: the predictor is of another kernel or has not learned power.
    """
    require_meter(objective, runner.device)
    start = time.perf_counter()
    space = kernel.space(problem)
    prior = predictor and make_prior(predictor, kernel, problem, space, runner.device, objective)
    search = make_searcher(searcher, space, objective, seed, prior, problem, runner.device)
    trace: list[Step] = []
    incumbent: Measurement | None = None
    progress.start(f"tuning {problem}", budget)
    while len(trace) < budget and (asked := search.ask(1)):
        bound_ms = _upper_bound_ms(incumbent)
        measurement = _measure(kernel, problem, asked[0], runner, log, bound_ms)
        search.tell([measurement])
        trace.append(_step(measurement, objective, predictor, runner.device))
        if measurement.config == search.best():
            incumbent = measurement
        best = min(s.objective for s in trace)
        progress.advance(f"best {best:.3g} {objective.unit}" if best < math.inf else "")
    contenders, rounds = verify(kernel, problem, _finalists(trace), runner, objective, verify_s)
    return TuneResult(
        kernel=kernel.name,
        problem=problem,
        device=runner.device.name,
        objective=objective,
        searcher=searcher,
        trace=tuple(trace),
        contenders=tuple(contenders),
        rounds=rounds,
        seconds=time.perf_counter() - start,
    )


def require_meter(objective: Objective, device: Device) -> None:
    """Do nothing if ``objective`` can be measured on ``device``.

    Raises:
        MeterUnavailable: it needs power, and no meter works here; the message says why.
    """
    if objective.needs_power and find_meter(device.kind, device.index) is None:
        raise MeterUnavailable(
            f"objective {objective.value!r} needs a power meter: {why_no_meter(device.kind)}; "
            "use --objective time"
        )


def make_prior(
    predictor: Predictor,
    kernel: Kernel,
    problem: Problem,
    space: SearchSpace,
    device: Device,
    objective: Objective,
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
    if objective.needs_power and "power_w" not in predictor.targets_:
        raise PredictorError(
            f"the predictor has not learned power, which objective {objective.value!r} needs: "
            "train it on runs with power_w, or tune without --predictor"
        )
    if "time_ms" not in predictor.targets_:
        raise PredictorError("the predictor has not learned time: train it with --target time_ms")
    predicted = predictor.predict_space(problem, space, device)
    power_w = predicted["power_w"] if "power_w" in predicted else pd.Series(np.nan, predicted.index)
    value = objective.of(predicted["time_ms"].to_numpy(), power_w.to_numpy())
    return Prior(np.log(value), predictor.log_spread(), predicted["p_valid"].to_numpy())


def _measure(
    kernel: Kernel,
    problem: Problem,
    config: Configuration,
    runner: Runner,
    log: RunLog | None,
    incumbent_ms: float,
) -> Measurement:
    device = runner.device.name
    if log is not None and (known := find_current(log, kernel, device, problem, config)):
        return known
    (measurement,) = runner.run(kernel, problem, [config], incumbent_ms)
    if log is not None:
        log.append(measurement)
    return measurement


def _upper_bound_ms(incumbent: Measurement | None) -> float:
    if incumbent is None or not incumbent.time_ms_samples:
        return math.inf
    return median_interval(np.array(incumbent.time_ms_samples))[1]


def _step(
    m: Measurement, objective: Objective, predictor: Predictor | None, device: Device
) -> Step:
    predicted = {}
    if predictor is not None:
        row = predictor.predict(rows_of(m.kernel, m.problem, [m.config], device)).iloc[0]
        predicted = {
            "predicted_ms": float(row["time_ms"]),
            "low_ms": float(row["time_ms_low"]),
            "high_ms": float(row["time_ms_high"]),
        }
    return Step(m.config, m.status.value, m.time_ms, m.power_w, objective.measured(m), **predicted)


def _finalists(trace: list[Step]) -> list[Configuration]:
    worked = sorted((s for s in trace if math.isfinite(s.objective)), key=lambda s: s.objective)
    return [s.config for s in worked[:FINALISTS]]
