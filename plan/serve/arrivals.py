"""Requests that arrive at random: latencies at a rate, and the replicas that a rate needs.

A replica kept at n requests in flight finishes X(n) per second. With random arrivals at rate r, the
number in flight is a birth-death chain with P(n) proportional to rⁿ / (X(1) … X(n)) (the
flow-equivalent server of Chandy, Herzog and Woo, IBM Journal of Research and Development 19, 1975).
An arriving request finds n others with the same probability, and takes as long as one of n + 1
requests in flight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.serve.requirements import Requirements

MIN_GOODPUT_SHARE = 0.9
"""Share of requests that must meet the latency limits, as in DistServe's goodput (Zhong et al.,
arXiv:2401.09670)."""
MAX_UTILIZATION = 0.99
"""Maximum utilization of a replica; above it, queues grow without bound."""
MAX_QUEUE = 2000
"""Maximum number of waiting requests in the chain."""
BISECTIONS = 14
"""Steps of the search for the highest rate."""
IDENTITY = [
    *("system", "formats", "tp", "pp", "dp", "ep"),
    *("prefill", "prefill_system", "workers", "offload_gib"),
]
"""Columns that identify a deployment regardless of its load."""


@dataclass(frozen=True)
class LoadPoint:
    """A replica at a request rate: mean latencies, and the share of requests within the limits."""

    in_flight: float
    ttft_ms: float
    tpot_ms: float
    goodput_share: float


class LoadCurve:
    """A replica's latencies at any load, interpolated between ``loads``, its rows of a plan."""

    def __init__(self, loads: pd.DataFrame, osl: int, requirements: Requirements) -> None:
        # Latencies with 1, 2, 3, … requests in flight, on logarithmic scales.
        table = loads.sort_values("batch")[["batch", "ttft_ms", "tpot_ms"]]
        planned, planned_ttft_ms, planned_tpot_ms = table.to_numpy(dtype=float).T
        in_flight = np.arange(1, int(planned[-1]) + 1)
        log_in_flight = np.log(in_flight)
        log_planned = np.log(planned)
        ttft_ms = np.exp(np.interp(log_in_flight, log_planned, np.log(planned_ttft_ms)))
        tpot_ms = np.exp(np.interp(log_in_flight, log_planned, np.log(planned_tpot_ms)))

        # Throughput does not fall with more requests in flight.
        per_s = np.maximum.accumulate(1e3 * in_flight / (ttft_ms + (osl - 1) * tpot_ms))
        self.max_per_s = float(per_s[-1])

        # Further requests wait in a queue, which lengthens the time to the first token.
        wait_ms = 1e3 * np.arange(1, MAX_QUEUE + 1) / self.max_per_s
        self._per_s = np.r_[per_s, np.full(MAX_QUEUE, self.max_per_s)]
        self._ttft_ms = np.r_[ttft_ms, ttft_ms[-1] + wait_ms]
        self._tpot_ms = np.r_[tpot_ms, np.full(MAX_QUEUE, tpot_ms[-1])]

        within_ttft = self._ttft_ms <= requirements.ttft_ms
        within_tpot = self._tpot_ms <= requirements.tpot_ms
        self._within_limits = within_ttft & within_tpot

    def at(self, rate: float) -> LoadPoint | None:
        """Return the latencies at ``rate`` requests per second; None if requests pile up."""
        if not 0 < rate <= MAX_UTILIZATION * self.max_per_s:
            return None

        # The chain's probabilities of 0, 1, 2, … requests in flight, from their logarithms.
        log_weight = np.r_[0.0, np.cumsum(np.log(rate) - np.log(self._per_s))]
        probability = np.exp(log_weight - log_weight.max())
        probability /= probability.sum()

        # An arriving request is one more, so the last state has no latency.
        at_arrival = probability[:-1]
        at_arrival = at_arrival / at_arrival.sum()
        return LoadPoint(
            in_flight=float(probability @ np.arange(len(probability))),
            ttft_ms=float(at_arrival @ self._ttft_ms),
            tpot_ms=float(at_arrival @ self._tpot_ms),
            goodput_share=float(at_arrival @ self._within_limits),
        )

    def goodput(self) -> float:
        """Return the highest rate at which `MIN_GOODPUT_SHARE` of requests meet the limits."""
        low = 0.0
        high = MAX_UTILIZATION * self.max_per_s
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            load = self.at(middle)
            if load is not None and load.goodput_share >= MIN_GOODPUT_SHARE:
                low = middle
            else:
                high = middle
        return low


