"""Latencies of continuous batching, in closed form, and power.

In steady state, each step generates one token per running request of a rank. Finished requests are
replaced, so ``(running - 1) / osl`` prompts of other requests are prefilled per step, up to the
step's token limit::

    TPOT = a·decode + b·communication + overhead + prompts · (c·prefill + d·communication)
    TTFT = overhead + prompt + current step + earlier prompts + waiting for memory

If memory holds fewer requests than are in flight, the rest wait. By Little's law this takes
``(batch / most - 1)`` times as long as serving a request. `_max_wait_ms` bounds the time to first
token.
"""

import numpy as np
import pandas as pd

TPOT_COEFFICIENTS = np.array([1.0, 1.9, 0.035, 1.0, 0.65])
TTFT_COEFFICIENTS = {
    "sglang burst": (1.00, 2.57, 12.4, 1.66, 0.057, 0.006, 0.94),
    "sglang pools": (0.81, 1.73, 7.51, 1.17, 0.043, 0.016, 0.63),
    "sglang steady": (1.45, 1.17, 14.3, 0.97, 0.028, 0.002, 0.92),
    "trtllm burst": (1.39, 3.10, 3.04, 0.21, 0.006, 0.025, 0.42),
    "trtllm pools": (0.65, 2.15, 4.83, 0.84, 0.042, 0.025, 0.47),
    "trtllm speculative": (1.03, 0.60, 12.6, 0.71, 0.010, 0.011, 0.85),
    "trtllm steady": (0.55, 0.91, 7.91, 0.31, 0.029, 0.0, 0.35),
    "vllm burst": (0.94, 1.69, 2.15, 0.45, 0.0, 0.005, 0.10),
    "vllm steady": (0.67, 1.33, 1.19, 0.66, 0.030, 0.0, 0.49),
}
"""Engine and kind of load -> coefficients. Those of the time per token are equal for all."""
OTHER_TTFT_COEFFICIENTS = (0.72, 1.59, 4.58, 0.60, 0.030, 0.0, 0.43)
"""All coefficients were fitted to 1,639 measured deployments (a part of AIConfigurator's sample
table, Apache-2.0)."""
MIN_MS = 1e-9
OVERHEAD_MS = 20.0
QUEUE_SHARE = 0.1
"""Scales of terms, so that their coefficients are near one."""
TOKENS_PER_DRAFTED_STEP = 1.5
"""Tokens per step with one drafted token, over the relative time of such a step.

DeepSeek reports 1.8 tokens (arXiv:2412.19437, section 5.4.3).
"""


