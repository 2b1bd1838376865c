"""Commands that start a planned deployment with each engine.

The flags are those of `ENGINE_VERSIONS`. Disaggregated serving uses NixlConnector in vLLM and each
engine's own documented options.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from foretune.errors import UnknownName
from foretune.plan.cost.memory import GIB, USABLE_SHARE
from foretune.plan.describe.formats import checkpoint_formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.deployment import ENGINE_NAMES, Deployment
from foretune.plan.serve.engine_support import (
    cache_name,
    sglang_flags,
    trtllm_cache_options,
    unsupported_formats,
    unsupported_offload,
    vllm_flags,
)

ENGINE_VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23", "trtllm": "1.3.0rc23"}
"""Engine -> the version that its commands are for: all of its flags were read."""
PORT = 8000
PREFILL_PORT, DECODE_PORT = 8100, 8200
SIDE_CHANNEL_PORT = 5600
"""First port of vLLM's cache transfer; each server and each of its DP ranks needs one."""
ONLINE_QUANTIZATION = {
    "vllm": {"fp8": "fp8", "fp8_block": "fp8_per_block", "mxfp4": "mxfp4"},
    "sglang": {"fp8": "fp8"},
    "trtllm": {},
}
"""Engine -> format it can quantize a 16-bit checkpoint to while loading -> option."""
SUPPORTED_ARCHITECTURES = {"trtllm": ("sm_",), "sglang": ("sm_", "gfx", "xe"), "vllm": ()}
"""Engine -> prefixes of supported GPU architectures, as documented; empty means all."""
MAX_CAPTURED_REQUESTS = 512
"""Largest decode batch captured as a CUDA graph, as the engines do by default."""
QUANTIZATION_TOOLS = "llm-compressor or NVIDIA Model Optimizer"
GPTQ = "GPTQModel"
"""Tool that makes 3-bit weights."""


@dataclass(frozen=True)
class Launch:
    """How to start a deployment with one engine.

    Attributes:
        commands: one per server or router, split into words as a shell does. Words with ``=``
            before the program set its environment.
        files: name -> text of the files that commands read.
        notes: what else to do.
        version: the engine's name and the version that the commands are for.
        unsupported: why this engine cannot run the deployment; empty if it can.
    """

    commands: Sequence[Sequence[str]]
    files: dict[str, str]
    notes: Sequence[str]
    version: str = ""
    unsupported: str = ""

    def __str__(self) -> str:
        if self.unsupported:
            return f"# {self.unsupported}"
        lines = ["# " + " ".join(note.split()) for note in (f"for {self.version}", *self.notes)]
        for name, text in self.files.items():
            lines.append(f"cat > {name} <<'END'\n{text}END")
        lines.extend(_shell(command) for command in self.commands)
        return "\n".join(lines)


def launch_commands(deployment: Deployment, replicas: int = 1) -> dict[str, str]:
    """Return the shell text for each engine: ``vllm``, ``sglang`` and ``trtllm``."""
    return {engine: str(launch(deployment, engine, replicas)) for engine in LAUNCHERS}


def launch(deployment: Deployment, engine: str, replicas: int = 1) -> Launch:
    """Return how to start a deployment with an engine.

    Raises UnknownName if the engine is unknown.
    """
    if engine not in LAUNCHERS:
        raise UnknownName("engine", engine, LAUNCHERS)
    reason = unsupported_system(deployment.system, engine) or unsupported_layout(
        deployment.layout, engine
    )
    reason = (
        reason or _unsupported_drafts(deployment, engine) or unsupported_formats(deployment, engine)
    )
    reason = reason or unsupported_offload(deployment.offload, engine)
    if deployment.pools:
        reason = reason or unsupported_layout(deployment.pools.prefill, engine)
    if reason:
        return Launch((), {}, (), unsupported=reason)
    version = f"{ENGINE_NAMES[engine]} {ENGINE_VERSIONS[engine]}"
    return replace(LAUNCHERS[engine](deployment, replicas), version=version)


