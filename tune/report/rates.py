"""Achieved operations and bytes per second, and the share of the roofline."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from foretune.device import Device
from foretune.kernel import Kernel
from foretune.objective import Objective
from foretune.tune.results import TuneResult


@dataclass(frozen=True)
class Rate:
    """Rates of a contender; NaN if operations, bytes or the device's peak are unknown.

    Attributes:
        name: the contender's name.
        gflops: 1e9 operations per second.
        gbps: 1e9 bytes per second.
        roofline: roofline time divided by measured time.
        dtype: data type of the operations.
    """

    name: str
    gflops: float
    gbps: float
    roofline: float
    dtype: str


def rates(kernel: Kernel, result: TuneResult, device: Device) -> Iterator[Rate]:
    """Yield the rates of default, winner and library call, if the objective is time."""
    if result.objective is not Objective.TIME:
        return
    baseline, winner = result.baseline, result.winner
    named = {"default": baseline} | ({"tuned": winner} if winner is not baseline else {})
    named |= {result.library.name: result.library} if result.library else {}
    for name, contender in named.items():
        config = contender.config or baseline.config
        assert config is not None
        cost = kernel.cost(result.problem, config)
        limit_ms = float(np.asarray(device.roofline_ms(cost)))
        time_ms = contender.value
        if math.isfinite(time_ms) and time_ms > 0:
            gflops, gbps = cost.flops / time_ms / 1e6, cost.bytes_moved / time_ms / 1e6
            yield Rate(name, float(gflops), float(gbps), limit_ms / time_ms, str(cost.dtype))


def reproduce(result: TuneResult, kernel: str) -> str:
    """Return the command that tunes the problem again without stored measurements."""
    problem = ",".join(f"{name}={value}" for name, value in result.problem.items())
    return (
        f"foretune tune {kernel} --problem {problem} --budget {max(1, len(result.trace))} "
        f"--objective {result.objective.value} --searcher {result.searcher} --store none"
    )
