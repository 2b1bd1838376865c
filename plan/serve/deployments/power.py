"""Power and energy of deployments, and what a cap on their power costs.

Energy is power times time, never a prediction of its own. A GPU draws what its operators draw while
they run; for the rest of a step it works on as before for a part, and waits, awake, for the other.
"""

from typing import overload

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.serving import TOKENS_PER_DRAFTED_STEP, tokens_per_s

UNMODELED_ACTIVE_SHARE = 0.6
"""Share of the time beyond its operators in which a GPU that serves works on, in what no table
holds: sampling, uneven batches, copies. Were it all waiting, four GPUs that ML.ENERGY measured
(v3.0, vLLM, in huggingface.co/datasets/leadgreen/green-token-index) would draw a third less than
they do; were it all work, from 15 % less to 39 % more (`benchmarks/plan_power.py`)."""
VOLTAGE_EXPONENT = 3.0
"""Power beyond idling goes by clock times voltage squared, and the voltage follows the clock."""
VOLTAGE_FLOOR = 0.65
"""Share of a load's power beyond idling below which the voltage stays, so that power goes by the
clock alone. With both, caps of 300 … 100 W on GPUs of 350 W leave 93, 84, 60, 36 and 11 % of a
prompt's speed; measured were 94, 85, 60, 26 and 14 % (RTX 3090, llama.cpp, MiniMax M2.5:
llmgarage.ai/power-limit-tokens-per-second-benchmark, 2026)."""
MIN_CLOCK = 0.1
"""Share of the usual clock below which GPUs do not go, whatever the cap."""
MEMORY_SENSITIVITY = 0.1
"""Share of the time of what waits for memory that goes by the clock: under the same caps answers
kept 99, 97, 94 and 86 % of their speed where prompts kept 94, 85, 60 and 26 % (the same source)."""


@overload
def apply_power_cap(
    power_w: float, cap_w: float, idle_w: float, sensitivity: float
) -> tuple[float, float]: ...


@overload
def apply_power_cap(
    power_w: np.ndarray,
    cap_w: float | np.ndarray,
    idle_w: float | np.ndarray,
    sensitivity: float | np.ndarray,
) -> tuple[np.ndarray, np.ndarray]: ...


def apply_power_cap(
    power_w: float | np.ndarray,
    cap_w: float | np.ndarray,
    idle_w: float | np.ndarray,
    sensitivity: float | np.ndarray,
) -> tuple[float | np.ndarray, float | np.ndarray]:
    """Return what a GPU draws under a cap, and how many times as long its work takes.

    The cap lowers the clock until the power keeps to it; the part of the time that goes by the
    clock grows. A cap that even the lowest clock exceeds is not kept to.

    Args:
        power_w: that the work draws without a cap, watts.
        cap_w: the cap, watts.
        idle_w: that the GPU draws whatever its clock, watts.
        sensitivity: share of the time that goes by the clock, 0 … 1.
    """
    dynamic = np.maximum(np.subtract(power_w, idle_w), 0.0)
    headroom = np.clip(np.subtract(cap_w, idle_w), 0.0, None)
    power_share = np.clip(np.divide(headroom, np.maximum(dynamic, 1e-9)), 0.0, 1.0)
    knee = VOLTAGE_FLOOR ** (1.0 / VOLTAGE_EXPONENT)
    power_share = np.maximum(power_share, MIN_CLOCK * VOLTAGE_FLOOR / knee)
    clock = np.where(
        power_share >= VOLTAGE_FLOOR,
        power_share ** (1.0 / VOLTAGE_EXPONENT),
        knee * power_share / VOLTAGE_FLOOR,
    )
    drawn = power_w - dynamic * (1.0 - power_share)
    slowdown = 1.0 - sensitivity + sensitivity / clock
    if np.ndim(slowdown) or np.ndim(drawn):
        return drawn, slowdown
    return float(drawn), float(slowdown)


def clock_sensitivity(compute_bound: float | np.ndarray) -> float | np.ndarray:
    """Return the share of a step's time that goes by the clock.

    Args:
        compute_bound: share of its time in operators that computing limits.
    """
    return MEMORY_SENSITIVITY + (1.0 - MEMORY_SENSITIVITY) * compute_bound


def deployment_power(rows: pd.DataFrame, latencies: pd.DataFrame) -> pd.DataFrame:
    """Return what deployments draw.

    Columns: ``power_w``, of a GPU over time, waiting included; ``decode_power_w`` and
    ``prefill_power_w``, of a GPU whose operators write answers or read prompts, without a pause;
    ``prefill_share``, of the busy time; ``energy_mj_per_token``, of all GPUs per generated token,
    prompts included.

    Args:
        rows: columns ``decode``, ``decode_energy_mj``, ``prefill``, ``prefill_energy_mj``,
            ``running``, ``concurrency``, ``osl``, ``speculative``, ``tp``, ``pp``,
            ``prefill_tp``, ``gpus`` and ``active_idle_w`` of `physics.physics`.
        latencies: predicted ``tpot_ms`` and ``ttft_ms``.
    """
    # One group of ranks writes a token for each of its requests per step, one reads a prompt.
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
    # Of several stages one runs at a time. Operators that are faster than by themselves draw no
    # more, but for a shorter time.
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
