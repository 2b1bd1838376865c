"""TensorRT-LLM's commands; a YAML file sets the cache format and attention-DP."""

import json
from math import ceil
from typing import Any

from foretune.plan.cost.memory import GIB, USABLE_SHARE
from foretune.plan.describe.engines import ENGINES
from foretune.plan.describe.layout import Layout
from foretune.plan.serve.commands.server import (
    MAX_CAPTURED_REQUESTS,
    PORT,
    EngineCommands,
    Role,
    Server,
    above_one,
    flag_words,
    max_step_tokens,
    servers,
)
from foretune.plan.serve.deployments.deployment import Deployment

FILE_NAMES: dict[Role, str] = {
    "": "trtllm.yaml",
    "producer": "prefill.yaml",
    "consumer": "decode.yaml",
}
"""Role of a server -> the file with its options."""
POOLS_FILE = "pools.yaml"
POOL_KEYS: dict[str, Role] = {"context_servers": "producer", "generation_servers": "consumer"}
"""Key of a pool in `POOLS_FILE` -> the role of its servers."""


def trtllm_commands(
    deployment: Deployment, checkpoint: str, quantization: str, replicas_per_server: int
) -> EngineCommands:
    """Return the commands; with separate pools, the last one starts the router."""
    commands = []
    files = {}
    all_servers = list(servers(deployment))
    for server in all_servers:
        flags = _flags(deployment, server)
        commands.append(["trtllm-serve", checkpoint, *flag_words(flags)])
        files[FILE_NAMES[server.role]] = _options_file(deployment, server.layout, server.role)

    if deployment.pools:
        files[POOLS_FILE] = _pools_file(all_servers)
        commands.append(["trtllm-serve", "disaggregated", "-c", POOLS_FILE])
    return EngineCommands(commands, files)


def _flags(deployment: Deployment, server: Server) -> dict[str, object]:
    layout = server.layout
    step_requests = server.requests / layout.dp / layout.pp
    return {
        "--tp_size": layout.tp * layout.dp,
        "--pp_size": above_one(layout.pp),
        "--ep_size": above_one(layout.moe_ep),
        "--max_batch_size": ceil(step_requests),
        "--max_num_tokens": max_step_tokens(deployment, step_requests),
        "--max_seq_len": deployment.longest_context,
        "--port": server.port,
        "--config": FILE_NAMES[server.role],
    }


def _options_file(deployment: Deployment, layout: Layout, role: Role) -> str:
    """Return a server's options that have no flags, as YAML."""
    cache: dict[str, Any] = {
        "dtype": ENGINES["trtllm"]["caches"][deployment.formats.kv],
        "enable_block_reuse": deployment.workload.prefix > 0,
        "free_gpu_memory_fraction": USABLE_SHARE,
    }
    host_cache_bytes = round(deployment.offload.cache_gib * GIB)
    if host_cache_bytes:
        cache["host_cache_size"] = host_cache_bytes

    captured = min(ceil(deployment.batch / layout.pp), MAX_CAPTURED_REQUESTS)
    options: dict[str, Any] = {
        "kv_cache_config": cache,
        "enable_chunked_prefill": True,
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": captured},
    }
    if layout.dp > 1:
        options["enable_attention_dp"] = True

    copies = layout.redundant_experts(deployment.model)
    if copies:
        slots = deployment.model.experts + copies
        options["moe_config"] = {"load_balancer": {"num_slots": slots}}

    if deployment.speculation:
        options["speculative_config"] = {
            "decoding_type": "MTP",
            "num_nextn_predict_layers": deployment.speculation.drafted,
        }
    if role == "producer":
        options["disable_overlap_scheduler"] = True
    if role:
        tokens = deployment.max_request_tokens or deployment.workload.isl
        options["cache_transceiver_config"] = {"backend": "DEFAULT", "max_tokens_in_buffer": tokens}
    return _yaml(options)


def _pools_file(all_servers: list[Server]) -> str:
    """Return the router's options, as YAML."""
    pools: dict[str, Any] = {"hostname": "localhost", "port": PORT, "backend": "pytorch"}
    for key, role in POOL_KEYS.items():
        urls = [f"localhost:{server.port}" for server in all_servers if server.role == role]
        pools[key] = {"num_instances": len(urls), "urls": urls}
    return _yaml(pools)


def _yaml(values: dict[str, Any]) -> str:
    """Return values as JSON, which every reader of YAML reads."""
    return json.dumps(values, indent=1) + "\n"
