"""Turns a predictor into a prior over one search space."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from foretune.datasets.runs import from_measurements
from foretune.device import Device
from foretune.errors import PredictorError, RunTableError
from foretune.measurement import Measurement
from foretune.models.guides.guide import Guide, make_guide
from foretune.models.target_names import MIN_ROWS
from foretune.objective import Limit, Objective
from foretune.problem import Problem
from foretune.search.encoding import KernelRuns
from foretune.search.searcher import Prior
from foretune.space import SearchSpace

if TYPE_CHECKING:
    from foretune.models.saved.lookup import PredictorSource

CORRECTION_COUNTS = tuple(round(MIN_ROWS * 1.6**i) for i in range(12))
"""A predictor from elsewhere is corrected after these numbers of successful measurements."""


@dataclass(frozen=True)
class PriorValues:
    """What is predicted of some configurations: one value for each.

    Attributes:
        log_mean: log of the expected objective.
        p_valid: probability to run.
    """

    log_mean: np.ndarray
    p_valid: np.ndarray


def prior_from_predictor(
    model: "PredictorSource",
    problem: Problem,
    space: SearchSpace,
    device: Device,
    objective: Objective = Objective.TIME,
    indices: np.ndarray | None = None,
    limits: Sequence[Limit] = (),
) -> Prior:
    """Return `prior_from_guide` of any model (`foretune.models.guides.guide.make_guide`)."""
    guide = make_guide(model, device)
    return prior_from_guide(
        guide, problem, space, objective=objective, indices=indices, limits=limits
    )


def prior_from_guide(
    guide: Guide,
    problem: Problem,
    space: SearchSpace,
    objective: Objective = Objective.TIME,
    indices: np.ndarray | None = None,
    limits: Sequence[Limit] = (),
) -> Prior:
    """Return the prior of all (or the given) configurations of ``space``.

    The probability to run includes the probability of staying within ``limits``. Raises
    PredictorError if a target that ``objective`` needs, or a column of the training data, is
    missing, or a user's model fails or predicts nothing in the space.
    """
    predicted = guide.predict_space(problem, space, indices)
    values = _prior_values(predicted, objective)
    if indices is None:
        guide.check_prediction(values.log_mean)

    p_valid = values.p_valid
    for limit in limits:
        p_valid = np.nan_to_num(p_valid * limit.probability(predicted))

    def log_mean_of(measurements: Sequence[Measurement]) -> np.ndarray:
        rows = KernelRuns.from_measurements(measurements)
        return predict_runs(guide, rows, objective).log_mean

    return Prior(
        values.log_mean,
        log_spread=guide.log_spread(predicted),
        p_valid=p_valid,
        foreign=bool(guide.mismatch),
        log_mean_of=log_mean_of,
    )


def correct_predictor(guide: Guide, measurements: Sequence[Measurement], device: Device) -> Guide:
    """Return ``guide`` corrected by measurements on this device, or itself if that fails.

    Only predictors from other devices or code versions are corrected: the others already have
    calibrated intervals.
    """
    ran = [m for m in measurements if m.ok]
    if not guide.mismatch or len(ran) < MIN_ROWS:
        return guide
    try:
        return guide.calibrated(from_measurements(ran, device))
    except (PredictorError, RunTableError):  # far off everywhere: the search corrects it, too
        return guide


def predict_runs(
    guide: Guide, rows: KernelRuns, objective: Objective = Objective.TIME
) -> PriorValues:
    """Return what ``guide`` predicts of some rows.

    Raises PredictorError if a column of the training data is missing.
    """
    return _prior_values(guide.predict_runs(rows.problems, rows.configs), objective)


def _prior_values(predicted: pd.DataFrame, objective: Objective) -> PriorValues:
    """Return the prior values in a predicted table; unknown ones count as the worst known."""
    if objective.needs_power and "power_w" not in predicted:
        raise PredictorError(
            f"the predictor has not learned power, which objective {objective.value!r} needs: "
            "train it on runs with power_w, or tune without --predictor"
        )
    if "time_ms" not in predicted:
        raise PredictorError("the predictor has not learned time: train it with --target time_ms")

    power_w = predicted["power_w"].to_numpy() if "power_w" in predicted else np.nan
    log_objective = np.log(objective.compute(predicted["time_ms"].to_numpy(), power_w))
    if np.isnan(log_objective).all():
        raise PredictorError("the predictor predicts that no configuration runs: tune without it")

    log_mean = np.nan_to_num(log_objective, nan=np.nanmax(log_objective))
    return PriorValues(log_mean, predicted["p_valid"].to_numpy())
