"""Layers with a state: the work of their kernels, and how engines' tables of them are read.

The gated delta rule, Kimi's and Mamba-2's kernels have the same parts: a short convolution over
queries, keys and values, and a state per value head that is read and updated for every token.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from foretune.family import Cost, Family
from foretune.plan.cost.operator import RECURRENT_OPS

STATE_BYTES = 4.0
ACTIVATION_BYTES = 2.0
PHASES = ("context", "generation")
"""Whether a kernel reads prompts or writes answers; tables hold others that check drafts."""
MAMBA_COLUMNS = {
    "problem.n_groups": "problem.num_k_heads",
    "problem.d_state": "problem.head_k_dim",
    "problem.nheads": "problem.num_v_heads",
    "problem.head_dim": "problem.head_v_dim",
}
"""Column of Mamba-2's tables -> what the same is in tables of linear attention."""


class _Recurrent(Family):
    """Columns: problem.op, batch, seq_len, num_k_heads, head_k_dim, num_v_heads, head_v_dim."""

    accepts_scalars = True

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return a product per channel, or the update and the reading of the state.

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
    """Return an engine's table with the columns of `RECURRENT`, kernels told apart by what they do.

    Implementations differ between engines; the fastest is what an engine runs.
    """
    rows = rows.rename(columns=MAMBA_COLUMNS)
    convolves = rows["config.implementation"].astype(str).str.startswith("causal_conv1d")
    rows = rows.assign(**{"problem.op": np.where(convolves, *RECURRENT_OPS)})
    return rows[rows["problem.phase"].isin(PHASES)]
