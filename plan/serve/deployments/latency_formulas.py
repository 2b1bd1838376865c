"""Latencies of continuous batching in closed form.

In steady state, each step generates one token per running request of a rank. Finished requests are
replaced, so ``(running - 1) / osl`` prompts of other requests are prefilled per step, up to the
step's token limit::

    TPOT = a·decode + b·communication + overhead + prompts · (c·prefill + d·communication)
    TPOT ≥ CPU time of a step
    TTFT = overhead + prompt + current step + earlier prompts + waiting for memory

If memory holds fewer requests than are in flight, the rest wait. By Little's law this takes
``(batch / most - 1)`` times as long as serving a request. `_max_wait_ms` bounds the time to first
token.

All functions take rows of `analytic_times`, one per deployment.
"""

import numpy as np
import pandas as pd

from foretune.plan.describe import shipped_rows

TPOT_COEFFICIENTS = np.array([1.0, 1.9, 0.035, 1.0, 0.65])
"""Coefficients of `_tpot_terms`, fitted to measured deployments; equal for all engines."""
TTFT_COEFFICIENTS = {
    row.pop("use"): [float(value) for value in row.values()]
    for row in shipped_rows("ttft.csv", "foretune.plan.serve.deployments")
}
"""Engine and kind of load, or ``other`` -> coefficients of `_ttft_terms`, fitted to the same
deployments."""
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
    # A step takes at least the CPU's time for it.
    tpot_ms = np.maximum(_tpot_terms(rows) @ TPOT_COEFFICIENTS, rows["cpu"])

    other_use = TTFT_COEFFICIENTS["other"]
    coefficients = [TTFT_COEFFICIENTS.get(use, other_use) for use in rows["use"]]
    shape = (len(rows), len(other_use))
    terms = _ttft_terms(rows, tpot_ms) * np.array(coefficients).reshape(shape)

    # Waiting for memory comes on top, also of the upper bound.
    memory_ms = memory_wait_ms(rows, tpot_ms)
    ttft_ms = np.maximum(terms.sum(axis=1) + memory_ms, MIN_MS)
    ttft_ms = np.minimum(ttft_ms, memory_ms + _max_wait_ms(rows))
    return pd.DataFrame({"tpot_ms": tpot_ms, "ttft_ms": ttft_ms}, index=rows.index)


def apply_prefill_limit(rows: pd.DataFrame, latencies: pd.DataFrame) -> pd.DataFrame:
    """Return latencies raised to the rate at which prompts can be prefilled.

    By Little's law, a request takes at least as long as prefilling all requests in flight.
    ``latencies`` has ``ttft_ms`` and ``tpot_ms``, with ``_low`` and ``_high`` if known.
    """
    demand = _prefill_demand(rows, latencies["tpot_ms"])
    prefill_all_ms = rows["running"] * rows["prefill"] / _prefill_groups(rows, demand)
    min_ttft_ms = prefill_all_ms - (rows["osl"] - 1.0) * latencies["tpot_ms"]

    # The interval's ends are raised by the same factor.
    factor = np.maximum(min_ttft_ms / latencies["ttft_ms"], 1.0)
    columns = [name for name in latencies if name.startswith("ttft_ms")]
    return latencies.assign(**{name: latencies[name] * factor for name in columns})


def tokens_per_s(concurrency: np.ndarray, osl: np.ndarray, latencies: pd.DataFrame) -> np.ndarray:
    """Return generated tokens per second with ``concurrency`` requests in flight."""
    request_ms = latencies["ttft_ms"] + latencies["tpot_ms"] * np.maximum(osl - 1, 0)
    return np.asarray(1e3 * concurrency * osl / request_ms)


def prompts_per_token(rows: pd.DataFrame) -> np.ndarray:
    """Return how many other prompts a rank prefills per step; 0 with a prefill pool."""
    other_prompts = (rows["running"] - 1.0).clip(0.0) / rows["osl"]
    fitting = np.minimum(other_prompts, rows["step_prompts"])
    return np.asarray(fitting * (1.0 - rows["apart"]))


def memory_wait_ms(rows: pd.DataFrame, tpot_ms: np.ndarray) -> np.ndarray:
    """Return how long a request waits for free cache memory."""
    excess = np.maximum(rows["batch"] / rows["most"] - 1.0, 0.0)
    return np.asarray(excess * rows["osl"] * tpot_ms)


def _tpot_terms(rows: pd.DataFrame) -> np.ndarray:
    """Return the terms of the time per token (rows, terms)."""
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

    # With drafted tokens, a step yields several; prompts take as long as without.
    tokens_per_step = np.where(rows["speculative"] > 0, TOKENS_PER_DRAFTED_STEP, 1.0)
    terms[:, :3] /= tokens_per_step[:, None]
    return terms


def _ttft_terms(rows: pd.DataFrame, tpot_ms: np.ndarray) -> np.ndarray:
    """Return the terms of the time to the first token (rows, terms)."""
    running = np.asarray(rows["running"])
    demand = _prefill_demand(rows, tpot_ms)
    groups = _prefill_groups(rows, demand)
    queue_ms = running * rows["prefill"] / groups
    utilization = np.clip(demand / groups, 0.0, 1.0)
    ms_between_ends = rows["osl"] * tpot_ms / running
    return np.stack(
        [
            np.full(len(rows), OVERHEAD_MS),
            rows["prompt"],
            tpot_ms,
            QUEUE_SHARE * queue_ms,
            queue_ms * utilization,
            ms_between_ends,
            np.sqrt(running) * tpot_ms,
        ],
        axis=1,
    )


def _max_wait_ms(rows: pd.DataFrame) -> np.ndarray:
    """Return a generous upper bound of the time to first token, with all others ahead."""
    steps = 5.0 + np.sqrt(rows["running"])
    groups = _prefill_groups(rows, _prefill_demand(rows, rows["decode"]))
    others_ms = (rows["running"] - 1.0).clip(0.0) * rows["prefill"] / groups
    return np.asarray(2.0 * (OVERHEAD_MS + rows["prompt"] + steps * rows["decode"] + others_ms))


def _prefill_demand(
    rows: pd.DataFrame, tpot_ms: "pd.Series[float] | np.ndarray"
) -> "pd.Series[float]":
    """Return how many prefill groups a decode group keeps busy."""
    return rows["running"] / rows["osl"] * rows["prefill"] / tpot_ms


def _prefill_groups(rows: pd.DataFrame, demand: "pd.Series[float]") -> "pd.Series[float]":
    """Return prefill groups per decode group; if unknown, as many as are needed."""
    return rows["readers"].where(rows["readers"] > 0, np.ceil(demand).clip(1.0))
