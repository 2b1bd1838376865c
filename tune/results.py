"""Results of tuning one problem: the trace of the search and the verdict on its winner."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from foretune.measurement import Measurement, Status
from foretune.objective import Limit, Objective
from foretune.problem import Problem
from foretune.result import Result, plain
from foretune.space import Configuration
from foretune.values import short_number

if TYPE_CHECKING:
    import pandas as pd

REJECTED = "rejected"  # status of a run that violated a hard limit
WORTH_HAVING = 0.01  # relative difference below which a contender counts as equal


@dataclass(frozen=True, eq=False, repr=False)
class SearchStep(Result):
    """One measurement of a search: `time_ms` is NaN if it failed, `power_w` without a meter.

    `status` is the measurement's, or `REJECTED`; `error` says in one line why it failed.
    `objective` is the minimized value, infinite if it failed or was rejected. `predicted_ms` was
    predicted before, `low_ms` is the lower bound of the 90 % interval; both are NaN without a
    predictor. `known` steps come from the store.
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
    error: str = ""


def step_status(measurement: Measurement, limits: Iterable[Limit]) -> str:
    """Return a measurement's status, or `REJECTED`."""
    rejected = measurement.ok and not all(limit.is_satisfied_by(measurement) for limit in limits)
    return REJECTED if rejected else measurement.status.value


