"""Exchanges over the links between nodes, which no table has.

A ring is as slow as its slowest link: the one into a node, where all ranks of the group use their
network adapters together.
"""

from math import ceil

from foretune.plan.describe.system import System

HOP_MS = 0.014
"""Latency of a ring step or tree level between nodes: NCCL's estimate for its bandwidth-optimal
protocol (``hwLat`` in ``src/graph/tuning.cc``)."""
RING_PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
"""Number of times that each rank sends its share of the message to every other."""
PAIRWISE = ("send_recv", "all_to_all")
"""Exchanges in which every rank sends to its partners directly."""


def network_ms(kernel: str, size: float, ranks: float, stride: int, system: System) -> float:
    """Return the milliseconds of one exchange between ranks on several nodes or domains.

    Args:
        kernel: the collective; ``send_recv`` is between two ranks.
        size: bytes of the whole message, as in ``problem.message_bytes``.
        ranks: that take part.
        stride: rank distance between neighbors of the group.
        system: its nodes and links.
    """
    ranks_per_domain = max(1, min(ranks, system.fast_domain_gpus // stride))
    if kernel in PAIRWISE:
        # All ranks send to all at once; messages within a node use faster links.
        hops = 1
        share = 1.0 if kernel == "send_recv" else 1.0 - ranks_per_domain / ranks
        gbps = system.inter_node_gbps
    else:
        # A ring over all domains, as fast as the adapters of a domain's ranks together.
        hops = max(ceil(ranks / ranks_per_domain) - 1, 1)
        share = RING_PASSES[kernel] * (ranks - 1) / ranks
        gbps = min(system.intra_node_gbps, ranks_per_domain * system.inter_node_gbps)
    if kernel == "all_reduce":  # sums go up and down a tree
        hops = 2 * hops.bit_length()
    return HOP_MS * hops + share * size / (gbps * 1e6)
