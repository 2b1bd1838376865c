"""What serving engines cannot run: systems, layouts, formats and offloading, with the reason.

Each function returns the reason, with what to do, or an empty text if the engine can.
"""

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

LATENT_CACHE_FORMATS = ("fp4_e2m1",)
"""Unusual formats that engines support for latent caches."""
NVFP4_CACHE_WEIGHTS = ("fp8", "fp8_static")
"""Weight formats that TensorRT-LLM supports with an NVFP4 cache."""


def unsupported(deployment: Deployment, engine: str) -> str:
    """Return why an engine cannot run a deployment; empty if it can."""
    reasons = (
        unsupported_system(deployment.system, engine),
        unsupported_layout(deployment.layout, engine),
        unsupported_draft_model(deployment, engine),
        unsupported_formats(deployment, engine),
        unsupported_mixture(deployment, engine),
        unsupported_offload(deployment.offload, engine),
        unsupported_layout(deployment.prefill_layout, engine),
    )
    return next(filter(None, reasons), "")


def unsupported_system(system: System, engine: str) -> str:
    """Return why an engine does not run on a system's GPUs; empty if it does."""
    if system.device.architecture.startswith(tuple(ENGINES[engine]["architectures"])):
        return ""
    return f"{ENGINES[engine]['name']} does not run on {system.name}: use --backend vllm"


def unsupported_layout(layout: Layout, engine: str) -> str:
    """Return why an engine lacks this layout; empty if it supports it."""
    if engine == "vllm" and layout.moe_ep > 1 and layout.moe_tp > 1:
        return f"vLLM splits experts by tensor or by expert parallelism, not both ({layout})"
    if engine == "trtllm" and layout.dp > 1 and layout.tp > 1:
        return f"TensorRT-LLM's attention-DP uses all ranks of a stage, without tp ({layout})"
    return ""


def unsupported_draft_model(deployment: Deployment, engine: str) -> str:
    """Return why an engine cannot draft with a smaller model; empty if it can."""
    drafts = deployment.speculation
    if engine == "trtllm" and drafts and drafts.draft:
        return (
            "TensorRT-LLM's option for a draft model differs between versions: use --backend "
            "vllm, or plan without a draft model"
        )
    return ""


def unsupported_formats(deployment: Deployment, engine: str) -> str:
    """Return why an engine lacks the weight or cache format; empty if it supports both."""
    if reason := _unsupported_cache(deployment, engine):
        return reason
    formats = deployment.formats
    if deployment.model.is_moe and base_format(formats.moe) == "int3_wo":
        return "no engine has 3-bit experts: use --formats int4_wo"
    if base_format(formats.weights) == "int3_wo" and engine == "trtllm":
        return f"{ENGINES[engine]['name']} has no 3-bit weights: use --backend vllm"
    architecture = deployment.system.device.architecture
    for name in (formats.weights, formats.moe):
        if supported(name, architecture) == "no":
            return (
                f"no engine has kernels for {base_format(name)} weights on "
                f"{deployment.system.name}: use other --formats"
            )
    return ""


def unsupported_mixture(deployment: Deployment, engine: str) -> str:
    """Return why an engine cannot run a new checkpoint whose layers have several narrow formats.

    Empty if it can, also for published checkpoints, and for layers that are left in 16 bits.
    """
    formats = deployment.formats
    published = checkpoint_formats(deployment.model)
    if (formats.weights, formats.moe) == (published.weights, published.moe):
        return ""
    parts = [pure for _, pure in formats.pure_parts]
    if len(parts) < 2:
        return ""
    names = {base_format(name) for pure in parts for name in (pure.weights, pure.moe)}
    lacking = sorted(names - set(ENGINES[engine]["mixed_formats"]))
    if len(names - {"bf16"}) < 2 or not lacking:
        return ""
    able = [name for name, facts in ENGINES.items() if names <= set(facts["mixed_formats"])]
    advice = f"use --backend {' or '.join(able)}" if able else "use other --formats"
    return (
        f"{ENGINES[engine]['name']} documents no checkpoint whose layers are in "
        f"{' and '.join(sorted(names))}: {advice}"
    )


def unsupported_offload(offload: Offload, engine: str) -> str:
    """Return why an engine cannot offload these data; empty if it can."""
    if offload.weights_gib and engine == "trtllm":
        return (
            f"{ENGINES[engine]['name']} cannot offload weights to host memory: use "
            "--backend vllm, or leave out --offload"
        )
    if offload.disk_gib and not ENGINES[engine]["reads_prefixes_from_disk"]:
        able = [name for name, facts in ENGINES.items() if facts["reads_prefixes_from_disk"]]
        return (
            f"{ENGINES[engine]['name']} keeps prefixes on disk only with other software: use "
            f"--backend {' or '.join(able)}, or leave out --offload disk"
        )
    return ""


def engines_with_cache(cache: str) -> list[str]:
    """Return the engines that support a cache format."""
    return [name for name, engine in ENGINES.items() if cache in engine["caches"]]


def _unsupported_cache(deployment: Deployment, engine: str) -> str:
    cache = deployment.formats.kv
    title = ENGINES[engine]["name"]
    if cache in DEFAULT_CACHE_FORMATS:
        return ""
    if cache not in ENGINES[engine]["caches"]:
        other = engines_with_cache(cache)[0]
        return f"{title} has no {cache} cache: use --backend {other} or --formats /fp8"

    system = deployment.system
    if supported(support_key(cache), system.device.architecture) == "no":
        return f"{title} has no kernels for {cache} caches on {system.name}: use --formats /fp8"

    model = deployment.model
    if model.compressed or (model.mla and cache not in LATENT_CACHE_FORMATS):
        return f"{title} has no {cache} caches for latent attention: use --formats /fp8"
    if engine == "trtllm" and deployment.formats.weights not in NVFP4_CACHE_WEIGHTS:
        return f"TensorRT-LLM supports {cache} caches only with fp8 weights: add --formats fp8"
    return ""
