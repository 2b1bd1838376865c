"""Gated delta-rule layers: the work of their kernels, which read and write a state per request."""

from collections.abc import Mapping
from typing import Any

from foretune.family import Cost, Family

STATE_BYTES = 4.0
ACTIVATION_BYTES = 2.0


class GatedDelta(Family):
    """Columns: problem.batch, seq_len, num_k_heads, head_k_dim, num_v_heads, head_v_dim, d_conv."""

    name = "gdn"
    takes_numbers = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the update and the reading of the state per token; the state moved twice."""
        batch, tokens = 1.0 * problem["batch"], 1.0 * problem["batch"] * problem["seq_len"]
        keys = problem["num_k_heads"] * problem["head_k_dim"]
        values = problem["num_v_heads"] * problem["head_v_dim"]
        state = values * problem["head_k_dim"]
        channels = 2.0 * keys + values
        return Cost(
            flops=tokens * (6.0 * state + 2.0 * channels * problem["d_conv"]),
            bytes_moved=2.0 * STATE_BYTES * batch * state
            + 2.0 * ACTIVATION_BYTES * tokens * channels,
            dtype="bf16",
        )
