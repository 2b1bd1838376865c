"""Nested knobs of other tools as named values."""

from collections.abc import Iterator, Mapping
from typing import Any

from foretune.values import Value


def flat_knobs(value: Any, name: str = "") -> Iterator[tuple[str, Value]]:
    """Yield the numbers and texts in nested mappings and lists, each with a dotted name."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield name, value if isinstance(value, bool | int | float | str) else str(value)
        return
    for key, item in value.items():
        yield from flat_knobs(item, f"{name}.{key}".removeprefix("."))
