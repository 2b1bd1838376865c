"""Verdicts of a gate: two-sided, with one error rate over all benchmarks.

The intervals are the verifier's (`foretune.tune.verifier.Evidence`): Student's over the log ratios
of fresh processes, at least as wide as two equal builds of the base suggest. They are evaluated at
planned numbers of sessions, the looks. `RED_ERROR` is the probability that equal code gives any
verdict ``slower``. It is shared by all looks and all benchmarks (Bonferroni), so it holds although
the gate stops a benchmark as soon as its verdict is clear, and whatever the benchmarks share.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from foretune.result import Result
from foretune.tune.results import Comparison
from foretune.values import short_number

RED_ERROR = 0.01
"""Largest probability that equal code has any verdict ``slower``; the same for ``faster``."""
LOOKS: Mapping[int, float] = {6: 0.1, 9: 0.2, 12: 0.3, 16: 0.2, 24: 0.2}
"""Numbers of sessions after which the data is evaluated, and their shares of `RED_ERROR`."""
RELEVANT = 0.02
"""Relative change that counts, by default."""
LEAST_GAP = 0.1
"""Least distance of a ratio from a verdict's limit, relative to the relevant change, for which the
needed sessions are estimated."""

Word = Literal["faster", "slower", "same", "cannot tell", "fails", "not compared"]
"""``fails``: the benchmark runs in the base and fails in the head. ``not compared``: it fails in
the base, or is in one revision only."""
RED: tuple[Word, ...] = ("slower", "fails")
"""The verdicts that end a gate with exit code 1."""
OPEN: tuple[Word, ...] = ("cannot tell", "not compared")
"""The verdicts that end a strict gate with exit code 2."""
UNITS = {"time": "ms", "gpu": "ms", "memory": "MiB", "energy": "mJ"}
"""Metric -> unit of its values."""


@dataclass(frozen=True, eq=False, repr=False)
class BenchmarkVerdict(Result):
    """The verdict on one benchmark and metric.

    Attributes:
        name: the benchmark's, such as ``bench_sort.py::bench_sort``.
        metric: ``time``, ``gpu``, ``memory`` or ``energy``.
        word: the verdict.
        comparison: the base's value over the head's, so below 1 is slower; its ``value`` is the
            head's.
        base_value: the base's value, in the unit of `UNITS`.
        sessions: number of sessions with this benchmark.
        noise_low, noise_high: 95 % interval of the ratio of two builds of the base.
        advice: what it would take, or what is wrong; empty for a clear verdict.
    """

    name: str
    metric: str
    word: Word
    comparison: Comparison
    base_value: float
    sessions: int
    noise_low: float = math.nan
    noise_high: float = math.nan
    advice: str = ""

    @property
    def change(self) -> float:
        """Relative change of the value from base to head; above 0 is slower."""
        return 1.0 / self.comparison.ratio - 1.0

    @property
    def change_low(self) -> float:
        """The lower bound of the change's interval."""
        return 1.0 / self.comparison.ratio_high - 1.0

    @property
    def change_high(self) -> float:
        """The upper bound of the change's interval."""
        return 1.0 / self.comparison.ratio_low - 1.0

    @property
    def change_text(self) -> str:
        """The change with its interval, in per cent."""
        if not math.isfinite(self.change):
            return "–"
        return f"{self.change:+.1%} ({self.change_low:+.1%} … {self.change_high:+.1%})"

    @property
    def values_text(self) -> str:
        """The base's value and the head's."""
        unit = UNITS[self.metric]
        return f"{short_number(self.base_value)} → {short_number(self.comparison.value)} {unit}"

    @property
    def label(self) -> str:
        """The name, and the metric unless it is the time."""
        return self.name if self.metric == "time" else f"{self.name} [{self.metric}]"

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.label}: {self.word}, {self.change_text}{advice}"


def word_of(comparison: Comparison, relevant: float) -> Word:
    """Return the verdict of an interval."""
    change = comparison.change(relevant)
    return "cannot tell" if change == "unknown" else change


def needed_sessions(comparison: Comparison, sessions: int, relevant: float) -> float:
    """Return about how many sessions would give a clear verdict; infinite if it cannot be told.

    An interval shrinks with the root of the number of sessions.
    """
    if not math.isfinite(comparison.ratio_low) or not comparison.ratio_low > 0:
        return math.inf
    half_width = math.log(comparison.ratio_high / comparison.ratio_low) / 2
    distance = abs(math.log(comparison.ratio))
    # Until the interval is within the relevant change, or excludes 1.
    gap = relevant - distance if distance < relevant else distance
    gap = max(gap, LEAST_GAP * relevant)
    return sessions * max((half_width / gap) ** 2, 1.0)
