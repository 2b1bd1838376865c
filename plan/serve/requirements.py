"""Limits and goal of a plan."""

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
        unknown_accuracy = 0.0 if self.accuracy > 0 else 1.0
        within = candidates["accuracy"].fillna(unknown_accuracy) >= self.accuracy
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
