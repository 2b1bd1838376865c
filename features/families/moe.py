"""Mixture of experts: every token passes the two (gated: three) products of its top-k experts."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from foretune.family import Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import wave_features

MATRICES = 3.0
"""Gate, up and down projection of a gated expert."""


class Moe(Family):
    """Columns: problem.tokens, hidden, intermediate, top_k, experts; config.format, tp, ep."""

    name = "moe"
    source_hash = "moe-1"

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the products of this rank's share of tokens; each active expert is read once."""
        hidden, inner = problem["hidden"], _inner(problem, config)
        kind = config.get("format", "bf16")
        pairs = _pairs(problem, config)
        weights = _active(problem, config) * MATRICES * hidden * inner
        traffic = pairs * (2.0 * hidden + 3.0 * inner)
        return Cost(
            flops=2.0 * MATRICES * pairs * hidden * inner,
            bytes_moved=formats.weight_bytes(kind) * weights
            + formats.activation_bytes(kind) * traffic,
            dtype=formats.compute_dtype(kind),
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the tokens an expert gets, active experts, sizes of one and the tiles of all."""
        hidden, inner = problem["hidden"], _inner(problem, config)
        pairs, active = _pairs(problem, config), _active(problem, config)
        per_expert = pairs / active
        tiles = active * np.ceil(per_expert / 64) * np.ceil(2.0 * inner / 128)
        tiles_down = active * np.ceil(per_expert / 64) * np.ceil(hidden / 128)
        return {
            "log2_pairs": np.log2(pairs),
            "log2_per_expert": np.log2(per_expert),
            "log2_active": np.log2(active),
            "log2_local_experts": np.log2(_local(problem, config)),
            "log2_inner": np.log2(inner),
            "log2_expert": np.log2(1.0 * hidden * inner),
            "log2_all_experts": np.log2(_local(problem, config) * hidden * inner),
            "sparsity": problem["top_k"] / problem["experts"],
            **wave_features("up", tiles, device),
            **wave_features("down", tiles_down, device),
        }


def _inner(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Quantity:
    return problem["intermediate"] / (1.0 * config.get("tp", 1.0))


def _local(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Quantity:
    return problem["experts"] / (1.0 * config.get("ep", 1.0))


def _pairs(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Quantity:
    """Return token-expert pairs on one rank, an even share of all."""
    ep = 1.0 * config.get("ep", 1.0)
    return np.maximum(1.0 * problem["tokens"] * problem["top_k"] / ep, 1.0)


def _active(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Quantity:
    """Return how many of a rank's experts get any token, tokens choosing evenly at random."""
    share = problem["top_k"] / problem["experts"]
    idle = (1.0 - np.minimum(share, 1.0 - 1e-9)) ** problem["tokens"]
    return np.maximum(_local(problem, config) * (1.0 - idle), 1.0)
