"""Launches in tiles: blocks that each walk along a sum, step by step, as Triton's products do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.device import peak_rate
from foretune.family import Quantity, nan_to
from foretune.features.families.tiles import cores_of, wave_features

L2_SPEEDUP = 3.0
"""How much faster than main memory the second-level cache is, roughly."""
STEP_LATENCY_MS = 0.7e-3
"""What one step waits for its data if it was not asked for ahead, roughly."""
PIPELINING_EXPONENT = 0.8
"""Power of the stages in flight by which they shorten that wait (chosen on products, A100)."""
SHARED_KIB, REGISTERS, MAX_WARPS, MAX_BLOCKS = 128.0, 65536.0, 64.0, 32.0
"""Of a multiprocessor, in the generations since 2017; the first where the device does not say."""


@dataclass(frozen=True)
class TiledLaunch:
    """The geometry of one launch.

    Attributes:
        blocks: that are launched.
        steps: that a block does one after the other.
        flops: operations of a step.
        step_bytes: that a step loads.
        sums: values of 32 bits that a block keeps.
        warps: of a block.
        stages: steps in flight.
        moved_bytes: bytes that must pass main memory.
        dtype: in which precision operations run.
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
        """Return what the launch takes by each limit alone, in milliseconds.

        Operations by whole waves of blocks, traffic of the second-level cache and of main memory,
        and the wait for every step's data, which steps in flight shorten.
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
        """Return how many blocks a multiprocessor can hold at once, one at least."""
        shared = 1024.0 * nan_to(device.get("l1_kib", SHARED_KIB), SHARED_KIB)
        registers = 1.2 * self.sums + 32.0 * 40.0 * self.warps
        held = np.minimum(shared / self._buffers, MAX_WARPS / self.warps)
        held = np.minimum(np.floor(np.minimum(held, REGISTERS / registers)), MAX_BLOCKS)
        return np.maximum(held, 1.0)

    def features(self, device: Mapping[str, Any]) -> dict[str, Quantity]:
        """Return what tells launches apart, all of it relative to the device or to the tile."""
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
