"""Limits and goal of a plan, and the replicas that a rate of Poisson arrivals needs.

A replica kept at n requests in flight finishes X(n) per second. With random arrivals at rate r, the
number in flight is a birth-death chain with P(n) proportional to rⁿ / (X(1) … X(n)) (the
flow-equivalent server of Chandy, Herzog and Woo, IBM Journal of Research and Development 19, 1975).
An arriving request finds n others with the same probability, and takes as long as one of n + 1
requests in flight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from foretune.errors import UnknownName, UsageError

Goal = Literal["throughput", "cost", "energy", "latency"]
GOALS: dict[Goal, tuple[str, float]] = {
    "throughput": ("tokens_per_s_per_gpu", 1.0),
    "cost": ("usd_per_million_tokens", -1.0),
    "energy": ("energy_mj_per_token", -1.0),
    "latency": ("tpot_ms", -1.0),
}
"""Goal -> the candidates' column to optimize, and its sign (1: more is better)."""
UPPER_LIMITS = {
    "ttft_ms": "ms to the first token",
    "tpot_ms": "ms per further token",
    "power_w": "W per GPU",
    "memory_gib": "GiB per GPU",
    "usd_per_million_tokens": "USD per million tokens",
}
"""Columns with an upper limit -> unit in messages."""


@dataclass(frozen=True)
class Requirements:
    """Limits and goal of a plan; an infinite limit is none.

    ``accuracy`` is the minimum share of quality that formats keep, by published results; the other
    limits are maxima, see `UPPER_LIMITS`.

    Raises:
        UnknownName: the goal is unknown.
        UsageError: no deployment could meet a limit.
    """

    ttft_ms: float = np.inf
    tpot_ms: float = np.inf
    accuracy: float = 0.0
    power_w: float = np.inf
    memory_gib: float = np.inf
    usd_per_million_tokens: float = np.inf
    goal: Goal = "throughput"

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise UnknownName("goal", self.goal, GOALS)
        for name, unit in UPPER_LIMITS.items():
            if not getattr(self, name) > 0:
                raise UsageError(f"a limit of {getattr(self, name)} {unit} must be positive")
        if not self.accuracy <= 1:
            raise UsageError(f"accuracy {self.accuracy} must be at most 1")

    def feasible(self, candidates: pd.DataFrame) -> "pd.Series[bool]":
        """Return which candidates, as in `foretune.plan.Plan`, meet all limits.

        An unknown value violates no limit, except that unknown accuracy violates an accuracy limit.
        """
        within = candidates["accuracy"].fillna(0.0 if self.accuracy > 0 else 1.0) >= self.accuracy
        for name in UPPER_LIMITS:
            within &= ~(candidates[name] > getattr(self, name))
        return within

    def violations(self, candidates: pd.DataFrame) -> list[str]:
        """Return the limits that no candidate meets, with the nearest value."""
        violated = []
        for name, unit in UPPER_LIMITS.items():
            smallest = candidates[name].min()
            if smallest > getattr(self, name):
                violated.append(f"{smallest:.4g} {unit} instead of {getattr(self, name):.4g}")
        largest = candidates["accuracy"].max()
        if largest < self.accuracy:
            violated.append(f"{largest:.3f} of the quality instead of {self.accuracy:.3f}")
        return violated

    def score(self, candidates: pd.DataFrame) -> "pd.Series[float]":
        """Return the candidates' scores for the goal: more is better, unknown is -inf."""
        column, sign = GOALS[self.goal]
        return (sign * candidates[column]).fillna(-np.inf)


MIN_GOODPUT_SHARE = 0.9
"""Share of requests that must meet the latency limits, as in DistServe's goodput (Zhong et al.,
arXiv:2401.09670)."""
MAX_UTILIZATION = 0.99
"""Maximum utilization of a replica; above it, queues grow without bound."""
MAX_QUEUE = 2000
"""Maximum number of waiting requests in the chain."""
BISECTIONS = 14


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
        table = loads.sort_values("batch")[["batch", "ttft_ms", "tpot_ms"]]
        in_flight, ttft_ms, tpot_ms = table.to_numpy(dtype=float).T
        last = int(in_flight[-1])
        numbers = np.arange(1, last + 1)
        log_in_flight = np.log(in_flight)
        ttft, tpot = (
            np.exp(np.interp(np.log(numbers), log_in_flight, np.log(times)))
            for times in (ttft_ms, tpot_ms)
        )
        # Throughput does not fall with more requests in flight.
        per_s = np.maximum.accumulate(1e3 * numbers / (ttft + (osl - 1) * tpot))
        self.max_per_s = float(per_s[-1])
        wait = 1e3 * np.arange(1, MAX_QUEUE + 1) / self.max_per_s
        self._per_s = np.r_[per_s, np.full(MAX_QUEUE, self.max_per_s)]
        self._ttft = np.r_[ttft, ttft[-1] + wait]
        self._tpot = np.r_[tpot, np.full(MAX_QUEUE, tpot[-1])]
        self._within_limits = (self._ttft <= requirements.ttft_ms) & (
            self._tpot <= requirements.tpot_ms
        )

    def at(self, rate: float) -> LoadPoint | None:
        """Return the latencies at ``rate`` requests per second; None if requests pile up."""
        if not 0 < rate <= MAX_UTILIZATION * self.max_per_s:
            return None
        log = np.r_[0.0, np.cumsum(np.log(rate) - np.log(self._per_s))]
        probability = np.exp(log - log.max())
        probability /= probability.sum()
        at_arrival, numbers = probability[:-1], np.arange(len(probability))
        at_arrival = at_arrival / at_arrival.sum()
        return LoadPoint(
            in_flight=float(probability @ numbers),
            ttft_ms=float(at_arrival @ self._ttft),
            tpot_ms=float(at_arrival @ self._tpot),
            goodput_share=float(at_arrival @ self._within_limits),
        )

    def goodput(self) -> float:
        """Return the highest rate at which `MIN_GOODPUT_SHARE` of requests meet the limits."""
        low, high = 0.0, MAX_UTILIZATION * self.max_per_s
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            load = self.at(middle)
            low, high = (
                (middle, high)
                if load and load.goodput_share >= MIN_GOODPUT_SHARE
                else (low, middle)
            )
        return low


IDENTITY = ["system", "formats", "tp", "pp", "dp", "ep", "prefill", "workers", "offload_gib"]
"""Columns that identify a deployment regardless of its load."""


def at_rate(table: pd.DataFrame, rate: float, osl: int, requirements: Requirements) -> pd.DataFrame:
    """Return one row per deployment and number of replicas that sustain a request rate.

    Raises UsageError if none does. ``table`` has deployments at all loads, from
    `foretune.plan.serve.candidates.predict`; ``rate`` is in requests per second of all replicas.
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
    """Return each deployment's feasible row with the fewest replicas, else its largest row."""
    order = table.assign(_rank=np.where(table["keeps"], table["replicas"], -table["replicas"]))
    order = order.sort_values(["keeps", "_rank"], ascending=[False, True], kind="stable")
    return order.groupby(IDENTITY, sort=False, dropna=False).head(1).drop(columns="_rank")


def _replica_rows(
    loads: pd.DataFrame, rate: float, osl: int, requirements: Requirements
) -> Sequence[pd.Series]:
    """Return a deployment's row for each number of replicas that sustains the rate."""
    curve, largest = LoadCurve(loads, osl, requirements), loads.loc[loads["batch"].idxmax()]
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
