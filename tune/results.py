"""What tuning one problem brought: the trace of the search and the verdict on its winner."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

from foretune.measurement import Measurement, Status
from foretune.objective import Limit, Objective
from foretune.problem import Problem
from foretune.space import Configuration

REJECTED = "rejected"
"""Status in a trace of what ran, and broke a hard limit."""


@dataclass(frozen=True)
class SearchStep:
    """One measurement of a search.

    Attributes:
        config: what was measured.
        status: how it ended, or `REJECTED`.
        time_ms: measured, NaN if it failed.
        power_w: measured, NaN without a meter.
        objective: what was minimised; infinite if it failed or was rejected.
        predicted_ms: what the predictor said before; NaN without one.
        low_ms: lower end of its 90 % interval.
        high_ms: upper end.
        known: whether the store had it before the search.
    """

    config: Configuration
    status: str
    time_ms: float
    power_w: float
    objective: float
    predicted_ms: float = math.nan
    low_ms: float = math.nan
    high_ms: float = math.nan
    known: bool = False


def step_status(measurement: Measurement, limits: Iterable[Limit]) -> str:
    """Return how a measurement ended, or `REJECTED`."""
    rejected = measurement.ok and not all(limit.is_satisfied_by(measurement) for limit in limits)
    return REJECTED if rejected else measurement.status.value


@dataclass(frozen=True)
class Comparison:
    """One of those compared in a verification.

    Attributes:
        name: ``default``, ``candidate 1``, … or the library's name.
        config: None for a library call.
        value: median of the objective (ms, mJ or mJ·ms) in the interleaved run.
        ratio: default's objective over its own, median over rounds: above 1 is better.
        ratio_low: lower end of the 95 % interval of the ratio.
        ratio_high: upper end.
    """

    name: str
    config: Configuration | None
    value: float
    ratio: float
    ratio_low: float
    ratio_high: float

    @property
    def wins(self) -> bool:
        """Whether it beats the default for certain."""
        return self.ratio_low > 1.0


@dataclass(frozen=True)
class NoiseEstimate:
    """How steady the machine was while finalists were compared; NaN where nobody looked.

    Attributes:
        again_low: lower end of the 95 % interval of the default's ratio to itself.
        again_high: upper end.
        drift: the default's median in the slower half of the rounds over that in the faster.
        disturbed: what else the machine did that may have changed times; empty if nothing.
        others: share of the CPU's time in which other processes ran.
        stolen: share of it that the host gave to other guests.
    """

    again_low: float = math.nan
    again_high: float = math.nan
    drift: float = math.nan
    disturbed: str = ""
    others: float = math.nan
    stolen: float = math.nan

    @property
    def noise_ratio(self) -> float:
        """By what factor times may differ for no reason; 1 where nobody looked."""
        seen = (self.again_high, 1.0 / self.again_low, self.drift)
        return max([1.0, *filter(math.isfinite, seen)])


@dataclass(frozen=True)
class TuneResult:
    """The outcome for one problem.

    Attributes:
        kernel: its name.
        problem: what was tuned.
        device: on what.
        objective: what was minimised.
        searcher: who searched.
        trace: what the store knew of the problem, then the search's measurements in order.
        contenders: the default first, then the best candidates, then the library call if any.
        rounds: how many interleaved rounds the comparison took.
        seconds: wall time of search and verification.
        limits: what the winner must keep to.
        default_breaks: which of them the default breaks; empty if none.
        steadiness: of the machine while the contenders were compared.
    """

    kernel: str
    problem: Problem
    device: str
    objective: Objective
    searcher: str
    trace: tuple[SearchStep, ...]
    contenders: tuple[Comparison, ...]
    rounds: int
    seconds: float
    limits: tuple[Limit, ...] = ()
    default_breaks: str = ""
    steadiness: NoiseEstimate = NoiseEstimate()

    @property
    def measured(self) -> int:
        """How many measurements the search made."""
        return sum(not step.known for step in self.trace)

    @property
    def baseline(self) -> Comparison:
        """The default configuration."""
        return self.contenders[0]

    @property
    def winner(self) -> Comparison:
        """The best candidate if it beats the default for certain, otherwise the default.

        A default that breaks a limit is no choice: any candidate beats it.
        """
        candidates = [c for c in self.contenders[1:] if c.config is not None]
        if self.default_breaks:
            better = [c for c in candidates if math.isfinite(c.value)]
        else:
            better = [c for c in candidates if c.wins]
        return min(better, key=lambda c: c.value, default=self.baseline)

    @property
    def won(self) -> bool:
        """Whether the winner beats the default, as far as it could be measured."""
        return self.winner is not self.baseline

    @property
    def unstable(self) -> str:
        """Why the comparison does not count; empty if it does."""
        if self.default_breaks or self.steadiness.disturbed:
            return "" if self.default_breaks else self.steadiness.disturbed
        if self.won and self.steadiness.noise_ratio >= self.winner.ratio:
            return f"the default differs from itself by up to {self.steadiness.noise_ratio:.2f}×"
        return ""

    @property
    def verified(self) -> bool:
        """Whether there is a measurable win over the default, or a way within limits it breaks."""
        return self.won and not self.unstable

    @property
    def verdict(self) -> str:
        """The outcome in a few words."""
        if self.unstable:
            return f"unstable: {self.unstable}"
        if not self.won:
            return "no measurable win"
        return (
            "within limits that the default breaks"
            if self.default_breaks
            else "faster than the default"
        )

    @property
    def failures(self) -> str:
        """How many configurations failed, and how one of them did; empty if none did."""
        failed = [step for step in self.trace if step.status not in (Status.OK, REJECTED)]
        if not failed:
            return ""
        one = failed[0]
        config = " ".join(f"{name}={value}" for name, value in one.config.items())
        how = one.status.replace("_", " ")
        return f"{len(failed)} of {len(self.trace)} failed: {how}, like {config}"

    @property
    def library(self) -> Comparison | None:
        """The library call, where one exists."""
        return next((c for c in self.contenders if c.config is None), None)

    def summary(self) -> dict[str, Any]:
        """Return the outcome as the command line's JSON gives it."""
        winner, library = self.winner, self.library
        unit = {"time": "time_ms", "energy": "energy_mj", "edp": "edp_mj_ms"}[self.objective.value]
        return {
            "problem": dict(self.problem),
            "config": dict(winner.config or {}),
            unit: winner.value,
            f"baseline_{unit}": self.baseline.value,
            "speedup": winner.ratio,
            "speedup_interval": [winner.ratio_low, winner.ratio_high],
            "verified": self.verified,
            "verdict": self.verdict,
            "unstable": self.unstable,
            "steadiness": asdict(self.steadiness),
            "library": library and {
                "name": library.name,
                unit: library.value,
                "winner_speedup": library.value / winner.value,
            },
            "measurements": self.measured,
            "known": len(self.trace) - self.measured,
            "limits": {limit.column: limit.maximum for limit in self.limits},
            "rejected": sum(s.status == REJECTED for s in self.trace),
            "seconds": self.seconds,
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        data = asdict(self)
        data["problem"] = dict(self.problem)
        for entry in (*data["trace"], *data["contenders"]):
            entry["config"] = None if entry["config"] is None else dict(entry["config"])
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return what `to_json` wrote down."""

        def config(entry: dict[str, Any]) -> Configuration | None:
            return None if entry["config"] is None else Configuration(entry["config"])

        return cls(
            **{
                **data,
                "problem": Problem(data["problem"]),
                "objective": Objective(data["objective"]),
                "steadiness": NoiseEstimate(**data["steadiness"]),
                "limits": tuple(Limit(**entry) for entry in data["limits"]),
                "trace": tuple(SearchStep(**{**e, "config": config(e)}) for e in data["trace"]),
                "contenders": tuple(
                    Comparison(**{**e, "config": config(e)}) for e in data["contenders"]
                ),
            }
        )
