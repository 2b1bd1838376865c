"""How an engine fills its steps, and what its own work costs."""

from dataclasses import dataclass, fields
from typing import Self

from foretune.plan.describe.system import System

CUDA_GRAPH_SIZES = (1, 2, 4, *range(8, 513, 8))
"""Sizes of decode steps that engines capture by themselves (vLLM's ``cudagraph_capture_sizes``)."""


HOST_SLOWDOWN = {"gb200": 1.65, "gb300": 1.65}
"""Systems whose processor (Grace) takes longer for the same Python than x86 servers' do -> how many
times as long: Qwen3-30B-A3B, which the processor limits, on GB200 and on B200 beside x86."""


@dataclass(frozen=True)
class Host:
    """What the processor does for every step, on each stage: Python in all three engines.

    The defaults are those of TensorRT-LLM 1.0 (PyTorch flow): chosen on the published throughput
    of Llama-3.1-70B in pipelines and of Qwen3-30B-A3B on one GPU.

    Attributes:
        step_ms: of a step.
        request_ms: of each request in it: its inputs, and what comes of its token.
        token_ms: of each token of a prompt in it.
        active_ms: of each request that was let in, in whichever step: an engine goes through all
            of them to choose.
        layer_ms: to launch a layer's kernels where no graph does.
        overlaps: whether it prepares a step while the GPU computes the one before (overlap
            scheduling). Kernels are launched while the GPU computes those before in either case.
    """

    step_ms: float = 1.0
    request_ms: float = 0.015
    token_ms: float = 0.002
    active_ms: float = 0.003
    layer_ms: float = 0.4
    overlaps: bool = True

    @classmethod
    def for_system(cls, system: System, depth: int = 1) -> Self:
        """Return that of a system's servers, with a pipeline of ``depth`` stages.

        In pipelines engines do not overlap a step with the one before.
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
        """Return how long a step takes.

        Args:
            gpu_ms: that the GPU needs for it.
            requests: in the step.
            tokens: of their prompts that it reads.
            active: requests that were let in.
            launched: layers without a graph.
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
        step_tokens: most tokens of a step.
        max_batch: most requests of a step; a pipeline has one step per stage under way.
        cache_tokens: that the cache holds, of all requests in flight.
        chunked: whether a prompt may be read in several steps; else it waits for one with room.
        host: what its own work costs.
        graph_sizes: sizes of captured graphs, which run steps that only write answers, padded to
            the next size, or to the most requests.
        drafted: tokens that are guessed per request and step, and checked in the next.
        accepted_tokens: tokens that a request gains per step, on average.
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
        """Return the size of the graph that runs ``requests`` answers; 0 if none does."""
        size = min((size for size in self.graph_sizes if size >= requests), default=0)
        return min(size, max(self.max_batch, requests))
