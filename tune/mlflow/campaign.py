"""Tracks a campaign in MLflow: one run for the campaign, with a nested run per tuned problem."""

import json
import math
from contextlib import suppress
from importlib.util import find_spec
from statistics import geometric_mean
from typing import Any

from foretune import plot
from foretune.collect.benchmark import environment
from foretune.errors import TrackingError
from foretune.support.progress import SILENT, Progress
from foretune.tune.campaign.observer import Campaign, CampaignObserver, CampaignStart
from foretune.tune.mlflow.tracking import Tracker
from foretune.tune.results import TuneResult


class CampaignTracker(CampaignObserver):
    """Writes a campaign to MLflow while it runs; TrackingError if MLflow cannot be reached.

    Without MLflow it prints a notice once, and the campaign can be tracked later. The folder's
    state keeps the ids of the runs, so that a continued campaign extends them.
    """

    def __init__(self, progress: Progress = SILENT) -> None:
        super().__init__(progress)
        self._tracker: Tracker | None = None
        if find_spec("mlflow") is not None:
            progress.say("connecting to MLflow")
            self._tracker = Tracker()

    def on_start(self, start: CampaignStart) -> None:
        """Open the campaign's run."""
        self._start = start
        if self._tracker is None:
            self.progress.say(
                "MLflow is not installed: the campaign is not tracked. To track it later, "
                "in Foretune's checkout pip install '.[track]', then run "
                f"'foretune campaign --track {start.folder.path}'"
            )
            return
        folder = start.folder
        kernel = start.kernel
        before = folder.state.get("mlflow_run_id")
        tags = {"foretune.kernel": kernel.name, "foretune.device": start.device.name}
        name = f"{kernel.name} on {start.device.name}"
        self._run_id = self._tracker.open_run(name, before, tags)
        if self._run_id != before:
            folder.state["tracked"] = {}  # another server does not know the problems tuned
        folder.save(mlflow_run_id=self._run_id, mlflow_uri=self._tracker.name)

    def on_result(self, result: TuneResult) -> None:
        """Write a search's measurements and its verdict, unless an earlier attempt did."""
        folder = self._start.folder
        if self._tracker is None or result.problem.id in folder.state["tracked"]:
            return
        tags = {"foretune.kernel": result.kernel}
        run_id = self._tracker.open_run(str(result.problem), None, tags, self._run_id)
        folder.state["tracked"][result.problem.id] = run_id
        folder.save()
        with self._tracker.running(run_id):
            self._tracker.log_trace(run_id, result)
            self._tracker.log_charts(run_id, {plot.history: result, plot.ratios: result})

    def on_finish(self, campaign: Campaign) -> None:
        """Write request, outcome, predictor and files, and end the run."""
        if self._tracker is None:
            return
        tracker = self._tracker
        run_id = self._run_id
        folder = self._start.folder
        if folder.state.get("mlflow_finished") == run_id:
            tracker.end_run(run_id)  # opening it had marked it as running
            return

        tracker.log(run_id, self._params(), _outcome_metrics(campaign))
        decision = tracker.log_predictor(run_id, campaign.training, folder.predictor, folder.runs)
        tracker.log_charts(run_id, {plot.predicted_measured: campaign.training})
        best = [result.summary() for result in campaign.results]
        tracker.log_text(run_id, json.dumps(best, indent=1), "best.json")
        for path in (campaign.report, folder.runs):
            if path.exists():
                tracker.log_file(run_id, path)
        tracker.describe(run_id, campaign.headline)
        tracker.end_run(run_id)

        model = f"models:/foretune-{campaign.training.predictor.kernel_name_}@{decision.alias}"
        folder.save(mlflow_finished=run_id, mlflow_model=f"{model} ({decision.reason})")

    def _params(self) -> dict[str, Any]:
        """Return the campaign's request, flat, and the versions of the environment."""
        request = self._start.folder.state["request"]
        params = {
            name: value for name, value in request.items() if name not in ("preset", "problems")
        }
        for name, value in request["preset"].items():
            params[f"preset.{name}"] = value
        params["environment"] = environment(self._start.kernel)
        return params

    def on_failure(self, error: BaseException) -> None:
        """Mark the run as failed, or as killed if it was interrupted."""
        if self._tracker is not None:
            with suppress(TrackingError):
                status = "FAILED" if isinstance(error, Exception) else "KILLED"
                self._tracker.end_run(self._run_id, status)


def _outcome_metrics(campaign: Campaign) -> dict[str, float]:
    results = campaign.results
    speedups = [result.winner.ratio for result in results]
    return {
        "speedup_geomean": geometric_mean(speedups) if speedups else math.nan,
        "verified_wins": float(sum(result.verified for result in results)),
        "inconclusive": float(sum(result.verdict == "inconclusive" for result in results)),
    }
