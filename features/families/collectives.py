"""Collectives (all-reduce, all-gather, …) and messages over the links between devices.

The bytes that a rank sends follow the ring algorithms (Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005).
"""

import numpy as np

from foretune.family import Cells, Cost, Family, Quantity


class Collective(Family):
    """Columns: problem.message_bytes, problem.devices."""

    rounds = 1.0
    """Number of times that each rank sends its share to every other."""

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return the bytes that a rank sends; memory bandwidth stands in for link bandwidth."""
        return Cost(flops=0.0, bytes_moved=np.maximum(self._sent(problem), 1.0), dtype="fp32")

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return the bytes per rank and per step."""
        return {
            "log2_sent": np.log2(np.maximum(self._sent(problem), 1.0)),
            "log2_share": np.log2(problem["message_bytes"] / (1.0 * problem["devices"])),
        }

    def _sent(self, problem: Cells) -> Quantity:
        ranks = 1.0 * problem["devices"]
        return self.rounds * problem["message_bytes"] * (ranks - 1.0) / ranks


class AllReduce(Collective):
    """A reduce-scatter and an all-gather."""

    name = "all_reduce"
    rounds = 2.0


class AllGather(Collective):
    """Every rank ends with the parts of all ranks."""

    name = "all_gather"


class AllToAll(Collective):
    """Every rank sends a different part to every other rank."""

    name = "all_to_all"


class ReduceScatter(Collective):
    """Every rank ends with its part of the sum."""

    name = "reduce_scatter"


class SendReceive(Collective):
    """One rank sends another the whole message."""

    name = "send_recv"

    def _sent(self, problem: Cells) -> Quantity:
        return 1.0 * problem["message_bytes"]
