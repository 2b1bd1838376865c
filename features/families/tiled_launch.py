"""Tiled launches: blocks that step along a sum, as Triton's matrix products do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.device import peak_rate
from foretune.family import Quantity, nan_to
from foretune.features.families.tiles import cores_of, wave_features

L2_SPEEDUP = 3.0
"""Approximate bandwidth of the L2 cache over that of main memory."""
STEP_LATENCY_MS = 0.7e-3
"""Approximate latency of one step's loads without prefetching."""
PIPELINING_EXPONENT = 0.8
"""Exponent of the stages in flight that divides the latency (fitted on matrix products, A100)."""
SHARED_KIB, REGISTERS, MAX_WARPS, MAX_BLOCKS = 128.0, 65536.0, 64.0, 32.0
"""Limits per multiprocessor since 2017; the first only if the device does not report it."""


@dataclass(frozen=True)
class TiledLaunch:
    """The geometry of one launch.

    Attributes:
        blocks: launched blocks.
        steps: sequential steps per block.
        flops: per step.
        step_bytes: bytes loaded per step.
        sums: 32-bit accumulators per block.
        warps: per block.
        stages: steps in flight.
        moved_bytes: bytes that must pass main memory.
        dtype: precision of the operations.
    """

    blocks: Quantity
    steps: Quantity
    flops: Quantity
    step_bytes: Quantity
    sums: Quantity
    warps: Quantity
    stages: Quantity
    moved_bytes: Quantity
    dtype: Any

    def parts_ms(self, device: Mapping[str, Any]) -> dict[str, Quantity]:
        """Return the launch's time by each limit alone, in ms.

        The limits are operations in whole waves of blocks, L2 traffic, memory traffic, and load
        latency per step, which steps in flight hide.
        """
        cores, bandwidth = cores_of(device), device.get("memory_gbps", np.nan) * 1e6
        rate = peak_rate(self.dtype, device) * 1e6 / cores
        waves = np.ceil(self.blocks / cores)
        waits = np.ceil(self.blocks / (cores * self.resident(device))) * self.steps
        return {
            "operations": waves * self.steps * self.flops / rate,
            "cache": self.blocks * self.steps * self.step_bytes / (L2_SPEEDUP * bandwidth),
            "memory": self.moved_bytes / bandwidth,
            "latency": STEP_LATENCY_MS
            * waits
            / np.maximum(self.stages - 1.0, 1.0) ** PIPELINING_EXPONENT,
        }

    def resident(self, device: Mapping[str, Any]) -> Quantity:
        """Return the number of blocks that fit a multiprocessor at once, at least one."""
        shared = 1024.0 * nan_to(device.get("l1_kib", SHARED_KIB), SHARED_KIB)
        registers = 1.2 * self.sums + 32.0 * 40.0 * self.warps
        held = np.minimum(shared / self._buffers, MAX_WARPS / self.warps)
        held = np.minimum(np.floor(np.minimum(held, REGISTERS / registers)), MAX_BLOCKS)
        return np.maximum(held, 1.0)

    def features(self, device: Mapping[str, Any]) -> dict[str, Quantity]:
        """Return scale-free features of a launch."""
        shared = 1024.0 * nan_to(device.get("l1_kib", SHARED_KIB), SHARED_KIB)
        resident = self.resident(device)
        active = np.minimum(resident, np.maximum(self.blocks / cores_of(device), 1.0))
        return {
            **wave_features("blocks", self.blocks, device),
            "partial_waves": np.log2(self.blocks / cores_of(device)),
            "log2_steps": np.log2(self.steps),
            "sums_per_thread": self.sums / (32.0 * self.warps),
            "shared_share": self._buffers / shared,
            "resident": resident,
            "reuse": self.flops / self.step_bytes,
            "bytes_in_flight": self._buffers * active,
        }

    @property
    def _buffers(self) -> Quantity:
        return self.stages * self.step_bytes
