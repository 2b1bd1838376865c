"""One operator: a run of the run table that nobody needs to have measured.

Columns are those that the importers of measured operators write, so that whatever learned from
these can answer. Searching asks for the same operators again and again: they are made once.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from foretune.problem import Problem
from foretune.space import Configuration

Phase = Literal["prefill", "decode", "mixed"]
CACHE_SIZE = 2**17
"""Operators of each kind that are kept for the next time."""
RECURRENT_OPS = ("convolution", "recurrence")
"""Kernels of a layer with a state, as their ``problem.op`` says."""
BF16_BYTES = 2.0
"""Bytes of an activation that ranks exchange."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A kernel that a step of a deployment runs on every rank.

    Attributes:
        kernel: as in the run table.
        problem: its ``problem.*`` columns, with the sizes on one rank.
        count: how often a step runs it, all layers and pipeline stages together.
        phase: of the step, or of its part that needs this one.
        config: its ``config.*`` columns, apart from those that an engine chooses
            (``backend``, ``implementation``).
        name: which part of the model it is, ``qkv``, ``experts``, …
    """

    kernel: str
    problem: Problem
    count: float
    phase: Phase
    config: Configuration = Configuration()  # noqa: RUF009  # immutable
    name: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Requests that are in the same situation during a step, of one attention-DP group.

    Attributes:
        batch: how many.
        new_tokens: that each of them computes.
        context: tokens that each has in the cache already.
        phase: whether they read their prompt or write their answer.
    """

    batch: int
    new_tokens: int
    context: float
    phase: Literal["prefill", "decode"]

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return self.batch * self.new_tokens


@lru_cache(CACHE_SIZE)
def gemm(
    name: str, phase: Phase, count: float, m: float, n: float, k: float, kind: str
) -> Operator:
    """Return a projection of ``m`` tokens from width ``k`` to ``n``."""
    return Operator("gemm", Problem(M=m, N=n, K=k), count, phase, Configuration(format=kind), name)


@lru_cache(CACHE_SIZE)
def rowwise(
    kernel: str, name: str, phase: Phase, count: float, rows: float, columns: float, tp: int
) -> Operator:
    """Return a norm or an elementwise operation, ``name`` of ``rows`` tokens."""
    return Operator(
        kernel,
        Problem(rows=rows, columns=columns, op=name),
        count,
        phase,
        Configuration(format="bf16", tp=tp),
        name,
    )


@lru_cache(CACHE_SIZE)
def collective(
    kernel: str, name: str, phase: Phase, count: float, elements: float, devices: int
) -> Operator:
    """Return an exchange of activations between ranks.

    All-reduces were measured in bf16, the others in fp16: equally many bytes.
    """
    kind = "bf16" if kernel == "all_reduce" else "fp16"
    problem = Problem(message_bytes=BF16_BYTES * elements, devices=devices)
    return Operator(kernel, problem, count, phase, Configuration(format=kind), name)
