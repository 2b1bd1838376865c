"""Cache formats and offloading options of the engines."""

from foretune.plan.cost.memory import GIB
from foretune.plan.describe.formats import DEFAULT_CACHE_FORMATS, support_key, supported
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.workload import Offload
from foretune.plan.serve.deployments.deployment import ENGINE_NAMES, Deployment

CACHE_NAMES = {
    "vllm": {"bf16": "bfloat16", "fp8": "fp8", "nvfp4": "nvfp4",
             "int4_head": "int4_per_token_head"},
    "sglang": {"bf16": "bf16", "fp8": "fp8_e4m3", "fp4_e2m1": "fp4_e2m1"},
    "trtllm": {"bf16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"},
}  # fmt: skip
"""Engine -> supported cache format -> the engine's name for it."""
LATENT_CACHE_FORMATS = ("fp4_e2m1",)
"""Unusual formats that engines support for latent caches."""
NVFP4_CACHE_WEIGHTS = ("fp8", "fp8_static")
"""Weight formats that TensorRT-LLM supports with an NVFP4 cache."""
THREE_BIT_ENGINES = ("vllm", "sglang")
"""Engines with 3-bit weights."""


def cache_name(engine: str, kind: str) -> str:
    """Return an engine's name of a cache format; empty if unsupported."""
    return CACHE_NAMES[engine].get(kind, "")


def engines_with(kind: str) -> list[str]:
    """Return the engines that support a cache format."""
    return [engine for engine, names in CACHE_NAMES.items() if kind in names]


def unsupported_formats(deployment: Deployment, engine: str) -> str:
    """Return why an engine lacks the weight or cache format; empty if it supports both."""
    return _unsupported_cache(deployment, engine) or _unsupported_weights(deployment, engine)


def _unsupported_cache(deployment: Deployment, engine: str) -> str:
    kind, model, title = deployment.formats.kv, deployment.model, ENGINE_NAMES[engine]
    if kind in DEFAULT_CACHE_FORMATS:
        return ""
    if not cache_name(engine, kind):
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


def _unsupported_weights(deployment: Deployment, engine: str) -> str:
    formats = deployment.formats
    if deployment.model.is_moe and formats.moe == "int3_wo":
        return "no engine has 3-bit experts: use --formats int4_wo"
    if formats.weights == "int3_wo" and engine not in THREE_BIT_ENGINES:
        return f"{ENGINE_NAMES[engine]} has no 3-bit weights: use --backend vllm"
    return ""


WEIGHT_OFFLOAD_ENGINES = ("vllm", "sglang")
"""Engines that can offload weights to host memory."""


def unsupported_offload(offload: Offload, engine: str) -> str:
    """Return why an engine cannot offload this; empty if it can."""
    if offload.weights_gib and engine not in WEIGHT_OFFLOAD_ENGINES:
        return (
            f"{ENGINE_NAMES[engine]} cannot offload weights to host memory: use "
            "--backend vllm, or leave out --offload"
        )
    return ""


def vllm_flags(offload: Offload, layout: Layout) -> list[str]:
    """Return vLLM's flags for offloading."""
    flags = []
    if offload.weights_gib:
        flags += ["--cpu-offload-gb", f"{offload.weights_gib:g}"]
    if offload.cache_gib:
        size = offload.cache_gib * layout.tp
        flags += ["--kv-offloading-size", f"{size:g}", "--kv-offloading-backend", "native"]
    return flags


def sglang_flags(offload: Offload) -> list[str]:
    """Return SGLang's flags for offloading."""
    flags = []
    if offload.weights_gib:
        flags += ["--cpu-offload-gb", f"{offload.weights_gib:.0f}"]
        for phase in ("decode", "prefill"):
            flags += [f"--cuda-graph-backend-{phase}", "disabled"]
    if offload.cache_gib:
        size = max(round(offload.cache_gib * GIB / 1e9), 1)
        flags += ["--enable-hierarchical-cache", "--hicache-size", str(size)]
    return flags


def trtllm_cache_options(offload: Offload) -> dict[str, int]:
    """Return TensorRT-LLM's options for a cache in host memory; empty without one."""
    size = round(offload.cache_gib * GIB)
    return {"host_cache_size": size} if size else {}
