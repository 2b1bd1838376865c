"""What a search begins with: the predictor that is asked for, and what measurements make of it."""

import warnings
from collections.abc import Sequence

from foretune.datasets import from_measurements
from foretune.device import Device
from foretune.errors import ForetuneWarning, PredictorError, RunTableError
from foretune.measurement import Measurement
from foretune.models.saved.lookup import PredictorSource, find_search_predictor
from foretune.models.saved.search_predictor import PredictorRequest, SearchPredictor
from foretune.models.targets import MIN_ROWS
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search.prior import prior_from_predictor
from foretune.search.searcher import Prior
from foretune.space import SearchSpace
from foretune.tune.job import TuningJob

CORRECTION_COUNTS = tuple(round(MIN_ROWS * 1.6**i) for i in range(12))
"""Successful measurements after which a predictor from elsewhere is corrected by all of them."""


def find_predictor(job: TuningJob, named: PredictorSource) -> SearchPredictor | None:
    """Return the predictor called ``named`` as a guide of the session's searches.

    Raises:
        PredictorError, TrackingError, UsageError: it cannot be used.
    """
    kernel = job.kernel
    power = any(objective.needs_power for objective in job.objectives)
    use = PredictorRequest(
        kernel.name, kernel.source_hash, job.device,
        ("time_ms", "power_w") if power else ("time_ms",),
    )  # fmt: skip
    return find_search_predictor(named, use, job.progress.say)


def prior_for(
    job: TuningJob,
    problem: Problem,
    space: SearchSpace,
    guide: SearchPredictor | None,
    objective: Objective,
) -> Prior | None:
    """Return what ``guide`` believes of a problem's space, None without one.

    Raises:
        PredictorError: it lacks what it needs. One that nobody asked for is warned of instead.
    """
    if guide is None:
        return None
    try:
        return prior_from_predictor(guide, problem, space, job.device, objective, limits=job.limits)
    except PredictorError as e:
        if not guide.shipped:
            raise
        warnings.warn(f"the shipped predictor is not used: {e}", ForetuneWarning, stacklevel=2)
        return None


def correct_predictor(
    guide: SearchPredictor, measurements: Sequence[Measurement], device: Device
) -> SearchPredictor:
    """Return ``guide`` corrected by what was measured here; itself where that cannot be.

    Only one from elsewhere is: what was learned here says itself how sure it is.
    """
    ran = [m for m in measurements if m.ok]
    if not guide.mismatch or len(ran) < MIN_ROWS:
        return guide
    try:
        return guide.calibrated(from_measurements(ran, device))
    except (PredictorError, RunTableError):  # far off throughout: the search finds that out, too
        return guide
