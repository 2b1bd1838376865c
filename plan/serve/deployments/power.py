"""Power and energy of deployments, from the times and energies of their operators."""

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.latency_formulas import (
    TOKENS_PER_DRAFTED_STEP,
    tokens_per_s,
)

UNMODELED_ACTIVE_SHARE = 0.6
"""Active share of the time outside the modeled operators: sampling, uneven batches, copies.

With 0, four GPUs measured by ML.ENERGY (v3.0, vLLM, in
huggingface.co/datasets/leadgreen/green-token-index) would draw a third less than measured; with 1,
from 15 % less to 39 % more (`benchmarks/plan_power.py`).
"""


def deployment_power(rows: pd.DataFrame, latencies: pd.DataFrame) -> pd.DataFrame:
    """Return the power of deployments, from `analytic_times` and predicted latencies.

    While its operators run, a GPU draws their power. In the rest of a step it is partly active and
    partly idle but awake.

    ``power_w`` is a GPU's mean including waits. ``decode_power_w`` and ``prefill_power_w`` are
    those of a GPU without waits. ``prefill_share`` is a share of the busy time.
    ``energy_mj_per_token`` is that of all GPUs per generated token, including prompts.
    """
    # A rank's time and energy per generated token. A decode group produces one token per request
    # and step; a prefill group, one prompt.
    tokens_per_step = np.where(rows["speculative"] > 0, TOKENS_PER_DRAFTED_STEP, 1.0)
    tokens_per_decode_step = rows["running"] * tokens_per_step / rows["tp"]
    tokens_per_prompt = rows["osl"] / rows["prefill_tp"]
    decode_ms = rows["decode"] / tokens_per_decode_step
    prefill_ms = rows["prefill"] / tokens_per_prompt
    decode_mj = rows["decode_energy_mj"] / tokens_per_decode_step
    prefill_mj = rows["prefill_energy_mj"] / tokens_per_prompt
    energy_mj = decode_mj + prefill_mj

    # The share of time in which a GPU's operators run.
    # Operators that run faster than predicted draw the same power for a shorter time.
    per_s = tokens_per_s(rows["concurrency"].to_numpy(), rows["osl"].to_numpy(), latencies)
    stages = rows["pp"]
    busy_share = np.minimum(per_s * (decode_ms + prefill_ms) * stages / (1e3 * rows["gpus"]), 1.0)

    # The rest is partly active. With fewer requests than stages, some stages have no batch.
    active_share = busy_share + UNMODELED_ACTIVE_SHARE * (1.0 - busy_share)
    active_share *= np.minimum(rows["running"] / stages, 1.0)
    power_w = (
        active_share * energy_mj / (decode_ms + prefill_ms) + (1.0 - active_share) * rows["awake_w"]
    )
    return pd.DataFrame(
        {
            "power_w": power_w,
            "decode_power_w": rows["decode_energy_mj"] / rows["decode"],
            "prefill_power_w": rows["prefill_energy_mj"] / rows["prefill"],
            "prefill_share": prefill_ms / (decode_ms + prefill_ms),
            "energy_mj_per_token": 1e3 * power_w * rows["gpus"] / per_s,
        }
    )