def at_rate(table: pd.DataFrame, rate: float, osl: int, requirements: Requirements) -> pd.DataFrame:
    """Return one row per deployment and number of replicas that sustain a request rate.

    Raises UsageError if none does. ``table`` has deployments at all loads, from
    `foretune.plan.serve.candidates.predict`; ``rate`` is in requests per second of all replicas.
    """
    rows: list[pd.Series] = []
    for _, loads in table.groupby(IDENTITY, sort=False, dropna=False):
        rows += _replica_rows(loads, rate, osl, requirements)
    if not rows:
        max_rate = MAX_UTILIZATION * table["requests_per_s"].max()
        raise UsageError(
            f"{rate:g} requests per second are too many: these GPUs sustain at most {max_rate:.3g}"
        )
    return pd.DataFrame(rows).reset_index(drop=True)


def fewest_replicas(table: pd.DataFrame) -> pd.DataFrame:
    """Return each deployment's feasible row with the fewest replicas, else its largest row."""
    rank = np.where(table["keeps"], table["replicas"], -table["replicas"])
    ranked = table.assign(_rank=rank).sort_values(
        ["keeps", "_rank"], ascending=[False, True], kind="stable"
    )
    return ranked.groupby(IDENTITY, sort=False, dropna=False).head(1).drop(columns="_rank")


def _replica_rows(
    loads: pd.DataFrame, rate: float, osl: int, requirements: Requirements
) -> Sequence[pd.Series]:
    """Return a deployment's row for each number of replicas that sustains the rate."""
    curve = LoadCurve(loads, osl, requirements)
    largest = loads.loc[loads["batch"].idxmax()]
    rows = []
    for replicas in range(1, int(largest["replicas"]) + 1):
        load = curve.at(rate / replicas)
        if load is None:
            continue
        distance = (loads["batch"] - load.in_flight).abs()
        row = _scaled_row(
            loads.loc[distance.idxmin()], load=load, replicas=replicas, rate=rate, osl=osl
        )
        # Requests come in bursts, so memory and start options are those of the largest load.
        row["memory_gib"] = largest["memory_gib"]
        row["number"] = largest["number"]
        rows.append(row)
    return rows


def _scaled_row(
    nearest: pd.Series, load: LoadPoint, replicas: int, rate: float, osl: int
) -> pd.Series:
    """Return a deployment at a load, scaled from the ``nearest`` planned load."""
    row = nearest.copy()

    # Intervals keep their width, relative to the latency.
    for name, latency_ms in (("ttft_ms", load.ttft_ms), ("tpot_ms", load.tpot_ms)):
        for end in ("_low", "_high"):
            if f"{name}{end}" in row:
                row[f"{name}{end}"] *= latency_ms / row[name]
        row[name] = latency_ms

    # Power falls with utilization to that of an idle GPU that is awake.
    gpus = replicas * nearest["gpus"] // nearest["replicas"]
    max_per_s = nearest["requests_per_s"] / nearest["replicas"]
    utilization = min(rate / replicas / max_per_s, 1.0)
    row["power_w"] = row["awake_w"] + utilization * (row["power_w"] - row["awake_w"])

    # Energy, cost and throughput are per token that is asked for.
    tokens_per_s = rate * osl
    tokens_per_s_per_gpu = tokens_per_s / gpus
    row["energy_mj_per_token"] = 1e3 * row["power_w"] * gpus / tokens_per_s
    row["usd_per_million_tokens"] *= row["tokens_per_s_per_gpu"] / tokens_per_s_per_gpu
    row["tokens_per_s_per_gpu"] = tokens_per_s_per_gpu
    row["requests_per_s"] = rate

    row["replicas"] = replicas
    row["gpus"] = gpus
    row["good"] = load.goodput_share
    row["batch"] = max(round(load.in_flight), 1)
    return row
