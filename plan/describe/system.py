"""A system to deploy on: nodes of GPUs, their links and memory."""

from dataclasses import dataclass
from typing import Self

from foretune.device import Device

PCIE_GBPS = 32.0
"""PCIe 4.0 x16 in one direction; assumed for unknown links."""
NETWORK_GBPS = 50.0
"""A 400 Gb/s network adapter, in one direction."""
LINK_EFFICIENCY = 0.87
"""Share of a host link's rate that copies reach: 55.6 of 64 GB/s on PCIe 5.0 x16, from an
nvbandwidth example (dev.smart-guide.co.kr, 2026)."""
LATENCY_MS = 0.01
"""Time of an empty copy from or to host memory: launch and round trip."""
REPORTED_SHARE = 0.99
"""Share of the data sheet's memory that the driver reports, on most GPUs."""


@dataclass(frozen=True)
class System:
    """Nodes of GPUs to deploy on.

    Bandwidths are per GPU and direction.

    Attributes:
        name: short, like ``h100_sxm``.
        intra_node_gbps: between GPUs of a node or domain, GB/s.
        inter_node_gbps: between nodes or domains, GB/s.
        memory_gib: per GPU, as PyTorch reports it: less than the data sheet's.
        price_per_hour: USD per GPU; None if unknown.
        power_limit_w: watts per GPU; NaN if unknown.
        domain_gpus: GPUs joined by fast links, if more than one node (a rack of 72).
        host_gbps: between a GPU and host memory by the data sheet, GB/s.
        host_copy_gbps: what copies from host memory reach, measured, GB/s; 0 if unknown.
        disk_gbps: rate at which files are read from a node's disk, GB/s; 0 if unknown.
        disk_folder: a folder of that disk; empty if unknown.
        assumptions: what is assumed of a system that was never measured; empty for known ones.
    """

    name: str
    device: Device
    gpus_per_node: int
    intra_node_gbps: float
    inter_node_gbps: float
    memory_gib: float
    price_per_hour: float | None
    power_limit_w: float
    domain_gpus: int = 0
    host_gbps: float = PCIE_GBPS
    host_copy_gbps: float = 0.0
    disk_gbps: float = 0.0
    disk_folder: str = ""
    assumptions: str = ""

    @classmethod
    def from_device(cls, device: Device, gpus_per_node: int = 1, name: str = "") -> Self:
        """Return a system of GPUs (or one CPU) with unknown links.

        A CPU copies to other ranks within its memory at half the measured bandwidth, since each
        byte is read and written (`foretune.collect.devices`).
        """
        copy_gbps = device.specs.get("memory_gbps", 0.0) / 2 if device.kind == "cpu" else 0.0
        reported = 1.0 if device.kind == "cpu" else REPORTED_SHARE
        return cls(
            name=name or device.name,
            device=device,
            gpus_per_node=gpus_per_node,
            intra_node_gbps=PCIE_GBPS,
            inter_node_gbps=NETWORK_GBPS,
            memory_gib=reported * device.specs.get("memory_gib", 0.0),
            price_per_hour=None,
            power_limit_w=device.specs.get("power_limit_w", float("nan")),
            host_gbps=copy_gbps or PCIE_GBPS,
        )

    @property
    def fast_domain_gpus(self) -> int:
        """Number of GPUs joined by fast links."""
        return self.domain_gpus or self.gpus_per_node

    @property
    def copied_gbps(self) -> float:
        """GB/s that copies between host and GPU reach: measured, or a share of `host_gbps`."""
        return self.host_copy_gbps or LINK_EFFICIENCY * self.host_gbps

    def transfer_ms(self, size: float) -> float:
        """Return the milliseconds to copy ``size`` bytes between host and GPU; 0 for none."""
        return LATENCY_MS + size / (self.copied_gbps * 1e6) if size > 0 else 0.0
