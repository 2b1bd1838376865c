"""Problems of a store: grouping, ordering and finding them."""

from collections.abc import Iterable
from typing import Any

from foretune.mapping import FrozenParameters
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.tune.store.subject import CANDIDATES_TAG, OBJECTIVE_TAG


def group_by_problem(measurements: Iterable[Measurement]) -> dict[Problem, list[Measurement]]:
    """Return measurements by what they computed."""
    found: dict[Problem, list[Measurement]] = {}
    for m in measurements:
        found.setdefault(m.problem, []).append(m)
    return found


def without_tags(problem: Problem) -> Problem:
    """Return the problem that was measured, of one that something was chosen for."""
    return without_names(problem, CANDIDATES_TAG, OBJECTIVE_TAG)


def source_label(kernel: str, problem: Problem) -> str:
    """Return what the source column says of runs that are written down under a second name.

    Args:
        kernel: the first name.
        problem: what that calls the problem.
    """
    return f"foretune {kernel} {problem.id}"


def without_names(problem: Problem, *names: str) -> Problem:
    """Return a problem without the values of some names."""
    return Problem({name: value for name, value in problem.items() if name not in names})


def sort_key(values: FrozenParameters) -> list[tuple[str, bool, Any]]:
    """Return a key that sorts by size, numbers before texts, for people to read."""
    return [(name, isinstance(v, str), v) for name, v in sorted(values.items())]


def matches(problem: Problem, wanted: Problem | None) -> bool:
    """Return whether a problem has all values of ``wanted``, whatever else it has."""
    return wanted is None or all(n in problem and problem[n] == v for n, v in wanted.items())
