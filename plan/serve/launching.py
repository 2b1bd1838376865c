"""The engine that runs a planned deployment, and the commands that start it.

The flags are those of the versions in `ENGINES`. Disaggregated serving uses NixlConnector in vLLM
and each engine's own documented options.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

from foretune.errors import UnknownName
from foretune.plan.cost.memory import GIB, USABLE_SHARE
from foretune.plan.describe.engines import ENGINES
from foretune.plan.describe.formats import (
    DEFAULT_CACHE_FORMATS,
    base_format,
    checkpoint_formats,
    support_key,
    supported,
)
from foretune.plan.describe.layout import Layout, Offload
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.deployment import Deployment

PORT = 8000
PREFILL_PORT, DECODE_PORT = 8100, 8200
SIDE_CHANNEL_PORT = 5600
"""First port of vLLM's cache transfer; each server and each of its DP ranks needs a port."""
MAX_CAPTURED_REQUESTS = 512
"""Largest decode batch captured as a CUDA graph, as the engines do by default."""
PROXY_NOTES = (
    "route requests through a proxy for prefill-decode disaggregation:",
    "vLLM's toy_proxy_server.py (tests/v1/kv_connector/nixl_integration), or llm-d",
)
CACHE_SCALE_NOTE = (
    "the checkpoint needs scales for an NVFP4 cache: NVIDIA Model Optimizer, kv_cache_quant"
)
LATENT_CACHE_FORMATS = ("fp4_e2m1",)
"""Unusual formats that engines support for latent caches."""
NVFP4_CACHE_WEIGHTS = ("fp8", "fp8_static")
"""Weight formats that TensorRT-LLM supports with an NVFP4 cache."""


@dataclass(frozen=True)
class Launch:
    """How to start a deployment with one engine, with a command per server or router.

    Commands are split into words. Words with ``=`` before the program set its environment.
    """

    commands: Sequence[Sequence[str]]
    files: dict[str, str]  # name -> text of the files that commands read
    notes: Sequence[str]  # what else to do
    version: str = ""  # the engine's name and the version that the commands are for
    unsupported: str = ""  # why this engine cannot run the deployment; empty if it can

    def __str__(self) -> str:
        if self.unsupported:
            return f"# {self.unsupported}"
        lines = ["# " + " ".join(note.split()) for note in (f"for {self.version}", *self.notes)]
        for name, text in self.files.items():
            lines.append(f"cat > {name} <<'END'\n{text}END")
        for words in self.commands:  # assignments before the program stay unquoted
            count = next(i for i, word in enumerate(words) if "=" not in word)
            lines.append(" ".join([*words[:count], shlex.join(words[count:])]))
        return "\n".join(lines)


class _Server(NamedTuple):
    """One server: ``requests`` in flight; ``role`` is ``producer`` or ``consumer`` with pools."""

    layout: Layout
    requests: float
    port: int
    role: str = ""


def launch_commands(deployment: Deployment, replicas: int = 1) -> dict[str, str]:
    """Return the shell text for each engine: ``vllm``, ``sglang`` and ``trtllm``."""
    return {engine: str(launch(deployment, engine, replicas)) for engine in LAUNCHERS}


