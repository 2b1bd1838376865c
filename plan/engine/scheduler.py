"""How an engine fills its steps, and its CPU time."""

from dataclasses import dataclass, fields
from typing import Self

from foretune.plan.describe.system import System

CUDA_GRAPH_SIZES = (1, 2, 4, *range(8, 513, 8))
"""Decode batch sizes captured by default (vLLM's ``cudagraph_capture_sizes``)."""
HOST_SLOWDOWN = {"gb200": 1.65, "gb300": 1.65}
"""System -> CPU time relative to x86 servers.

Grace is slower at the engines' Python code: measured on CPU-bound Qwen3-30B-A3B, GB200 against B200
with x86.
"""


@dataclass(frozen=True)
class Host:
    """CPU time per step and stage; all three engines schedule in Python.

    Defaults are those of TensorRT-LLM 1.0 (PyTorch flow), fitted to published throughputs of
    Llama-3.1-70B in pipelines and Qwen3-30B-A3B on one GPU.

    Attributes:
        step_ms: per step.
        request_ms: per request in the step, for inputs and outputs.
        token_ms: per prompt token in the step.
        active_ms: per admitted request, in the step or not: engines scan them all.
        layer_ms: to launch a layer's kernels without a CUDA graph.
        overlaps: whether a step is prepared while the GPU computes the previous one (overlap
            scheduling). Kernel launches overlap in either case.
    """

    step_ms: float = 1.0
    request_ms: float = 0.015
    token_ms: float = 0.002
    active_ms: float = 0.003
    layer_ms: float = 0.4
    overlaps: bool = True

    @classmethod
    def for_system(cls, system: System, depth: int = 1) -> Self:
        """Return the host times of a system's servers.

        In pipelines of ``depth`` stages, engines do not overlap steps.
        """
        slowdown = HOST_SLOWDOWN.get(system.name, 1.0)
        default = cls()
        times = {
            f.name: slowdown * getattr(default, f.name) for f in fields(cls) if f.name != "overlaps"
        }
        return cls(**times, overlaps=depth == 1)

    def step_time_ms(
        self, gpu_ms: float, requests: int, tokens: int, active: int, launched: float
    ) -> float:
        """Return the duration of a step.

        ``requests`` and prompt ``tokens`` are those in the step, ``active`` counts all admitted
        requests, ``launched`` the layers without a CUDA graph.
        """
        host_ms = self.step_ms + self.request_ms * requests
        host_ms += self.token_ms * tokens + self.active_ms * active
        launch_ms = self.layer_ms * launched
        return (
            max(gpu_ms, host_ms + launch_ms) if self.overlaps else host_ms + max(gpu_ms, launch_ms)
        )


@dataclass(frozen=True)
class Scheduler:
    """Limits of one attention-DP group.

    Attributes:
        step_tokens: maximum tokens per step.
        max_batch: maximum requests per step; a pipeline has one step per stage in flight.
        cache_tokens: capacity of the cache, over all requests in flight.
        chunked: whether prompts may be split over steps; else they wait for a step with room.
        host: CPU times.
        graph_sizes: captured batch sizes; decode steps are padded to the next one.
        drafted: tokens drafted per request and step, verified in the next.
        accepted_tokens: mean tokens per request and step.
    """

    step_tokens: int
    max_batch: int
    cache_tokens: float
    chunked: bool = True
    host: Host = Host()
    graph_sizes: tuple[int, ...] = CUDA_GRAPH_SIZES
    drafted: int = 0
    accepted_tokens: float = 1.0

    def graph_size(self, requests: int) -> int:
        """Return the size of the CUDA graph for ``requests`` answers; 0 if none fits."""
        size = min((size for size in self.graph_sizes if size >= requests), default=0)
        return min(size, max(self.max_batch, requests))
