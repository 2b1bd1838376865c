"""Saves a plan as a folder, an MLflow run and a Kubernetes manifest.

The manifest follows the engines' Kubernetes guides: GPU limits, memory shared between ranks, a
probe of ``/health``, and the Hugging Face token from the secret ``hf-token-secret`` if it exists.
It is JSON, which ``kubectl apply -f`` reads like YAML.
"""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.errors import OutputError, TrackingError, UsageError
from foretune.plan.describe.engines import ENGINES
from foretune.plan.serve.deployments.analytic import StepTimers
from foretune.plan.serve.deployments.correction import package_versions
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.explanation import describe_candidate, notes, sentences
from foretune.plan.serve.launching import PORT, launch
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.report import Question, write_plan_report
from foretune.plan.serve.requirements import UPPER_LIMITS
from foretune.tune.mlflow.tracking import Tracker

CANDIDATES_FILE, PLAN_FILE, REPORT_FILE, COMMANDS_FILE = (
    "candidates.parquet",
    "plan.json",
    "report.html",
    "commands.txt",
)
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
    question: Question,
    timers: StepTimers,
    out: Path = Path("plans"),
    tracking_uri: str | None = None,
    commands: Mapping[str, str] | None = None,
) -> SavedPlan:
    """Write a plan to a new folder ``MODEL-SYSTEM-NNN`` under ``out``, then track it in MLflow.

    Without ``tracking_uri``, MLflow takes ``MLFLOW_TRACKING_URI`` or ``sqlite:///mlflow.db``.
    Raises TrackingError if MLflow cannot be reached; the folder is kept.
    """
    folder = write_plan_folder(plan, question, timers, out, commands)
    if tracking_uri is None and find_spec("mlflow") is None:
        return SavedPlan(folder, None, None)
    try:
        tracker = Tracker(tracking_uri)
        run_id = track_plan(tracker, plan, question, folder)
    except TrackingError as e:
        raise TrackingError(f"{e}; the plan is saved in {folder}") from e
    return SavedPlan(folder, tracker.name, run_id)


def write_plan_folder(
    plan: Plan,
    question: Question,
    timers: StepTimers,
    out: Path,
    commands: Mapping[str, str] | None = None,
) -> Path:
    """Write a plan to a new folder ``MODEL-SYSTEM-NNN`` under ``out`` and return it.

    It contains ``candidates.parquet``, ``plan.json`` (see `plan_to_json`), ``report.html`` and, if
    given, ``commands.txt``.
    """
    answer = json.dumps(plan_to_json(plan, question, commands), indent=1, allow_nan=False)
    try:
        folder = _new_folder(Path(out), question)
        plan.candidates.to_parquet(folder / CANDIDATES_FILE, compression="zstd")
        (folder / PLAN_FILE).write_text(answer, encoding="utf-8")
        if commands:
            text = "\n\n".join(f"# {engine}\n{line}" for engine, line in commands.items())
            (folder / COMMANDS_FILE).write_text(text + "\n", encoding="utf-8")
    except OSError as e:
        raise OutputError(f"cannot write to {out}: {e.strerror or e}") from e
    write_plan_report(plan, folder / REPORT_FILE, question, timers, commands)
    return folder


def track_plan(tracker: Tracker, plan: Plan, question: Question, folder: Path) -> str:
    """Write a plan to MLflow as one run and return its id.

    Parameters are the question and the best plan's formats and layout; metrics are its predictions.
    The Pareto front is logged as metric steps ``front.…``, fastest first.
    """
    systems = ", ".join(system.name for system in question.systems)
    tags = {"foretune.model": question.model.name, "foretune.device": systems}
    run_id = tracker.open_run(f"plan: {question}", None, tags)
    with tracker.running(run_id):
        best = _row_json(plan.best.drop(["keeps", "pareto"]))
        numbers = {name: value for name, value in best.items() if isinstance(value, float)}
        texts = {f"best.{k}": v for k, v in best.items() if k not in numbers and v is not None}
        looked_at = {"candidates": float(len(plan.candidates)), "seconds": question.seconds}
        tracker.log(run_id, {**_question_json(plan, question), **texts}, numbers | looked_at)
        tracker.log_steps(run_id, plan.pareto[list(numbers)].add_prefix("front."))
        tracker.describe(run_id, "\n\n".join(sentences(plan)))
        for path in sorted(folder.iterdir()):
            tracker.log_file(run_id, path)
    return run_id


