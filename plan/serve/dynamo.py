"""A graph for NVIDIA Dynamo of a planned deployment: a frontend, and workers of one engine.

A ``DynamoGraphDeployment`` of ``nvidia.com/v1alpha1`` as the types of Dynamo's operator and its
examples for each engine have it (github.com/ai-dynamo/dynamo 1.3.1: ``deploy/operator/api``,
``examples/backends/*/deploy``; names of workers' options: ``components/src/dynamo``). Workers take
the engine's own flags: those of the commands that a plan prints, but for ports and for what an
engine's server and Dynamo's worker call differently. JSON, which ``kubectl apply -f`` reads too.
"""

import json
from collections.abc import Sequence
from typing import Any

from foretune.errors import UsageError
from foretune.plan.describe.layout import Layout
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.kubernetes import FILES, config_map, object_name
from foretune.plan.serve.launching import Launch, launch

VERSION = "1.3.1"
"""Of Dynamo's images."""
IMAGES = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "trtllm": "tensorrtllm-runtime"}
"""Engine -> what Dynamo's image of it is called."""
LONGEST_NAME = 30
"""Characters of a graph's name: the operator appends those of services and pods, and Grove, which
it may start them with, allows 45 in all."""
BOOTSTRAP_PORT = "12345"
"""Where SGLang's pools meet; of the pod's own network, so that any would do."""
RENAMED = {
    "--tp_size": "--tensor-parallel-size",
    "--pp_size": "--pipeline-parallel-size",
    "--ep_size": "--expert-parallel-size",
    "--max_batch_size": "--max-batch-size",
    "--max_num_tokens": "--max-num-tokens",
    "--max_seq_len": "--max-seq-len",
    "--config": "--extra-engine-args",
}
"""Options of ``trtllm-serve`` -> of Dynamo's worker."""


def graph(deployment: Deployment, engine: str, replicas: int = 1) -> str:
    """Return a graph for Dynamo, as JSON.

    Where the engine reads options from files, it is a list of a ``ConfigMap`` and the graph.

    Args:
        deployment: what one replica is.
        engine: that serves.
        replicas: how many there are.

    Raises:
        UsageError: the engine does not run it, or no number of whole nodes holds a worker.
        UnknownName: there is no such engine.
    """
    started, pools = launch(deployment, engine), deployment.pools
    layouts = [deployment.layout, *([pools.prefill] if pools else [])]
    if reason := started.refused or _cannot(deployment, layouts):
        raise UsageError(f"no Dynamo graph: {reason}")
    name = object_name(deployment.model.name, engine, LONGEST_NAME)
    services: dict[str, Any] = {
        "Frontend": {"componentType": "frontend", "replicas": 1, **_pod(engine)}
    }
    for role, layout, count, command in _workers(deployment, started):
        kind = {"subComponentType": role} if pools else {}
        pod = _pod(engine, _args(command, engine, role), started, name)
        services[role or "worker"] = {
            "componentType": "worker", **kind, "replicas": count * replicas,
            **_gpus(deployment, layout), **pod,
        }  # fmt: skip
    metadata: dict[str, Any] = {"name": name}
    if notes := _notes(started):
        metadata["annotations"] = {"foretune/notes": notes}
    made: dict[str, Any] = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": metadata,
        "spec": {"backendFramework": engine, "envs": [_token()], "services": services},
    }
    if started.files:
        items = [config_map(name, _worker_files(started)), made]
        made = {"apiVersion": "v1", "kind": "List", "items": items}
    return json.dumps(made, indent=1) + "\n"


def _cannot(deployment: Deployment, layouts: Sequence[Layout]) -> str:
    """Return why Dynamo's operator cannot start it; empty if it can."""
    system = deployment.system
    if not system.device.architecture.startswith("sm_"):
        return f"Dynamo's images are for NVIDIA's GPUs, not for {system.name}"
    for layout in layouts:
        if layout.gpus > system.gpus_per_node and layout.gpus % system.gpus_per_node:
            return (
                f"a worker of {layout.gpus} GPUs does not fill nodes of {system.gpus_per_node}: "
                "plan with a multiple of them"
            )
    return ""


def _workers(
    deployment: Deployment, started: Launch
) -> list[tuple[str, Layout, int, Sequence[str]]]:
    """Return each kind of worker: its role, layout, how many there are, and the first's command."""
    pools = deployment.pools
    if pools is None:
        return [("", deployment.layout, 1, started.commands[0])]
    readers = max(pools.prefill_workers, 1)
    return [
        ("prefill", pools.prefill, readers, started.commands[0]),
        ("decode", deployment.layout, pools.decode_workers, started.commands[readers]),
    ]


def _args(command: Sequence[str], engine: str, role: str) -> list[str]:
    """Return the arguments of Dynamo's worker for a command that starts the engine's server.

    A worker has no port of its own: the frontend answers.
    """
    port = command.index("--port")
    words = [*command[:port], *command[port + 2 :]]
    start = next(i for i, word in enumerate(words) if word.startswith("--"))
    flags = [RENAMED.get(word, word) for word in words[start:]]
    if engine == "sglang":  # which has the model among its flags, and the role
        meeting = ["--disaggregation-bootstrap-port", BOOTSTRAP_PORT, "--host", "0.0.0.0"]
        return [*flags, *(meeting if role else [])]
    if engine == "trtllm":
        flags = [f"{FILES}/{w}" if w.endswith(".yaml") else w for w in flags]
    model = "--model" if engine == "vllm" else "--model-path"
    return [model, words[start - 1], *flags, *(["--disaggregation-mode", role] if role else [])]


def _gpus(deployment: Deployment, layout: Layout) -> dict[str, Any]:
    """Return what a worker asks for: GPUs of each of its nodes."""
    node = deployment.system.gpus_per_node
    several = {"multinode": {"nodeCount": layout.gpus // node}} if layout.gpus > node else {}
    return {**several, "resources": {"limits": {"gpu": str(min(layout.gpus, node))}}}


def _pod(
    engine: str, args: Sequence[str] = (), started: Launch | None = None, name: str = ""
) -> dict[str, Any]:
    """Return the pod of a worker with ``args``, or of the frontend without."""
    container: dict[str, Any] = {"image": f"nvcr.io/nvidia/ai-dynamo/{IMAGES[engine]}:{VERSION}"}
    pod: dict[str, Any] = {"mainContainer": container}
    if args:
        container |= {"command": ["python3", "-m", f"dynamo.{engine}"], "args": list(args)}
    if started is not None and started.files:
        container["volumeMounts"] = [{"name": "files", "mountPath": FILES}]
        pod["volumes"] = [{"name": "files", "configMap": {"name": name}}]
    return {"extraPodSpec": pod}


def _worker_files(started: Launch) -> dict[str, str]:
    """Return the files that workers read: what joins pools without Dynamo is not needed."""
    named = {word for command in started.commands for word in command if "--config" in command}
    return {name: text for name, text in started.files.items() if name in named}


def _notes(started: Launch) -> str:
    """Return what to do before: make a checkpoint. Dynamo places and joins servers itself."""
    return "; ".join(note for note in started.notes if note.startswith("CHECKPOINT_IN"))


def _token() -> dict[str, Any]:
    """Return the token of Hugging Face, from the secret that Dynamo's guides make."""
    key = {"name": "hf-token-secret", "key": "HF_TOKEN", "optional": True}
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}
