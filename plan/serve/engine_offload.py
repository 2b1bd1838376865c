"""How engines are told what lies in the host's memory, and what they cannot keep there.

vLLM: ``--cpu-offload-gb`` (GiB of weights per GPU; ``vllm/config/offload.py``) and
``--kv-offloading-size`` (GiB of prefixes, of all tensor-parallel ranks; ``vllm/config/cache.py``).
SGLang: ``--cpu-offload-gb`` and ``--hicache-size`` (whole GB, of each rank); layers that are copied
before they run are not captured in graphs. TensorRT-LLM: ``host_cache_size`` in bytes, of each
rank; no weights in its PyTorch flow.
"""

from foretune.plan.cost.memory import GIB
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.offload import Offload
from foretune.plan.serve.deployments.deployment import ENGINE_NAMES

WEIGHT_OFFLOAD_ENGINES = ("vllm", "sglang")
"""Engines that keep weights in the host's memory."""


def unsupported_offload(offload: Offload, engine: str) -> str:
    """Return why an engine cannot keep these things in the host's memory; empty if it can."""
    if offload.weights_gib and engine not in WEIGHT_OFFLOAD_ENGINES:
        return (
            f"{ENGINE_NAMES[engine]} keeps no weights in the host's memory: plan it with "
            "--backend vllm, or without --offload"
        )
    return ""


def vllm_flags(offload: Offload, layout: Layout) -> list[str]:
    """Return vLLM's flags."""
    flags = []
    if offload.weights_gib:
        flags += ["--cpu-offload-gb", f"{offload.weights_gib:g}"]
    if offload.cache_gib:
        size = offload.cache_gib * layout.tp
        flags += ["--kv-offloading-size", f"{size:g}", "--kv-offloading-backend", "native"]
    return flags


def sglang_flags(offload: Offload) -> list[str]:
    """Return SGLang's flags."""
    flags = []
    if offload.weights_gib:
        flags += ["--cpu-offload-gb", f"{offload.weights_gib:.0f}", "--disable-cuda-graph"]
    if offload.cache_gib:
        size = max(round(offload.cache_gib * GIB / 1e9), 1)
        flags += ["--enable-hierarchical-cache", "--hicache-size", str(size)]
    return flags


def trtllm_option(offload: Offload) -> str:
    """Return the option of TensorRT-LLM's cache; nothing where it has none."""
    size = round(offload.cache_gib * GIB)
    return f"  host_cache_size: {size}\n" if size else ""
