"""Operators of language models, run by torch on this machine's GPU or CPU.

They reproduce the rows of measured tables. One rank is computed. Activations are in the format of
the product (engines convert them in the operation before), and results have 16 bits. Torch fuses
less than engines do, so times are of torch, not of an engine.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from foretune.errors import MeasurementError
from foretune.kernel import Launch
from foretune.lazy import require
from foretune.values import FrozenParameters

MODULES: Mapping[str, str] = {
    "gemm": "linear",
    "attention_prefill": "attention",
    "attention_decode": "attention",
    "moe": "experts",
    "norm": "rowwise",
    "elementwise": "rowwise",
}
"""Kernel name in the run table -> module that runs it."""


class OperatorRun(Protocol):
    """Kernel, problem and configuration of a run table."""

    @property
    def kernel(self) -> str:
        """The kernel's name."""

    @property
    def problem(self) -> FrozenParameters:
        """The ``problem.*`` columns: sizes on one rank."""

    @property
    def config(self) -> FrozenParameters:
        """The ``config.*`` columns: number formats, and the number of ranks that share experts."""


def cannot_run(operator: OperatorRun) -> str:
    """Return why torch does not run ``operator``; empty if it does. Needs torch (MissingExtra)."""
    if operator.kernel not in MODULES:
        return f"{operator.kernel} has no equivalent in torch, or needs several devices"
    reason: str = _module(operator.kernel).cannot_run(operator.problem, operator.config)
    return reason


def memory_bytes(operator: OperatorRun) -> float:
    """Return the approximate peak memory of a run of ``operator`` and its preparation."""
    found: float = _module(operator.kernel).memory_bytes(operator.problem, operator.config)
    return found


def build(operator: OperatorRun, device: str) -> Launch:
    """Return a call that runs ``operator`` once on torch's ``device``, with random contents.

    Raises MissingExtra without torch, MeasurementError if torch does not run it (`cannot_run`).
    """
    if reason := cannot_run(operator):
        raise MeasurementError(reason)
    launch: Launch = _module(operator.kernel).build(operator.problem, operator.config, device)
    return launch


def linear_formats() -> list[str]:
    """Return the number formats of weights that torch supports on some device; needs torch."""
    return list(_module("gemm").FORMATS)


def _module(kernel: str) -> Any:
    require("torch", "gpu", "running operators of language models")
    return importlib.import_module(f"{__name__}.{MODULES[kernel]}")
