"""Priors from predictors: what other runs say about a space before anything of it is measured."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from foretune.datasets.runs import problems_of
from foretune.device import Device, canonical_name
from foretune.errors import PredictorError
from foretune.features.candidates import rows_of
from foretune.measurement import Measurement
from foretune.models import Predictor
from foretune.models.saved.search_predictor import SearchPredictor, require_kernel
from foretune.objective import Limit, Objective
from foretune.problem import Problem
from foretune.search.encoding import KernelRuns
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.searcher import Prior
from foretune.space import SearchSpace


def prior_from_predictor(
    guide: SearchPredictor | Predictor,
    problem: Problem,
    space: SearchSpace,
    device: Device,
    objective: Objective = Objective.TIME,
    indices: np.ndarray | None = None,
    limits: Sequence[Limit] = (),
) -> Prior:
    """Return what ``guide`` believes about all (or the numbered) configurations of ``space``.

    What is likely to break one of ``limits`` is as little likely to be valid.

    Raises:
        PredictorError: it has not learned what ``objective`` needs, or lacks what it learned from.
    """
    if isinstance(guide, Predictor):
        guide = SearchPredictor.for_device(guide, device)
    predictor = guide.predictor
    if objective.needs_power and "power_w" not in predictor.targets_:
        raise PredictorError(
            f"the predictor has not learned power, which objective {objective.value!r} needs: "
            "train it on runs with power_w, or tune without --predictor"
        )
    if "time_ms" not in predictor.targets_:
        raise PredictorError("the predictor has not learned time: train it with --target time_ms")
    predicted = predictor.predict_space(problem, space, device, indices)
    log_mean, p_valid = _log_mean_and_validity(predicted, objective)
    for limit in limits:
        p_valid = p_valid * limit.probability(predicted)
    spread = predictor.log_spread(device=device.name)

    def log_mean_of(measurements: Sequence[Measurement]) -> np.ndarray:
        return predict_runs(
            predictor, KernelRuns.from_measurements(measurements), device, objective
        )[0]

    return Prior(log_mean, spread, p_valid, bool(guide.mismatch), log_mean_of)


def predict_runs(
    predictor: Predictor, rows: KernelRuns, device: Device, objective: Objective = Objective.TIME
) -> tuple[np.ndarray, np.ndarray]:
    """Return what ``predictor`` believes about some rows: log objectives, and how likely they run.

    Raises:
        PredictorError: it lacks what it learned from.
    """
    parts, order = list[pd.DataFrame](), list[int]()
    for problem, numbers in rows.by_problem().items():
        configs = [rows.configs[i] for i in numbers]
        parts.append(rows_of(predictor.kernel_name_, problem, configs, device))
        order += numbers
    predicted = _log_mean_and_validity(
        predictor.predict(pd.concat(parts, ignore_index=True)), objective
    )
    log_mean, p_valid = np.empty((2, len(rows)))
    log_mean[order], p_valid[order] = predicted
    return log_mean, p_valid


def _log_mean_and_validity(
    predicted: pd.DataFrame, objective: Objective
) -> tuple[np.ndarray, np.ndarray]:
    power_w = predicted["power_w"].to_numpy() if "power_w" in predicted else np.nan
    value = objective.compute(predicted["time_ms"].to_numpy(), power_w)
    return np.log(value), predicted["p_valid"].to_numpy()


def runs_on_other_devices(runs: pd.DataFrame, recorded: RecordedSpace) -> pd.DataFrame:
    """Return the rows of the same kernel on other devices than ``recorded``'s.

    The device is left out entirely, whatever the problem: nothing of it may be known beforehand.

    Raises:
        PredictorError: there is none.
    """
    here = canonical_name(recorded.device.name)
    names = {name: canonical_name(str(name)) for name in runs["device"].unique()}
    is_other_device = runs["device"].map(names).astype(object) != here
    rows = runs[(runs["kernel"] == recorded.kernel) & is_other_device].dropna(axis=1, how="all")
    if rows.empty:
        raise PredictorError(
            f"no prior for {recorded.name}: the runs given hold none of {recorded.kernel} on a "
            f"device other than {here}"
        )
    return rows.reset_index(drop=True)


def check_prior_source(source: Predictor | pd.DataFrame | None, recorded: RecordedSpace) -> None:
    """Do nothing if `prior_from_source` can tell a prior of ``recorded`` from ``source``.

    Raises:
        PredictorError: there are no runs of other devices, or the predictor is of another kernel
            or has learned from the space, in which then nothing is to be found.
    """
    if isinstance(source, pd.DataFrame):
        runs_on_other_devices(source, recorded)
    if not isinstance(source, Predictor):
        return
    require_kernel(source, recorded.kernel)
    here, runs = canonical_name(recorded.device.name), source.measured_runs()
    same = [canonical_name(str(name)) == here for name in runs["device"]]
    if recorded.problem in set(problems_of(runs[same])):
        raise PredictorError(
            f"the predictor has learned from {recorded.name}: replay spaces that it does not know"
        )


def prior_from_source(
    source: Predictor | pd.DataFrame | None, recorded: RecordedSpace, seed: int = 0
) -> tuple[Prior | None, list[str]]:
    """Return what a predictor, or one trained on runs of other devices, believes of ``recorded``.

    Returns:
        the prior, None without a source; and the devices it comes from.

    Raises:
        PredictorError: see `check_prior_source`; or there are too few runs.
    """
    if source is None:
        return None, []
    if isinstance(source, pd.DataFrame):
        return prior_from_other_devices(source, recorded, seed)
    prior = prior_from_predictor(
        source, recorded.problem, recorded.space, recorded.device, recorded.objective
    )
    return prior, sorted(set(source.measured_runs()["device"].astype(str)))


def prior_from_other_devices(
    runs: pd.DataFrame, recorded: RecordedSpace, seed: int = 0
) -> tuple[Prior, list[str]]:
    """Return what a predictor trained on other devices' ``runs`` believes of ``recorded``.

    Returns:
        the prior, and the devices it comes from.

    Raises:
        PredictorError: there is no run of the kernel on another device, or too few.
    """
    other_runs = runs_on_other_devices(runs, recorded)
    predictor = Predictor(seed=seed).fit(other_runs)
    prior = prior_from_predictor(
        predictor, recorded.problem, recorded.space, recorded.device, recorded.objective
    )
    return prior, sorted(map(str, other_runs["device"].unique()))
