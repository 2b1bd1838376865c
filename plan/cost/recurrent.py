"""The work of layers with a state instead of a cache, and their tables.

The gated delta rule, Kimi's delta attention and Mamba-2's layers have the same parts: a short
convolution over queries, keys and values, and a state per value head, read and updated for every
token.
"""

import numpy as np
import pandas as pd

from foretune.family import Cells, Cost
from foretune.plan.cost.operator import RECURRENT_OPS

RECURRENT = ("gdn", "kda", "mamba2")
"""The gated delta rule, Kimi's delta attention, and state-space layers."""
STATE_BYTES = 4.0
"""Bytes per number of a state."""
ACTIVATION_BYTES = 2.0
"""Bytes per number of an activation, and of the tokens that a convolution keeps."""
PHASES = ("context", "generation")
"""Table phases to keep; the others are of speculative verification."""
MAMBA_COLUMNS = {
    "problem.n_groups": "problem.num_k_heads",
    "problem.d_state": "problem.head_k_dim",
    "problem.nheads": "problem.num_v_heads",
    "problem.head_dim": "problem.head_v_dim",
}
"""Mamba-2 column -> the equivalent column of linear attention."""


def recurrent_cost(problem: Cells, config: Cells) -> Cost:
    """Return the work of the convolution, or of reading and updating the state."""
    batch = 1.0 * problem["batch"]
    tokens = 1.0 * problem["batch"] * problem["seq_len"]
    keys = problem["num_k_heads"] * problem["head_k_dim"]
    values = problem["num_v_heads"] * problem["head_v_dim"]
    state = values * problem["head_k_dim"]
    channels = 2.0 * keys + values

    # Rows of both parts may be mixed: each gets the terms of its part.
    convolves = np.equal(problem["op"], "convolution") * 1.0
    updates = 1.0 - convolves
    flops = convolves * 2.0 * channels * problem["d_conv"] + updates * 6.0 * state
    stored = convolves * ACTIVATION_BYTES * channels * problem["d_conv"]
    stored = stored + updates * STATE_BYTES * state

    # What is stored is read and written once per request, activations once per token.
    bytes_moved = 2.0 * stored * batch + 2.0 * ACTIVATION_BYTES * tokens * channels
    return Cost(flops=tokens * flops, bytes_moved=bytes_moved, dtype="bf16")


def to_recurrent_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return an engine's table with columns of `gdn`'s names, and the kernel in ``problem.op``."""
    renamed = rows.rename(columns=MAMBA_COLUMNS)
    implementation = renamed["config.implementation"].astype(str)
    convolves = implementation.str.startswith("causal_conv1d")
    convolution, recurrence = RECURRENT_OPS
    marked = renamed.assign(**{"problem.op": np.where(convolves, convolution, recurrence)})
    return marked[marked["problem.phase"].isin(PHASES)]
