"""Deployments: a model served on a system by an engine, and the load it is under."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from foretune.plan.cost.host_link import offloaded_bytes
from foretune.plan.cost.memory import max_requests
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.speculation import Speculation
from foretune.plan.describe.system import System
from foretune.plan.describe.workload import Offload, Workload

ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
"""What serves models, as its makers spell it."""
ENGINES = tuple(ENGINE_NAMES)
"""Those that operators and deployments were measured with."""


@dataclass(frozen=True)
class Pools:
    """Separate workers for prompts and for answers (disaggregation).

    Attributes:
        prefill: the layout of a worker that reads prompts.
        prefill_workers: how many; 0 means as many as keep up.
        decode_workers: how many workers, of the deployment's own layout, write answers.
    """

    prefill: Layout
    prefill_workers: int = 0
    decode_workers: int = 1


@dataclass(frozen=True)
class Deployment:
    """What is deployed, and how it is used.

    Attributes:
        model: what serves.
        system: on which GPUs.
        backend: the engine.
        layout: over which ranks of one replica.
        formats: in which formats.
        workload: lengths of the requests.
        concurrency: requests in flight, of the replica (of all workers of ``pools``).
        pools: separate workers for prompts, if there are any.
        load: ``steady`` where a request that ends is replaced by another, ``burst`` where
            requests start in waves, or one after the other, as some benchmarks send them.
        speculative: whether the model drafts tokens that a later step checks.
        version: of the engine; empty where nobody says.
        speculation: how tokens are drafted, where a plan says so; measured deployments only say
            that they are (``speculative``).
        offload: what lies in the host's memory.
        max_request_tokens: tokens of the longest request, where that is longer than ``workload``
            says.
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
    offload: Offload = Offload()  # immutable
    max_request_tokens: int = 0

    @property
    def architecture(self) -> str:
        """What all checkpoints of one network share, whatever they are called."""
        model = self.model
        return f"{model.layers}x{model.hidden} {model.heads}h {model.experts}e {model.vocab}v"

    @property
    def gpus(self) -> int:
        """GPUs of the replica, of all workers of ``pools``."""
        if self.pools is None:
            return self.layout.gpus
        prefill_gpus = self.pools.prefill_workers * self.pools.prefill.gpus
        return prefill_gpus + self.pools.decode_workers * self.layout.gpus

    @property
    def longest_context(self) -> int:
        """Tokens in the cache when the longest request ends."""
        return max(self.max_request_tokens, self.workload.last_context)

    @property
    def requests_per_worker(self) -> float:
        """Requests in flight of each worker that writes answers."""
        return self.concurrency / (self.pools.decode_workers if self.pools else 1)

    @property
    def batch(self) -> float:
        """Requests in flight per worker and attention-DP group."""
        return max(self.requests_per_worker / self.layout.dp, 1.0)

    @cached_property
    def loaded_model(self) -> ModelDescription:
        """The model as its engine loads it, with what drafts tokens.

        TensorRT-LLM gives layers with a window room for all tokens, as others, unless it is told
        otherwise (``max_attention_window``).
        """
        model = self.speculation.with_drafter(self.model) if self.speculation else self.model
        if self.backend != "trtllm":
            return model
        return replace(model, sliding_window=0)

    @property
    def drafted(self) -> int:
        """Tokens of a request that are drafted per step."""
        return self.speculation.drafted if self.speculation else 0

    @property
    def accepted_tokens(self) -> float:
        """Tokens of a request per step."""
        return self.speculation.accepted_tokens if self.speculation else 1.0

    @cached_property
    def offloaded_weight_bytes(self) -> float:
        """Bytes of a rank's weights that lie in the host's memory."""
        return offloaded_bytes(self.model, self.layout, self.formats, self.offload.weights_gib)

    @cached_property
    def max_requests(self) -> int:
        """Requests of a replica that memory holds; 0 if not even the model fits."""
        return max_requests(
            self.loaded_model, self.layout, self.formats, self.workload, self.system,
            offloaded_bytes=self.offloaded_weight_bytes,
        )  # fmt: skip

    @cached_property
    def max_batch(self) -> float:
        """Requests per attention-DP group that memory holds; at least one."""
        return max(self.max_requests / self.layout.dp, 1.0)

    @property
    def running(self) -> float:
        """Requests per attention-DP group that run at a time; the others wait for memory."""
        return min(self.batch, self.max_batch)
