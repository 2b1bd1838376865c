"""Power of a server: its phases of work and their watts."""

from dataclasses import dataclass
from typing import Any, Self

import pandas as pd

from foretune.plan.cost.power import OperatorPower
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.power import apply_power_cap, clock_sensitivity

HOST_W = (6500 - 8 * 400) / 8
"""Watts per GPU of a server besides its GPUs: from NVIDIA's DGX A100 data sheet (6.5 kW with eight
GPUs of 400 W)."""


@dataclass(frozen=True)
class PowerPhase:
    """A phase of a server's GPUs.

    Attributes:
        share: its share of the time, 0 … 1.
        power_w: watts per GPU.
        sensitivity: clock-dependent share of its time, 0 … 1.
    """

    share: float
    power_w: float
    sensitivity: float


@dataclass(frozen=True)
class PowerDraw:
    """A server's power and speed under a cap.

    ``mean_w`` includes the host, ``spread_w`` is its standard deviation; ``slowdown`` is that of
    its work, 1 if the cap costs nothing.
    """

    mean_w: float
    spread_w: float
    slowdown: float


@dataclass(frozen=True)
class Server:
    """GPUs in the same phase, and their host.

    Attributes:
        gpus: number of GPUs.
        phases: phases of work; their shares add up to one.
        idle_w: watts of an idle GPU.
        limit_w: power limit of a GPU's board, in watts.
        host_w: watts of the rest.
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
        """Watts to provision without a prediction: all boards at their limits."""
        return self.gpus * self.limit_w + self.host_w

    @classmethod
    def from_candidate(
        cls, candidate: "pd.Series[Any]", system: System, host_w: float = HOST_W
    ) -> Self:
        """Return the server of a planned deployment.

        Prefill is compute-bound and scales with the clock; decode is memory-bound and hardly does.

        Args:
            candidate: a row of `foretune.plan.Plan.candidates`.
            system: the GPUs.
            host_w: watts of a server besides its GPUs, per GPU.
        """
        idle_w = OperatorPower(system.device, system.name).active_idle_w
        gpus, prefill_share = int(candidate["gpus"]), float(candidate["prefill_share"])
        prefill_w, decode_w = (float(candidate[f"{p}_power_w"]) for p in ("prefill", "decode"))
        working_w = prefill_share * prefill_w + (1.0 - prefill_share) * decode_w
        busy = (candidate["power_w"] - idle_w) / (working_w - idle_w) if working_w > idle_w else 1.0
        busy = min(max(float(busy), 0.0), 1.0)
        return cls(
            gpus=gpus,
            phases=(
                PowerPhase(busy * prefill_share, prefill_w, clock_sensitivity(1.0)),
                PowerPhase(busy * (1.0 - prefill_share), decode_w, clock_sensitivity(0.0)),
                PowerPhase(1.0 - busy, idle_w, 0.0),
            ),
            idle_w=idle_w,
            limit_w=system.power_limit_w,
            host_w=host_w * gpus,
            tokens_per_s=gpus * float(candidate["tokens_per_s_per_gpu"]),
        )

    @property
    def mean_w(self) -> float:
        """Mean watts without a cap."""
        return self.under_cap(self.limit_w).mean_w

    def peak_w(self, cap_w: float) -> float:
        """Return the peak watts with every GPU capped at ``cap_w`` watts."""
        watts = [
            apply_power_cap(p.power_w, cap_w, self.idle_w, p.sensitivity)[0] for p in self.phases
        ]
        return self.gpus * max(watts) + self.host_w

    def under_cap(self, cap_w: float) -> PowerDraw:
        """Return the power and speed with every GPU capped at ``cap_w`` watts."""
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
