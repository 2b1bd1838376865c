"""Kubernetes manifests of a planned deployment, plain or for NVIDIA Dynamo.

Both are JSON, which ``kubectl apply -f`` reads like YAML. The plain one follows the engines'
Kubernetes guides: GPU limits, memory shared between ranks, a probe of ``/health``, and the Hugging
Face token from the secret ``hf-token-secret`` if it exists.

Dynamo's ``DynamoGraphDeployment`` of ``nvidia.com/v1alpha1`` follows its operator's types and
examples (github.com/ai-dynamo/dynamo 1.3.1: ``deploy/operator/api``,
``examples/backends/*/deploy``; worker options: ``components/src/dynamo``). Workers get the flags of
the plan's commands, without ports and with Dynamo's option names.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from foretune.errors import UsageError
from foretune.plan.describe.layout import Layout
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.launching import ENGINE_VERSIONS, PORT, Launch, launch

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
    name = _object_name(deployment.model.name, engine)
    labels, port = {"app": name}, {"containerPort": PORT, "name": "http"}
    command = [
        f"{CONFIG_DIRECTORY}/{word}" if word in launched.files else word
        for word in launched.commands[0]
    ]
    mounts, items = [{"name": "shm", "mountPath": "/dev/shm"}], []
    # tensors shared between ranks: the default is 64 MiB
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if launched.files:
        items.append(_config_map(name, launched.files))
        mounts.append({"name": "files", "mountPath": CONFIG_DIRECTORY})
        volumes.append({"name": "files", "configMap": {"name": name}})
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10}
    container = {
        "name": engine,
        "image": IMAGES[engine],
        "command": [*command, "--host", "0.0.0.0"],  # inside the pod's network
        "env": [_hf_token("token")],
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


def _config_map(name: str, files: dict[str, str]) -> dict[str, Any]:
    """Return a ``ConfigMap`` with files."""
    return _object("v1", "ConfigMap", name, data=files)


def _object(
    version: str, kind: str, name: str, notes: dict[str, str] | None = None, **content: object
) -> dict[str, Any]:
    annotations = {"annotations": notes} if notes else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name} | annotations,
            **content}  # fmt: skip


def _object_name(model: str, engine: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a valid Kubernetes name: lowercase letters, digits and dashes."""
    short = re.sub(r"[^a-z0-9]+", "-", model.rstrip("/").rpartition("/")[2].lower())
    return f"{engine}-{short}"[:max_length].strip("-")


DYNAMO_VERSION = "1.3.1"
"""Version of Dynamo's images."""
DYNAMO_IMAGES = {
    "vllm": "vllm-runtime",
    "sglang": "sglang-runtime",
    "trtllm": "tensorrtllm-runtime",
}
"""Engine -> name of Dynamo's image."""
MAX_GRAPH_NAME_LENGTH = 30
"""Maximum length of a graph's name: the operator appends names of services and pods, and Grove,
which it may use, allows 45 characters in total."""
BOOTSTRAP_PORT = "12345"
"""Port where SGLang's pools connect, in the pod's network."""
WORKER_OPTIONS = {
    "--tp_size": "--tensor-parallel-size",
    "--pp_size": "--pipeline-parallel-size",
    "--ep_size": "--expert-parallel-size",
    "--max_batch_size": "--max-batch-size",
    "--max_num_tokens": "--max-num-tokens",
    "--max_seq_len": "--max-seq-len",
    "--config": "--extra-engine-args",
}
"""``trtllm-serve`` option -> option of Dynamo's worker."""


def graph(deployment: Deployment, engine: str, replicas: int = 1) -> str:
    """Return a Dynamo graph as JSON.

    If the engine reads options from files, it is a list of a ``ConfigMap`` and the graph. Raises
    UsageError if the engine cannot run the deployment or a worker does not fill whole nodes.
    """
    launched, pools = launch(deployment, engine), deployment.pools
    layouts = [deployment.layout, *([pools.prefill] if pools else [])]
    if reason := launched.unsupported or _unsupported(deployment, layouts):
        raise UsageError(f"no Dynamo graph: {reason}")
    name = _object_name(deployment.model.name, engine, MAX_GRAPH_NAME_LENGTH)
    services: dict[str, Any] = {
        "Frontend": {"componentType": "frontend", "replicas": 1, **_pod(engine)}
    }
    for role, layout, count, command in _workers(deployment, launched):
        kind = {"subComponentType": role} if pools else {}
        pod = _pod(engine, _args(command, engine, role), launched, name)
        services[role or "worker"] = {
            "componentType": "worker", **kind, "replicas": count * replicas,
            **_gpus(deployment, layout), **pod,
        }  # fmt: skip
    metadata: dict[str, Any] = {"name": name}
    # Dynamo places and connects servers itself.
    if notes := [note for note in launched.notes if note.startswith("CHECKPOINT_IN")]:
        metadata["annotations"] = {"foretune/notes": "; ".join(notes)}
    result: dict[str, Any] = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": metadata,
        "spec": {"backendFramework": engine, "envs": [_hf_token("HF_TOKEN")], "services": services},
    }
    if launched.files:
        items = [_config_map(name, _worker_files(launched)), result]
        result = {"apiVersion": "v1", "kind": "List", "items": items}
    return json.dumps(result, indent=1) + "\n"


