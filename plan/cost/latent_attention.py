"""The work of multi-head latent attention.

Latent vectors have DeepSeek's sizes (DeepSeek-V2, arXiv:2405.04434), as in every measured model
with latent attention.
"""

import numpy as np

from foretune.family import Cells, Cost
from foretune.features.families import formats

LATENT_DIM = 512
"""Elements of the cached latent vector."""
ROPE_DIM = 64
"""Elements of its rotary part."""
NOPE_DIM = 128
"""Elements of a head's own key."""
VALUE_DIM = 128
"""Elements of a head's own value."""


def latent_prefill_cost(problem: Cells, config: Cells) -> Cost:
    """Return the products of decompressed keys and values; each tensor moves once."""
    seq = problem["seq_len"]
    prefix = problem.get("prefix_len", 0.0)
    rows = 1.0 * problem["batch"] * problem["heads"]
    keys = prefix + (seq + 1.0) / 2.0
    element_bytes = np.maximum(formats.activation_bytes(config.get("format", "bf16")), 1.0)
    width = NOPE_DIM + ROPE_DIM + VALUE_DIM
    return Cost(
        flops=2.0 * rows * seq * keys * width,
        bytes_moved=element_bytes * rows * (seq * width + (seq + prefix) * width),
        dtype=formats.compute_dtype(config.get("format", "bf16")),
    )


def latent_decode_cost(problem: Cells, config: Cells) -> Cost:
    """Return the products with the latent cache, which is read once for all heads."""
    batch = problem["batch"]
    keys = problem["kv_len"]
    heads = problem["heads"]
    cache_bytes = formats.weight_bytes(config.get("kv_format", "bf16"))
    return Cost(
        flops=2.0 * batch * heads * keys * (2.0 * LATENT_DIM + ROPE_DIM),
        bytes_moved=batch * (cache_bytes * keys + 4.0 * heads) * (LATENT_DIM + ROPE_DIM),
        dtype=formats.compute_dtype(config.get("format", "bf16")),
    )


def latent_projection_cost(problem: Cells, config: Cells) -> Cost:
    """Return one product of each head's vector with its NOPE x LATENT matrix."""
    tokens = 1.0 * problem["tokens"]
    heads = problem["heads"]
    format_name = config.get("format", "bf16")
    weights = formats.weight_bytes(format_name) * NOPE_DIM * LATENT_DIM
    vectors = 2.0 * tokens * (NOPE_DIM + LATENT_DIM)
    return Cost(
        flops=2.0 * tokens * heads * NOPE_DIM * LATENT_DIM,
        bytes_moved=heads * (weights + vectors),
        dtype=formats.compute_dtype(format_name),
    )
