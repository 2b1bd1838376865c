"""Pipeline schedules: total time and bubble.

``m`` micro-batches through ``p`` stages of equal time ``t`` take ``(m + (p - 1) / v) t`` with ``v``
chunks of layers per stage: a bubble of ``(p - 1) / (v m)`` (Narayanan et al., arXiv:2104.04473).
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineTime:
    """Milliseconds of a step's forward and backward passes.

    ``idle`` is the average stage's wait for others.
    """

    total: float
    idle: float


def pipeline_time(stages: Sequence[float], micro_batches: int, chunks: int = 1) -> PipelineTime:
    """Return the time of ``micro_batches`` micro-batches.

    The slowest stage is busy once started; the other stages' shares of the first micro-batch,
    divided by ``chunks``, come before and after. ``stages`` has each stage's forward and backward
    milliseconds.
    """
    slowest, pass_ms = max(stages), sum(stages)
    total = micro_batches * slowest + (pass_ms - slowest) / chunks
    return PipelineTime(total, total - micro_batches * pass_ms / len(stages))