def formula_latencies(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``tpot_ms`` and ``ttft_ms`` of deployments; ``rows`` come from `analytic_times`."""
    tpot = np.maximum(_tpot_terms(rows) @ TPOT_COEFFICIENTS, MIN_MS)
    memory_wait = memory_wait_ms(rows, tpot)
    coefficients = [TTFT_COEFFICIENTS.get(use, OTHER_TTFT_COEFFICIENTS) for use in rows["use"]]
    terms = _ttft_terms(rows, tpot) * np.array(coefficients).reshape(
        len(rows), len(OTHER_TTFT_COEFFICIENTS)
    )
    ttft = np.maximum(terms.sum(axis=1) + memory_wait, MIN_MS)
    ttft = np.minimum(ttft, memory_wait + _max_wait_ms(rows))
    return pd.DataFrame({"tpot_ms": tpot, "ttft_ms": ttft}, index=rows.index)


def tokens_per_s(concurrency: np.ndarray, osl: np.ndarray, latencies: pd.DataFrame) -> np.ndarray:
    """Return generated tokens per second with ``concurrency`` requests in flight."""
    request_ms = latencies["ttft_ms"] + latencies["tpot_ms"] * np.maximum(osl - 1, 0)
    return np.asarray(1e3 * concurrency * osl / request_ms)


def prompts_per_token(rows: pd.DataFrame) -> np.ndarray:
    """Return how many other prompts a rank prefills per step; 0 with a prefill pool."""
    others = np.minimum((rows["running"] - 1.0).clip(0.0) / rows["osl"], rows["step_prompts"])
    return np.asarray(others * (1.0 - rows["apart"]))


def memory_wait_ms(rows: pd.DataFrame, tpot_ms: np.ndarray) -> np.ndarray:
    """Return how long a request waits for free cache memory."""
    excess = np.maximum(rows["batch"] / rows["most"] - 1.0, 0.0)
    return np.asarray(excess * rows["osl"] * tpot_ms)


def _max_wait_ms(rows: pd.DataFrame) -> np.ndarray:
    """Return how long a request waits if all others are ahead of it.

    The bound is generous: twice its own prompt, and twice the measured number of steps.
    """
    steps = 5.0 + np.sqrt(rows["running"])
    demand = rows["running"] / rows["osl"] * rows["prefill"] / rows["decode"]
    others = (
        (rows["running"] - 1.0).clip(0.0) * rows["prefill"] / _prefill_group_ratio(rows, demand)
    )
    return np.asarray(2.0 * (OVERHEAD_MS + rows["prompt"] + steps * rows["decode"] + others))


def prefill_load(rows: pd.DataFrame, tpot_ms: np.ndarray) -> np.ndarray:
    """Return the utilization of the prefill groups (0 … 1)."""
    demand = rows["running"] / rows["osl"] * rows["prefill"] / tpot_ms
    return np.asarray(np.clip(demand / _prefill_group_ratio(rows, demand), 0.0, 1.0))


def apply_prefill_limit(rows: pd.DataFrame, latencies: pd.DataFrame) -> pd.DataFrame:
    """Return latencies raised to the rate at which prompts can be prefilled.

    By Little's law, a request takes at least as long as prefilling all requests in flight.
    ``latencies`` has ``ttft_ms`` and ``tpot_ms``, with ``_low`` and ``_high`` if known.
    """
    demand = rows["running"] / rows["osl"] * rows["prefill"] / latencies["tpot_ms"]
    read_all_ms = rows["running"] * rows["prefill"] / _prefill_group_ratio(rows, demand)
    min_ttft_ms = read_all_ms - (rows["osl"] - 1.0) * latencies["tpot_ms"]
    factor = np.maximum(min_ttft_ms / latencies["ttft_ms"], 1.0)
    columns = [name for name in latencies if name.startswith("ttft_ms")]
    return latencies.assign(**{name: latencies[name] * factor for name in columns})


def _prefill_group_ratio(rows: pd.DataFrame, demand: "pd.Series[float]") -> "pd.Series[float]":
    """Return prefill groups per decode group.

    If unknown, as many as keep up; without pools, one.
    """
    return rows["readers"].where(rows["readers"] > 0, np.ceil(demand).clip(1.0))


def _tpot_terms(rows: pd.DataFrame) -> np.ndarray:
    prompts = prompts_per_token(rows)
    terms = np.stack(
        [
            rows["decode"] - rows["decode_communication"],
            rows["decode_communication"],
            np.ones(len(rows)),
            prompts * (rows["prefill"] - rows["prefill_communication"]),
            prompts * rows["prefill_communication"],
        ],
        axis=1,
    )
    tokens_per_step = np.where(rows["speculative"] > 0, TOKENS_PER_DRAFTED_STEP, 1.0)
    terms[:, :3] /= tokens_per_step[:, None]
    return terms


def _ttft_terms(rows: pd.DataFrame, tpot_ms: np.ndarray) -> np.ndarray:
    running = np.asarray(rows["running"])
    demand = rows["running"] / rows["osl"] * rows["prefill"] / tpot_ms
    queue = running * rows["prefill"] / _prefill_group_ratio(rows, demand)
    return np.stack(
        [
            np.full(len(rows), OVERHEAD_MS),
            rows["prompt"],
            tpot_ms,
            QUEUE_SHARE * queue,
            queue * prefill_load(rows, tpot_ms),
            # The interval at which a running request finishes.
            rows["osl"] * tpot_ms / running,
            np.sqrt(running) * tpot_ms,
        ],
        axis=1,
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
