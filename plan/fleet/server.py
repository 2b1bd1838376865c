"""Servers as their power supply sees them: what they do in turn, and the watts that takes."""

from dataclasses import dataclass
from typing import Any, Self

import pandas as pd

from foretune.plan.cost.power import OperatorPower
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.power import apply_power_cap, clock_sensitivity

HOST_W = (6500 - 8 * 400) / 8
"""Watts per GPU of a server besides its GPUs: what NVIDIA's DGX A100 datasheet leaves for them at
most (6.5 kW with eight GPUs of 400 W)."""


@dataclass(frozen=True)
class PowerPhase:
    """What the GPUs of a server do for a share of the time.

    Attributes:
        share: of the time, 0 … 1.
        power_w: of a GPU meanwhile, watts.
        sensitivity: of its speed to the GPU's clock, 0 … 1.
    """

    share: float
    power_w: float
    sensitivity: float


@dataclass(frozen=True)
class PowerDraw:
    """What a server does under a cap.

    Attributes:
        mean_w: of the server over time, host included.
        spread_w: standard deviation of that.
        slowdown: of its work, 1 where the cap costs nothing.
    """

    mean_w: float
    spread_w: float
    slowdown: float


@dataclass(frozen=True)
class Server:
    """GPUs that do the same at a time, and their host.

    Attributes:
        gpus: how many.
        phases: what they do; the shares add up to one.
        idle_w: of a GPU that does nothing, watts.
        limit_w: of a GPU's board, watts.
        host_w: of all the rest, watts.
        tokens_per_s: generated without a cap.
    """

    gpus: int
    phases: tuple[PowerPhase, ...]
    idle_w: float
    limit_w: float
    host_w: float
    tokens_per_s: float

    @property
    def provisioned_w(self) -> float:
        """Watts that are set aside for it by those who trust no prediction."""
        return self.gpus * self.limit_w + self.host_w

    @classmethod
    def from_candidate(
        cls, candidate: "pd.Series[Any]", system: System, host_w: float = HOST_W
    ) -> Self:
        """Return the server that a planned deployment makes of its GPUs.

        Prompts are limited by computing, which goes by the clock; answers by memory, which hardly
        does.

        Args:
            candidate: a row of `foretune.plan.Plan.candidates`.
            system: whose GPUs they are.
            host_w: watts of a server besides its GPUs, per GPU.
        """
        idle_w = OperatorPower(system.device, system.name).active_idle_w
        gpus, prefill_share = int(candidate["gpus"]), float(candidate["prefill_share"])
        prefill_w, decode_w = (
            float(candidate["prefill_power_w"]),
            float(candidate["decode_power_w"]),
        )
        working_w = prefill_share * prefill_w + (1.0 - prefill_share) * decode_w
        busy = (candidate["power_w"] - idle_w) / (working_w - idle_w) if working_w > idle_w else 1.0
        busy = min(max(float(busy), 0.0), 1.0)
        return cls(
            gpus=gpus,
            phases=(
                PowerPhase(busy * prefill_share, prefill_w, float(clock_sensitivity(1.0))),
                PowerPhase(busy * (1.0 - prefill_share), decode_w, float(clock_sensitivity(0.0))),
                PowerPhase(1.0 - busy, idle_w, 0.0),
            ),
            idle_w=idle_w,
            limit_w=system.power_limit_w,
            host_w=host_w * gpus,
            tokens_per_s=gpus * float(candidate["tokens_per_s_per_gpu"]),
        )

    @property
    def mean_w(self) -> float:
        """Watts it draws over time without a cap."""
        return self.under_cap(self.limit_w).mean_w

    def peak_w(self, cap_w: float) -> float:
        """Return what it draws at most with every GPU capped at ``cap_w`` watts."""
        watts = [
            apply_power_cap(p.power_w, cap_w, self.idle_w, p.sensitivity)[0] for p in self.phases
        ]
        return self.gpus * max(watts) + self.host_w

    def under_cap(self, cap_w: float) -> PowerDraw:
        """Return what it does with every GPU capped at ``cap_w`` watts."""
        capped_phases = [
            apply_power_cap(p.power_w, cap_w, self.idle_w, p.sensitivity) for p in self.phases
        ]
        durations = [
            p.share * slow for p, (_, slow) in zip(self.phases, capped_phases, strict=True)
        ]
        watts = [self.gpus * power for power, _ in capped_phases]
        slowdown = sum(durations)
        mean = sum(w * t for w, t in zip(watts, durations, strict=True)) / slowdown
        variance = (
            sum((w - mean) ** 2 * t for w, t in zip(watts, durations, strict=True)) / slowdown
        )
        return PowerDraw(mean + self.host_w, variance**0.5, slowdown)
