"""Observers of a campaign, which report or track its results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretune.device import Device
from foretune.kernel import Kernel
from foretune.progress import SILENT, Progress
from foretune.registry import load
from foretune.tune.campaign.folder import CampaignFolder
from foretune.tune.results import TuneResult

if TYPE_CHECKING:
    from foretune.tune.campaign.finished import Campaign

DEFAULT_OBSERVERS = ("report", "mlflow")
"""Names in the registry's group ``observers``, in the order in which they are told."""


@dataclass(frozen=True)
class CampaignStart:
    """A campaign that begins or goes on: its kernel, device and folder."""

    kernel: Kernel
    device: Device
    folder: CampaignFolder


class CampaignObserver:
    """Does nothing; subclasses override methods.

    An observer is created before the campaign's folder. An exception in an observer ends the
    campaign, which can be continued.

    Args:
        tracking_uri: of MLflow, as `run_campaign` got it.
        progress: told what happens.
    """

    def __init__(self, tracking_uri: str | None = None, progress: Progress = SILENT) -> None:
        self.tracking_uri = tracking_uri
        self.progress = progress

    def on_start(self, start: CampaignStart) -> None:
        """The campaign begins, or goes on after an interruption."""

    def on_result(self, result: TuneResult) -> None:
        """A problem was tuned; in a continued campaign also those tuned before."""

    def on_finish(self, campaign: "Campaign") -> None:
        """All problems are tuned, and run table and predictor are written."""

    def on_failure(self, error: BaseException) -> None:
        """The campaign ended with an error or was interrupted."""


def make_observers(
    observers: Sequence[str | CampaignObserver], tracking_uri: str | None, progress: Progress
) -> list[CampaignObserver]:
    """Return observers by registered name; objects stay as they are.

    Raises:
        UnknownName: there is no observer of that name.
    """
    return [
        load("observers", o)(tracking_uri, progress) if isinstance(o, str) else o for o in observers
    ]
