"""Schedules: how long stages of a pipeline take together, and how long they wait.

``m`` micro-batches through ``p`` stages of equal time ``t`` take ``(m + (p - 1) / v) t`` with ``v``
chunks of layers per stage: a bubble of ``(p - 1) / (v m)`` (Narayanan et al., arXiv:2104.04473).
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineTime:
    """Milliseconds of a step's forward and backward passes.

    Attributes:
        total: from the first to the last.
        idle: of the average stage, waiting for others.
    """

    total: float
    idle: float


def pipeline_time(stages: Sequence[float], micro_batches: int, chunks: int = 1) -> PipelineTime:
    """Return how long ``micro_batches`` take.

    The slowest stage works without a pause once it has begun; the others' share of the first
    micro-batch, cut into chunks, passes before and after.

    Args:
        stages: milliseconds of one micro-batch, forward and backward, of each stage.
        micro_batches: of one step.
        chunks: runs of layers per stage.
    """
    slowest, pass_ms = max(stages), sum(stages)
    total = micro_batches * slowest + (pass_ms - slowest) / chunks
    return PipelineTime(total, total - micro_batches * pass_ms / len(stages))