def plan_to_json(
    plan: Plan, question: Question, commands: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a plan as plain values, as ``foretune plan serve --json`` prints them."""
    answer: dict[str, Any] = {
        "question": _question_json(plan, question),
        "best": _candidate_json(plan, plan.best),
        "runner_up": _candidate_json(plan, plan.runner_up),
        "step_up": _candidate_json(plan, plan.next_faster),
        "pareto": [_candidate_json(plan, row) for _, row in plan.pareto.iterrows()],
        "candidates": len(plan.candidates),
        "sentences": sentences(plan),
        "notes": notes(plan, question.tables, question.corrected),
    }
    if commands:
        answer["commands"] = dict(commands)
    return answer


def _candidate_json(plan: Plan, row: "pd.Series[Any] | None") -> dict[str, Any] | None:
    return None if row is None else {"deployment": describe_candidate(plan, row), **_row_json(row)}


def _row_json(row: "pd.Series[Any]") -> dict[str, Any]:
    """Return a row as JSON values; unknown is None."""
    values = {name: getattr(v, "item", lambda v=v: v)() for name, v in row.items()}
    return {
        str(name): None if isinstance(v, float) and not math.isfinite(v) else v
        for name, v in values.items()
    }


def _question_json(plan: Plan, question: Question) -> dict[str, Any]:
    """Return the question and package versions, without unset limits."""
    limits = {name: getattr(plan.requirements, name) for name in UPPER_LIMITS}
    if plan.requirements.accuracy > 0:
        limits["accuracy"] = plan.requirements.accuracy
    values = {
        "model": question.model.name,
        "systems": ", ".join(system.name for system in question.systems),
        "gpus": question.gpus,
        "isl": question.workload.isl,
        "osl": question.workload.osl,
        "prefix": question.workload.prefix,
        "backend": question.backend,
        "rate": question.rate,
        "pools": question.pools,
        "speculative": str(plan.deployments[0].speculation or "") or None,
        "offload_gib": question.offload.weights_gib or None,
        "offload_cache_gib": question.offload.cache_gib or None,
        "goal": plan.requirements.goal,
        **{f"limit.{name}": v for name, v in limits.items() if math.isfinite(v)},
        "tables": question.tables,
        "corrected": question.corrected,
        **{f"version.{name}": number for name, number in package_versions().items()},
    }
    return {name: value for name, value in values.items() if value is not None}


def _new_folder(out: Path, question: Question) -> Path:
    """Create the next numbered folder; safe if other processes do the same."""
    systems = "+".join(system.name for system in question.systems)
    model = question.model.name.rsplit("/", 1)[-1]
    name = re.sub(r"[^\w.+-]+", "-", f"{model}-{systems}")[:MAX_NAME_LENGTH].strip(".-")
    out.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        number += 1
        folder = out / f"{name}-{number:03d}"
        with suppress(FileExistsError):
            folder.mkdir()
            return folder


CONFIG_DIRECTORY = "/etc/engine"
"""Mount path of the files that commands read."""
MAX_OBJECT_NAME = 52
"""Maximum length of an object's name, which leaves room for Kubernetes' suffixes."""


def manifest(deployment: Deployment, engine: str, replicas: int = 1) -> str:
    """Return a Kubernetes manifest as JSON: a ``Deployment`` and its ``Service``.

    Each replica is one pod. Raises UsageError if the engine cannot run the deployment, or it does
    not fit in one pod.
    """
    system, gpus = deployment.system, deployment.layout.gpus
    launched = launch(deployment, engine)
    reason = launched.unsupported
    if deployment.pools:
        reason = "separate pools are not supported: leave out --pools"
    elif gpus > system.gpus_per_node:
        reason = f"{gpus} GPUs span several nodes, but a pod runs on one: use the printed commands"
    elif not system.device.architecture.startswith("sm_"):
        reason = f"only NVIDIA GPUs are supported, not {system.name}"
    if reason:
        raise UsageError(f"no Kubernetes manifest: {reason}")
    # A valid name has lowercase letters, digits and dashes.
    short = re.sub(r"[^a-z0-9]+", "-", deployment.model.name.rstrip("/").rpartition("/")[2].lower())
    name = f"{engine}-{short}"[:MAX_OBJECT_NAME].strip("-")
    labels, port = {"app": name}, {"containerPort": PORT, "name": "http"}
    command = [
        f"{CONFIG_DIRECTORY}/{word}" if word in launched.files else word
        for word in launched.commands[0]
    ]
    mounts, items = [{"name": "shm", "mountPath": "/dev/shm"}], []
    # tensors shared between ranks: the default is 64 MiB
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if launched.files:
        items.append(_object("v1", "ConfigMap", name, data=launched.files))
        mounts.append({"name": "files", "mountPath": CONFIG_DIRECTORY})
        volumes.append({"name": "files", "configMap": {"name": name}})
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10}
    container = {
        "name": engine,
        "image": ENGINES[engine]["image"].format(ENGINES[engine]["version"]),
        "command": [*command, "--host", "0.0.0.0"],  # inside the pod's network
        "env": [
            {
                "name": "HF_TOKEN",
                "valueFrom": {
                    "secretKeyRef": {"name": "hf-token-secret", "key": "token", "optional": True}
                },
            }
        ],
        "ports": [port],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        "startupProbe": probe | {"failureThreshold": 360},  # an hour to load the weights
        "readinessProbe": probe,
        "volumeMounts": mounts,
    }
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    notes = {"foretune/notes": "; ".join(launched.notes)} if launched.notes else {}
    items.append(_object("apps/v1", "Deployment", name, notes, spec=spec))
    ports = [{"port": PORT, "targetPort": "http"}]
    items.append(_object("v1", "Service", name, spec={"selector": labels, "ports": ports}))
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1) + "\n"


def _object(
    version: str, kind: str, name: str, notes: dict[str, str] | None = None, **content: object
) -> dict[str, Any]:
    annotations = {"annotations": notes} if notes else {}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name} | annotations,
        **content,
    }
