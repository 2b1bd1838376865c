"""The verdict on a third party's implementation: right or not, and how much faster."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from foretune.collect.isolated_implementation import Work
from foretune.problem import Problem
from foretune.result import Result
from foretune.tune.results import Comparison, NoiseEstimate, Outcome


@dataclass(frozen=True)
class ProblemVerdict:
    """The comparison on one problem, with the candidate's largest error over all checked outputs.

    `against` compares the candidate with each rival, the fastest first; a comparison's ``value`` is
    the candidate's time in ms. `time_ms` has the times by name of implementation. `process_ratios`
    has the speed-up in each process, by rival. `work` is what the reference has to do.
    """

    problem: Problem
    against: tuple[Comparison, ...]
    time_ms: Mapping[str, float]
    processes: int
    rounds: int
    noise: NoiseEstimate
    relative_error: float
    process_ratios: Mapping[str, tuple[float, ...]]
    work: Work | None = None

    @property
    def candidate(self) -> Comparison:
        """The candidate compared with the fastest rival."""
        return self.against[0]


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Result):
    """Whether a candidate is correct, and its speed against the best rival.

    Attributes:
        refused: why it was rejected, with the problem; empty if accepted.
        problem_verdicts: one per compared problem; empty if rejected.
    """

    refused: str
    problem_verdicts: tuple[ProblemVerdict, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether all outputs were correct and all calls ended in time."""
        return not self.refused

    @property
    def speedup(self) -> float:
        """Geometric mean over problems of the speed-up over the best rival; NaN without one."""
        return self._geometric_mean("ratio")

    @property
    def interval(self) -> tuple[float, float]:
        """Geometric means of the bounds of the problems' 99 % intervals."""
        return self._geometric_mean("ratio_low"), self._geometric_mean("ratio_high")

    def _geometric_mean(self, figure: str) -> float:
        figures = [getattr(verdict.candidate, figure) for verdict in self.problem_verdicts]
        return geometric_mean(figures) if figures else math.nan

    @property
    def outcome(self) -> Outcome:
        """Whether the candidate beats every rival over all problems, or is slower than the best."""
        if self.refused:
            return "no_win"
        low, high = self.interval
        over_all_problems = Comparison(
            name="all problems",
            config=None,
            value=math.nan,
            ratio=self.speedup,
            ratio_low=low,
            ratio_high=high,
        )
        return over_all_problems.verdict

    @property
    def faster(self) -> bool:
        """Whether the candidate significantly beats every rival."""
        return self.outcome == "win"

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.refused:
            return f"refused: {self.refused}"
        low, high = self.interval
        words = {"win": "faster", "no_win": "no faster"}.get(self.outcome, self.outcome)
        load = f", while {self.disturbed}" if self.disturbed else ""
        if math.isnan(self.speedup):
            return f"correct, and not timed: no round could be compared{load}"
        return (
            f"correct, and {words}: {self.speedup:.2f}× the best rival ({low:.2f}–{high:.2f}){load}"
        )

    @property
    def disturbed(self) -> str:
        """The other load during the most disturbed comparison; empty if there was none."""
        noises = [v.noise for v in self.problem_verdicts if v.noise.disturbed]
        if not noises:
            return ""
        return max(noises, key=lambda noise: np.nan_to_num(noise.others)).disturbed

    def to_frame(self) -> pd.DataFrame:
        """Return one row per problem: its times by implementation, and the speed-up."""
        rows = [
            {"problem": str(r.problem), **r.time_ms, "speedup": r.candidate.ratio}
            for r in self.problem_verdicts
        ]
        return pd.DataFrame(rows or [{"refused": self.refused}])

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict for the command line's JSON output."""
        problems = [
            {
                "problem": dict(r.problem),
                "processes": r.processes,
                "rounds": r.rounds,
                "relative_error": r.relative_error,
                "noise": asdict(r.noise),
                "time_ms": dict(r.time_ms),
                "speedup": r.candidate.ratio,
                "speedup_interval": [r.candidate.ratio_low, r.candidate.ratio_high],
                "rival": r.candidate.name,
            }
            for r in self.problem_verdicts
        ]
        return {
            "accepted": self.accepted,
            "refused": self.refused,
            "faster": self.faster,
            "verdict": self.outcome,
            "speedup": self.speedup,
            "speedup_interval": [*self.interval],
            "problems": problems,
        }