def _unsupported(deployment: Deployment, layouts: Sequence[Layout]) -> str:
    """Return why Dynamo's operator cannot start the deployment; empty if it can."""
    system = deployment.system
    if not system.device.architecture.startswith("sm_"):
        return f"Dynamo's images are for NVIDIA GPUs, not for {system.name}"
    for layout in layouts:
        if layout.gpus > system.gpus_per_node and layout.gpus % system.gpus_per_node:
            return (
                f"a worker of {layout.gpus} GPUs does not fill nodes of {system.gpus_per_node}: "
                "use a multiple for --gpus"
            )
    return ""


def _workers(
    deployment: Deployment, launched: Launch
) -> list[tuple[str, Layout, int, Sequence[str]]]:
    """Return each kind of worker: role, layout, count, and the command of the first."""
    pools = deployment.pools
    if pools is None:
        return [("", deployment.layout, 1, launched.commands[0])]
    prefill_workers = max(pools.prefill_workers, 1)
    return [
        ("prefill", pools.prefill, prefill_workers, launched.commands[0]),
        ("decode", deployment.layout, pools.decode_workers, launched.commands[prefill_workers]),
    ]


def _args(command: Sequence[str], engine: str, role: str) -> list[str]:
    """Return the arguments of Dynamo's worker for an engine's server command.

    Workers have no port: the frontend serves requests.
    """
    port = command.index("--port")
    words = [*command[:port], *command[port + 2 :]]
    start = next(i for i, word in enumerate(words) if word.startswith("--"))
    flags = [WORKER_OPTIONS.get(word, word) for word in words[start:]]
    if engine == "sglang":  # its flags include the model and the role
        bootstrap = ["--disaggregation-bootstrap-port", BOOTSTRAP_PORT, "--host", "0.0.0.0"]
        return [*flags, *(bootstrap if role else [])]
    if engine == "trtllm":
        flags = [f"{CONFIG_DIRECTORY}/{w}" if w.endswith(".yaml") else w for w in flags]
    model = "--model" if engine == "vllm" else "--model-path"
    return [model, words[start - 1], *flags, *(["--disaggregation-mode", role] if role else [])]


def _gpus(deployment: Deployment, layout: Layout) -> dict[str, Any]:
    """Return a worker's resources: GPUs per node, and nodes."""
    node = deployment.system.gpus_per_node
    multinode = {"multinode": {"nodeCount": layout.gpus // node}} if layout.gpus > node else {}
    return {**multinode, "resources": {"limits": {"gpu": str(min(layout.gpus, node))}}}


def _pod(
    engine: str, args: Sequence[str] = (), launched: Launch | None = None, name: str = ""
) -> dict[str, Any]:
    """Return the pod of a worker with ``args``, or of the frontend without."""
    container: dict[str, Any] = {
        "image": f"nvcr.io/nvidia/ai-dynamo/{DYNAMO_IMAGES[engine]}:{DYNAMO_VERSION}"
    }
    pod: dict[str, Any] = {"mainContainer": container}
    if args:
        container |= {"command": ["python3", "-m", f"dynamo.{engine}"], "args": list(args)}
    if launched is not None and launched.files:
        container["volumeMounts"] = [{"name": "files", "mountPath": CONFIG_DIRECTORY}]
        pod["volumes"] = [{"name": "files", "configMap": {"name": name}}]
    return {"extraPodSpec": pod}


def _worker_files(launched: Launch) -> dict[str, str]:
    """Return the files that workers read; the router's file is not needed."""
    config_files = {
        word for command in launched.commands for word in command if "--config" in command
    }
    return {name: text for name, text in launched.files.items() if name in config_files}


def _hf_token(key: str) -> dict[str, Any]:
    """Return the environment variable with the Hugging Face token, from a ``key`` of its secret."""
    reference = {"name": "hf-token-secret", "key": key, "optional": True}
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}
