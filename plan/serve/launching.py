"""Launch commands: how an engine is started so that it serves what a plan says.

Flags are those that these document: vLLM 0.12 and, for quantizing while loading, its main branch of
2026 (engine arguments, data- and expert-parallel deployment, FP8, online quantization,
NixlConnector); SGLang's main branch of 2026 (server arguments, PD disaggregation); TensorRT-LLM 1.3
(``trtllm-serve``, disaggregated serving).
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from foretune.errors import UnknownName
from foretune.plan.cost.memory import GIB, STEP_TOKENS, USABLE, rank_memory
from foretune.plan.describe.formats import checkpoint_formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.deployment import ENGINE_NAMES, Deployment
from foretune.plan.serve.engine_formats import cache_name, cannot_hold
from foretune.plan.serve.engine_offload import (
    cannot_offload,
    sglang_words,
    trtllm_line,
    vllm_words,
)

TRTLLM_VERSION = "1.3.0rc23"
"""A published build of the TensorRT-LLM whose flags these are."""
PORT = 8000
PREFILL_PORT, DECODE_PORT = 8100, 8200
SIDE_CHANNEL_PORT = 5600
"""The first of vLLM's ports for handing over caches: every server, and its DP ranks, need one."""
ONLINE = {
    "vllm": {"fp8": "fp8", "fp8_block": "fp8_per_block", "mxfp4": "mxfp4"},
    "sglang": {"fp8": "fp8"},
    "trtllm": {},
}
"""Engine -> format that it makes of a 16-bit checkpoint while loading -> how it is asked to."""
RUNS_ON = {"trtllm": ("sm_",), "sglang": ("sm_", "gfx", "xe"), "vllm": ()}
"""Engine -> how the architectures of GPUs begin that it runs on (its documentation of supported
hardware); none stands for all."""
MOST_CAPTURED = 512
"""Requests up to which decode steps are captured as graphs: what engines do by themselves."""
MAKERS = "llm-compressor or NVIDIA Model Optimizer"
GPTQ = "GPTQModel"
"""What makes weights of 3 bits."""


@dataclass(frozen=True)
class Launch:
    """How to start what a plan says, with one engine.

    Attributes:
        commands: each a server, or what joins servers; words as a shell splits them. Words with
            ``=`` before the program are its environment.
        files: text of files that commands name.
        notes: what to do beside.
        refused: why this engine cannot be started like this; empty if it can.
    """

    commands: Sequence[Sequence[str]]
    files: dict[str, str]
    notes: Sequence[str]
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return f"# {self.refused}"
        lines = ["# " + " ".join(note.split()) for note in self.notes]
        for name, text in self.files.items():
            lines.append(f"cat > {name} <<'END'\n{text}END")
        lines.extend(_shell(command) for command in self.commands)
        return "\n".join(lines)


def launch_commands(deployment: Deployment, replicas: int = 1) -> dict[str, str]:
    """Return shell text per engine: ``vllm``, ``sglang`` and ``trtllm``.

    Args:
        deployment: what one replica is.
        replicas: how many there are.
    """
    return {engine: str(launch(deployment, engine, replicas)) for engine in ENGINES}


def launch(deployment: Deployment, engine: str, replicas: int = 1) -> Launch:
    """Return how to start a deployment with an engine.

    Raises:
        UnknownName: there is no such engine.
    """
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    refused = cannot_run(deployment.system, engine) or refusal(deployment.layout, engine)
    refused = refused or _cannot_draft(deployment, engine) or cannot_hold(deployment, engine)
    refused = refused or cannot_offload(deployment.offload, engine)
    if deployment.pools:
        refused = refused or refusal(deployment.pools.prefill, engine)
    if refused:
        return Launch((), {}, (), refused)
    return ENGINES[engine](deployment, replicas)


def checkpoint(deployment: Deployment, engine: str) -> tuple[str, str, str]:
    """Return which checkpoint serves, how the engine is asked to quantize it, and a note.

    A name in capitals stands for a checkpoint that must be made or found first.
    """
    model, formats = deployment.model, deployment.formats
    own = checkpoint_formats(model)
    if (formats.weights, formats.moe) == (own.weights, own.moe):
        return model.name, "", ""
    if (own.weights, own.moe) == ("bf16", "bf16") and formats.weights == formats.moe:
        asked = ONLINE[engine].get(formats.weights, "")
        if asked:
            return model.name, asked, ""
    kinds = list(dict.fromkeys((formats.weights, formats.moe)))
    name = "_".join(["CHECKPOINT_IN", *kinds]).upper()
    what = f"{formats.weights} with experts in {formats.moe}" if len(kinds) > 1 else kinds[0]
    makers = GPTQ if "int3_wo" in kinds else MAKERS
    return name, "", f"{name}: {model.name} quantized to {what} before, with {makers}"


