"""Finds the commit that made benchmarks slower: a bisection whose test is a gate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foretune.errors import UsageError
from foretune.result import Result
from foretune.tune.gate.gate import GateResult
from foretune.tune.gate.verdicts import RED


@dataclass(frozen=True, eq=False, repr=False)
class BisectResult(Result):
    """Where a regression began.

    Attributes:
        good: the last commit that is not slower than the first one.
        bad: the first commit that is slower; there are others between if some were undecided.
        undecided: commits between them that could not be told, or not be built.
        benchmarks: the slower benchmarks.
        gates: number of gates.
    """

    good: str
    bad: str
    undecided: tuple[str, ...]
    benchmarks: tuple[str, ...]
    gates: int

    @property
    def headline(self) -> str:
        """The commit, or the commits among which it is."""
        slower = ", ".join(self.benchmarks)
        if self.undecided:
            number = len(self.undecided) + 1
            place = f"one of {number} commits after {self.good}, up to {self.bad},"
            return f"{place} made {slower} slower, or fail"
        return f"{self.bad} made {slower} slower, or fail (after {self.gates} gates)"


Gate = Callable[[str, Sequence[str]], GateResult | None]
"""Runs a gate of a commit against the good one, with benchmarks whose names contain one of some
texts; none means all. None: the commit cannot be built."""


def bisect(commits: Sequence[str], run: Gate) -> BisectResult:
    """Return the first commit at which the benchmarks that end slower are slower.

    Args:
        commits: from the good one to the bad one, in order.
        run: the gate of each commit.

    Raises:
        UsageError: the last commit is not slower than the first one.
    """
    if len(commits) < 2:
        raise UsageError("there is no commit after the good one: give GOOD..BAD")
    whole = run(commits[-1], ())
    if whole is None:
        raise UsageError(f"{commits[-1]} cannot be built")
    slower = tuple(dict.fromkeys(verdict.name for verdict in whole.having(*RED)))
    if not slower:
        raise UsageError(f"nothing is slower at the end: {whole.headline}")

    # `good` and `bad` are positions; the commits between them that were undecided are left out.
    good = 0
    bad = len(commits) - 1
    undecided: set[int] = set()
    gates = 1
    while candidates := [i for i in range(good + 1, bad) if i not in undecided]:
        middle = candidates[len(candidates) // 2]
        result = run(commits[middle], slower)
        gates += 1
        if result is None:
            undecided.add(middle)
            continue

        # A name may be part of another benchmark's name, which was not slower.
        words = {verdict.word for verdict in result.verdicts if verdict.name in slower}
        if words & set(RED):
            bad = middle
        elif words and words <= {"same", "faster"}:
            good = middle
        else:
            undecided.add(middle)
    between = tuple(commits[i] for i in range(good + 1, bad))
    return BisectResult(commits[good], commits[bad], between, slower, gates)
