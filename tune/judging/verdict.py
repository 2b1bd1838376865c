"""What a judge says."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from foretune.problem import Problem
from foretune.tune.results import Comparison, NoiseEstimate


@dataclass(frozen=True)
class ProblemVerdict:
    """The comparison on one problem.

    Attributes:
        problem: what was computed.
        comparisons: the candidate's best rival first, then the candidate, then other rivals; times
            in ms, ratios are the best rival's time over theirs.
        rounds: how many rounds were compared.
        steadiness: of the machine.
        relative_error: the candidate's largest, over all outputs that were looked at.
    """

    problem: Problem
    comparisons: tuple[Comparison, ...]
    rounds: int
    steadiness: NoiseEstimate
    relative_error: float

    @property
    def candidate(self) -> Comparison:
        """The one that is judged."""
        return self.comparisons[1]

    @property
    def rival(self) -> Comparison:
        """The fastest of the others."""
        return self.comparisons[0]

    @property
    def unstable(self) -> str:
        """Why the comparison does not count; empty if it does."""
        if self.steadiness.disturbed:
            return self.steadiness.disturbed
        ratio = max(self.candidate.ratio, 1.0 / self.candidate.ratio)
        if self.is_significant and self.steadiness.noise_ratio >= ratio:
            return (
                f"{self.rival.name} differs from itself by up to {self.steadiness.noise_ratio:.2f}×"
            )
        return ""

    @property
    def is_significant(self) -> bool:
        """Whether the interval of the ratio excludes 1."""
        return not self.candidate.ratio_low <= 1.0 <= self.candidate.ratio_high


@dataclass(frozen=True)
class Verdict:
    """Whether a candidate is right, and how fast it is beside its best rival.

    Attributes:
        refused: why it cannot be accepted, with the problem; empty if it can.
        problem_verdicts: one per problem that was compared; none where it was refused.
    """

    refused: str
    problem_verdicts: tuple[ProblemVerdict, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether everything it computed was right, in the time it took."""
        return not self.refused

    @property
    def unstable(self) -> str:
        """Why the times do not count; empty if they do."""
        return next((r.unstable for r in self.problem_verdicts if r.unstable), "")

    @property
    def speedup(self) -> float:
        """Geometric mean over problems of the best rival's time over the candidate's; or NaN."""
        return _geometric_mean([r.candidate.ratio for r in self.problem_verdicts])

    @property
    def interval(self) -> tuple[float, float]:
        """Geometric means of the ends of the problems' 95 % intervals."""
        candidates = [r.candidate for r in self.problem_verdicts]
        return _geometric_mean([c.ratio_low for c in candidates]), _geometric_mean(
            [c.ratio_high for c in candidates]
        )

    @property
    def faster(self) -> bool:
        """Whether it beats every rival for certain, all problems taken together."""
        return self.accepted and not self.unstable and self.interval[0] > 1.0

    def __str__(self) -> str:
        if self.refused:
            return f"refused: {self.refused}"
        low, high = self.interval
        text = f"{self.speedup:.2f}× the best rival ({low:.2f}–{high:.2f})"
        if self.unstable:
            return f"right, but unstable ({self.unstable}): {text}"
        return f"right, and {'faster' if self.faster else 'no faster'}: {text}"

    def summary(self) -> dict[str, Any]:
        """Return it as the command line's JSON gives it."""
        low, high = self.interval
        return {
            "accepted": self.accepted,
            "refused": self.refused,
            "faster": self.faster,
            "unstable": self.unstable,
            "speedup": self.speedup,
            "speedup_interval": [low, high],
            "problems": [
                {
                    "problem": dict(r.problem),
                    "rounds": r.rounds,
                    "relative_error": r.relative_error,
                    "steadiness": asdict(r.steadiness),
                    "time_ms": {c.name: c.value for c in r.comparisons},
                    "speedup": r.candidate.ratio,
                    "speedup_interval": [r.candidate.ratio_low, r.candidate.ratio_high],
                    "rival": r.rival.name,
                }
                for r in self.problem_verdicts
            ],
        }


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else math.nan