def results_frame(results: "Iterable[TuneResult]") -> "pd.DataFrame":
    """Return one row per tuned problem: its values, the ratio with its interval, the verdict."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "kernel": r.kernel,
                **{f"problem.{k}": v for k, v in r.problem.items()},
                **{f"config.{k}": v for k, v in (r.winner.config or {}).items()},
                "default": r.baseline.value,
                "best": r.winner.value,
                "ratio": r.winner.ratio,
                "ratio_low": r.winner.ratio_low,
                "ratio_high": r.winner.ratio_high,
                "verdict": r.verdict,
                "measured": r.measured,
            }
            for r in results
        ]
    )


Outcome = Literal["win", "no_win", "slower", "inconclusive"]
"""Whether a contender is significantly better, surely has no relevant gain, is significantly worse,
or none of these."""
Change = Literal["faster", "slower", "same", "unknown"]
"""The change against the default that an interval shows, where less time or energy is faster."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """One contender of a verification: ``default``, ``candidate 1``, … or a library's call.

    A library's call has no `config`. `value` is the objective (ms, mJ or mJ·ms): a low quantile of
    a process's rounds, the median over processes. `ratio` is the default's objective over the
    contender's, the geometric mean over processes; above 1 is better. `ratio_low` is the lower
    bound of its interval (see `foretune.tune.verifier`). `failure` says why there is no ratio.
    `while_busy` is how it used the machine in another way than the default while other load
    disturbed it: it would win, but perhaps not on a quiet machine.
    """

    name: str
    config: Configuration | None
    value: float
    ratio: float
    ratio_low: float
    ratio_high: float
    failure: str = ""
    while_busy: str = ""

    @property
    def headline(self) -> str:
        """Name, ratio and verdict."""
        return f"{self.name}: {self.ratio_text}, {self.verdict.replace('_', ' ')}"

    @property
    def ratio_text(self) -> str:
        """The ratio with its interval."""
        return f"{self.ratio:.2f}× ({self.ratio_low:.2f}–{self.ratio_high:.2f})"

    def change(self, relevant: float) -> Change:
        """Return the change that the interval shows; ``relevant`` is the least that counts.

        Faster and slower: the interval excludes 1, and the ratio differs by at least ``relevant``.
        Same: the whole interval is within 1 ± ``relevant``.
        """
        if self.ratio_low > 1.0 and self.ratio >= 1.0 + relevant:
            return "faster"
        if self.ratio_high < 1.0 and self.ratio <= 1.0 - relevant:
            return "slower"
        if self.ratio_low >= 1.0 - relevant and self.ratio_high <= 1.0 + relevant:
            return "same"
        return "unknown"

    @property
    def verdict(self) -> Outcome:
        """The outcome by the interval; a change below `WORTH_HAVING` is neither win nor loss."""
        change = self.change(WORTH_HAVING)
        if change == "faster":
            return "inconclusive" if self.while_busy else "win"
        if change == "slower":
            return "slower"
        no_gain = change == "same" or self.ratio_high < 1.0
        return "no_win" if self.failure or no_gain else "inconclusive"

    @property
    def wins(self) -> bool:
        """Whether the contender is significantly better."""
        return self.verdict == "win"


@dataclass(frozen=True, eq=False, repr=False)
class NoiseEstimate(Result):
    """Noise of a comparison; NaN if not measured.

    `again_low` is the lower bound of the 95 % interval of the default's ratio to itself, built
    twice. `disturbed` describes other load on the machine and is empty if there was none; `others`
    is the share of CPU time of other processes, `stolen` what the host gave to other guests.
    """

    again_low: float = math.nan
    again_high: float = math.nan
    disturbed: str = ""
    others: float = math.nan
    stolen: float = math.nan


@dataclass(frozen=True, eq=False, repr=False)
class TuneResult(Result):
    """The result of tuning one problem.

    Attributes:
        trace: stored measurements, then the search's in order.
        contenders: the default first, then the best candidates, then the library call if any.
        processes: number of fresh processes of the comparison.
        rounds: number of its interleaved rounds in all processes.
        seconds: wall time of search and verification, waiting for an idle machine included.
        limits: limits that the winner satisfies.
        default_breaks: limits that the default violates, such as ``power_w 12.5 > 10``; empty if
            none.
        checked_on: the inputs on which outputs were compared in the final comparison.
        reused_because: why the stored comparison counts; empty if it was made now.
        not_confirmed: the earlier winner that this comparison did not confirm, in words; empty if
            there is none.
    """

    kernel: str
    problem: Problem
    device: str
    objective: Objective
    searcher: str
    trace: tuple[SearchStep, ...]
    contenders: tuple[Comparison, ...]
    processes: int
    rounds: int
    seconds: float
    limits: tuple[Limit, ...] = ()
    default_breaks: str = ""
    noise: NoiseEstimate = NoiseEstimate()
    checked_on: str = ""
    reused_because: str = ""
    not_confirmed: str = ""

    @property
    def measured(self) -> int:
        """Number of new measurements."""
        return sum(not step.known for step in self.trace)

    @property
    def baseline(self) -> Comparison:
        """The default configuration."""
        return self.contenders[0]

    @property
    def searched_default(self) -> float:
        """The default's objective in the search, like the others'; else from the verification."""
        default = self.baseline.config
        values = [step.objective for step in self.trace if step.config == default]
        return next((v for v in values if math.isfinite(v)), self.baseline.value)

    @property
    def candidates(self) -> list[Comparison]:
        """The finalists of the search."""
        return [c for c in self.contenders[1:] if c.config is not None]

    @property
    def leader(self) -> Comparison:
        """The candidate with the best ratio, significant or not; the default without candidates."""
        known = [c for c in self.candidates if math.isfinite(c.ratio)]
        return max(known, key=lambda c: c.ratio, default=self.baseline)

    @property
    def winner(self) -> Comparison:
        """The best candidate that significantly beats the default, otherwise the default.

        Candidates are compared by their ratios, which come from the same rounds; values also have
        the drift between processes. If the default violates a limit, any candidate beats it.
        """
        better = [
            c for c in self.candidates if c.wins or (self.default_breaks and math.isfinite(c.ratio))
        ]
        return max(better, key=lambda c: c.ratio, default=self.baseline)

    @property
    def verified(self) -> bool:
        """Whether the winner significantly beats the default."""
        return self.winner is not self.baseline

    @property
    def verdict(self) -> Outcome:
        """``win``, ``no_win``, or ``inconclusive`` if some candidate may still be better."""
        if self.verified:
            return "win"
        open_ones = any(c.verdict == "inconclusive" for c in self.candidates)
        return "inconclusive" if open_ones else "no_win"

    @property
    def busy_win(self) -> Comparison | None:
        """The candidate that wins on this busy machine, where it is not verified; else None."""
        if self.verdict != "inconclusive" or not self.leader.while_busy:
            return None
        return self.leader

    @property
    def explanation(self) -> str:
        """The verdict in words."""
        if self.verified and self.default_breaks:
            return "within limits that the default violates"
        if self.verified:
            return "better than the default"
        if not self.trace and math.isnan(self.baseline.value):
            return "not tuned, because it is called within a measurement"
        if self.verdict == "no_win":
            return "nothing better than the default"
        best = self.leader
        if best.while_busy:
            return (
                f"a win on this busy machine, not verified: {best.ratio_text}; {best.while_busy}, "
                f"while {self.noise.disturbed}; it is verified again when the machine is quiet"
            )
        # The interval shrinks with the root of the number of processes.
        gain = max(abs(math.log(best.ratio)), WORTH_HAVING)
        width = math.log(best.ratio_high / best.ratio_low) / 2
        needed = math.ceil(self.processes * (width / gain) ** 2)
        after = f"after {self.processes} processes; about {needed} would settle it"
        return f"inconclusive: {best.ratio_text} {after}"

    @property
    def headline(self) -> str:
        """The verdict and the best configuration in one line."""
        winner = self.winner
        unit = self.objective.unit
        config = " ".join(f"{name}={value}" for name, value in (winner.config or {}).items())
        # Load is said beside every verdict; a busy win says it already.
        load = f", while {self.noise.disturbed}" if self.noise.disturbed else ""
        if not self.verified:
            load = "" if self.busy_win else load
            return f"{self.kernel}: {self.explanation}{load}; the default stays: {config}"
        return (
            f"{self.kernel}: {winner.ratio:.2f}× the default's speed ({winner.ratio_low:.2f}–"
            f"{winner.ratio_high:.2f}), {short_number(self.baseline.value)} → "
            f"{short_number(winner.value)} {unit}{load}: {config}"
        )

    @property
    def failures(self) -> str:
        """Number of failures, with one reason; empty if none failed."""
        failed = [step for step in self.trace if step.status not in (Status.OK, REJECTED)]
        if not failed:
            return ""
        why = failed[0].error or failed[0].status.replace("_", " ")
        config = " ".join(f"{name}={value}" for name, value in failed[0].config.items())
        return f"{len(failed)} of {len(self.trace)} failed, like {config}: {why}"

    @property
    def library(self) -> Comparison | None:
        """The library call, if there is one."""
        return next((c for c in self.contenders if c.config is None), None)

    @property
    def versus_library(self) -> Comparison | None:
        """The winner with its ratios to the library call, not to the default.

        None without a library call or without a verdict. The interval combines those of both
        ratios to the default, so it is wider than it must be.
        """
        library = self.library
        winner = self.winner
        if library is None or self.verdict == "inconclusive" or not library.ratio > 0:
            return None
        ratio = winner.ratio / library.ratio
        low = winner.ratio_low / library.ratio_high
        high = winner.ratio_high / library.ratio_low
        return replace(winner, ratio=ratio, ratio_low=low, ratio_high=high)

    def summary(self) -> dict[str, Any]:
        """Return the result for the command line's JSON output."""
        winner = self.winner
        library = self.library
        against = self.versus_library
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
            "explanation": self.explanation,
            "wins_while_busy": self.busy_win is not None,
            "processes": self.processes,
            "rounds": self.rounds,
            "noise": asdict(self.noise),
            "checked_on": self.checked_on,
            "reused_because": self.reused_because,
            "not_confirmed": self.not_confirmed,
            "library": library
            and {
                "name": library.name,
                unit: library.value,
                "winner_speedup": against and against.ratio,
                "interval": against and [against.ratio_low, against.ratio_high],
            },
            "measurements": self.measured,
            "known": len(self.trace) - self.measured,
            "limits": {limit.column: limit.maximum for limit in self.limits},
            "rejected": sum(s.status == REJECTED for s in self.trace),
            "seconds": self.seconds,
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return the trace, one row per measurement; ``best`` is the best objective so far."""
        import pandas as pd

        rows = [
            {**{f"config.{k}": v for k, v in step.config.items()}, **plain(step)}
            for step in self.trace
        ]
        table = pd.DataFrame(rows, columns=None if rows else ["objective", "config"])
        table["best"] = table["objective"].cummin()
        return table.drop(columns="config")

    def _repr_html_(self) -> str:
        from foretune.registry import load

        return str(load("views", "notebook")(self))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a result from the plain values of `to_dict`."""

        def typed(entry: dict[str, Any]) -> dict[str, Any]:
            config = entry["config"]
            return {**entry, "config": None if config is None else Configuration(config)}

        rebuilt = {
            "problem": Problem(data["problem"]),
            "objective": Objective(data["objective"]),
            "noise": NoiseEstimate(**data["noise"]),
            "limits": tuple(Limit(**entry) for entry in data["limits"]),
            "trace": tuple(SearchStep(**typed(entry)) for entry in data["trace"]),
            "contenders": tuple(Comparison(**typed(entry)) for entry in data["contenders"]),
        }
        return cls(**{**data, **rebuilt})
