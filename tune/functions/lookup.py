"""Looks up what was chosen for a kernel and problem, or the nearest one."""

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
    """Return the stored choice for a kernel, for example ``best("vector_add", n=4096)``.

    A problem that was not tuned gets the choice of the nearest one: that with the nearest sizes on
    a logarithmic scale, and otherwise equal values.

    ``device`` is needed if the kernel was tuned on several; ``problem`` are some or all of the
    problem's values.

    Raises:
        UsageError: the kernel was never tuned, or only for problems with other values.
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
    # Several choices for one problem with other knob values: the newest.
    newest = max(
        (c for distance, c in candidates if distance == min_distance), key=lambda c: c.chosen_at
    )
    return dict(newest.config)


def _distance(problem: Problem, sizes: Mapping[str, float]) -> float:
    """Return the log distance of a problem's sizes; infinite if one is missing."""
    pairs = [(problem.get(name), wanted) for name, wanted in sizes.items()]
    if any(isinstance(there, str | None) for there, _ in pairs):
        return math.inf
    return sum(abs(math.log((abs(float(a or 0)) + 1) / (abs(b) + 1))) for a, b in pairs)
