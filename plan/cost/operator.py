"""An operator: a kernel run with the columns of a run table.

Columns match the importers of measured operators, so that predictors trained on these apply.
Operators are cached, because plans use the same ones repeatedly.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from foretune.problem import Problem
from foretune.space import Configuration

Phase = Literal["prefill", "decode", "mixed"]
CACHE_SIZE = 2**17
"""Cached operators of each kind."""
RECURRENT_OPS = ("convolution", "recurrence")
"""Values of ``problem.op`` for kernels of a layer with a state."""
BF16_BYTES = 2.0
"""Bytes of an activation."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A kernel that a step runs on every rank.

    Attributes:
        kernel: its name in the run table.
        problem: its ``problem.*`` columns, with the sizes on one rank.
        count: runs per step, over all layers and pipeline stages.
        phase: the phase of the step or its part.
        config: its ``config.*`` columns, without those that an engine chooses (``backend``,
            ``implementation``).
        name: its role in the model: ``qkv``, ``experts``, …
    """

    kernel: str
    problem: Problem
    count: float
    phase: Phase
    config: Configuration = Configuration()  # noqa: RUF009  # immutable
    name: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Requests of one attention-DP group with the same lengths in a step.

    ``new_tokens`` are computed, and ``context`` tokens cached, per request.
    """

    batch: int
    new_tokens: int
    context: float
    phase: Literal["prefill", "decode"]

    @property
    def tokens(self) -> int:
        """Tokens computed in the step."""
        return self.batch * self.new_tokens


@lru_cache(CACHE_SIZE)
def gemm(
    name: str, *, phase: Phase, count: float, m: float, n: float, k: float, kind: str
) -> Operator:
    """Return a projection of ``m`` tokens from width ``k`` to ``n``; ``kind``: weights' format."""
    return Operator(
        "gemm",
        problem=Problem(M=m, N=n, K=k),
        count=count,
        phase=phase,
        config=Configuration(format=kind),
        name=name,
    )


@lru_cache(CACHE_SIZE)
def rowwise(
    kernel: str, name: str, *, phase: Phase, count: float, rows: float, columns: float, tp: int
) -> Operator:
    """Return a norm or elementwise operation on ``rows`` tokens."""
    return Operator(
        kernel,
        problem=Problem(rows=rows, columns=columns, op=name),
        count=count,
        phase=phase,
        config=Configuration(format="bf16", tp=tp),
        name=name,
    )


@lru_cache(CACHE_SIZE)
def collective(
    kernel: str, name: str, *, phase: Phase, count: float, elements: float, devices: int
) -> Operator:
    """Return an exchange of activations; only all-reduces were measured in bf16."""
    kind = "bf16" if kernel == "all_reduce" else "fp16"
    problem = Problem(message_bytes=BF16_BYTES * elements, devices=devices)
    return Operator(
        kernel,
        problem=problem,
        count=count,
        phase=phase,
        config=Configuration(format=kind),
        name=name,
    )