def checkpoint(deployment: Deployment, engine: str) -> tuple[str, str, str]:
    """Return the checkpoint to serve, the option to quantize it, and a note.

    A name in capitals is a placeholder for a checkpoint to make or find first.
    """
    model, formats = deployment.model, deployment.formats
    published = checkpoint_formats(model)
    if (formats.weights, formats.moe) == (published.weights, published.moe):
        return model.name, "", ""
    if (published.weights, published.moe) == ("bf16", "bf16") and formats.weights == formats.moe:
        quantization = ONLINE_QUANTIZATION[engine].get(formats.weights, "")
        if quantization:
            return model.name, quantization, ""
    kinds = list(dict.fromkeys((formats.weights, formats.moe)))
    name = "_".join(["CHECKPOINT_IN", *kinds]).upper()
    what = f"{formats.weights} with experts in {formats.moe}" if len(kinds) > 1 else kinds[0]
    tool = GPTQ if "int3_wo" in kinds else QUANTIZATION_TOOLS
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
    architectures = SUPPORTED_ARCHITECTURES[engine]
    if not architectures or system.device.architecture.startswith(architectures):
        return ""
    return f"{ENGINE_NAMES[engine]} does not run on {system.name}: use --backend vllm"


def _unsupported_drafts(deployment: Deployment, engine: str) -> str:
    """Return why an engine cannot draft tokens this way; empty if it can."""
    drafts = deployment.speculation
    if engine == "trtllm" and drafts and drafts.draft:
        return (
            "TensorRT-LLM's option for a draft model differs between versions: "
            "use --backend vllm, or plan without a draft model"
        )
    return ""


def _speculation_flags(deployment: Deployment, engine: str) -> list[str]:
    """Return the flags for drafted tokens.

    Sources: vLLM's ``SpeculativeConfig``, and SGLang's documentation of multi-token prediction and
    standalone draft models. A chain of drafts is a tree with one branch.
    """
    drafts = deployment.speculation
    if drafts is None:
        return []
    count, self_drafting = drafts.drafted, drafts.draft is None
    if engine == "vllm":
        config: dict[str, object] = {"method": "mtp" if self_drafting else "draft_model"}
        config |= {"num_speculative_tokens": count}
        config |= {} if drafts.draft is None else {"model": drafts.draft.name}
        return ["--speculative-config", _json(config)]
    words = ["--speculative-algorithm", "EAGLE" if self_drafting else "STANDALONE"]
    words += [] if drafts.draft is None else ["--speculative-draft-model-path", drafts.draft.name]
    words += ["--speculative-num-steps", str(count), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(count + 1)]


def _max_step_tokens(deployment: Deployment, requests: float) -> str:
    """Return the maximum tokens of a step that plans assume for this many requests."""
    return str(max(deployment.step_tokens, ceil(requests) * (1 + deployment.drafted)))