def refusal(layout: Layout, engine: str) -> str:
    """Return why an engine has no such layout; empty if it has."""
    if engine == "vllm" and layout.moe_ep > 1 and layout.moe_tp > 1:
        return f"vLLM either slices experts or spreads them, not both ({layout})"
    if engine == "trtllm" and layout.dp > 1 and layout.tp > 1:
        return f"TensorRT-LLM's attention-DP takes all ranks of a stage, without tp ({layout})"
    return ""


def cannot_run(system: System, engine: str) -> str:
    """Return why an engine does not run on a system's GPUs; empty if it does."""
    architectures = RUNS_ON[engine]
    if not architectures or system.device.architecture.startswith(architectures):
        return ""
    return f"{ENGINE_NAMES[engine]} does not run on {system.name}: plan it with --backend vllm"


def _cannot_draft(deployment: Deployment, engine: str) -> str:
    """Return why an engine does not draft tokens like this; empty if it does, or need not."""
    drafts = deployment.speculation
    if engine == "trtllm" and drafts and drafts.draft:
        return (
            "TensorRT-LLM names the option of a draft model differently between versions: "
            "plan it with --backend vllm, or without --draft-model"
        )
    return ""


def _drafts(deployment: Deployment, engine: str) -> list[str]:
    """Return the flags of drafted tokens.

    vLLM's ``SpeculativeConfig``; SGLang's documentation of multi-token prediction and of standalone
    draft models: a chain of drafts is a tree with one branch.
    """
    drafts = deployment.speculation
    if drafts is None:
        return []
    count, own = drafts.drafted, drafts.draft is None
    if engine == "vllm":
        config: dict[str, object] = {"method": "mtp" if own else "draft_model"}
        config |= {"num_speculative_tokens": count}
        config |= {} if drafts.draft is None else {"model": drafts.draft.name}
        return ["--speculative-config", _json(config)]
    words = ["--speculative-algorithm", "EAGLE" if own else "STANDALONE"]
    words += [] if drafts.draft is None else ["--speculative-draft-model-path", drafts.draft.name]
    words += ["--speculative-num-steps", str(count), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(count + 1)]


def _step_tokens(deployment: Deployment, requests: float) -> str:
    """Return the most tokens of a step of so many requests: what plans assume."""
    return str(max(STEP_TOKENS, ceil(requests) * (1 + deployment.drafted)))


