"""Power and energy of deployments, and the cost of a power cap.

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
VOLTAGE_EXPONENT = 3.0
"""Dynamic power is proportional to clock times voltage squared, and voltage follows the clock."""
VOLTAGE_FLOOR = 0.65
"""Share of dynamic power below which the voltage is constant, so that power follows the clock
alone.

With both, caps of 300 … 100 W on GPUs of 350 W leave 93, 84, 60, 36 and 11 % of a prompt's speed;
measured were 94, 85, 60, 26 and 14 % (RTX 3090, llama.cpp, MiniMax M2.5:
llmgarage.ai/power-limit-tokens-per-second-benchmark, 2026).
"""
MIN_CLOCK = 0.1
"""Minimum clock relative to the usual, whatever the cap."""
MEMORY_SENSITIVITY = 0.1
"""Share of memory-bound time that depends on the clock.

Under the same caps, decoding kept 99, 97, 94 and 86 % of its speed where prefill kept 94, 85, 60
and 26 % (same source).
"""


def apply_power_cap(
    power_w: float, cap_w: float, idle_w: float, sensitivity: float
) -> tuple[float, float]:
    """Return a GPU's power under a cap, and the slowdown of its work.

    The cap lowers the clock until the power is within it, down to `MIN_CLOCK`. The clock-dependent
    part of the time grows. All are in watts: ``idle_w`` does not depend on the clock;
    ``sensitivity`` is the clock-dependent share of the time, 0 … 1.
    """
    dynamic = max(power_w - idle_w, 0.0)
    power_share = min(max(cap_w - idle_w, 0.0) / max(dynamic, 1e-9), 1.0)
    knee = VOLTAGE_FLOOR ** (1.0 / VOLTAGE_EXPONENT)
    power_share = max(power_share, MIN_CLOCK * VOLTAGE_FLOOR / knee)
    clock = knee * power_share / VOLTAGE_FLOOR
    if power_share >= VOLTAGE_FLOOR:
        clock = power_share ** (1.0 / VOLTAGE_EXPONENT)
    drawn = power_w - dynamic * (1.0 - power_share)
    return drawn, 1.0 - sensitivity + sensitivity / clock


def clock_sensitivity(compute_bound: float) -> float:
    """Return the clock-dependent share of a step's time from its compute-bound share."""
    return MEMORY_SENSITIVITY + (1.0 - MEMORY_SENSITIVITY) * compute_bound


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
