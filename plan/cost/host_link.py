"""Transfers between host memory and a GPU.

A transfer takes a latency plus its bytes over the link's effective rate. How much of it the GPU
waits for depends on the engine:

* Weights: vLLM's kernels read them in place (``cpu_offload_gb``, unified addressing), those of
  experts only if tokens are routed there. SGLang copies every layer before it runs. Neither
  overlaps this with compute.
* Cached prefixes: SGLang fetches a layer while computing the one before (hierarchical cache). In
  vLLM and TensorRT-LLM the request waits while others compute.
"""

from foretune.plan.cost.memory import GIB, layer_bytes, request_bytes
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System

LINK_EFFICIENCY = 0.87
"""Share of a link's rate that copies reach: 55.6 of 64 GB/s on PCIe 5.0 x16, from an nvbandwidth
example (dev.smart-guide.co.kr, 2026)."""
LATENCY_MS = 0.01
"""Time of an empty copy: launch and round trip."""
ZERO_COPY_ENGINES = ("vllm",)
"""Engines whose kernels read only the host memory they need."""
LAYERWISE_FETCH_ENGINES = ("sglang",)
"""Engines that overlap fetching a prefix with compute, layer by layer."""


def transfer_ms(system: System, size: float) -> float:
    """Return the milliseconds to copy ``size`` bytes between host and GPU; 0 for none."""
    return LATENCY_MS + size / (LINK_EFFICIENCY * system.host_gbps * 1e6) if size > 0 else 0.0


def offloaded_bytes(
    model: ModelDescription, layout: Layout, formats: Formats, weights_gib: float
) -> float:
    """Return the bytes of the fullest rank's weights in host memory.

    At most ``weights_gib``; embedding tables stay on the GPU.
    """
    if weights_gib <= 0:
        return 0.0
    return min(weights_gib * GIB, sum(layer_bytes(model, layout, formats)))


def read_bytes(
    model: ModelDescription,
    layout: Layout,
    formats: Formats,
    weights_gib: float,
    tokens: float,
    engine: str,
) -> float:
    """Return the bytes that a step of ``tokens`` per attention-DP group reads of offloaded weights.

    Weights are offloaded layer by layer, so dense and expert weights have equal shares.
    """
    size = offloaded_bytes(model, layout, formats, weights_gib)
    if not size or not model.is_moe or engine not in ZERO_COPY_ENGINES:
        return size
    dense, experts = layer_bytes(model, layout, formats)
    idle = (1.0 - model.experts_per_token / model.experts) ** (tokens * layout.dp)
    return size * (dense + experts * (1.0 - idle)) / (dense + experts)


def step_ms(
    system: System,
    model: ModelDescription,
    layout: Layout,
    formats: Formats,
    weights_gib: float,
    tokens: float,
    engine: str,
) -> float:
    """Return how long a step of ``tokens`` tokens waits for weights, over all stages."""
    size = read_bytes(model, layout, formats, weights_gib, tokens, engine)
    return layout.pp * transfer_ms(system, size)


def prefix_ms(
    system: System, model: ModelDescription, layout: Layout, formats: Formats, tokens: float
) -> float:
    """Return how long fetching a request's cached prefix takes; each rank fetches its share."""
    return transfer_ms(system, request_bytes(model, layout, formats, tokens)) if tokens else 0.0


def exposed_fetch_ms(fetch: float, prompt: float, layers: int, engine: str) -> float:
    """Return the part of a prefix fetch that delays a request.

    ``fetch`` and ``prompt`` are the milliseconds of the fetch and of computing the rest of the
    prompt.
    """
    if engine not in LAYERWISE_FETCH_ENGINES:
        return fetch
    return max(fetch - prompt, fetch / layers)
