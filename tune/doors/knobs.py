"""Shared by the integrations: nested knobs as named values, and a check of versions."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.values import Value


@contextmanager
def internals_of(tool: str) -> Iterator[None]:
    """Raise UsageError if the internals of a tool have changed; ``tool`` is the tested version."""
    try:
        yield
    except (ImportError, AttributeError, KeyError, TypeError) as e:
        raise UsageError(f"this integration needs {tool}; the installed one differs: {e}") from None


def flat_knobs(value: Any, name: str = "") -> Iterator[tuple[str, Value]]:
    """Yield the numbers and texts in nested mappings and lists, each with a dotted name."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield name, value if isinstance(value, bool | int | float | str) else str(value)
        return
    for key, item in value.items():
        yield from flat_knobs(item, f"{name}.{key}".removeprefix("."))


def timed(
    kernel: str,
    problem: Problem,
    config: Configuration,
    *,
    device: str,
    time_ms: float,
    source: str,
) -> Measurement:
    """Return a tool's measurement; a time that is not positive and finite is a failure."""
    ran = 0 < time_ms < math.inf
    return Measurement(
        kernel,
        problem,
        config,
        device=device,
        status=Status.OK if ran else Status.RUNTIME_ERROR,
        time_ms=time_ms if ran else math.nan,
        source=source,
    )
