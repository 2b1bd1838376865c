"""A campaign's folder with its state, its result, and the observers that report or track it."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from foretune.device import Device
from foretune.errors import UsageError
from foretune.files import atomic_write, read_json, translate_read_errors
from foretune.kernel import Kernel
from foretune.models.training import Training
from foretune.progress import SILENT, Progress
from foretune.result import Result
from foretune.tune.results import TuneResult, results_frame

if TYPE_CHECKING:
    import pandas as pd


STATE = "campaign.json"
_STATE_TYPES: Mapping[str, Any] = {"request": dict, "results": dict, "seconds": (int, float)}


def read_state(path: Path) -> dict[str, Any]:
    """Return the request and progress of the campaign in the folder ``path``.

    Raises:
        UsageError: there is no campaign, or its state is damaged.
    """
    says = "is no campaign's folder ({}): give one like campaigns/…-001"
    with translate_read_errors(path, UsageError, says):
        state: dict[str, Any] = read_json(path / STATE)
        if wrong := [n for n, kind in _STATE_TYPES.items() if not isinstance(state[n], kind)]:
            raise ValueError(f"{wrong[0]!r} is {state[wrong[0]]!r}")
        if not 0 <= state["seconds"] < math.inf:
            raise ValueError(f"'seconds' is {state['seconds']}")
        return state


class CampaignFolder:
    """A campaign's folder and its state, which is saved after every step."""

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        self.path = path
        self._state_path = path / STATE
        self.state: dict[str, Any] = {"request": dict(request), "seconds": 0.0, "results": {}}
        self.started = time.perf_counter()
        if self._state_path.exists():
            self.state = read_state(path)
        self._earlier_seconds = float(self.state["seconds"])
        self.save()

    @property
    def runs(self) -> Path:
        """The run table."""
        return self.path / "runs.parquet"

    @property
    def predictor(self) -> Path:
        """The predictor's folder."""
        return self.path / "predictor"

    def save(self, **updates: Any) -> None:
        """Update and write the state; on failure the old file remains.

        Raises:
            OutputError: the directory cannot be written.
        """
        self.state |= updates
        self.state["seconds"] = self._earlier_seconds + time.perf_counter() - self.started
        with atomic_write(self._state_path, private=True) as new:
            new.write_text(json.dumps(self.state, indent=1), encoding="utf-8")


def open_folder(out: Path, request: Mapping[str, Any]) -> CampaignFolder:
    """Return the newest unfinished campaign of the same request under ``out``, or a new one."""
    for path in sorted(out.glob(f"{request['kernel']}-*/{STATE}"), reverse=True):
        try:
            state = read_state(path.parent)
        except UsageError:
            continue
        if state.get("request") == dict(request) and not state.get("finished"):
            return CampaignFolder(path.parent, request)
    taken = {p.name for p in out.glob(f"{request['kernel']}-*")} if out.exists() else set()
    number = next(n for n in range(1, 10**6) if f"{request['kernel']}-{n:03d}" not in taken)
    return CampaignFolder(out / f"{request['kernel']}-{number:03d}", request)


@dataclass(frozen=True, eq=False, repr=False)
class Campaign(Result):
    """A finished campaign.

    Attributes:
        folder: holds run table, predictor, results and report.
        seconds: wall time of this and of earlier, interrupted attempts.
        mlflow_run_id: the parent run; None if it is not tracked.
        mlflow_uri: where it is tracked; likewise.
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
        """How many problems got better."""
        wins = sum(r.verified for r in self.results)
        kernel = self.results[0].kernel if self.results else "nothing"
        return f"{kernel}: {wins} of {len(self.results)} problems better than by default"

    def to_frame(self) -> "pd.DataFrame":
        """Return one row per problem, see `results_frame`."""
        return results_frame(self.results)

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """Return the campaign with times and run as its folder's state has them now."""
        return replace(
            self,
            seconds=state["seconds"],
            mlflow_run_id=state.get("mlflow_run_id"),
            mlflow_uri=state.get("mlflow_uri"),
            mlflow_model=state.get("mlflow_model"),
        )

    @property
    def report(self) -> Path:
        """The HTML report; it exists if it was asked for."""
        return self.folder / "report.html"

    def summary(self) -> dict[str, Any]:
        """Return the outcome as the command line's JSON gives it."""
        return {
            "best": [r.summary() for r in self.results], "predictor": self.training.metrics(),
            "validate": self.training.validation.level, "mlflow_run_id": self.mlflow_run_id,
            "mlflow_uri": self.mlflow_uri, "mlflow_model": self.mlflow_model,
            "report": str(self.report), "folder": str(self.folder), "seconds": self.seconds,
        }  # fmt: skip


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
    """

    def __init__(self, progress: Progress = SILENT) -> None:
        self.progress = progress

    def on_start(self, start: CampaignStart) -> None:
        """The campaign begins, or goes on after an interruption."""

    def on_result(self, result: TuneResult) -> None:
        """A problem was tuned; in a continued campaign also those tuned before."""

    def on_finish(self, campaign: "Campaign") -> None:
        """All problems are tuned, and run table and predictor are written."""

    def on_failure(self, error: BaseException) -> None:
        """The campaign ended with an error or was interrupted."""
