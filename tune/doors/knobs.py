"""What the doors share: nested knobs as named values, and the refusal of other versions."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from foretune.errors import UsageError
from foretune.values import Value


@contextmanager
def internals_of(tool: str) -> Iterator[None]:
    """Refuse a tool in one line if what is used of it here moved; ``tool`` was tested."""
    try:
        yield
    except (ImportError, AttributeError, KeyError, TypeError) as e:
        raise UsageError(f"this door fits {tool}, which is not here: {e}") from None


def flat_knobs(value: Any, name: str = "") -> Iterator[tuple[str, Value]]:
    """Yield the numbers and texts in nested mappings and lists, each with a dotted name."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield name, value if isinstance(value, bool | int | float | str) else str(value)
        return
    for key, item in value.items():
        yield from flat_knobs(item, f"{name}.{key}".removeprefix("."))
