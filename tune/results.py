"""Results of tuning one problem: the trace of the search and the verdict on its winner."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

from foretune.measurement import Measurement, Status
from foretune.objective import Limit, Objective
from foretune.problem import Problem
from foretune.space import Configuration

REJECTED = "rejected"
"""Status of a run that violated a hard limit."""


@dataclass(frozen=True)
class SearchStep:
    """One measurement of a search.

    Attributes:
        config: the configuration.
        status: the measurement's status, or `REJECTED`.
        time_ms: NaN if it failed.
        power_w: NaN without a meter.
        objective: minimized value; infinite if it failed or was rejected.
        predicted_ms: the prediction before the measurement; NaN without a predictor.
        low_ms: lower bound of its 90 % interval.
        high_ms: upper bound.
        known: whether it comes from the store.
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
    """Return a measurement's status, or `REJECTED`."""
    rejected = measurement.ok and not all(limit.is_satisfied_by(measurement) for limit in limits)
    return REJECTED if rejected else measurement.status.value


@dataclass(frozen=True)
class Comparison:
    """One contender of a verification.

    Attributes:
        name: ``default``, ``candidate 1``, … or the library's name.
        config: None for a library call.
        value: median objective (ms, mJ or mJ·ms) in the interleaved rounds.
        ratio: median over rounds of the default's objective over its own; above 1 is better.
        ratio_low: lower bound of the 95 % interval of the ratio.
        ratio_high: upper bound.
    """

    name: str
    config: Configuration | None
    value: float
    ratio: float
    ratio_low: float
    ratio_high: float

    @property
    def wins(self) -> bool:
        """Whether the interval excludes that the default is better."""
        return self.ratio_low > 1.0


@dataclass(frozen=True)
class NoiseEstimate:
    """Noise estimate of a comparison; NaN if not measured.

    Attributes:
        again_low: lower bound of the 95 % interval of the default's ratio to its second run.
        again_high: upper bound.
        drift: ratio of the default's medians in the two halves of the rounds, at least 1.
        disturbed: what disturbed the machine; empty if nothing.
        others: share of CPU time of other processes.
        stolen: share of CPU time that the host gave to other guests.
    """

    again_low: float = math.nan
    again_high: float = math.nan
    drift: float = math.nan
    disturbed: str = ""
    others: float = math.nan
    stolen: float = math.nan

    @property
    def noise_ratio(self) -> float:
        """Factor by which times may differ by noise; 1 if not measured."""
        seen = (self.again_high, 1.0 / self.again_low, self.drift)
        return max([1.0, *filter(math.isfinite, seen)])


@dataclass(frozen=True)
class TuneResult:
    """The result of tuning one problem.

    Attributes:
        kernel: its name.
        problem: the problem.
        device: name of the device.
        objective: the minimized objective.
        searcher: name of the searcher.
        trace: stored measurements, then the search's in order.
        contenders: the default first, then the best candidates, then the library call if any.
        rounds: number of interleaved rounds of the comparison.
        seconds: wall time of search and verification.
        limits: limits that the winner satisfies.
        default_breaks: limits that the default violates; empty if none.
        steadiness: noise estimate of the comparison.
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
        """Number of new measurements."""
        return sum(not step.known for step in self.trace)

    @property
    def baseline(self) -> Comparison:
        """The default configuration."""
        return self.contenders[0]

    @property
    def winner(self) -> Comparison:
        """The best candidate if it beats the default significantly, otherwise the default.

        If the default violates a limit, any candidate beats it.
        """
        candidates = [c for c in self.contenders[1:] if c.config is not None]
        if self.default_breaks:
            better = [c for c in candidates if math.isfinite(c.value)]
        else:
            better = [c for c in candidates if c.wins]
        return min(better, key=lambda c: c.value, default=self.baseline)

    @property
    def won(self) -> bool:
        """Whether the winner beats the default in the measured rounds."""
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
        """Whether the win is significant, or only the default violates a limit."""
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
        """Number of failures with one reason; empty if none failed."""
        failed = [step for step in self.trace if step.status not in (Status.OK, REJECTED)]
        if not failed:
            return ""
        one = failed[0]
        config = " ".join(f"{name}={value}" for name, value in one.config.items())
        how = one.status.replace("_", " ")
        return f"{len(failed)} of {len(self.trace)} failed: {how}, like {config}"

    @property
    def library(self) -> Comparison | None:
        """The library call, if there is one."""
        return next((c for c in self.contenders if c.config is None), None)

    def summary(self) -> dict[str, Any]:
        """Return the result for the command line's JSON output."""
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
        """Return all fields as plain values."""
        data = asdict(self)
        data["problem"] = dict(self.problem)
        for entry in (*data["trace"], *data["contenders"]):
            entry["config"] = None if entry["config"] is None else dict(entry["config"])
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the result that `to_json` returned as plain values."""

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
