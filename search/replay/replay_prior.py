"""The prior of a recorded space, from a predictor or from runs on other devices."""

import pandas as pd

from foretune.datasets.runs import problems_of
from foretune.device import canonical_name
from foretune.errors import PredictorError
from foretune.models import Predictor
from foretune.models.saved.search_predictor import require_kernel
from foretune.search.prior import prior_from_predictor
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.searcher import Prior


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
