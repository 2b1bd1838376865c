"""A Kubernetes manifest of a planned deployment: servers of one engine behind a service.

As the engines' documentation of Kubernetes has it: GPUs as a limit, memory shared between ranks, a
probe of ``/health``, and a token of Hugging Face from the secret ``hf-token-secret`` where there is
one. JSON, which ``kubectl apply -f`` reads as it reads YAML.
"""

import json
import re
from typing import Any

from foretune.errors import UsageError
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.launching import PORT, TRTLLM_VERSION, launch

IMAGES = {
    "vllm": "vllm/vllm-openai:latest",
    "sglang": "lmsysorg/sglang:latest",
    "trtllm": f"nvcr.io/nvidia/tensorrt-llm/release:{TRTLLM_VERSION}",
}
"""Engine -> its published image for NVIDIA's GPUs."""
CONFIG_DIRECTORY = "/etc/engine"
"""Where the files that commands name are mounted."""
MAX_NAME_LENGTH = 52
"""Characters of a name, so that Kubernetes can append its own to it."""


def manifest(deployment: Deployment, engine: str, replicas: int = 1) -> str:
    """Return a Kubernetes manifest, as JSON: a ``Deployment`` and its ``WorkerProcess``.

    Args:
        deployment: what one replica is: one pod.
        engine: that serves.
        replicas: how many there are.

    Raises:
        UsageError: the engine does not run it, or one pod cannot hold it.
        UnknownName: there is no such engine.
    """
    system, gpus = deployment.system, deployment.layout.gpus
    launched = launch(deployment, engine)
    reason = launched.unsupported
    if deployment.pools:
        reason = "a manifest is written for one pool of workers: plan without --pools"
    elif gpus > system.gpus_per_node:
        reason = f"{gpus} GPUs span nodes: one pod cannot hold them; start them as printed"
    elif not system.device.architecture.startswith("sm_"):
        reason = f"a manifest is written for NVIDIA's GPUs, not for {system.name}"
    if reason:
        raise UsageError(f"no Kubernetes manifest: {reason}")
    name = object_name(deployment.model.name, engine)
    labels, port = {"app": name}, {"containerPort": PORT, "name": "http"}
    command = [
        f"{CONFIG_DIRECTORY}/{word}" if word in launched.files else word
        for word in launched.commands[0]
    ]
    mounts, volumes = [{"name": "shm", "mountPath": "/dev/shm"}], [_shared_memory_volume()]
    items: list[dict[str, Any]] = []
    if launched.files:
        items.append(config_map(name, launched.files))
        mounts.append({"name": "files", "mountPath": CONFIG_DIRECTORY})
        volumes.append({"name": "files", "configMap": {"name": name}})
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10}
    container = {
        "name": engine,
        "image": IMAGES[engine],
        "command": [*command, "--host", "0.0.0.0"],  # a pod's own network
        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {
            "name": "hf-token-secret", "key": "token", "optional": True}}}],
        "ports": [port],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        "startupProbe": probe | {"failureThreshold": 360},  # an hour to load the weights
        "readinessProbe": probe,
        "volumeMounts": mounts,
    }  # fmt: skip
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    notes = {"foretune/notes": "; ".join(launched.notes)} if launched.notes else {}
    items.append(_object("apps/v1", "Deployment", name, notes, spec=spec))
    ports = [{"port": PORT, "targetPort": "http"}]
    items.append(_object("v1", "Service", name, spec={"selector": labels, "ports": ports}))
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1) + "\n"


def config_map(name: str, files: dict[str, str]) -> dict[str, Any]:
    """Return the object that holds files."""
    return _object("v1", "ConfigMap", name, data=files)


def _object(
    version: str, kind: str, name: str, notes: dict[str, str] | None = None, **content: object
) -> dict[str, Any]:
    annotations = {"annotations": notes} if notes else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name} | annotations,
            **content}  # fmt: skip


def _shared_memory_volume() -> dict[str, Any]:
    """Return the volume through which ranks exchange tensors: a container's own is 64 MiB."""
    return {"name": "shm", "emptyDir": {"medium": "Memory"}}


def object_name(model: str, engine: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a name that Kubernetes takes: small letters, digits, dashes, ``max_length`` at
    most.
    """
    short = re.sub(r"[^a-z0-9]+", "-", model.rstrip("/").rpartition("/")[2].lower())
    return f"{engine}-{short}"[:max_length].strip("-")
