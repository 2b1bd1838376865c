"""One number per setting: what the search minimizes, predicted or measured."""

from collections.abc import Mapping
from math import inf, isfinite
from typing import Protocol

from foretune.errors import UsageError
from foretune.plan.serve.requirements import Requirements

PENALTY_EXPONENT = 3.0
"""A figure that is twice its limit makes a load eight times worse."""
GOALS = ("throughput", "cost", "latency")
"""Goals that a server's figures show. Cost follows the throughput: the GPUs stay the same."""


class Figures(Protocol):
    """Figures of one load, predicted or measured."""

    @property
    def ttft_ms(self) -> float:
        """Milliseconds to the first token."""

    @property
    def tpot_ms(self) -> float:
        """Milliseconds per further token."""

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second."""


def check_goal(requirements: Requirements) -> None:
    """Raise UsageError for a goal that a server does not show."""
    if requirements.goal not in GOALS:
        raise UsageError(
            f"--prove cannot measure {requirements.goal}: use --for {', '.join(GOALS[:-1])} or "
            f"{GOALS[-1]}"
        )


def load_score(figures: Figures, requirements: Requirements) -> float:
    """Return a load's score: milliseconds per token, multiplied where a limit is broken.

    Of all requests together for throughput and cost, of one request for latency. Infinite if
    nothing was generated, or what a limit or the goal needs is unknown.
    """
    per_token_ms = 1e3 / figures.tokens_per_s if figures.tokens_per_s > 0 else inf
    if requirements.goal == "latency":
        per_token_ms = figures.tpot_ms

    penalty = 1.0
    for measured, limit in (
        (figures.ttft_ms, requirements.ttft_ms),
        (figures.tpot_ms, requirements.tpot_ms),
    ):
        if isfinite(limit) and not isfinite(measured):
            return inf  # a limit of what is unknown is not met
        if measured > limit:
            penalty *= (measured / limit) ** PENALTY_EXPONENT
    return per_token_ms * penalty if isfinite(per_token_ms) else inf


def meets_limits(figures: Figures, requirements: Requirements) -> bool:
    """Return whether a load's latencies are within the limits."""
    within_ttft = not figures.ttft_ms > requirements.ttft_ms
    within_tpot = not figures.tpot_ms > requirements.tpot_ms
    return within_ttft and within_tpot


def best_load(figures: Mapping[str, Figures], requirements: Requirements) -> tuple[str, float]:
    """Return the load with the best score, and that score: loads are free, starts are not."""
    scores = {name: load_score(of_load, requirements) for name, of_load in figures.items()}
    if not scores:
        return "", inf
    best = min(scores, key=lambda name: scores[name])
    return best, scores[best]