def launch(deployment: Deployment, engine: str, replicas: int = 1) -> Launch:
    """Return how to start a deployment with an engine; raises UnknownName."""
    if engine not in LAUNCHERS:
        raise UnknownName("engine", engine, LAUNCHERS)
    if reason := _unsupported(deployment, engine):
        return Launch((), {}, (), unsupported=reason)
    per_server = _replicas_per_server(deployment, replicas) if engine == "vllm" else 1
    name, quantization, note = checkpoint(deployment, engine)
    notes = [note] if note else []
    if engine == "trtllm" and deployment.formats.kv == "nvfp4":
        notes.append(CACHE_SCALE_NOTE)
    notes += _placement_notes(deployment, replicas // per_server)
    if engine == "vllm" and deployment.pools:
        notes += PROXY_NOTES
    commands, files = LAUNCHERS[engine](deployment, name, quantization, per_server)
    return Launch(commands, files, notes, "{name} {version}".format(**ENGINES[engine]))


def _unsupported(deployment: Deployment, engine: str) -> str:
    """Return why an engine cannot run a deployment; empty if it can."""
    drafts = deployment.speculation
    drafts_reason = (
        "TensorRT-LLM's option for a draft model differs between versions: use --backend vllm, or "
        "plan without a draft model"
    )
    reasons = (
        unsupported_system(deployment.system, engine),
        unsupported_layout(deployment.layout, engine),
        drafts_reason if engine == "trtllm" and drafts and drafts.draft else "",
        unsupported_formats(deployment, engine),
        unsupported_offload(deployment.offload, engine),
        unsupported_layout(deployment.prefill_layout, engine),
    )
    return next(filter(None, reasons), "")


def checkpoint(deployment: Deployment, engine: str) -> tuple[str, str, str]:
    """Return the checkpoint to serve, the option to quantize it, and a note.

    A name in capitals is a placeholder for a checkpoint to create or find first.
    """
    model, formats = deployment.model, deployment.formats
    published = checkpoint_formats(model)
    if (formats.weights, formats.moe) == (published.weights, published.moe):
        return model.name, "", ""
    if (published.weights, published.moe) == ("bf16", "bf16") and formats.weights == formats.moe:
        quantization = ENGINES[engine]["online_quantization"].get(formats.weights)
        if quantization:
            return model.name, quantization, ""
    kinds = list(dict.fromkeys((formats.weights, formats.moe)))
    name = "_".join(["CHECKPOINT_IN", *kinds]).upper()
    what = f"{formats.weights} with experts in {formats.moe}" if len(kinds) > 1 else kinds[0]
    tool = "GPTQModel" if "int3_wo" in kinds else "llm-compressor or NVIDIA Model Optimizer"
    return name, "", f"{name}: {model.name}, quantized to {what} with {tool}"


def unsupported_layout(layout: Layout, engine: str) -> str:
    """Return why an engine lacks this layout; empty if it supports it."""
    if engine == "vllm" and layout.moe_ep > 1 and layout.moe_tp > 1:
        return f"vLLM splits experts by tensor or by expert parallelism, not both ({layout})"
    if engine == "trtllm" and layout.dp > 1 and layout.tp > 1:
        return f"TensorRT-LLM's attention-DP uses all ranks of a stage, without tp ({layout})"
    return ""


def unsupported_system(system: System, engine: str) -> str:
    """Return why an engine does not run on a system's GPUs; empty if it does."""
    if system.device.architecture.startswith(tuple(ENGINES[engine]["architectures"])):
        return ""
    return f"{ENGINES[engine]['name']} does not run on {system.name}: use --backend vllm"


def engines_with(kind: str) -> list[str]:
    """Return the engines that support a cache format."""
    return [name for name, engine in ENGINES.items() if kind in engine["caches"]]


def unsupported_formats(deployment: Deployment, engine: str) -> str:
    """Return why an engine lacks the weight or cache format; empty if it supports both."""
    formats = deployment.formats
    if reason := _unsupported_cache(deployment, engine):
        return reason
    if deployment.model.is_moe and base_format(formats.moe) == "int3_wo":
        return "no engine has 3-bit experts: use --formats int4_wo"
    if base_format(formats.weights) == "int3_wo" and engine == "trtllm":
        return f"{ENGINES[engine]['name']} has no 3-bit weights: use --backend vllm"
    return ""


def _unsupported_cache(deployment: Deployment, engine: str) -> str:
    kind, model, title = deployment.formats.kv, deployment.model, ENGINES[engine]["name"]
    if kind in DEFAULT_CACHE_FORMATS:
        return ""
    if kind not in ENGINES[engine]["caches"]:
        other = engines_with(kind)[0]
        return f"{title} has no {kind} cache: use --backend {other} or --formats /fp8"
    system = deployment.system
    if supported(support_key(kind), system.device.architecture) == "no":
        return f"{title} has no kernels for {kind} caches on {system.name}: use --formats /fp8"
    if model.compressed or (model.mla and kind not in LATENT_CACHE_FORMATS):
        return f"{title} has no {kind} caches for latent attention: use --formats /fp8"
    if engine == "trtllm" and deployment.formats.weights not in NVFP4_CACHE_WEIGHTS:
        return f"TensorRT-LLM supports {kind} caches only with fp8 weights: add --formats fp8"
    return ""


def unsupported_offload(offload: Offload, engine: str) -> str:
    """Return why an engine cannot offload these data; empty if it can."""
    if offload.weights_gib and engine == "trtllm":
        return (
            f"{ENGINES[engine]['name']} cannot offload weights to host memory: use "
            "--backend vllm, or leave out --offload"
        )
    return ""


def _max_step_tokens(deployment: Deployment, requests: float) -> str:
    """Return the maximum tokens of a step that plans assume for this many requests."""
    return str(max(deployment.step_tokens, ceil(requests) * (1 + deployment.drafted)))


_Commands = tuple[list[list[str]], dict[str, str]]
"""Commands, and the text of the files that they read."""


def _vllm(deployment: Deployment, name: str, quantization: str, per_server: int) -> _Commands:
    """Return vLLM's commands; dense replicas on one node become one data-parallel server."""
    drafts, offload, commands = deployment.speculation, deployment.offload, []
    side_port = SIDE_CHANNEL_PORT
    for server in _servers(deployment):
        layout, rank_requests = server.layout, server.requests / server.layout.dp
        copies = layout.redundant_experts(deployment.model)
        drafting: dict[str, object] = {}
        if drafts:
            drafting["method"] = "draft_model" if drafts.draft else "mtp"
            drafting["num_speculative_tokens"] = drafts.drafted
            drafting |= {"model": drafts.draft.name} if drafts.draft else {}
        transfer = {"kv_connector": "NixlConnector", "kv_role": f"kv_{server.role}"}
        flags = {
            "--tensor-parallel-size": layout.tp,
            "--pipeline-parallel-size": _above_one(layout.pp),
            "--data-parallel-size": _above_one(layout.dp * per_server),
            "--enable-expert-parallel": layout.moe_ep > 1,
            "--enable-eplb": copies > 0,
            "--eplb-config": _json({"num_redundant_experts": copies}) if copies else "",
            "--quantization": quantization,
            "--kv-cache-dtype": _cache_name(deployment, "vllm"),
            "--cpu-offload-gb": f"{offload.weights_gib:g}" if offload.weights_gib else "",
            "--kv-offloading-size": f"{offload.cache_gib * layout.tp:g}"
            if offload.cache_gib
            else "",
            "--kv-offloading-backend": "native" if offload.cache_gib else "",
            "--max-num-seqs": ceil(rank_requests),
            "--max-num-batched-tokens": _max_step_tokens(deployment, rank_requests),
            "--enable-prefix-caching": deployment.workload.prefix > 0,
            "--speculative-config": _json(drafting) if drafts else "",
            "--max-model-len": deployment.longest_context,
            "--gpu-memory-utilization": f"{USABLE_SHARE:g}",
            "--port": server.port,
            "--kv-transfer-config": _json(transfer) if server.role else "",
        }
        setting = [f"VLLM_NIXL_SIDE_CHANNEL_PORT={side_port}"] if server.role else []
        commands.append([*setting, "vllm", "serve", name, *_words(flags)])
        side_port += layout.dp
    return commands, {}


def _replicas_per_server(deployment: Deployment, replicas: int) -> int:
    """Return the replicas of each vLLM server: as many as a node holds, equal on all servers."""
    if deployment.model.is_moe or deployment.pools:
        return 1
    max_replicas = deployment.system.gpus_per_node // deployment.layout.gpus
    return max((n for n in range(1, max_replicas + 1) if replicas % n == 0), default=1)


def _sglang(deployment: Deployment, name: str, quantization: str, per_server: int) -> _Commands:
    """Return SGLang's commands; its tp size includes attention-DP, and drafts are one branch."""
    drafts, offload, commands = deployment.speculation, deployment.offload, []
    urls: list[str] = []
    on_host = offload.weights_gib > 0
    for server in _servers(deployment):
        layout, rank_requests = server.layout, ceil(server.requests / server.layout.dp)
        role = {"producer": "prefill", "consumer": "decode"}.get(server.role, "")
        cache_size = max(round(offload.cache_gib * GIB / 1e9), 1) if offload.cache_gib else 0
        # of the memory that is free before loading, for weights and cache
        held, total = deployment.memory(server.requests, layout), deployment.system.memory_gib * GIB
        share = (USABLE_SHARE * total - held.activations - held.engine) / (total - held.engine)
        flags = {
            "--model-path": name,
            "--tp-size": layout.tp * layout.dp,
            "--pp-size": _above_one(layout.pp),
            "--attn-dp-size": _above_one(layout.dp),
            "--ep-size": _above_one(layout.moe_ep),
            "--ep-num-redundant-experts": layout.redundant_experts(deployment.model),
            "--quantization": quantization,
            "--kv-cache-dtype": _cache_name(deployment, "sglang"),
            "--attention-backend": _attention_backend(deployment),
            "--max-running-requests": ceil(server.requests),
            "--chunked-prefill-size": _max_step_tokens(deployment, rank_requests),
            "--cuda-graph-max-bs-decode": 0
            if on_host
            else min(rank_requests, MAX_CAPTURED_REQUESTS),
            "--cpu-offload-gb": f"{offload.weights_gib:.0f}" if on_host else "",
            "--cuda-graph-backend-decode": "disabled" if on_host else "",
            "--cuda-graph-backend-prefill": "disabled" if on_host else "",
            "--enable-hierarchical-cache": cache_size > 0,
            "--hicache-size": cache_size,
            "--mem-fraction-static": f"{share:.2f}",
            "--speculative-algorithm": ("STANDALONE" if drafts.draft else "EAGLE")
            if drafts
            else "",
            "--speculative-draft-model-path": drafts.draft.name if drafts and drafts.draft else "",
            "--speculative-num-steps": deployment.drafted,
            "--speculative-eagle-topk": 1 if drafts else 0,
            "--speculative-num-draft-tokens": deployment.drafted + 1 if drafts else 0,
            "--context-length": deployment.longest_context,
            "--port": server.port,
            "--disaggregation-mode": role,
            "--disaggregation-transfer-backend": "nixl" if role else "",
        }
        commands.append(["python", "-m", "sglang.launch_server", *_words(flags)])
        urls += [f"--{role}", f"http://127.0.0.1:{server.port}"]
    if deployment.pools:
        router = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation", *urls]
        commands.append([*router, "--port", str(PORT)])
    return commands, {}


def _trtllm(deployment: Deployment, name: str, quantization: str, per_server: int) -> _Commands:
    """Return TensorRT-LLM's commands; a YAML file sets the cache format and attention-DP."""
    commands, files = [], {}
    urls: dict[str, list[str]] = {"producer": [], "consumer": []}
    names = {"": "trtllm.yaml", "producer": "prefill.yaml", "consumer": "decode.yaml"}
    for server in _servers(deployment):
        layout, file = server.layout, names[server.role]
        step_requests = server.requests / layout.dp / layout.pp
        flags = {
            "--tp_size": layout.tp * layout.dp,
            "--pp_size": _above_one(layout.pp),
            "--ep_size": _above_one(layout.moe_ep),
            "--max_batch_size": ceil(step_requests),
            "--max_num_tokens": _max_step_tokens(deployment, step_requests),
            "--max_seq_len": deployment.longest_context,
            "--port": server.port,
            "--config": file,
        }
        commands.append(["trtllm-serve", name, *_words(flags)])
        files[file] = _trtllm_yaml(deployment, layout, server.role)
        urls.setdefault(server.role, []).append(f"localhost:{server.port}")
    if deployment.pools:
        pools: dict[str, Any] = {"hostname": "localhost", "port": PORT, "backend": "pytorch"}
        for key, role in (("context_servers", "producer"), ("generation_servers", "consumer")):
            pools[key] = {"num_instances": len(urls[role]), "urls": urls[role]}
        files["pools.yaml"] = json.dumps(pools, indent=1) + "\n"
        commands.append(["trtllm-serve", "disaggregated", "-c", "pools.yaml"])
    return commands, files


LAUNCHERS = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
"""Engine -> function that returns its commands."""


def _trtllm_yaml(deployment: Deployment, layout: Layout, role: str) -> str:
    """Return a server's options that have no flags, as YAML."""
    cache: dict[str, Any] = {
        "dtype": ENGINES["trtllm"]["caches"][deployment.formats.kv],
        "enable_block_reuse": deployment.workload.prefix > 0,
        "free_gpu_memory_fraction": USABLE_SHARE,
    }
    if size := round(deployment.offload.cache_gib * GIB):
        cache["host_cache_size"] = size
    captured = min(ceil(deployment.batch / layout.pp), MAX_CAPTURED_REQUESTS)
    options: dict[str, Any] = {
        "kv_cache_config": cache,
        "enable_chunked_prefill": True,
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": captured},
    }
    if layout.dp > 1:
        options["enable_attention_dp"] = True
    if copies := layout.redundant_experts(deployment.model):
        slots = deployment.model.experts + copies
        options["moe_config"] = {"load_balancer": {"num_slots": slots}}
    if drafts := deployment.speculation:
        options["speculative_config"] = {
            "decoding_type": "MTP",
            "num_nextn_predict_layers": drafts.drafted,
        }
    if role == "producer":
        options["disable_overlap_scheduler"] = True
    if role:
        tokens = deployment.max_request_tokens or deployment.workload.isl
        options["cache_transceiver_config"] = {"backend": "DEFAULT", "max_tokens_in_buffer": tokens}
    return json.dumps(options, indent=1) + "\n"  # every reader of YAML reads JSON


def _servers(deployment: Deployment) -> Iterator[_Server]:
    """Yield the servers; requests in flight are divided among the prefill workers."""
    layout, requests, pools = deployment.layout, deployment.requests_per_worker, deployment.pools
    if pools is None:
        yield _Server(layout, requests, PORT)
        return
    workers = max(pools.prefill_workers, 1)
    for i in range(workers):
        yield _Server(pools.prefill, deployment.concurrency / workers, PREFILL_PORT + i, "producer")
    for i in range(pools.decode_workers):
        yield _Server(layout, requests, DECODE_PORT + i, "consumer")


def _placement_notes(deployment: Deployment, servers: int) -> Iterator[str]:
    node, gpus = deployment.system.gpus_per_node, deployment.layout.gpus
    if gpus > node:
        yield (f"{gpus} GPUs span {ceil(gpus / node)} nodes: use the engine's multi-node launcher")
    if servers > 1:
        yield (
            f"start {servers} servers behind a load balancer, each with different GPUs and ports "
            "(CUDA_VISIBLE_DEVICES, --port)"
        )
    elif deployment.pools:
        yield "give each server different GPUs (CUDA_VISIBLE_DEVICES)"


def _cache_name(deployment: Deployment, engine: str) -> str:
    """Return the engine's name of the cache format; empty if cache and checkpoint have 16 bits."""
    kind = deployment.formats.kv
    return "" if kind == deployment.model.kv_format == "bf16" else ENGINES[engine]["caches"][kind]


def _attention_backend(deployment: Deployment) -> str:
    """Return SGLang's backend for a 4-bit cache, if its default supports only latent ones."""
    if deployment.formats.kv != "fp4_e2m1" or deployment.model.mla:
        return ""
    datacenter = deployment.system.device.architecture in ("sm_100", "sm_103")
    return "trtllm_mha" if datacenter else "triton"


def _above_one(count: int) -> int:
    """Return a degree of parallelism, 0 if there is none."""
    return count if count > 1 else 0


def _words(flags: Mapping[str, object]) -> list[str]:
    """Convert flags to words: 0, empty and false are left out, true has no value."""
    words = []
    for flag, value in flags.items():
        if value:
            words += [flag] if value is True else [flag, str(value)]
    return words


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, separators=(",", ":"))
