"""The problem of a call: what its arguments say about the work.

An array of 64 × 128 is ``x=float32, x_0=64, x_1=128``; numbers that count and texts are themselves.
Whatever this does not tell completely (a dict, an enum, an object) also counts by its content, in
one more parameter, `REST`. Fractions are data: the amount of work rarely depends on them.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.collect.wrapped.values import is_tensor
from foretune.support.files_named import content_of_file_named
from foretune.support.identity import identify, layout_text, shape_of
from foretune.values import Value

REST = "arguments"
"""Parameter with the hash of all arguments, if the others do not tell them completely."""
MAX_TEXT = 100
"""Longer texts count by their hash."""
MAX_INTEGER = 2**63
"""Larger integers do not fit into a run table: they count by their hash."""
READS_LIKE_ANOTHER = ("None", "True", "False")
"""Texts that a problem also has for other values."""


@dataclass(frozen=True)
class ArgumentsProblem:
    """The values of a problem, and the arguments that could not be read."""

    values: dict[str, Value]
    unreadable: tuple[str, ...] = ()


def problem_of_arguments(
    names: Sequence[str],
    values: Sequence[Any],
    floats_are_data: bool = True,
    is_named: bool = False,
    ignored: frozenset[str] = frozenset(),
) -> ArgumentsProblem:
    """Return what identifies the work of a call with these arguments.

    Without ``floats_are_data``, floating-point numbers count by content, too. If the user named the
    work (``is_named``), objects count by class and shape only. ``ignored`` are attributes
    of objects that do not count (`identify`).
    """
    found: dict[str, Value] = {}
    is_complete = floats_are_data
    for name, value in zip(names, values, strict=True):
        told = _tell(value)
        is_complete &= told.is_complete
        add_sizes(found, {f"{name}{end}": v for end, v in told.values.items()})
    if is_complete or is_named:
        return ArgumentsProblem(found)

    # The names of unreadable parts begin with their argument.
    parts = [
        identify(v, owner=f"the argument {n!r}", floats_are_data=floats_are_data, ignored=ignored)
        for n, v in zip(names, values, strict=True)
    ]
    add_sizes(found, {REST: identify([part.digest for part in parts]).digest})
    return ArgumentsProblem(found, tuple(u for part in parts for u in part.unreadable))


def add_sizes(found: dict[str, Value], more: Mapping[str, Value]) -> None:
    """Add values to ``found``; a name that is taken gets an underscore at its end."""
    for name, value in more.items():
        while name in found:
            name += "_"
        found[name] = value


@dataclass(frozen=True)
class _Told:
    """What a problem says of one argument: end of the parameter's name -> value."""

    values: dict[str, Value]
    is_complete: bool = True


def _tell(value: Any) -> _Told:
    kind = type(value)
    if value is None:
        return _Told({"": "None"})
    if kind is float:
        return _Told({})
    if kind is bool:  # as a text, because `True` equals `1`
        return _Told({"": str(value)})
    if kind is int:
        return _tell_integer(value)
    if kind is str:
        is_short = len(value) <= MAX_TEXT
        is_complete = (
            is_short and value not in READS_LIKE_ANOTHER and not content_of_file_named(value)
        )
        return _Told({"": value} if is_short else {}, is_complete)
    if isinstance(value, enum.Enum):
        return _Told({"": str(value)}, is_complete=False)
    if kind is complex or isinstance(value, np.number | np.bool_):
        return _tell_typed_number(value)
    if isinstance(value, np.ndarray) or is_tensor(value):
        return _tell_array(value)
    if isinstance(value, list | tuple | dict | set | frozenset):
        return _Told({"": kind.__name__, "_0": len(value)}, is_complete=False)
    sizes = {f"_{i}": size for i, size in enumerate(shape_of(value))}
    return _Told({"": kind.__name__, **sizes}, is_complete=False)


def _tell_integer(value: int) -> _Told:
    fits = abs(value) < MAX_INTEGER
    return _Told({"": value} if fits else {}, is_complete=fits)


def _tell_typed_number(value: Any) -> _Told:
    """Tell a number of NumPy, or a complex one: its type decides that of the results."""
    of_type: dict[str, Value] = {"_type": str(getattr(value, "dtype", "complex"))}
    if isinstance(value, complex | np.inexact):
        return _Told(of_type)
    if isinstance(value, np.bool_):
        return _Told({"": str(bool(value)), **of_type})
    if isinstance(value, np.timedelta64):
        return _Told(of_type, is_complete=False)
    told = _tell_integer(int(value))
    return _Told({**told.values, **of_type}, told.is_complete)


def _tell_array(value: Any) -> _Told:
    dtype = str(value.dtype).removeprefix("torch.")
    sizes = {f"_{i}": int(size) for i, size in enumerate(value.shape)}
    # Usual arrays are told by their type and shape; others have a layout, a class or fields.
    # One without dimensions would read like a text.
    is_complete = bool(sizes) and _is_usual(value) and layout_text(value) == ""
    return _Told({"": dtype, **sizes}, is_complete)


def _is_usual(value: Any) -> bool:
    if type(value) is np.ndarray:
        return value.dtype.kind in "biufc" and value.dtype.isnative
    on_cpu = type(value).__name__ == "Tensor" and value.device.type == "cpu"
    return on_cpu and str(value.layout) == "torch.strided" and not value.requires_grad
