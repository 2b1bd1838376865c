"""Checking plans by measuring: parallel layouts on this machine's cores, and vLLM where it runs."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.plan.check.parallel import ParallelCheck, check_parallel
    from foretune.plan.check.vllm_bench import VllmCheck, check_vllm

__all__ = ["ParallelCheck", "VllmCheck", "check_parallel", "check_vllm"]

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "parallel": ("ParallelCheck", "check_parallel"),
            "vllm_bench": ("VllmCheck", "check_vllm"),
        },
    )
