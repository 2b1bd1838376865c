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
from foretune.support.identity import identify, shape_of, strides_text
from foretune.values import Value

REST = "arguments"
"""Parameter with the hash of all arguments, if the others do not tell them completely."""
MAX_TEXT = 100
"""Longer texts count by their hash."""
MAX_INTEGER = 2**63
"""Larger integers do not fit into a run table: they count by their hash."""


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
    if kind in (float, complex) or isinstance(value, np.inexact):
        return _Told({})
    if kind is bool or isinstance(value, np.bool_):
        return _Told({"": bool(value)})
    if kind is int or isinstance(value, np.integer):
        fits = abs(int(value)) < MAX_INTEGER
        return _Told({"": int(value)} if fits else {}, is_complete=fits)
    if kind is str:
        return _Told({"": value}) if len(value) <= MAX_TEXT else _Told({}, is_complete=False)
    if isinstance(value, enum.Enum):
        return _Told({"": str(value)}, is_complete=False)
    if isinstance(value, np.ndarray) or is_tensor(value):
        return _tell_array(value)
    if isinstance(value, list | tuple | dict | set | frozenset):
        return _Told({"": kind.__name__, "_0": len(value)}, is_complete=False)
    sizes = {f"_{i}": size for i, size in enumerate(shape_of(value))}
    return _Told({"": kind.__name__, **sizes}, is_complete=False)


def _tell_array(value: Any) -> _Told:
    dtype = str(value.dtype).removeprefix("torch.")
    sizes = {f"_{i}": int(size) for i, size in enumerate(value.shape)}
    # Usual arrays are told by their type and shape; others have a layout, a class or fields.
    is_complete = _is_usual(value) and strides_text(value) == ""
    return _Told({"": dtype, **sizes}, is_complete)


def _is_usual(value: Any) -> bool:
    if type(value) is np.ndarray:
        return value.dtype.kind in "biufc" and value.dtype.isnative
    on_cpu = type(value).__name__ == "Tensor" and value.device.type == "cpu"
    return on_cpu and str(value.layout) == "torch.strided" and not value.requires_grad
