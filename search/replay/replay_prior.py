"""The prior of a recorded space, from a predictor or from runs on other devices."""

import pandas as pd

from foretune.datasets.runs import problems_of
from foretune.device import canonical_name
from foretune.errors import PredictorError
from foretune.models.predictor import Predictor
from foretune.models.saved.guides import GuideModel, require_kernel
from foretune.search.prior import prior_from_predictor
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.searcher import Prior


def runs_on_other_devices(runs: pd.DataFrame, recorded: RecordedSpace) -> pd.DataFrame:
    """Return the rows of ``recorded``'s kernel on other devices.

    Rows of its device are left out for all problems.

    Raises:
        PredictorError: there are no such rows.
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


def check_prior_source(
    source: Predictor | GuideModel | pd.DataFrame | None, recorded: RecordedSpace
) -> None:
    """Raise if `prior_from_source` cannot return a fair prior of ``recorded``.

    Raises:
        PredictorError: there are no runs of other devices, or the predictor is of another kernel or
            was trained on the space itself, which a user's model does not show.
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
    source: Predictor | GuideModel | pd.DataFrame | None, recorded: RecordedSpace, seed: int = 0
) -> tuple[Prior | None, list[str]]:
    """Return the prior of a model, or of a predictor trained on runs of other devices.

    Returns:
        the prior, None without a source; and its training devices, or a user's model's name.

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
    if isinstance(source, GuideModel):
        return prior, [str(source)]
    return prior, sorted(set(source.measured_runs()["device"].astype(str)))


def prior_from_other_devices(
    runs: pd.DataFrame, recorded: RecordedSpace, seed: int = 0
) -> tuple[Prior, list[str]]:
    """Return the prior of a predictor trained on other devices' ``runs``.

    Returns:
        the prior, and its training devices.

    Raises:
        PredictorError: there are no runs of the kernel on another device, or too few.
    """
    other_runs = runs_on_other_devices(runs, recorded)
    predictor = Predictor(seed=seed).fit(other_runs)
    prior = prior_from_predictor(
        predictor, recorded.problem, recorded.space, recorded.device, recorded.objective
    )
    return prior, sorted(map(str, other_runs["device"].unique()))