def _vllm(deployment: Deployment, replicas: int) -> Launch:
    """Dense models' replicas on a node are one server's data parallelism; others are servers."""
    name, quantization, note = checkpoint(deployment, "vllm")
    inside = _inside(deployment, replicas)

    def server(layout: Layout, requests: float, port: int, role: str) -> list[str]:
        dp = layout.dp * inside
        words = ["vllm", "serve", name, "--tensor-parallel-size", str(layout.tp)]
        words += _several("--pipeline-parallel-size", layout.pp)
        words += _several("--data-parallel-size", dp)
        words += ["--enable-expert-parallel"] if layout.moe_ep > 1 else []
        if copies := layout.copies(deployment.model):
            words += ["--enable-eplb", "--eplb-config", _json({"num_redundant_experts": copies})]
        words += ["--quantization", quantization] if quantization else []
        words += [*_cache(deployment, "vllm"), *vllm_words(deployment.offload, layout)]
        each = requests / layout.dp  # of each DP rank
        words += ["--max-num-seqs", str(ceil(each))]
        words += ["--max-num-batched-tokens", _step_tokens(deployment, each)]
        words += ["--enable-prefix-caching"] if deployment.workload.prefix else []
        words += _drafts(deployment, "vllm")
        words += ["--max-model-len", str(deployment.longest_context)]
        words += ["--gpu-memory-utilization", f"{USABLE:g}", "--port", str(port)]
        if role:
            transfer = {"kv_connector": "NixlConnector", "kv_role": role}
            words += ["--kv-transfer-config", _json(transfer)]
        return words

    notes = [note, *_placing(deployment, replicas // inside)]
    if not deployment.pools:
        command = server(deployment.layout, deployment.of_a_worker, PORT, "")
        return Launch([command], {}, _told(notes))
    notes.append("join them with a proxy that sends a prompt first to one, then to the other:")
    notes.append("vLLM's toy_proxy_server.py (tests/v1/kv_connector/nixl_integration), or llm-d")
    commands, side = [], SIDE_CHANNEL_PORT
    for layout, requests, port, role in _pools(deployment):
        words = server(layout, requests, port, f"kv_{role}")
        commands.append([f"VLLM_NIXL_SIDE_CHANNEL_PORT={side}", *words])
        side += layout.dp
    return Launch(commands, {}, _told(notes))


def _inside(deployment: Deployment, replicas: int) -> int:
    """Return how many replicas are one server of vLLM: as many as a node holds, alike in all."""
    if deployment.model.is_moe or deployment.pools:
        return 1
    room = deployment.system.gpus_per_node // deployment.layout.gpus
    return max((n for n in range(1, room + 1) if replicas % n == 0), default=1)


def _sglang(deployment: Deployment, replicas: int) -> Launch:
    """SGLang counts the ranks of attention-DP among those of tp."""
    name, quantization, note = checkpoint(deployment, "sglang")

    def server(layout: Layout, requests: float, port: int, role: str) -> list[str]:
        words = ["python", "-m", "sglang.launch_server", "--model-path", name]
        words += ["--tp-size", str(layout.tp * layout.dp)]
        words += _several("--pp-size", layout.pp)
        words += ["--dp-size", str(layout.dp), "--enable-dp-attention"] if layout.dp > 1 else []
        words += _several("--ep-size", layout.moe_ep)
        if copies := layout.copies(deployment.model):
            words += ["--ep-num-redundant-experts", str(copies)]
        words += ["--quantization", quantization] if quantization else []
        words += [*_cache(deployment, "sglang"), *_reader(deployment)]
        words += ["--max-running-requests", str(ceil(requests))]
        each = ceil(requests / layout.dp)
        words += ["--chunked-prefill-size", _step_tokens(deployment, each)]
        if not deployment.offload.weights_gib:
            words += ["--cuda-graph-max-bs", str(min(each, MOST_CAPTURED))]
        words += sglang_words(deployment.offload)
        words += ["--mem-fraction-static", f"{_static_share(deployment, layout, requests):.2f}"]
        words += _drafts(deployment, "sglang")
        words += ["--context-length", str(deployment.longest_context), "--port", str(port)]
        if role:
            mode = "prefill" if role == "producer" else "decode"
            words += ["--disaggregation-mode", mode, "--disaggregation-transfer-backend", "nixl"]
        return words

    notes = [note, *_placing(deployment, replicas)]
    if not deployment.pools:
        command = server(deployment.layout, deployment.of_a_worker, PORT, "")
        return Launch([command], {}, _told(notes))
    commands, urls = [], []
    for layout, requests, port, role in _pools(deployment):
        commands.append(server(layout, requests, port, role))
        flag = "--prefill" if role == "producer" else "--decode"
        urls += [flag, f"http://127.0.0.1:{port}"]
    router = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation", *urls]
    return Launch([*commands, [*router, "--port", str(PORT)]], {}, _told(notes))


def _trtllm(deployment: Deployment, replicas: int) -> Launch:
    """TensorRT-LLM has no flags for the cache's format and attention-DP: a file says them."""
    name, _, note = checkpoint(deployment, "trtllm")

    def server(layout: Layout, requests: float, port: int, file: str) -> list[str]:
        words = ["trtllm-serve", name, "--tp_size", str(layout.tp * layout.dp)]
        words += [*_several("--pp_size", layout.pp), *_several("--ep_size", layout.moe_ep)]
        each = requests / layout.dp / layout.pp  # of each step
        words += [
            "--max_batch_size",
            str(ceil(each)),
            "--max_num_tokens",
            _step_tokens(deployment, each),
        ]
        words += ["--max_seq_len", str(deployment.longest_context)]
        return [*words, "--port", str(port), "--config", file]

    notes = [note, _scales(deployment), *_placing(deployment, replicas)]
    if not deployment.pools:
        file, layout = "trtllm.yaml", deployment.layout
        command = server(layout, deployment.of_a_worker, PORT, file)
        return Launch([command], {file: _trtllm_yaml(deployment, layout, "")}, _told(notes))
    commands, files = [], {}
    urls: dict[str, list[str]] = {"producer": [], "consumer": []}
    for layout, requests, port, role in _pools(deployment):
        file = "prefill.yaml" if role == "producer" else "decode.yaml"
        files[file] = _trtllm_yaml(deployment, layout, role)
        commands.append(server(layout, requests, port, file))
        urls[role].append(f"localhost:{port}")
    joint = f"hostname: localhost\nport: {PORT}\nbackend: pytorch\n"
    for key, role in (("context_servers", "producer"), ("generation_servers", "consumer")):
        joint += f"{key}:\n  num_instances: {len(urls[role])}\n  urls:\n"
        joint += "".join(f'    - "{url}"\n' for url in urls[role])
    files["pools.yaml"] = joint
    commands.append(["trtllm-serve", "disaggregated", "-c", "pools.yaml"])
    return Launch(commands, files, _told(notes))


ENGINES: dict[str, Callable[[Deployment, int], Launch]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}
"""Engine -> how it is started."""


def _trtllm_yaml(deployment: Deployment, layout: Layout, role: str) -> str:
    """Return the options of a server that have no flags."""
    kind = cache_name("trtllm", deployment.formats.kv)
    captured = min(ceil(deployment.batch / layout.pp), MOST_CAPTURED)
    reuse = str(deployment.workload.prefix > 0).lower()
    lines = [
        f"kv_cache_config:\n  dtype: {kind}\n  enable_block_reuse: {reuse}\n",
        f"  free_gpu_memory_fraction: {USABLE:g}\n{trtllm_line(deployment.offload)}",
        "enable_chunked_prefill: true\n",
        f"cuda_graph_config:\n  enable_padding: true\n  max_batch_size: {captured}\n",
    ]
    if layout.dp > 1:
        lines.append("enable_attention_dp: true\n")
    if copies := layout.copies(deployment.model):
        slots = deployment.model.experts + copies
        lines.append(f"moe_config:\n  load_balancer:\n    num_slots: {slots}\n")
    if drafts := deployment.speculation:
        lines.append(
            "speculative_config:\n  decoding_type: MTP\n"
            f"  num_nextn_predict_layers: {drafts.drafted}\n"
        )
    if role == "producer":
        lines.append("disable_overlap_scheduler: true\n")
    if role:
        tokens = deployment.longest or deployment.workload.isl
        lines.append(
            f"cache_transceiver_config:\n  backend: DEFAULT\n  max_tokens_in_buffer: {tokens}\n"
        )
    return "".join(lines)


def _static_share(deployment: Deployment, layout: Layout, requests: float) -> float:
    """Return the share of a GPU that weights and cache may take beside a step's activations."""
    d = deployment
    held = rank_memory(d.allocated, layout, d.formats, d.workload, requests, elsewhere=d.elsewhere)
    beside = held.activations + held.communication
    return USABLE - beside / (d.system.memory_gib * GIB)


def _pools(deployment: Deployment) -> Iterator[tuple[Layout, float, int, str]]:
    """Give the layout of every server of a deployment with pools, its requests, port and role.

    A worker that reads prompts has few at a time: as many as there are for each of the others.
    """
    pools = deployment.pools
    assert pools is not None
    readers = max(pools.prefill_workers, 1)
    for i in range(readers):
        yield pools.prefill, deployment.concurrency / readers, PREFILL_PORT + i, "producer"
    for i in range(pools.decode_workers):
        yield deployment.layout, deployment.of_a_worker, DECODE_PORT + i, "consumer"


def _placing(deployment: Deployment, servers: int) -> Iterator[str]:
    """Give notes about where servers run."""
    node, gpus = deployment.system.gpus_per_node, deployment.layout.gpus
    if gpus > node:
        yield (
            f"{gpus} GPUs span {ceil(gpus / node)} nodes: start it with the engine's launcher for "
            "several nodes"
        )
    if servers > 1:
        yield (
            f"{servers} times, each with GPUs and ports of its own (CUDA_VISIBLE_DEVICES, --port), "
            "behind a load balancer"
        )
    elif deployment.pools:
        yield "each server with GPUs of its own (CUDA_VISIBLE_DEVICES)"


def _cache(deployment: Deployment, engine: str) -> list[str]:
    """Return the flag of the cache's format where it is not sixteen bits as in the checkpoint."""
    wanted, own = deployment.formats.kv, deployment.model.kv_format
    if wanted == own == "bf16":
        return []
    return ["--kv-cache-dtype", cache_name(engine, wanted)]


def _reader(deployment: Deployment) -> list[str]:
    """Return the kernels that SGLang must be told to read a cache of 4 bits with.

    By itself it takes FlashInfer's, which have no such cache; those of latent attention have.
    """
    if deployment.formats.kv != "fp4_e2m1" or deployment.model.mla:
        return []
    datacenter = deployment.system.device.architecture in ("sm_100", "sm_103")
    return ["--attention-backend", "trtllm_mha" if datacenter else "triton"]


def _scales(deployment: Deployment) -> str:
    """Return what TensorRT-LLM's checkpoint needs beside weights."""
    if deployment.formats.kv != "nvfp4":
        return ""
    return "the checkpoint has scales for an NVFP4 cache: NVIDIA Model Optimizer, kv_cache_quant"


def _several(flag: str, count: int) -> list[str]:
    return [flag, str(count)] if count > 1 else []


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, separators=(",", ":"))


def _told(notes: Sequence[str]) -> list[str]:
    return [note for note in notes if note]


def _shell(words: Sequence[str]) -> str:
    """Return a command as a shell reads it; assignments before the program stay bare."""
    count = next(i for i, word in enumerate(words) if "=" not in word)
    return " ".join([*words[:count], shlex.join(words[count:])])
