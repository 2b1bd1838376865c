"""Kubernetes manifest of a planned deployment: servers of one engine behind a service.

It follows the engines' Kubernetes guides: GPU limits, memory shared between ranks, a probe of
``/health``, and the Hugging Face token from the secret ``hf-token-secret`` if it exists. The output
is JSON, which ``kubectl apply -f`` reads like YAML.
"""

import json
import re
from typing import Any

from foretune.errors import UsageError
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.launching import ENGINE_VERSIONS, PORT, launch

IMAGES = {
    "vllm": f"vllm/vllm-openai:v{ENGINE_VERSIONS['vllm']}",
    "sglang": f"lmsysorg/sglang:v{ENGINE_VERSIONS['sglang']}",
    "trtllm": f"nvcr.io/nvidia/tensorrt-llm/release:{ENGINE_VERSIONS['trtllm']}",
}
"""Engine -> its published image for NVIDIA GPUs."""
CONFIG_DIRECTORY = "/etc/engine"
"""Mount path of the files that commands read."""
MAX_NAME_LENGTH = 52
"""Maximum length of a name, so that Kubernetes can append to it."""


def manifest(deployment: Deployment, engine: str, replicas: int = 1) -> str:
    """Return a Kubernetes manifest as JSON: a ``Deployment`` and its ``Service``.

    Each replica is one pod. Raises UsageError if the engine cannot run the deployment or one pod
    cannot hold it.
    """
    system, gpus = deployment.system, deployment.layout.gpus
    launched = launch(deployment, engine)
    reason = launched.unsupported
    if deployment.pools:
        reason = "separate pools are not supported: leave out --pools"
    elif gpus > system.gpus_per_node:
        reason = f"{gpus} GPUs span several nodes, but a pod has one: use the printed commands"
    elif not system.device.architecture.startswith("sm_"):
        reason = f"only NVIDIA GPUs are supported, not {system.name}"
    if reason:
        raise UsageError(f"no Kubernetes manifest: {reason}")
    # A valid name has lowercase letters, digits and dashes.
    short = re.sub(r"[^a-z0-9]+", "-", deployment.model.name.rstrip("/").rpartition("/")[2].lower())
    name = f"{engine}-{short}"[:MAX_NAME_LENGTH].strip("-")
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
        "image": IMAGES[engine],
        "command": [*command, "--host", "0.0.0.0"],  # inside the pod's network
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


def _object(
    version: str, kind: str, name: str, notes: dict[str, str] | None = None, **content: object
) -> dict[str, Any]:
    annotations = {"annotations": notes} if notes else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name} | annotations,
            **content}  # fmt: skip
