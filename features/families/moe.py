"""Mixture of experts: each token passes the products of its top-k experts."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from foretune.family import Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.expert_load import ExpertLoad, max_rank_load
from foretune.features.families.tiles import wave_features

MATRICES = 3.0
"""Gate, up and down projection of a gated expert."""
WIDE_BYTES = 2.0
"""Bytes of an intermediate value that is not in the products' format."""


class Moe(Family):
    """Columns: problem.tokens, hidden, intermediate, top_k, experts; config.format, tp, ep."""

    name = "moe"
    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the work of the busiest rank; each active expert is read once.

        Besides the products, rows are gathered by expert, activated, scattered and added. A pair's
        row passes memory five times at the hidden width and six times at the inner width, the
        products' inputs in their format. Every rank reads and writes all tokens.
        """
        hidden, inner = problem["hidden"], _inner(problem, config)
        kind, load = config.get("format", "bf16"), _load(problem, config)
        weights = load.active * MATRICES * hidden * inner
        wide = load.pairs * (3.0 * hidden + 4.0 * inner) + 2.0 * problem["tokens"] * hidden
        narrow = load.pairs * 2.0 * (hidden + inner)
        return Cost(
            flops=2.0 * MATRICES * load.pairs * hidden * inner,
            bytes_moved=formats.weight_bytes(kind) * weights
            + formats.activation_bytes(kind) * narrow
            + WIDE_BYTES * wide,
            dtype=formats.compute_dtype(kind),
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return tokens per expert, active experts, one expert's sizes and the total tile count."""
        hidden, inner = problem["hidden"], _inner(problem, config)
        load = _load(problem, config)
        per_expert = load.pairs / load.active
        rows = load.active * np.ceil(per_expert / 64)
        return {
            "log2_pairs": np.log2(load.pairs),
            "log2_per_expert": np.log2(per_expert),
            "log2_largest": np.log2(load.largest),
            "imbalance": load.largest / per_expert,
            "log2_active": np.log2(load.active),
            "log2_local_experts": np.log2(_local(problem, config)),
            "log2_inner": np.log2(inner),
            "log2_expert": np.log2(1.0 * hidden * inner),
            "log2_all_experts": np.log2(_local(problem, config) * hidden * inner),
            "sparsity": problem["top_k"] / problem["experts"],
            **wave_features("up", rows * np.ceil(2.0 * inner / 128), device),
            **wave_features("down", rows * np.ceil(hidden / 128), device),
        }


def _inner(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Quantity:
    return problem["intermediate"] / (1.0 * config.get("tp", 1.0))


def _local(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Quantity:
    return problem["experts"] / (1.0 * config.get("ep", 1.0))


def _load(problem: Mapping[str, Any], config: Mapping[str, Any]) -> ExpertLoad:
    return max_rank_load(
        problem["tokens"],
        problem["top_k"],
        problem["experts"],
        config.get("ep", 1.0),
        problem.get("distribution", "balanced"),
    )
