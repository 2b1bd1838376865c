"""Deployments at a rate of randomly arriving requests, and the replicas they need."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.serve.deployments.arrivals import MAX_UTILIZATION, LoadCurve, LoadPoint
from foretune.plan.serve.requirements import Requirements

IDENTITY = ["system", "formats", "tp", "pp", "dp", "ep", "prefill", "workers", "offload_gib"]
"""Columns that identify a deployment regardless of its load."""
LATENCIES = ("ttft_ms", "tpot_ms")


def load_curve(loads: pd.DataFrame, osl: int, requirements: Requirements) -> LoadCurve:
    """Return a replica's latencies at any load, interpolated from its rows of a plan."""
    table = loads.sort_values("batch")[["batch", *LATENCIES]]
    batch, ttft_ms, tpot_ms = table.to_numpy(dtype=float).T
    return LoadCurve(batch, ttft_ms, tpot_ms, osl, requirements)


def at_rate(table: pd.DataFrame, rate: float, osl: int, requirements: Requirements) -> pd.DataFrame:
    """Return one row per deployment and number of replicas that sustain a request rate.

    Raises UsageError if none does. ``table`` has deployments at all loads, from
    `foretune.plan.serve.prediction.predict`; ``rate`` is in requests per second of all replicas.
    """
    rows = [
        row
        for _, loads in table.groupby(IDENTITY, sort=False, dropna=False)
        for row in _replica_rows(loads, rate, osl, requirements)
    ]
    if not rows:
        max_rate = MAX_UTILIZATION * table["requests_per_s"].max()
        raise UsageError(
            f"{rate:g} requests per second are too many: these GPUs sustain at most {max_rate:.3g}"
        )
    return pd.DataFrame(rows).reset_index(drop=True)


def fewest_replicas(table: pd.DataFrame) -> pd.DataFrame:
    """Return the feasible row with the fewest replicas of each deployment, else the largest.

    ``table`` is what `at_rate` returns, with the column ``keeps``.
    """
    order = table.assign(_rank=np.where(table["keeps"], table["replicas"], -table["replicas"]))
    order = order.sort_values(["keeps", "_rank"], ascending=[False, True], kind="stable")
    return order.groupby(IDENTITY, sort=False, dropna=False).head(1).drop(columns="_rank")


def _replica_rows(
    loads: pd.DataFrame, rate: float, osl: int, requirements: Requirements
) -> Sequence[pd.Series]:
    """Return a deployment's row for each number of replicas that sustains the rate."""
    curve, largest = load_curve(loads, osl, requirements), loads.loc[loads["batch"].idxmax()]
    rows = []
    for replicas in range(1, int(largest["replicas"]) + 1):
        load = curve.at(rate / replicas)
        if load is not None:
            nearest = loads.loc[(loads["batch"] - load.in_flight).abs().idxmin()]
            rows.append(_row(nearest, largest, load, replicas, rate, osl))
    return rows


def _row(
    nearest: pd.Series, largest: pd.Series, load: LoadPoint, replicas: int, rate: float, osl: int
) -> pd.Series:
    """Return a deployment at a load, scaled from the ``nearest`` planned load.

    Requests come in bursts, so memory and start options are those of the ``largest`` load.
    """
    row = nearest.copy()
    for name, value in (("ttft_ms", load.ttft_ms), ("tpot_ms", load.tpot_ms)):
        for end in ("_low", "_high"):
            if f"{name}{end}" in row:
                row[f"{name}{end}"] *= value / row[name]
        row[name] = value
    gpus = replicas * nearest["gpus"] // nearest["replicas"]
    utilization = min(rate / replicas / (nearest["requests_per_s"] / nearest["replicas"]), 1.0)
    row["power_w"] = row["awake_w"] + utilization * (row["power_w"] - row["awake_w"])
    row["energy_mj_per_token"] = 1e3 * row["power_w"] * gpus / (rate * osl)
    row["usd_per_million_tokens"] *= row["tokens_per_s_per_gpu"] / (rate * osl / gpus)
    row["tokens_per_s_per_gpu"], row["requests_per_s"] = rate * osl / gpus, rate
    row["replicas"], row["gpus"], row["good"] = replicas, gpus, load.goodput_share
    row["batch"] = max(round(load.in_flight), 1)
    row["memory_gib"], row["number"] = largest["memory_gib"], largest["number"]
    return row
