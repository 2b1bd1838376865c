"""Checking plans by measuring: operators on this machine, and vLLM where it runs."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.plan.check.vllm_bench import VllmCheck, check_vllm

__all__ = ["VllmCheck", "check_vllm"]

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__, {"vllm_bench": ("VllmCheck", "check_vllm")})
