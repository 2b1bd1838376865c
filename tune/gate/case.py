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

Metric = Literal["time", "gpu", "memory", "energy"]


class Case:
    """A benchmark and metric: its evidence, and its verdict as far as it is known.

    Attributes:
        evidence: the sessions in which it ran.
        failures: reason by role, of each session in which it failed.
        comparison: of the last look, on which the verdict rests; None before.
        word: the verdict.
        is_open: whether more sessions may change the verdict.
        longest_s: longest seconds of a session for this case, without the start of processes.
    """

    def __init__(self, name: str, metric: Metric) -> None:
        self.name = name
        self.metric = metric
        self.evidence = Evidence(BASE, AGAIN)
        self.failures: list[Mapping[str, str]] = []
        self.comparison: Comparison | None = None
        self.word: Word = "cannot tell"
        self.is_open = True
        self.longest_s = 0.0
        self._estimate: Comparison | None = None

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

    @property
    def last_failure(self) -> tuple[str, str]:
        """The role and the reason of the last failure; there must be one."""
        return next(iter(self.failures[-1].items()))

    def estimate(self, error: float) -> None:
        """Estimate the interval for `needed_sessions`; the verdict stays."""
        self._estimate = self._compare(error)

    def look(self, error: float, relevant: float) -> None:
        """Evaluate the data; ``error`` is that of each end of the interval."""
        self.comparison = self._compare(error)
        self._estimate = self.comparison
        if self.comparison.failure:
            return
        self.word = word_of(self.comparison, relevant)
        self.is_open = self.word == "cannot tell"

    def needed_sessions(self, relevant: float) -> float:
        """Return about how many sessions in all a clear verdict needs; 0 if nothing is known."""
        if self._estimate is None or self._estimate.failure:
            return 0.0
        return needed_sessions(self._estimate, len(self.evidence), relevant)

    def _compare(self, error: float) -> Comparison:
        return self.evidence.compare(BASE, HEAD, name=self.name, config=None, error=error)
