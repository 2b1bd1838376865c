"""A Kubernetes manifest that starts a planned deployment.

It follows the engines' Kubernetes guides: GPU limits, memory shared between ranks, a probe of
``/health``, and the Hugging Face token from the secret ``hf-token-secret`` if it exists. It is
JSON, which ``kubectl apply -f`` reads like YAML.
"""

import json
import re
from typing import Any

from foretune.errors import UsageError
from foretune.plan.describe.engines import ENGINES
from foretune.plan.serve.commands.server import PORT
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.launching import Launch, launch

CONFIG_DIRECTORY = "/etc/engine"
"""Mount path of the files that commands read."""
MAX_OBJECT_NAME = 52
"""Maximum length of an object's name, which leaves room for Kubernetes' suffixes."""
PROBE_SECONDS = 10
MAX_START_PROBES = 360
"""Probes until a pod counts as failed: an hour to load the weights."""
HUGGING_FACE_TOKEN = {
    "name": "HF_TOKEN",
    "valueFrom": {"secretKeyRef": {"name": "hf-token-secret", "key": "token", "optional": True}},
}
SHARED_MEMORY_MOUNT = {"name": "shm", "mountPath": "/dev/shm"}
SHARED_MEMORY_VOLUME = {"name": "shm", "emptyDir": {"medium": "Memory"}}
"""Memory for tensors shared between ranks: the default of 64 MiB is too small."""


def manifest(deployment: Deployment, engine: str, replicas: int = 1) -> str:
    """Return a Kubernetes manifest as JSON: a ``Deployment`` and its ``Service``.

    Each replica is one pod. Raises UsageError if the engine cannot run the deployment, or it does
    not fit in one pod.
    """
    launched = launch(deployment, engine)
    if reason := _unsupported(deployment) or launched.unsupported:
        raise UsageError(f"no Kubernetes manifest: {reason}")

    name = _object_name(deployment, engine)
    labels = {"app": name}
    mounts: list[dict[str, Any]] = [SHARED_MEMORY_MOUNT]
    volumes: list[dict[str, Any]] = [SHARED_MEMORY_VOLUME]
    items = []

    # Files that the command reads become a separate object, mounted as a folder.
    if launched.files:
        items.append(_object("v1", "ConfigMap", name, data=launched.files))
        mounts.append({"name": "files", "mountPath": CONFIG_DIRECTORY})
        volumes.append({"name": "files", "configMap": {"name": name}})

    container = _container(deployment, engine, launched, mounts)
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    notes = {"foretune/notes": "; ".join(launched.notes)} if launched.notes else {}
    items.append(_object("apps/v1", "Deployment", name, notes, spec=spec))

    ports = [{"port": PORT, "targetPort": "http"}]
    items.append(_object("v1", "Service", name, spec={"selector": labels, "ports": ports}))
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1) + "\n"


def _unsupported(deployment: Deployment) -> str:
    """Return why a deployment cannot run in pods; empty if it can."""
    system = deployment.system
    gpus = deployment.layout.gpus
    if deployment.pools:
        return "separate pools are not supported: leave out --pools"
    if gpus > system.gpus_per_node:
        return f"{gpus} GPUs span several nodes, but a pod runs on one: use the printed commands"
    if not system.device.architecture.startswith("sm_"):
        return f"only NVIDIA GPUs are supported, not {system.name}"
    return ""


def _object_name(deployment: Deployment, engine: str) -> str:
    """Return a valid name: lowercase letters, digits and dashes."""
    model = deployment.model.name.rstrip("/").rpartition("/")[2]
    short = re.sub(r"[^a-z0-9]+", "-", model.lower())
    return f"{engine}-{short}"[:MAX_OBJECT_NAME].strip("-")


def _container(
    deployment: Deployment, engine: str, launched: Launch, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the container of a pod, which runs the server's command."""
    command = [
        f"{CONFIG_DIRECTORY}/{word}" if word in launched.files else word
        for word in launched.commands[0]
    ]
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PROBE_SECONDS}
    return {
        "name": engine,
        "image": ENGINES[engine]["image"].format(ENGINES[engine]["version"]),
        "command": [*command, "--host", "0.0.0.0"],  # inside the pod's network
        "env": [HUGGING_FACE_TOKEN],
        "ports": [{"containerPort": PORT, "name": "http"}],
        "resources": {"limits": {"nvidia.com/gpu": str(deployment.layout.gpus)}},
        "startupProbe": probe | {"failureThreshold": MAX_START_PROBES},
        "readinessProbe": probe,
        "volumeMounts": mounts,
    }


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
