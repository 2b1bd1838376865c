"""Power and energy of deployments.

Energy is power times time. While its operators run, a GPU draws their power. In the rest of a step
it is partly active and partly idle but awake.
"""

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.serving import TOKENS_PER_DRAFTED_STEP, tokens_per_s

UNMODELED_ACTIVE_SHARE = 0.6
"""Active share of the time outside the modeled operators: sampling, uneven batches, copies.

With 0, four GPUs measured by ML.ENERGY (v3.0, vLLM, in
huggingface.co/datasets/leadgreen/green-token-index) would draw a third less than measured; with 1,
from 15 % less to 39 % more (`benchmarks/plan_power.py`).
"""


def deployment_power(rows: pd.DataFrame, latencies: pd.DataFrame) -> pd.DataFrame:
    """Return the power of deployments, from `analytic_times` and predicted latencies.

    ``power_w`` is a GPU's mean including waits. ``decode_power_w`` and ``prefill_power_w`` are
    those of a GPU without waits. ``prefill_share`` is a share of the busy time.
    ``energy_mj_per_token`` is that of all GPUs per generated token, including prompts.
    """
    # A decode group produces one token per request and step; a prefill group, one prompt.
    per_step = (
        rows["running"]
        * np.where(rows["speculative"] > 0, TOKENS_PER_DRAFTED_STEP, 1.0)
        / rows["tp"]
    )
    per_prompt = rows["osl"] / rows["prefill_tp"]
    decode_ms = rows["decode"] / per_step
    prefill_ms = rows["prefill"] / per_prompt
    energy_mj = rows["decode_energy_mj"] / per_step + rows["prefill_energy_mj"] / per_prompt
    per_s = tokens_per_s(rows["concurrency"].to_numpy(), rows["osl"].to_numpy(), latencies)
    # One pipeline stage runs at a time. Operators that run faster than predicted draw the same
    # power for a shorter time.
    stages = rows["pp"]
    busy_share = np.minimum(per_s * (decode_ms + prefill_ms) * stages / (1e3 * rows["gpus"]), 1.0)
    active_share = (busy_share + UNMODELED_ACTIVE_SHARE * (1.0 - busy_share)) / stages
    power = (
        active_share * energy_mj / (decode_ms + prefill_ms) + (1.0 - active_share) * rows["awake_w"]
    )
    return pd.DataFrame(
        {
            "power_w": power,
            "decode_power_w": rows["decode_energy_mj"] / rows["decode"],
            "prefill_power_w": rows["prefill_energy_mj"] / rows["prefill"],
            "prefill_share": prefill_ms / (decode_ms + prefill_ms),
            "energy_mj_per_token": 1e3 * power * rows["gpus"] / per_s,
        }
    )
