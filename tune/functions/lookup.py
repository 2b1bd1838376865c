"""What was chosen before, read at run time."""

import math
from collections.abc import Mapping
from typing import Any

from foretune.errors import UnknownName, UsageError
from foretune.problem import Problem
from foretune.tune.store.cache import StoreLocation
from foretune.tune.store.store import Store
from foretune.tune.store.subject import CANDIDATES_TAG, OBJECTIVE_TAG, matches


def best(
    kernel: str, /, *, store: StoreLocation = None, device: str | None = None, **problem: Any
) -> dict[str, Any]:
    """Return the configuration that was chosen for a kernel, e.g. ``best("vector_add", n=4096)``.

    Of a problem that was not tuned, the nearest one's: that of the nearest sizes, on a logarithmic
    scale, among those whose other values agree.

    Args:
        kernel: its name in the store.
        store: as in `foretune.tune_problem`.
        device: as its driver names it; needed where the kernel was tuned on several.
        problem: some of the problem's values, or all.

    Raises:
        UsageError: the kernel was never tuned, or only for other problems.
    """
    if isinstance(store, bool):
        raise UsageError("give the store's path or URL, or leave it out for your own")
    reader = store if isinstance(store, Store) else Store(store)
    subject = reader.newest_subject(kernel, device)
    choices = {p: c for p, c in reader.choices(subject).items() if OBJECTIVE_TAG not in p}
    wanted = Problem(problem)
    if unknown := [name for name in wanted if not any(name in p for p in choices)]:
        known = {name for p in choices for name in p} - {CANDIDATES_TAG}
        raise UnknownName(f"problem parameter of {kernel}", unknown[0], known)
    sizes = {n: v for n, v in wanted.items() if not isinstance(v, str | bool)}
    others = Problem({n: v for n, v in wanted.items() if n not in sizes})
    candidates = [(_distance(p, sizes), c) for p, c in choices.items() if matches(p, others)]
    if not candidates:
        raise UsageError(f"{kernel} was not tuned for {wanted}: tune it first")
    min_distance = min(distance for distance, _ in candidates)
    # Of the same problem with other values of knobs, what was chosen last.
    newest = max(
        (c for distance, c in candidates if distance == min_distance), key=lambda c: c.chosen_at
    )
    return dict(newest.config)


def _distance(problem: Problem, sizes: Mapping[str, float]) -> float:
    """Return how far off a problem's sizes are, in powers of e; infinite without one of them."""
    pairs = [(problem.get(name), wanted) for name, wanted in sizes.items()]
    if any(isinstance(there, str | None) for there, _ in pairs):
        return math.inf
    return sum(abs(math.log((abs(float(a or 0)) + 1) / (abs(b) + 1))) for a, b in pairs)
