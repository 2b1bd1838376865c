"""Deployments: a model served on a system by an engine, under a load."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from foretune.plan.cost.memory import (
    GIB,
    MAX_STEP_TOKENS,
    RankMemory,
    layer_bytes,
    max_requests,
    rank_memory,
    request_bytes,
)
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.system import System
from foretune.plan.describe.workload import Offload, Speculation, Workload

ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
"""Engine -> its name as its makers spell it."""
ENGINES = tuple(ENGINE_NAMES)
"""Engines with measured operators and deployments."""
ZERO_COPY_ENGINES = ("vllm",)
"""Engines whose kernels read weights in host memory in place (``cpu_offload_gb``, unified
addressing), those of experts only if tokens are routed there. SGLang copies every layer before it
runs. Neither overlaps this with compute."""
LAYERWISE_FETCH_ENGINES = ("sglang",)
"""Engines that fetch a layer of a cached prefix while computing the one before (hierarchical
cache). In vLLM and TensorRT-LLM the request waits while others compute."""


@dataclass(frozen=True)
class Pools:
    """Separate workers for prefill and decode (disaggregation).

    Attributes:
        prefill: the layout of a prefill worker.
        prefill_workers: their number; 0 means as many as keep up.
        decode_workers: workers with the deployment's own layout.
    """

    prefill: Layout
    prefill_workers: int = 0
    decode_workers: int = 1


@dataclass(frozen=True)
class Deployment:
    """A model on a system, with its engine, layout, formats and load.

    Attributes:
        concurrency: requests in flight of the replica (of all workers of ``pools``).
        pools: separate prefill workers, if any.
        load: ``steady`` if each finished request is replaced; ``burst`` if requests start in waves
            or one by one, as some benchmarks send them.
        speculative: whether the model drafts tokens; set for measured deployments, which do not say
            how.
        version: engine version; empty if unknown.
        speculation: how a planned deployment drafts tokens.
        offload: weights and cache in host memory.
        max_request_tokens: length of the longest request, if longer than in ``workload``.
        step_tokens: maximum tokens of a step.
    """

    model: ModelDescription
    system: System
    backend: str
    layout: Layout
    formats: Formats
    workload: Workload
    concurrency: float
    pools: Pools | None = None
    load: Literal["steady", "burst"] = "steady"
    speculative: bool = False
    version: str = ""
    speculation: Speculation | None = None
    offload: Offload = Offload()  # noqa: RUF009  # immutable
    max_request_tokens: int = 0
    step_tokens: int = MAX_STEP_TOKENS

    @property
    def architecture(self) -> str:
        """Architecture shared by all checkpoints of a model."""
        model = self.model
        return f"{model.layers}x{model.hidden} {model.heads}h {model.experts}e {model.vocab}v"

    @property
    def gpus(self) -> int:
        """GPUs of the replica, including all workers of ``pools``."""
        if self.pools is None:
            return self.layout.gpus
        prefill_gpus = self.pools.prefill_workers * self.pools.prefill.gpus
        return prefill_gpus + self.pools.decode_workers * self.layout.gpus

    @property
    def prefill_layout(self) -> Layout:
        """The layout of a worker that prefills."""
        return self.pools.prefill if self.pools else self.layout

    @property
    def longest_context(self) -> int:
        """Cached tokens when the longest request ends."""
        return max(self.max_request_tokens, self.workload.last_context)

    @property
    def requests_per_worker(self) -> float:
        """Requests in flight per decode worker."""
        return self.concurrency / (self.pools.decode_workers if self.pools else 1)

    @property
    def batch(self) -> float:
        """Requests in flight per worker and attention-DP group."""
        return max(self.requests_per_worker / self.layout.dp, 1.0)

    @cached_property
    def loaded_model(self) -> ModelDescription:
        """The model as its engine loads it, with its drafter.

        By default, TensorRT-LLM allocates the full context for layers with a window
        (``max_attention_window``).
        """
        model = self.speculation.with_drafter(self.model) if self.speculation else self.model
        if self.backend != "trtllm":
            return model
        return replace(model, sliding_window=0)

    @property
    def drafted(self) -> int:
        """Drafted tokens per request and step."""
        return self.speculation.drafted if self.speculation else 0

    @property
    def accepted_tokens(self) -> float:
        """Mean tokens per request and step."""
        return self.speculation.accepted_tokens if self.speculation else 1.0

    @cached_property
    def offloaded_weight_bytes(self) -> float:
        """Bytes of the fullest rank's weights in host memory; embeddings stay on the GPU."""
        if not self.offload.weights_gib:
            return 0.0
        layers = sum(layer_bytes(self.model, self.layout, self.formats))
        return min(self.offload.weights_gib * GIB, layers)

    @cached_property
    def max_requests(self) -> int:
        """Requests of a replica that fit in memory; 0 if the model does not fit."""
        return max_requests(
            self.loaded_model, self.layout, self.formats, self.workload, self.system,
            offloaded_bytes=self.offloaded_weight_bytes,
        )  # fmt: skip

    def memory(self, requests: Any, layout: Layout | None = None) -> RankMemory:
        """Return the memory of a worker's fullest rank, see `rank_memory`.

        ``requests`` are in flight; ``layout`` is that of another pool.
        """
        return rank_memory(
            self.loaded_model, layout or self.layout, self.formats, self.workload, requests,
            offloaded_bytes=self.offloaded_weight_bytes, step_tokens=self.step_tokens,
        )  # fmt: skip

    def weight_wait_ms(self, tokens: float) -> float:
        """Return how long a step waits for weights in host memory, in all stages.

        ``tokens`` are those of an attention-DP group. Weights are offloaded layer by layer, so
        dense and expert weights have equal shares.
        """
        size, model = self.offloaded_weight_bytes, self.model
        if size and model.is_moe and self.backend in ZERO_COPY_ENGINES:
            dense, experts = layer_bytes(model, self.layout, self.formats)
            idle = (1.0 - model.experts_per_token / model.experts) ** (tokens * self.layout.dp)
            size = size * (dense + experts * (1.0 - idle)) / (dense + experts)
        return self.layout.pp * self.system.transfer_ms(size)

    @property
    def prefix_bytes(self) -> float:
        """Bytes of a cached prefix on each rank."""
        prefix = self.workload.prefix
        return request_bytes(self.model, self.layout, self.formats, prefix) if prefix else 0.0

    @property
    def prefix_fetch_ms(self) -> float:
        """Milliseconds to fetch a request's prefix from host memory; 0 if it is not there."""
        return self.system.transfer_ms(self.prefix_bytes) if self.offload.cache_gib else 0.0

    def exposed_fetch_ms(self, prompt_ms: float) -> float:
        """Return how long fetching its prefix delays a request.

        ``prompt_ms`` are those of computing the rest of the prompt.
        """
        fetch = self.prefix_fetch_ms
        if self.backend not in LAYERWISE_FETCH_ENGINES:
            return fetch
        return max(fetch - prompt_ms, fetch / self.model.layers)

    @cached_property
    def max_batch(self) -> float:
        """Requests per attention-DP group that fit in memory; at least one."""
        return max(self.max_requests / self.layout.dp, 1.0)

    @property
    def running(self) -> float:
        """Requests per attention-DP group that run at once; the others wait for memory."""
        return min(self.batch, self.max_batch)
