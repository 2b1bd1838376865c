"""Saves a plan as a folder and as an MLflow run."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from foretune.errors import OutputError, TrackingError
from foretune.plan.serve.deployments.deployment_steps import StepTimers
from foretune.plan.serve.explanation import sentences
from foretune.plan.serve.plan_json import plan_to_json, question_to_json, row_to_json
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.report import write_plan_report
from foretune.plan.serve.request import PlanRequest
from foretune.tune.mlflow.tracking import Tracker

CANDIDATES_FILE = "candidates.parquet"
PLAN_FILE = "plan.json"
REPORT_FILE = "report.html"
COMMANDS_FILE = "commands.txt"
"""Files of a plan's folder; the last is written only with commands."""
MAX_NAME_LENGTH = 80
"""Maximum length of a folder name before its number."""


@dataclass(frozen=True)
class SavedPlan:
    """The place of a saved plan; ``mlflow_uri`` and ``run_id`` are None without MLflow."""

    folder: Path
    mlflow_uri: str | None
    run_id: str | None

    @property
    def tracked_at(self) -> str:
        """The plan's place in MLflow, or how to install MLflow."""
        if self.run_id is None:
            return "not installed: pip install '.[track]' to track plans"
        return f"{self.mlflow_uri}, run {self.run_id}"

    @property
    def report(self) -> Path:
        """The HTML file."""
        return self.folder / REPORT_FILE


def save_plan(
    plan: Plan,
    timers: StepTimers,
    out: Path = Path("plans"),
    tracking_uri: str | None = None,
    commands: Mapping[str, str] | None = None,
) -> SavedPlan:
    """Write a plan to a new folder ``MODEL-SYSTEM-NNN`` under ``out``, then track it in MLflow.

    Without ``tracking_uri``, MLflow takes ``MLFLOW_TRACKING_URI`` or ``sqlite:///mlflow.db``.
    Raises TrackingError if MLflow cannot be reached; the folder is kept.
    """
    folder = write_plan_folder(plan, timers, out=out, commands=commands)
    if tracking_uri is None and find_spec("mlflow") is None:
        return SavedPlan(folder, mlflow_uri=None, run_id=None)
    try:
        tracker = Tracker(tracking_uri)
        run_id = track_plan(tracker, plan, folder)
    except TrackingError as e:
        raise TrackingError(f"{e}; the plan is saved in {folder}") from e
    return SavedPlan(folder, mlflow_uri=tracker.name, run_id=run_id)


def write_plan_folder(
    plan: Plan, timers: StepTimers, out: Path, commands: Mapping[str, str] | None = None
) -> Path:
    """Write a plan to a new folder ``MODEL-SYSTEM-NNN`` under ``out`` and return it.

    It contains ``candidates.parquet``, ``plan.json`` (see `plan_to_json`), ``report.html`` and, if
    given, ``commands.txt``.
    """
    # A plan without a feasible deployment raises here, before anything is written.
    answer = json.dumps(plan_to_json(plan, commands), indent=1, allow_nan=False)
    try:
        folder = _new_folder(Path(out), plan.request)
        plan.candidates.to_parquet(folder / CANDIDATES_FILE, compression="zstd")
        (folder / PLAN_FILE).write_text(answer, encoding="utf-8")
        if commands:
            text = "\n\n".join(f"# {engine}\n{command}" for engine, command in commands.items())
            (folder / COMMANDS_FILE).write_text(text + "\n", encoding="utf-8")
    except OSError as e:
        raise OutputError(f"cannot write to {out}: {e.strerror or e}") from e
    write_plan_report(plan, folder / REPORT_FILE, timers, commands)
    return folder


def track_plan(tracker: Tracker, plan: Plan, folder: Path) -> str:
    """Write a plan to MLflow as one run and return its id.

    Parameters are the question and the best plan's formats and layout; metrics are its predictions.
    The Pareto front is logged as metric steps ``front.…``, fastest first.
    """
    request = plan.request
    systems = ", ".join(system.name for system in request.systems)
    tags = {"foretune.model": request.model.name, "foretune.device": systems}
    run_id = tracker.open_run(f"plan: {request}", None, tags)

    with tracker.running(run_id):
        # Numbers of the best candidate are metrics, its other values are parameters.
        best = row_to_json(plan.best.drop(["keeps", "pareto"]))
        metrics = {name: value for name, value in best.items() if isinstance(value, float)}
        choices = {
            f"best.{name}": value
            for name, value in best.items()
            if name not in metrics and value is not None
        }
        effort = {"candidates": float(len(plan.candidates)), "seconds": plan.seconds}
        tracker.log(run_id, {**question_to_json(plan), **choices}, metrics | effort)

        tracker.log_steps(run_id, plan.pareto[list(metrics)].add_prefix("front."))
        tracker.describe(run_id, "\n\n".join(sentences(plan)))
        for path in sorted(folder.iterdir()):
            tracker.log_file(run_id, path)
    return run_id


def _new_folder(out: Path, request: PlanRequest) -> Path:
    """Create the next numbered folder; safe if other processes do the same."""
    systems = "+".join(system.name for system in request.systems)
    model = request.model.name.rsplit("/", 1)[-1]
    name = re.sub(r"[^\w.+-]+", "-", f"{model}-{systems}")[:MAX_NAME_LENGTH].strip(".-")

    out.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        number += 1
        folder = out / f"{name}-{number:03d}"
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
