"""Finished campaigns: read from their folders, and reported to observers once more."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.device import Device
from foretune.errors import UsageError
from foretune.models.predictor import Predictor
from foretune.models.training import train_predictor
from foretune.registry import get_kernel
from foretune.support.files import translate_read_errors
from foretune.support.progress import SILENT
from foretune.tune.campaign.folder import CampaignFolder, read_state
from foretune.tune.campaign.observer import (
    DEFAULT_OBSERVERS,
    Campaign,
    CampaignObserver,
    CampaignStart,
    make_observers,
    notified,
)
from foretune.tune.results import TuneResult


@dataclass(frozen=True)
class FinishedCampaign:
    """A finished campaign, and how it started."""

    start: CampaignStart
    campaign: Campaign


def notify_observers(
    path: Path, observers: Sequence[str | CampaignObserver] = DEFAULT_OBSERVERS
) -> Campaign:
    """Notify observers of the finished campaign in ``path``, and return it.

    The report is written again, and MLflow gets everything it lacks, or TrackingError is raised.
    """
    finished = load_campaign(path)
    for observer in make_observers(observers, SILENT):
        with notified([observer], finished.start):
            for result in finished.campaign.results:
                observer.on_result(result)
            observer.on_finish(finished.campaign)
    return finished.campaign.with_state(finished.start.folder.state)


def load_campaign(path: Path) -> FinishedCampaign:
    """Return the finished campaign in the folder ``path``; its predictor is trained again.

    Raises UsageError if there is no finished campaign.
    """
    state = read_state(path)
    request = state["request"]
    if not state.get("finished"):
        raise UsageError(f"the campaign in {path} is not finished: run it again to continue")

    kernel = get_kernel(state.get("place") or request["kernel"])
    folder = CampaignFolder(path, request)
    learned_runs = Predictor.load(folder.predictor, kernel).runs_
    with translate_read_errors(path, UsageError, "holds a damaged campaign ({}): start a new one"):
        results = tuple(TuneResult.from_dict(result) for result in state["results"].values())
        device = Device(**state["device"])
        model = request["model"]
        seed = request["seed"]
        validate = request["validate"]

    training = train_predictor(learned_runs, model, seed=seed, kernel=kernel, validate=validate)
    campaign = Campaign.from_state(state, results, training, path)
    return FinishedCampaign(CampaignStart(kernel, device, folder), campaign)