def _vllm(deployment: Deployment, replicas: int) -> Launch:
    """Return vLLM's launch; dense replicas on one node become one data-parallel server."""
    name, quantization, note = checkpoint(deployment, "vllm")
    per_server = _replicas_per_server(deployment, replicas)

    def server(layout: Layout, requests: float, port: int, role: str) -> list[str]:
        dp = layout.dp * per_server
        words = ["vllm", "serve", name, "--tensor-parallel-size", str(layout.tp)]
        words += _flag_above_one("--pipeline-parallel-size", layout.pp)
        words += _flag_above_one("--data-parallel-size", dp)
        words += ["--enable-expert-parallel"] if layout.moe_ep > 1 else []
        if copies := layout.redundant_experts(deployment.model):
            words += ["--enable-eplb", "--eplb-config", _json({"num_redundant_experts": copies})]
        words += ["--quantization", quantization] if quantization else []
        words += [*_cache_flag(deployment, "vllm"), *vllm_flags(deployment.offload, layout)]
        rank_requests = requests / layout.dp  # per DP rank
        words += ["--max-num-seqs", str(ceil(rank_requests))]
        words += ["--max-num-batched-tokens", _max_step_tokens(deployment, rank_requests)]
        words += ["--enable-prefix-caching"] if deployment.workload.prefix else []
        words += _speculation_flags(deployment, "vllm")
        words += ["--max-model-len", str(deployment.longest_context)]
        words += ["--gpu-memory-utilization", f"{USABLE_SHARE:g}", "--port", str(port)]
        if role:
            transfer = {"kv_connector": "NixlConnector", "kv_role": role}
            words += ["--kv-transfer-config", _json(transfer)]
        return words

    notes = [note, *_placement_notes(deployment, replicas // per_server)]
    if not deployment.pools:
        command = server(deployment.layout, deployment.requests_per_worker, PORT, "")
        return Launch([command], {}, _nonempty(notes))
    notes.append("route requests through a proxy for prefill-decode disaggregation:")
    notes.append("vLLM's toy_proxy_server.py (tests/v1/kv_connector/nixl_integration), or llm-d")
    commands, side_port = [], SIDE_CHANNEL_PORT
    for layout, requests, port, role in _pool_servers(deployment):
        words = server(layout, requests, port, f"kv_{role}")
        commands.append([f"VLLM_NIXL_SIDE_CHANNEL_PORT={side_port}", *words])
        side_port += layout.dp
    return Launch(commands, {}, _nonempty(notes))


def _replicas_per_server(deployment: Deployment, replicas: int) -> int:
    """Return how many replicas share one vLLM server: the most per node, equal on all."""
    if deployment.model.is_moe or deployment.pools:
        return 1
    max_replicas = deployment.system.gpus_per_node // deployment.layout.gpus
    return max((n for n in range(1, max_replicas + 1) if replicas % n == 0), default=1)


def _sglang(deployment: Deployment, replicas: int) -> Launch:
    """Return SGLang's launch; its tp size includes the attention-DP ranks."""
    name, quantization, note = checkpoint(deployment, "sglang")

    def server(layout: Layout, requests: float, port: int, role: str) -> list[str]:
        words = ["python", "-m", "sglang.launch_server", "--model-path", name]
        words += ["--tp-size", str(layout.tp * layout.dp)]
        words += _flag_above_one("--pp-size", layout.pp)
        words += _flag_above_one("--attn-dp-size", layout.dp)
        words += _flag_above_one("--ep-size", layout.moe_ep)
        if copies := layout.redundant_experts(deployment.model):
            words += ["--ep-num-redundant-experts", str(copies)]
        words += ["--quantization", quantization] if quantization else []
        words += [*_cache_flag(deployment, "sglang"), *_attention_backend_flag(deployment)]
        words += ["--max-running-requests", str(ceil(requests))]
        rank_requests = ceil(requests / layout.dp)
        words += ["--chunked-prefill-size", _max_step_tokens(deployment, rank_requests)]
        if not deployment.offload.weights_gib:
            words += ["--cuda-graph-max-bs-decode", str(min(rank_requests, MAX_CAPTURED_REQUESTS))]
        words += sglang_flags(deployment.offload)
        words += ["--mem-fraction-static", f"{_static_share(deployment, layout, requests):.2f}"]
        words += _speculation_flags(deployment, "sglang")
        words += ["--context-length", str(deployment.longest_context), "--port", str(port)]
        if role:
            mode = "prefill" if role == "producer" else "decode"
            words += ["--disaggregation-mode", mode, "--disaggregation-transfer-backend", "nixl"]
        return words

    notes = [note, *_placement_notes(deployment, replicas)]
    if not deployment.pools:
        command = server(deployment.layout, deployment.requests_per_worker, PORT, "")
        return Launch([command], {}, _nonempty(notes))
    commands, urls = [], []
    for layout, requests, port, role in _pool_servers(deployment):
        commands.append(server(layout, requests, port, role))
        flag = "--prefill" if role == "producer" else "--decode"
        urls += [flag, f"http://127.0.0.1:{port}"]
    router = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation", *urls]
    return Launch([*commands, [*router, "--port", str(PORT)]], {}, _nonempty(notes))


def _trtllm(deployment: Deployment, replicas: int) -> Launch:
    """Return TensorRT-LLM's launch; a YAML file sets the cache format and attention-DP."""
    name, _, note = checkpoint(deployment, "trtllm")

    def server(layout: Layout, requests: float, port: int, file: str) -> list[str]:
        words = ["trtllm-serve", name, "--tp_size", str(layout.tp * layout.dp)]
        words += [
            *_flag_above_one("--pp_size", layout.pp),
            *_flag_above_one("--ep_size", layout.moe_ep),
        ]
        step_requests = requests / layout.dp / layout.pp  # per step
        words += [
            "--max_batch_size",
            str(ceil(step_requests)),
            "--max_num_tokens",
            _max_step_tokens(deployment, step_requests),
        ]
        words += ["--max_seq_len", str(deployment.longest_context)]
        return [*words, "--port", str(port), "--config", file]

    notes = [note, _cache_scale_note(deployment), *_placement_notes(deployment, replicas)]
    if not deployment.pools:
        file, layout = "trtllm.yaml", deployment.layout
        command = server(layout, deployment.requests_per_worker, PORT, file)
        return Launch([command], {file: _trtllm_yaml(deployment, layout, "")}, _nonempty(notes))
    commands, files = [], {}
    urls: dict[str, list[str]] = {"producer": [], "consumer": []}
    for layout, requests, port, role in _pool_servers(deployment):
        file = "prefill.yaml" if role == "producer" else "decode.yaml"
        files[file] = _trtllm_yaml(deployment, layout, role)
        commands.append(server(layout, requests, port, file))
        urls[role].append(f"localhost:{port}")
    pools: dict[str, Any] = {"hostname": "localhost", "port": PORT, "backend": "pytorch"}
    for key, role in (("context_servers", "producer"), ("generation_servers", "consumer")):
        pools[key] = {"num_instances": len(urls[role]), "urls": urls[role]}
    files["pools.yaml"] = _yaml(pools)
    commands.append(["trtllm-serve", "disaggregated", "-c", "pools.yaml"])
    return Launch(commands, files, _nonempty(notes))


LAUNCHERS: dict[str, Callable[[Deployment, int], Launch]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}
"""Engine -> function that returns its launch."""


def _trtllm_yaml(deployment: Deployment, layout: Layout, role: str) -> str:
    """Return the options of a server that have no flags."""
    cache: dict[str, Any] = {
        "dtype": cache_name("trtllm", deployment.formats.kv),
        "enable_block_reuse": deployment.workload.prefix > 0,
        "free_gpu_memory_fraction": USABLE_SHARE,
        **trtllm_cache_options(deployment.offload),
    }
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
            "decoding_type": "MTP", "num_nextn_predict_layers": drafts.drafted,
        }  # fmt: skip
    if role == "producer":
        options["disable_overlap_scheduler"] = True
    if role:
        tokens = deployment.max_request_tokens or deployment.workload.isl
        options["cache_transceiver_config"] = {"backend": "DEFAULT", "max_tokens_in_buffer": tokens}
    return _yaml(options)


def _yaml(options: Mapping[str, Any]) -> str:
    """Return options as JSON, which every reader of YAML reads."""
    return json.dumps(options, indent=1) + "\n"


def _static_share(deployment: Deployment, layout: Layout, requests: float) -> float:
    """Return the share of the memory that is free before loading, for weights and cache."""
    held, total = deployment.memory(requests, layout), deployment.system.memory_gib * GIB
    return (USABLE_SHARE * total - held.activations - held.engine) / (total - held.engine)


def _pool_servers(deployment: Deployment) -> Iterator[tuple[Layout, float, int, str]]:
    """Yield each pool server's layout, requests, port and role.

    Requests in flight are divided among the prefill workers.
    """
    pools = deployment.pools
    assert pools is not None
    prefill_workers = max(pools.prefill_workers, 1)
    for i in range(prefill_workers):
        yield pools.prefill, deployment.concurrency / prefill_workers, PREFILL_PORT + i, "producer"
    for i in range(pools.decode_workers):
        yield deployment.layout, deployment.requests_per_worker, DECODE_PORT + i, "consumer"


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


def _cache_flag(deployment: Deployment, engine: str) -> list[str]:
    """Return the flag for the cache format; empty if cache and checkpoint have 16 bits."""
    cache_format, published = deployment.formats.kv, deployment.model.kv_format
    if cache_format == published == "bf16":
        return []
    return ["--kv-cache-dtype", cache_name(engine, cache_format)]


def _attention_backend_flag(deployment: Deployment) -> list[str]:
    """Return SGLang's attention backend for a 4-bit cache.

    Its default, FlashInfer, supports such caches only for latent attention.
    """
    if deployment.formats.kv != "fp4_e2m1" or deployment.model.mla:
        return []
    datacenter = deployment.system.device.architecture in ("sm_100", "sm_103")
    return ["--attention-backend", "trtllm_mha" if datacenter else "triton"]


def _cache_scale_note(deployment: Deployment) -> str:
    """Return the note about cache scales that TensorRT-LLM needs in the checkpoint."""
    if deployment.formats.kv != "nvfp4":
        return ""
    return "the checkpoint needs scales for an NVFP4 cache: NVIDIA Model Optimizer, kv_cache_quant"


def _flag_above_one(flag: str, count: int) -> list[str]:
    return [flag, str(count)] if count > 1 else []


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, separators=(",", ":"))


def _nonempty(notes: Sequence[str]) -> list[str]:
    return [note for note in notes if note]


def _shell(words: Sequence[str]) -> str:
    """Return a command in shell syntax; assignments before the program stay unquoted."""
    count = next(i for i, word in enumerate(words) if "=" not in word)
    return " ".join([*words[:count], shlex.join(words[count:])])
