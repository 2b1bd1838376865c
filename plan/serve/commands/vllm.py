"""vLLM's commands; disaggregated serving uses its NixlConnector."""

from collections.abc import Sequence
from math import ceil

from foretune.plan.cost.memory import GIB, USABLE_SHARE
from foretune.plan.describe.layout import Speculation
from foretune.plan.serve.commands.server import (
    CPU_DTYPES,
    EngineCommands,
    Server,
    above_one,
    cache_name,
    compact_json,
    flag_words,
    max_step_tokens,
    servers,
)
from foretune.plan.serve.deployments.deployment import Deployment

CPU_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
CPU_THREADS_VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
SIDE_CHANNEL_PORT = 5600
"""First port of the cache transfer; each server and each of its DP ranks needs a port."""


def vllm_commands(
    deployment: Deployment, checkpoint: str, quantization: str, replicas_per_server: int
) -> EngineCommands:
    """Return the commands; dense replicas on one node become one data-parallel server."""
    commands = []
    side_port = SIDE_CHANNEL_PORT
    for server in servers(deployment):
        flags = _flags(deployment, server, quantization, replicas_per_server)
        environment = [f"VLLM_NIXL_SIDE_CHANNEL_PORT={side_port}"] if server.role else []
        if deployment.system.device.kind == "cpu":
            environment += cpu_environment(deployment, server.requests)
        commands.append([*environment, "vllm", "serve", checkpoint, *flag_words(flags)])
        side_port += server.layout.dp
    return EngineCommands(commands, files={})


def replicas_per_server(deployment: Deployment, replicas: int) -> int:
    """Return the replicas of each server: as many as a node holds, equal on all servers."""
    if deployment.model.is_moe or deployment.pools:
        return 1
    max_replicas = deployment.system.gpus_per_node // deployment.layout.gpus
    return max((n for n in range(1, max_replicas + 1) if replicas % n == 0), default=1)


def cpu_environment(deployment: Deployment, requests: float) -> list[str]:
    """Return the variables of vLLM's CPU engine: GiB of its cache, and the cores of its threads.

    Without them, it takes half of the memory, and leaves a core idle.
    """
    cache_gib = max(ceil(float(deployment.memory(requests).kv_cache) / GIB), 1)
    words = [f"{CPU_CACHE_VARIABLE}={cache_gib}"]
    cores = int(deployment.system.device.specs.get("cores", 0))
    if cores:
        words.append(f"{CPU_THREADS_VARIABLE}={core_list(range(cores))}")
    return words


def core_list(cpus: Sequence[int]) -> str:
    """Return numbers of cores as vLLM takes them: ``0-3``, or ``1,5`` if some are left out."""
    first = cpus[0]
    last = cpus[-1]
    if last - first + 1 == len(cpus):
        return f"{first}-{last}"
    return ",".join(map(str, cpus))


def _flags(
    deployment: Deployment, server: Server, quantization: str, replicas_per_server: int
) -> dict[str, object]:
    layout = server.layout
    rank_requests = server.requests / layout.dp
    flags: dict[str, object] = {
        "--tensor-parallel-size": layout.tp,
        "--pipeline-parallel-size": above_one(layout.pp),
        "--data-parallel-size": above_one(layout.dp * replicas_per_server),
        "--enable-expert-parallel": layout.moe_ep > 1,
    }

    copies = layout.redundant_experts(deployment.model)
    if copies:
        flags["--enable-eplb"] = True
        flags["--eplb-config"] = compact_json({"num_redundant_experts": copies})

    flags["--quantization"] = quantization
    flags["--kv-cache-dtype"] = cache_name(deployment, "vllm")

    offload = deployment.offload
    if offload.weights_gib:
        flags["--cpu-offload-gb"] = f"{offload.weights_gib:g}"
    if offload.cache_gib:
        flags["--kv-offloading-size"] = f"{offload.cache_gib * layout.tp:g}"
        flags["--kv-offloading-backend"] = "native"

    flags["--max-num-seqs"] = ceil(rank_requests)
    flags["--max-num-batched-tokens"] = max_step_tokens(deployment, rank_requests)
    flags["--enable-prefix-caching"] = deployment.workload.prefix > 0
    if deployment.speculation:
        flags["--speculative-config"] = compact_json(_drafting(deployment.speculation))
    flags["--max-model-len"] = deployment.longest_context
    if deployment.system.device.kind == "cpu":
        flags["--dtype"] = CPU_DTYPES.get(deployment.formats.weights, "")
    else:
        flags["--gpu-memory-utilization"] = f"{USABLE_SHARE:g}"
    flags["--port"] = server.port
    if server.role:
        transfer = {"kv_connector": "NixlConnector", "kv_role": f"kv_{server.role}"}
        flags["--kv-transfer-config"] = compact_json(transfer)
    return flags


def _drafting(drafts: Speculation) -> dict[str, object]:
    """Return how tokens are drafted: by the model's own layers (mtp) or by a smaller model."""
    drafting: dict[str, object] = {
        "method": "draft_model" if drafts.draft else "mtp",
        "num_speculative_tokens": drafts.drafted,
    }
    if drafts.draft:
        drafting["model"] = drafts.draft.name
    return drafting
