"""Why a judged candidate is as fast as it is: its share of what memory and arithmetic allow.

The least data of a call is that of its inputs and outputs, each moved once. The operations are
those of the reference, which PyTorch counts (`torch.utils.flop_counter`); of NumPy code they are
unknown. Both are lower bounds, so a share may exceed 100 % where data stays in caches.

Model: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52 (2009).
"""

import math
from dataclasses import dataclass
from typing import Literal

from foretune.collect.isolated_implementation import Work
from foretune.device import Device
from foretune.problem import Problem
from foretune.result import Result
from foretune.values import percent, short_number

LATENCY_SHARE = 0.2
"""Below this share of both roofs, neither of them limits the candidate. Chosen by hand."""
KIB = 1024
CACHES = ("l1", "l2", "l3")
ADVICE = {
    "memory": "only moving less data helps: fuse steps, use narrower numbers, keep data in caches",
    "arithmetic": "only fewer or cheaper operations help: narrower numbers, matrix units, vectors",
    "neither": "overheads or waiting dominate: fewer calls, more parallel work, no copies",
}
"""What is worth trying next, by bottleneck."""


@dataclass(frozen=True, eq=False, repr=False)
class RooflineShare(Result):
    """A candidate's rates on one problem, and their shares of the device's.

    Attributes:
        time_ms: the candidate's time.
        gbps: least data over time, in GB/s (1e9).
        memory_share: ``gbps`` over the memory's rate; NaN if that is unknown.
        gflops: operations over time, in 1e9 operations/s; NaN if they are unknown.
        arithmetic_share: ``gflops`` over the device's rate; NaN if either is unknown.
        level: where the data fits: ``l1``, ``l2``, ``l3`` or ``memory``.
    """

    problem: Problem
    time_ms: float
    gbps: float
    memory_share: float
    gflops: float
    arithmetic_share: float
    level: str

    @property
    def bottleneck(self) -> Literal["memory", "arithmetic", "neither"]:
        """What limits the candidate."""
        shares = {"memory": self.memory_share, "arithmetic": self.arithmetic_share}
        known = {name: share for name, share in shares.items() if not math.isnan(share)}
        if not known or max(known.values()) < LATENCY_SHARE:
            return "neither"
        return (
            "memory" if known.get("memory", 0.0) >= known.get("arithmetic", 0.0) else "arithmetic"
        )

    @property
    def headline(self) -> str:
        """The rates, their shares and what to try next, in one line."""
        parts = [f"{short_number(self.gbps, 3)} GB/s at least"]
        if not math.isnan(self.memory_share):
            place = (
                "memory" if self.level == "memory" else f"memory, though it fits in {self.level}"
            )
            parts[0] += f", {percent(self.memory_share)} of {place}"
        if math.isnan(self.gflops):
            parts.append("operations unknown")
        else:
            share = percent(self.arithmetic_share)
            parts.append(f"{short_number(self.gflops, 3)} GFLOP/s, {share} of the peak")
        limit = {"neither": "neither limits it"}.get(
            self.bottleneck, f"{self.bottleneck} limits it"
        )
        return f"{self.problem}: {'; '.join(parts)}: {limit}; {ADVICE[self.bottleneck]}"


def roofline_share(problem: Problem, work: Work, time_ms: float, device: Device) -> RooflineShare:
    """Return a candidate's share of the roofs; ``time_ms`` is its time by the judge's clock."""
    seconds = 1e-3 * time_ms
    gbps = 1e-9 * work.bytes / seconds
    gflops = 1e-9 * work.operations / seconds
    memory_gbps = device.specs.get("memory_gbps") or math.nan
    peak_gflops = device.specs.get(f"{work.precision}_gflops") or math.nan
    return RooflineShare(
        problem=problem,
        time_ms=time_ms,
        gbps=gbps,
        memory_share=gbps / memory_gbps,
        gflops=gflops,
        arithmetic_share=gflops / peak_gflops,
        level=_level(work.bytes, device),
    )


def _level(size: float, device: Device) -> str:
    """Return the smallest cache that holds all data of a call, or ``memory``."""
    for cache in CACHES:
        if size <= KIB * (device.specs.get(f"{cache}_kib") or 0.0):
            return cache
    return "memory"
