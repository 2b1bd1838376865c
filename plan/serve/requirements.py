"""Requirements: the limits that a plan must keep to, and the goal in which the best is best."""

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
"""Goal -> the column of candidates that says it, and whether more of it is better."""
UPPER_LIMITS = {
    "ttft_ms": "ms to the first token",
    "tpot_ms": "ms per further token",
    "power_w": "W per GPU",
    "memory_gib": "GiB per GPU",
    "usd_per_million_tokens": "USD per million tokens",
}
"""Limited columns, and what they are called."""


@dataclass(frozen=True)
class Requirements:
    """Limits and goal of a plan; an infinite limit is none.

    Attributes:
        ttft_ms: most milliseconds to the first token.
        tpot_ms: most milliseconds per further token.
        accuracy: least share of quality that formats keep, where published results say it.
        power_w: most watts of a GPU, on average.
        memory_gib: most memory of a GPU, where less than all of it may be used.
        usd_per_million_tokens: most that generated tokens cost.
        goal: in what the best is best.

    Raises:
        UnknownName: there is no such goal.
        UsageError: a limit that nothing can keep to.
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
                raise UsageError(f"a limit of {getattr(self, name)} {unit} leaves nothing")
        if not self.accuracy <= 1:
            raise UsageError(f"accuracy {self.accuracy}: no format keeps more than 1, all of it")

    def feasible(self, candidates: pd.DataFrame) -> "pd.Series[bool]":
        """Return which candidates keep to all limits.

        What nobody knows breaks none, but for quality: a floor is kept by what is known to keep it.

        Args:
            candidates: as in `foretune.plan.Plan`.
        """
        within = candidates["accuracy"].fillna(0.0 if self.accuracy > 0 else 1.0) >= self.accuracy
        for name in UPPER_LIMITS:
            within &= ~(candidates[name] > getattr(self, name))
        return within

    def violations(self, candidates: pd.DataFrame) -> list[str]:
        """Return the limits that no candidate keeps to by itself, and the nearest there is."""
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
        """Return how good candidates are for the goal; more is better, unknown is worst."""
        return _score(self.goal, candidates)

    def front_score(self, candidates: pd.DataFrame) -> "pd.Series[float]":
        """Return the same beside the time per token: where that is the goal, of throughput."""
        return _score("throughput" if self.goal == "latency" else self.goal, candidates)


def _score(goal: Goal, candidates: pd.DataFrame) -> "pd.Series[float]":
    column, sign = GOALS[goal]
    return (sign * candidates[column]).fillna(-np.inf)
