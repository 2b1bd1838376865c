"""Transfers between the host's memory and a GPU: what they carry, and how long they take.

A transfer takes a latency, and its bytes over what the link reaches of its rate. What of that the
GPU waits for is the engine's matter:

* Weights: vLLM's kernels read them where they lie (``cpu_offload_gb``, unified addressing), those
  of experts only where a token goes there; SGLang copies every layer before it runs. Neither
  computes meanwhile.
* Cached prefixes: SGLang fetches a layer's while it computes the one before (hierarchical cache);
  vLLM and TensorRT-LLM compute other requests meanwhile, and the request itself waits.
"""

from foretune.plan.cost.memory import GIB, layer_bytes, request_bytes
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System

LINK_EFFICIENCY = 0.87
"""Share of a link's rate that copies reach: 55.6 GB/s of 64 on PCIe 5.0 x16, the example of a page
about NVIDIA's nvbandwidth (dev.smart-guide.co.kr, 2026)."""
LATENCY_MS = 0.01
"""What a copy takes that carries nothing: its launch, and the way there and back."""
ZERO_COPY_ENGINES = ("vllm",)
"""Engines whose kernels read what they need, rather than all that lies elsewhere."""
LAYERWISE_FETCH_ENGINES = ("sglang",)
"""Engines that fetch a prefix layer by layer, beside the layers that compute."""


def transfer_ms(system: System, size: float) -> float:
    """Return how long ``size`` bytes take from the host to a GPU, or back; nothing takes no time.

    Args:
        system: whose link it is.
        size: bytes.
    """
    return LATENCY_MS + size / (LINK_EFFICIENCY * system.host_gbps * 1e6) if size > 0 else 0.0


def offloaded_bytes(
    model: ModelDescription, layout: Layout, formats: Formats, weights_gib: float
) -> float:
    """Return the weights of the fullest rank that lie in the host's memory, in bytes.

    Args:
        model: what is deployed.
        layout: over which ranks.
        formats: in which formats.
        weights_gib: most that may; tables of tokens stay on the GPU.
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
    """Return what a step reads of a rank's offloaded weights.

    Weights are offloaded one after the other, so that dense ones and experts are alike in it.

    Args:
        model: what is deployed.
        layout: over which ranks.
        formats: in which formats.
        weights_gib: most that may lie there.
        tokens: of the step, of each attention-DP group.
        engine: that reads.
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
    """Return what a step of ``tokens`` tokens waits for weights, on its way through all stages."""
    size = read_bytes(model, layout, formats, weights_gib, tokens, engine)
    return layout.pp * transfer_ms(system, size)


def prefix_ms(
    system: System, model: ModelDescription, layout: Layout, formats: Formats, tokens: float
) -> float:
    """Return how long a request's cached prefix takes to come back; each rank fetches its share."""
    return transfer_ms(system, request_bytes(model, layout, formats, tokens)) if tokens else 0.0


def exposed_fetch_ms(fetch: float, prompt: float, layers: int, engine: str) -> float:
    """Return what of a fetch a request waits for, beside its own prompt.

    Args:
        fetch: milliseconds of it.
        prompt: milliseconds of the rest of the prompt.
        layers: of the model.
        engine: that fetches.
    """
    if engine not in LAYERWISE_FETCH_ENGINES:
        return fetch
    return max(fetch - prompt, fetch / layers)
