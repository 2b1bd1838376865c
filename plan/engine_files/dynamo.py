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
from foretune.plan.engine_files.kubernetes import CONFIG_DIRECTORY, config_map, object_name
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.launching import Launch, launch

DYNAMO_VERSION = "1.3.1"
"""Of Dynamo's images."""
IMAGES = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "trtllm": "tensorrtllm-runtime"}
"""Engine -> what Dynamo's image of it is called."""
MAX_NAME_LENGTH = 30
"""Characters of a graph's name: the operator appends those of services and pods, and Grove, which
it may start them with, allows 45 in all."""
BOOTSTRAP_PORT = "12345"
"""Where SGLang's pools meet; of the pod's own network, so that any would do."""
WORKER_OPTIONS = {
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
    launched, pools = launch(deployment, engine), deployment.pools
    layouts = [deployment.layout, *([pools.prefill] if pools else [])]
    if reason := launched.unsupported or _unsupported(deployment, layouts):
        raise UsageError(f"no Dynamo graph: {reason}")
    name = object_name(deployment.model.name, engine, MAX_NAME_LENGTH)
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
    if notes := _notes(launched):
        metadata["annotations"] = {"foretune/notes": notes}
    result: dict[str, Any] = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": metadata,
        "spec": {"backendFramework": engine, "envs": [_hf_token()], "services": services},
    }
    if launched.files:
        items = [config_map(name, _worker_files(launched)), result]
        result = {"apiVersion": "v1", "kind": "List", "items": items}
    return json.dumps(result, indent=1) + "\n"


def _unsupported(deployment: Deployment, layouts: Sequence[Layout]) -> str:
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
    deployment: Deployment, launched: Launch
) -> list[tuple[str, Layout, int, Sequence[str]]]:
    """Return each kind of worker: its role, layout, how many there are, and the first's command."""
    pools = deployment.pools
    if pools is None:
        return [("", deployment.layout, 1, launched.commands[0])]
    prefill_workers = max(pools.prefill_workers, 1)
    return [
        ("prefill", pools.prefill, prefill_workers, launched.commands[0]),
        ("decode", deployment.layout, pools.decode_workers, launched.commands[prefill_workers]),
    ]


def _args(command: Sequence[str], engine: str, role: str) -> list[str]:
    """Return the arguments of Dynamo's worker for a command that starts the engine's server.

    A worker has no port of its own: the frontend answers.
    """
    port = command.index("--port")
    words = [*command[:port], *command[port + 2 :]]
    start = next(i for i, word in enumerate(words) if word.startswith("--"))
    flags = [WORKER_OPTIONS.get(word, word) for word in words[start:]]
    if engine == "sglang":  # which has the model among its flags, and the role
        bootstrap = ["--disaggregation-bootstrap-port", BOOTSTRAP_PORT, "--host", "0.0.0.0"]
        return [*flags, *(bootstrap if role else [])]
    if engine == "trtllm":
        flags = [f"{CONFIG_DIRECTORY}/{w}" if w.endswith(".yaml") else w for w in flags]
    model = "--model" if engine == "vllm" else "--model-path"
    return [model, words[start - 1], *flags, *(["--disaggregation-mode", role] if role else [])]


def _gpus(deployment: Deployment, layout: Layout) -> dict[str, Any]:
    """Return what a worker asks for: GPUs of each of its nodes."""
    node = deployment.system.gpus_per_node
    multinode = {"multinode": {"nodeCount": layout.gpus // node}} if layout.gpus > node else {}
    return {**multinode, "resources": {"limits": {"gpu": str(min(layout.gpus, node))}}}


def _pod(
    engine: str, args: Sequence[str] = (), launched: Launch | None = None, name: str = ""
) -> dict[str, Any]:
    """Return the pod of a worker with ``args``, or of the frontend without."""
    container: dict[str, Any] = {
        "image": f"nvcr.io/nvidia/ai-dynamo/{IMAGES[engine]}:{DYNAMO_VERSION}"
    }
    pod: dict[str, Any] = {"mainContainer": container}
    if args:
        container |= {"command": ["python3", "-m", f"dynamo.{engine}"], "args": list(args)}
    if launched is not None and launched.files:
        container["volumeMounts"] = [{"name": "files", "mountPath": CONFIG_DIRECTORY}]
        pod["volumes"] = [{"name": "files", "configMap": {"name": name}}]
    return {"extraPodSpec": pod}


def _worker_files(launched: Launch) -> dict[str, str]:
    """Return the files that workers read: what joins pools without Dynamo is not needed."""
    config_files = {
        word for command in launched.commands for word in command if "--config" in command
    }
    return {name: text for name, text in launched.files.items() if name in config_files}


def _notes(launched: Launch) -> str:
    """Return what to do before: make a checkpoint. Dynamo places and joins servers itself."""
    return "; ".join(note for note in launched.notes if note.startswith("CHECKPOINT_IN"))


def _hf_token() -> dict[str, Any]:
    """Return the token of Hugging Face, from the secret that Dynamo's guides make."""
    key = {"name": "hf-token-secret", "key": "HF_TOKEN", "optional": True}
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}
