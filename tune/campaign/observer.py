"""A finished campaign, and the observers that report or track a campaign."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pandas as pd

from foretune.device import Device
from foretune.kernel import Kernel
from foretune.models.training import Training
from foretune.registry import load
from foretune.result import Result
from foretune.support.progress import SILENT, Progress
from foretune.tune.campaign.folder import CampaignFolder
from foretune.tune.outcome import outcome
from foretune.tune.results import TuneResult, results_frame

DEFAULT_OBSERVERS = ("report", "mlflow")
"""Names in the registry's group ``observers``, in the order in which they are notified."""


@dataclass(frozen=True, eq=False, repr=False)
class Campaign(Result):
    """A finished campaign.

    Attributes:
        folder: contains run table, predictor, results and report.
        seconds: wall time of this and of earlier, interrupted attempts.
        mlflow_run_id: the parent run; None if it is not tracked.
        mlflow_uri: where it is tracked; None if it is not.
        mlflow_model: the registered predictor, ``models:/NAME@ALIAS``, and why it has this alias.
    """

    results: tuple[TuneResult, ...]
    training: Training = field(compare=False)
    folder: Path
    seconds: float
    mlflow_run_id: str | None = None
    mlflow_uri: str | None = None
    mlflow_model: str | None = None

    @property
    def headline(self) -> str:
        """How many problems improved, and by how much, with the interval."""
        if not self.results:
            return "no problem was tuned"
        return f"{self.results[0].kernel}: {outcome(self.results)}"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per problem, see `results_frame`."""
        return results_frame(self.results)

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        results: tuple[TuneResult, ...],
        training: Training,
        folder: Path,
    ) -> Self:
        """Return a campaign with the times and the run from its folder's ``state``."""
        return cls(results, training, folder, seconds=state["seconds"]).with_state(state)

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """Return the campaign with the times and the run from its folder's current state."""
        names = ("mlflow_run_id", "mlflow_uri", "mlflow_model")
        tracked: dict[str, Any] = {name: state.get(name) for name in names}
        return replace(self, seconds=state["seconds"], **tracked)

    @property
    def report(self) -> Path:
        """The HTML report; it exists if it was requested."""
        return self.folder / "report.html"

    def summary(self) -> dict[str, Any]:
        """Return the outcome for the command line's JSON output."""
        return {
            "best": [r.summary() for r in self.results],
            "predictor": self.training.metrics(),
            "validate": self.training.validation.level,
            "mlflow_run_id": self.mlflow_run_id,
            "mlflow_uri": self.mlflow_uri,
            "mlflow_model": self.mlflow_model,
            "report": str(self.report),
            "folder": str(self.folder),
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class CampaignStart:
    """A campaign that starts or continues: its kernel, device and folder."""

    kernel: Kernel
    device: Device
    folder: CampaignFolder


class CampaignObserver:
    """Base of observers; its methods do nothing.

    An observer is created before the campaign's folder. An exception in an observer ends the
    campaign, which can be continued.
    """

    def __init__(self, progress: Progress = SILENT) -> None:
        self.progress = progress

    def on_start(self, start: CampaignStart) -> None:
        """Called once, before anything is measured; also when a campaign continues."""

    def on_result(self, result: TuneResult) -> None:
        """Called after each tuned problem; a continued campaign also reports earlier ones."""

    def on_finish(self, campaign: "Campaign") -> None:
        """Called once, after the last problem; run table and predictor are written."""

    def on_failure(self, error: BaseException) -> None:
        """Called if the campaign ends with an error or is interrupted; the error is raised then."""


def make_observers(
    observers: Sequence[str | CampaignObserver], progress: Progress
) -> list[CampaignObserver]:
    """Return the observers; registered names are made. Raises UnknownName, TrackingError."""
    return [
        load("observers", observer)(progress) if isinstance(observer, str) else observer
        for observer in observers
    ]


@contextmanager
def notified(observers: Sequence[CampaignObserver], start: CampaignStart) -> Iterator[None]:
    """Notify observers when a campaign starts, and of its error if it fails."""
    for observer in observers:
        observer.on_start(start)
    try:
        yield
    except BaseException as e:
        for observer in observers:
            observer.on_failure(e)
        raise
