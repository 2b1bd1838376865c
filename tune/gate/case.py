"""One benchmark and metric of a gate: its evidence, and its verdict as far as it is known."""

from collections.abc import Mapping
from typing import Literal

from foretune.collect.comparison import Rounds
from foretune.tune.gate.environment import AGAIN, BASE, HEAD
from foretune.tune.gate.verdicts import Word, needed_sessions, word_of
from foretune.tune.results import Comparison
from foretune.tune.verifier import Evidence

MAX_FAILURES = 2
"""Sessions in which a benchmark may fail: once may be the machine's fault."""

Metric = Literal["time", "memory"]


class Case:
    """A benchmark and metric: its evidence, and its verdict as far as it is known."""

    def __init__(self, name: str, metric: Metric) -> None:
        self.name = name
        self.metric = metric
        self.evidence = Evidence(BASE, AGAIN)
        self.failures: list[Mapping[str, str]] = []
        self.comparison: Comparison | None = None
        self.word: Word = "cannot tell"
        self.is_open = True
        self.longest_s = 0.0
        """Longest seconds of a session for this case, without the start of processes."""

    def add(self, rounds: Rounds, took_s: float) -> None:
        """Add the rounds of one session."""
        self.longest_s = max(self.longest_s, took_s)
        if not rounds.failures:
            self.evidence.add(rounds)
            return
        self.failures.append(rounds.failures)
        if len(self.failures) >= MAX_FAILURES:
            self.is_open = False
            in_base = any(role != HEAD for failed in self.failures for role in failed)
            self.word = "not compared" if in_base else "fails"

    def look(self, error: float, relevant: float) -> None:
        """Evaluate the data; ``error`` is that of each end of the interval."""
        self.comparison = self.evidence.compare(BASE, HEAD, self.name, None, error)
        if self.comparison.failure:
            return
        self.word = word_of(self.comparison, relevant)
        self.is_open = self.word == "cannot tell"

    def needed_sessions(self, relevant: float) -> float:
        """Return about how many sessions in all a clear verdict needs; 0 if nothing is known."""
        if self.comparison is None or self.comparison.failure:
            return 0.0
        return needed_sessions(self.comparison, len(self.evidence), relevant)
