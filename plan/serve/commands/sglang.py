"""SGLang's commands; its tp size includes attention-DP, and drafts are one branch."""

from math import ceil

from foretune.plan.cost.memory import GIB, USABLE_SHARE
from foretune.plan.describe.layout import Layout
from foretune.plan.serve.commands.server import (
    MAX_CAPTURED_REQUESTS,
    PORT,
    EngineCommands,
    Server,
    above_one,
    cache_name,
    compact_json,
    flag_words,
    max_step_tokens,
    servers,
)
from foretune.plan.serve.deployments.deployment import PAGE_TOKENS, Deployment

ROLE_NAMES = {"": "", "producer": "prefill", "consumer": "decode"}
"""Role of a server -> SGLang's name."""
DATACENTER_BLACKWELL = ("sm_100", "sm_103")
GB = 1e9


def sglang_commands(
    deployment: Deployment, checkpoint: str, quantization: str, replicas_per_server: int
) -> EngineCommands:
    """Return the commands; with separate pools, the last one starts the router."""
    commands = []
    worker_options: list[str] = []
    for server in servers(deployment):
        flags = _flags(deployment, server, checkpoint, quantization)
        commands.append(["python", "-m", "sglang.launch_server", *flag_words(flags)])
        worker_options += [f"--{ROLE_NAMES[server.role]}", f"http://127.0.0.1:{server.port}"]

    if deployment.pools:
        router = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        commands.append([*router, *worker_options, "--port", str(PORT)])
    return EngineCommands(commands, files={})


def _flags(
    deployment: Deployment, server: Server, checkpoint: str, quantization: str
) -> dict[str, object]:
    layout = server.layout
    rank_requests = ceil(server.requests / layout.dp)
    flags: dict[str, object] = {
        "--model-path": checkpoint,
        "--tp-size": layout.tp * layout.dp,
        "--pp-size": above_one(layout.pp),
        "--attn-dp-size": above_one(layout.dp),
        "--ep-size": above_one(layout.moe_ep),
        "--ep-num-redundant-experts": layout.redundant_experts(deployment.model),
        "--quantization": quantization,
        "--kv-cache-dtype": cache_name(deployment, "sglang"),
        "--attention-backend": _attention_backend(deployment),
        "--max-running-requests": ceil(server.requests),
        "--chunked-prefill-size": max_step_tokens(deployment, rank_requests),
    }

    # With weights in host memory, CUDA graphs are turned off.
    if deployment.offload.weights_gib > 0:
        flags["--cpu-offload-gb"] = f"{deployment.offload.weights_gib:.0f}"
        flags["--cuda-graph-backend-decode"] = "disabled"
        flags["--cuda-graph-backend-prefill"] = "disabled"
    else:
        flags["--cuda-graph-max-bs-decode"] = min(rank_requests, MAX_CAPTURED_REQUESTS)

    if deployment.offload.cache_gib:
        flags["--enable-hierarchical-cache"] = True
        flags["--hicache-size"] = max(round(deployment.offload.cache_gib * GIB / GB), 1)
    if deployment.offload.disk_gib:
        flags |= _disk_flags(deployment)
    flags["--mem-fraction-static"] = f"{_static_share(deployment, server.requests, layout):.2f}"

    drafts = deployment.speculation
    if drafts:
        flags["--speculative-algorithm"] = "STANDALONE" if drafts.draft else "EAGLE"
        flags["--speculative-draft-model-path"] = drafts.draft.name if drafts.draft else ""
        flags["--speculative-num-steps"] = deployment.drafted
        flags["--speculative-eagle-topk"] = 1
        flags["--speculative-num-draft-tokens"] = deployment.drafted + 1

    flags["--context-length"] = deployment.longest_context
    flags["--port"] = server.port
    if server.role:
        flags["--disaggregation-mode"] = ROLE_NAMES[server.role]
        flags["--disaggregation-transfer-backend"] = "nixl"
    return flags


def _disk_flags(deployment: Deployment) -> dict[str, object]:
    """Return the flags that keep prefixes in files.

    By default a request starts before all of its prefix has come; the plan lets it wait.
    """
    store: dict[str, object] = {"max_size": round(deployment.offload.disk_gib * GIB)}
    if deployment.system.disk_folder:
        store["file_storage_path"] = deployment.system.disk_folder
    return {
        "--page-size": PAGE_TOKENS,
        "--hicache-storage-backend": "file",
        "--hicache-storage-prefetch-policy": "wait_complete",
        "--hicache-storage-backend-extra-config": compact_json(store),
    }


def _static_share(deployment: Deployment, requests: float, layout: Layout) -> float:
    """Return the share for weights and cache of the memory that is free before loading."""
    held = deployment.memory(requests, layout)
    total = deployment.system.memory_gib * GIB
    return (USABLE_SHARE * total - held.activations - held.engine) / (total - held.engine)


def _attention_backend(deployment: Deployment) -> str:
    """Return the backend for a 4-bit cache, if the default one supports only latent caches."""
    if deployment.formats.kv != "fp4_e2m1" or deployment.model.mla:
        return ""
    architecture = deployment.system.device.architecture
    return "trtllm_mha" if architecture in DATACENTER_BLACKWELL else "triton"
