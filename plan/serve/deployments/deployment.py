"""A deployment: a model served on a system by an engine under a load."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from foretune.plan.cost.memory import (
    GIB,
    MAX_STEP_TOKENS,
    RankMemory,
    expert_multiples,
    layer_bytes,
    max_requests,
    rank_memory,
    request_bytes,
)
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.engines import ENGINES
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout, Offload, Speculation, Workload
from foretune.plan.describe.system import System

BYTES_PER_MS_AND_GBPS = 1e6
"""Bytes that a link of 1 GB/s sends in a millisecond."""
PAGE_TOKENS = 64
"""Tokens of a page of the cache; each rank's page is a file on disk."""


@dataclass(frozen=True)
class Pools:
    """Separate workers for prefill and decode (disaggregation).

    Attributes:
        prefill: layout of a prefill worker.
        prefill_workers: their number; 0 means as many as are needed.
        decode_workers: workers with the deployment's own layout.
        prefill_system: GPUs of the prefill workers; None if they are the deployment's own kind.
    """

    prefill: Layout
    prefill_workers: int = 0
    decode_workers: int = 1
    prefill_system: System | None = field(default=None, compare=False)  # not hashable


@dataclass(frozen=True)
class Deployment:
    """A model on a system, with its engine, layout, formats and load.

    The load is ``steady`` if each finished request is replaced, ``burst`` if requests start in
    waves or one by one, as some benchmarks send them.
    """

    model: ModelDescription
    system: System
    backend: str
    layout: Layout
    formats: Formats
    workload: Workload
    concurrency: float  # requests in flight of the replica (of all workers of ``pools``)
    pools: Pools | None = None
    load: Literal["steady", "burst"] = "steady"
    speculative: bool = False  # a measured deployment drafts tokens; the method is unknown
    version: str = ""  # engine version; empty if unknown
    speculation: Speculation | None = None  # how a planned deployment drafts tokens
    offload: Offload = Offload()  # noqa: RUF009  # immutable
    max_request_tokens: int = 0  # of the longest request, if longer than in ``workload``
    step_tokens: int = MAX_STEP_TOKENS  # maximum tokens of a step
    replicas: int = 1  # equal copies, each with these requests

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
    def prefill_system(self) -> System:
        """The system of a worker that prefills."""
        return (self.pools and self.pools.prefill_system) or self.system

    @property
    def has_two_systems(self) -> bool:
        """Whether prompts are computed on another kind of GPU."""
        return self.prefill_system.name != self.system.name

    def mean_of_gpus(self, decode: float, prefill: float) -> float:
        """Return the mean over all GPUs of a value of each decode and each prefill GPU."""
        if not self.has_two_systems:
            return decode
        decode_gpus = self.layout.gpus * (self.pools.decode_workers if self.pools else 1)
        prefill_gpus = self.gpus - decode_gpus
        return (decode_gpus * decode + prefill_gpus * prefill) / self.gpus

    @property
    def price_per_hour(self) -> float | None:
        """Mean USD per GPU and hour; None if a price is unknown."""
        decode = self.system.price_per_hour
        prefill = self.prefill_system.price_per_hour
        if decode is None or prefill is None:
            return None
        return self.mean_of_gpus(decode, prefill)

    @property
    def longest_context(self) -> int:
        """Cached tokens when the longest request ends."""
        return max(self.max_request_tokens, self.workload.last_context)

    @property
    def requests_per_worker(self) -> float:
        """Requests in flight per decode worker."""
        workers = self.pools.decode_workers if self.pools else 1
        return self.concurrency / workers

    @property
    def batch(self) -> float:
        """Requests in flight per worker and attention-DP group."""
        return max(self.requests_per_worker / self.layout.dp, 1.0)

    @cached_property
    def loaded_model(self) -> ModelDescription:
        """The model as its engine loads it, including its drafter.

        By default, TensorRT-LLM allocates the full context for layers with a window
        (``max_attention_window``).
        """
        model = self.model
        if self.speculation:
            model = self.speculation.with_drafter(model)
        if model.is_moe:
            multiples = expert_multiples(self.system.device.architecture)
            model = replace(model, expert_multiples=multiples)
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
            self.loaded_model,
            self.layout,
            self.formats,
            self.workload,
            self.system.memory_gib,
            offloaded_bytes=self.offloaded_weight_bytes,
        )

    def memory(self, requests: Any, layout: Layout | None = None) -> RankMemory:
        """Return the memory of a worker's fullest rank with ``requests``, see `rank_memory`."""
        return rank_memory(
            self.loaded_model,
            layout or self.layout,
            self.formats,
            self.workload,
            requests,
            offloaded_bytes=self.offloaded_weight_bytes,
            step_tokens=self.step_tokens,
        )

    def weight_wait_ms(self, tokens: float) -> float:
        """Return how long a step waits for weights in host memory, in all stages.

        ``tokens`` are those of an attention-DP group. Weights are offloaded layer by layer, so
        dense and expert weights have equal shares.
        """
        size = self.offloaded_weight_bytes
        model = self.model
        if size and model.is_moe and ENGINES[self.backend]["reads_host_weights"]:
            # Only the experts to which tokens are routed are read.
            dense, experts = layer_bytes(model, self.layout, self.formats)
            unused_by_token = 1.0 - model.experts_per_token / model.experts
            unused = unused_by_token ** (tokens * self.layout.dp)
            size = size * (dense + experts * (1.0 - unused)) / (dense + experts)
        return self.layout.pp * self.system.transfer_ms(size)

    @property
    def prefix_bytes(self) -> float:
        """Bytes of a cached prefix on each rank."""
        if not self.workload.prefix:
            return 0.0
        return request_bytes(self.model, self.layout, self.formats, self.workload.prefix)

    @property
    def prefix_fetch_ms(self) -> float:
        """Milliseconds to fetch a request's prefix from host memory; 0 if it is not there."""
        return self.system.transfer_ms(self.prefix_bytes) if self.offload.cache_gib else 0.0

    @property
    def disk_read_ms(self) -> float:
        """Milliseconds to read a request's prefix from disk; 0 if it is not there.

        All ranks of an attention group read it at once, and share the disk's rate. Latent caches
        are equal on all tensor-parallel ranks, which share their files.
        """
        if not self.offload.disk_gib:
            return 0.0
        shares_files = self.model.mla is not None or self.model.compressed is not None
        readers = self.layout.pp * (1 if shares_files else self.layout.tp)
        return readers * self.prefix_bytes / (self.system.disk_gbps * BYTES_PER_MS_AND_GBPS)

    @property
    def disk_ms_per_prompt(self) -> float:
        """Milliseconds between two prompts of an attention group that its node's disk allows."""
        gpus_on_node = min(self.replicas * self.gpus, self.system.gpus_per_node)
        groups = max(gpus_on_node // (self.layout.tp * self.layout.pp), 1)
        return groups * self.disk_read_ms

    @property
    def handover_ms(self) -> float:
        """Milliseconds to send a prompt's cache to another kind of GPU, which is in another node.

        Every rank of the smaller worker has a link of its own. Between GPUs of one kind, the
        formulas' coefficients contain this time.
        """
        if not self.has_two_systems:
            return 0.0
        narrow = min(self.prefill_layout, self.layout, key=lambda layout: layout.tp)
        size = request_bytes(self.model, narrow, self.formats, self.workload.isl)
        gbps = min(self.prefill_system.inter_node_gbps, self.system.inter_node_gbps)
        return size / (gbps * BYTES_PER_MS_AND_GBPS)

    def exposed_fetch_ms(self, prompt_ms: float) -> float:
        """Return how long fetching the prefix delays a request that takes ``prompt_ms`` without."""
        fetch_ms = self.prefix_fetch_ms
        if ENGINES[self.backend]["fetches_by_layer"]:
            # Layers are fetched while earlier ones are computed; the first is always waited for.
            fetch_ms = max(fetch_ms - prompt_ms, fetch_ms / self.model.layers)
        # The engine starts when the whole prefix has come from disk.
        return self.disk_read_ms + fetch_ms

    @cached_property
    def max_batch(self) -> float:
        """Requests per attention-DP group that fit in memory; at least one."""
        return max(self.max_requests / self.layout.dp, 1.0)

    @property
    def running(self) -> float:
        """Requests per attention-DP group that run at once; the others wait for memory."""
        return min(self.batch, self.max_batch)
