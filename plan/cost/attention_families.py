"""Work of latent attention and recurrent layers, and engines' tables of the latter.

Latent vectors have DeepSeek's sizes (DeepSeek-V2, arXiv:2405.04434), as in every measured model
with latent attention. Gated delta rule, Kimi's and Mamba-2's layers have the same parts: a short
convolution over queries, keys and values, and a state per value head, read and updated for every
token.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from foretune.family import Cost, Family
from foretune.features.families import formats
from foretune.plan.cost.operator import RECURRENT_OPS

LATENT_DIM, ROPE_DIM, NOPE_DIM, VALUE_DIM = 512, 64, 128, 128
"""Elements of the cached latent vector, of its rotary part, and of a head's own key and value."""


class LatentPrefill(Family):
    """Columns: problem.batch, seq_len, heads (prefix_len)."""

    name = "mla_prefill"
    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the products of decompressed keys and values; each tensor moves once."""
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
        """Return the products with the latent cache, which is read once for all heads."""
        batch, keys, heads = problem["batch"], problem["kv_len"], problem["heads"]
        cache = formats.weight_bytes(config.get("kv_format", "bf16"))
        return Cost(
            flops=2.0 * batch * heads * keys * (2.0 * LATENT_DIM + ROPE_DIM),
            bytes_moved=batch * (cache * keys + 4.0 * heads) * (LATENT_DIM + ROPE_DIM),
            dtype=formats.compute_dtype(config.get("format", "bf16")),
        )


class LatentProjection(Family):
    """Columns: problem.tokens, heads; a product per head, into or out of the latent space."""

    name = "mla_bmm"
    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return one product of each head's vector with its NOPE x LATENT matrix."""
        tokens, heads = 1.0 * problem["tokens"], problem["heads"]
        kind = config.get("format", "bf16")
        return Cost(
            flops=2.0 * tokens * heads * NOPE_DIM * LATENT_DIM,
            bytes_moved=heads * (formats.weight_bytes(kind) * NOPE_DIM * LATENT_DIM
                                 + 2.0 * tokens * (NOPE_DIM + LATENT_DIM)),
            dtype=formats.compute_dtype(kind),
        )  # fmt: skip


STATE_BYTES = 4.0
ACTIVATION_BYTES = 2.0
PHASES = ("context", "generation")
"""Table phases to keep; others are of speculative verification."""
MAMBA_COLUMNS = {
    "problem.n_groups": "problem.num_k_heads",
    "problem.d_state": "problem.head_k_dim",
    "problem.nheads": "problem.num_v_heads",
    "problem.head_dim": "problem.head_v_dim",
}
"""Mamba-2 column -> the equivalent column of linear attention."""


class _Recurrent(Family):
    """Columns: problem.op, batch, seq_len, num_k_heads, head_k_dim, num_v_heads, head_v_dim."""

    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the convolution per channel, or the update and the reading of the state.

        All channels are read and written per token, the state once each.
        """
        batch, tokens = 1.0 * problem["batch"], 1.0 * problem["batch"] * problem["seq_len"]
        keys = problem["num_k_heads"] * problem["head_k_dim"]
        values = problem["num_v_heads"] * problem["head_v_dim"]
        state = values * problem["head_k_dim"]
        channels = 2.0 * keys + values
        convolves = np.equal(problem["op"], "convolution") * 1.0
        flops = convolves * 2.0 * channels * problem["d_conv"] + (1.0 - convolves) * 6.0 * state
        stored = convolves * ACTIVATION_BYTES * channels * problem["d_conv"]
        stored = stored + (1.0 - convolves) * STATE_BYTES * state
        moved = 2.0 * stored * batch + 2.0 * ACTIVATION_BYTES * tokens * channels
        return Cost(flops=tokens * flops, bytes_moved=moved, dtype="bf16")


class GatedDelta(_Recurrent):
    """The gated delta rule."""

    name = "gdn"


class KimiDelta(_Recurrent):
    """Kimi's delta attention."""

    name = "kda"


class Mamba2(_Recurrent):
    """State-space layers."""

    name = "mamba2"


RECURRENT: tuple[type[Family], ...] = (GatedDelta, KimiDelta, Mamba2)


def to_recurrent_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return an engine's table with the columns of `RECURRENT` and the kernel in ``problem.op``."""
    rows = rows.rename(columns=MAMBA_COLUMNS)
    convolves = rows["config.implementation"].astype(str).str.startswith("causal_conv1d")
    rows = rows.assign(**{"problem.op": np.where(convolves, *RECURRENT_OPS)})
    return rows[rows["problem.phase"].isin(PHASES)]
