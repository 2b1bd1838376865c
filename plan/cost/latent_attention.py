"""Latent attention (MLA): the work of its kernels, on the compressed cache that all heads share.

The sizes of the latent vectors are DeepSeek's (DeepSeek-V2, arXiv:2405.04434), which every model
with latent attention that was measured uses.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from foretune.family import Cost, Family
from foretune.features.families import formats

LATENT_DIM, ROPE_DIM, NOPE_DIM, VALUE_DIM = 512, 64, 128, 128
"""Elements of the cached latent vector, of its rotary part, and of a head's own key and value."""


class LatentPrefill(Family):
    """Columns: problem.batch, seq_len, heads (prefix_len)."""

    name = "mla_prefill"
    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return products of decompressed keys and values; queries, keys and values moved once."""
        seq, prefix = problem["seq_len"], problem.get("prefix_len", 0.0)
        rows = 1.0 * problem["batch"] * problem["heads"]
        keys = prefix + (seq + 1.0) / 2.0
        size = np.maximum(formats.activation_bytes(config.get("format", "bf16")), 1.0)
        elements = seq * (NOPE_DIM + ROPE_DIM + VALUE_DIM) + (seq + prefix) * (
            NOPE_DIM + ROPE_DIM + VALUE_DIM
        )
        return Cost(
            flops=2.0 * rows * seq * keys * (NOPE_DIM + ROPE_DIM + VALUE_DIM),
            bytes_moved=size * rows * elements,
            dtype=formats.compute_dtype(config.get("format", "bf16")),
        )


class LatentDecode(Family):
    """Columns: problem.batch, kv_len, heads."""

    name = "mla_decode"
    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return products with the latent cache, which is read once for all heads."""
        batch, keys, heads = problem["batch"], problem["kv_len"], problem["heads"]
        cache = formats.weight_bytes(config.get("kv_format", "bf16"))
        return Cost(
            flops=2.0 * batch * heads * keys * (2.0 * LATENT_DIM + ROPE_DIM),
            bytes_moved=batch * (cache * keys + 4.0 * heads) * (LATENT_DIM + ROPE_DIM),
            dtype=formats.compute_dtype(config.get("format", "bf16")),
        )


class LatentProjection(Family):
    """Columns: problem.tokens, heads: a product per head, into or out of the latent space."""

    name = "mla_bmm"
    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return one product of a head's vector with its NOPE x LATENT matrix."""
        tokens, heads = 1.0 * problem["tokens"], problem["heads"]
        kind = config.get("format", "bf16")
        return Cost(
            flops=2.0 * tokens * heads * NOPE_DIM * LATENT_DIM,
            bytes_moved=heads * (formats.weight_bytes(kind) * NOPE_DIM * LATENT_DIM
                                 + 2.0 * tokens * (NOPE_DIM + LATENT_DIM)),
            dtype=formats.compute_dtype(kind),
        )  # fmt: skip
