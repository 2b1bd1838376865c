"""Answers of other processes as data: JSON, followed by the raw bytes of arrays.

A process that runs a user's code may send anything. Unpickling its answer would run code that it
chose. So answers consist of numbers, texts, containers, arrays and a few records of Foretune; all
other bytes are an error.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.errors import ForetuneError, MeasurementError, restore_error

_LENGTH = struct.Struct(">Q")
CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
ARRAY_KINDS = "biufcSUmM"
"""Kinds of NumPy types whose bytes are plain values; objects are not."""
MAX_DEPTH = 50


class UnreadableAnswer(ValueError):
    """The bytes are no answer, or a value cannot be sent as data."""


def encode(value: Any) -> bytes:
    """Return a value as bytes; raise UnreadableAnswer if it is not data."""
    blobs = _Blobs()
    header = json.dumps(_to_node(value, blobs, depth=0)).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *blobs.parts])


def decode(content: bytes) -> Any:
    """Return the value of some bytes; raise UnreadableAnswer if they are none."""
    try:
        (length,) = _LENGTH.unpack_from(content)
        body = _LENGTH.size + length
        node = json.loads(content[_LENGTH.size : body])
        return _from_node(node, memoryview(content)[body:], depth=0)
    except UnreadableAnswer:
        raise
    except Exception as e:
        raise UnreadableAnswer(f"it is no data ({type(e).__name__})") from e


class _Blobs:
    """The bytes of arrays, which follow the JSON. They are not copied before they are joined."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self._length = 0

    def add(self, array: npt.NDArray[Any]) -> int:
        """Append the bytes of an array; return where they begin."""
        start = self._length
        if array.nbytes:
            self.parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            self._length += array.nbytes
        return start


def _to_node(value: Any, blobs: _Blobs, depth: int) -> Any:
    """Return a value as JSON; append the bytes of its arrays."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return _to_node(value.item(), blobs, depth)
    if isinstance(value, ForetuneError):
        return {"error": [kind.__qualname__, str(value)]}
    if kind in (list, tuple, set, frozenset, dict, MappingProxyType):
        return _container_to_node(value, blobs, depth)
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is np.ndarray and value.dtype.kind in ARRAY_KINDS:
        start = blobs.add(value)
        return {"array": [value.dtype.str, list(value.shape), start]}
    for name, record in _records().items():
        if kind is record.kind:
            return {name: _to_node(record.to_plain(value), blobs, depth + 1)}
    raise UnreadableAnswer(f"{kind.__module__}.{kind.__qualname__} is no data")


def _container_to_node(value: Any, blobs: _Blobs, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise UnreadableAnswer("it is nested too deeply")
    if not isinstance(value, dict | MappingProxyType):
        return {type(value).__name__: [_to_node(inner, blobs, depth + 1) for inner in value]}
    pairs = [
        [_to_node(key, blobs, depth + 1), _to_node(inner, blobs, depth + 1)]
        for key, inner in value.items()
    ]
    return {"dict": pairs}


def _from_node(node: Any, blobs: memoryview, depth: int) -> Any:
    if depth > 2 * MAX_DEPTH:
        raise UnreadableAnswer("it is nested too deeply")
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if not isinstance(node, dict) or len(node) != 1:
        raise UnreadableAnswer("it has no known form")
    ((name, content),) = node.items()

    def inner(values: Any) -> list[Any]:
        return [_from_node(value, blobs, depth + 1) for value in values]

    if name in CONTAINERS:
        return CONTAINERS[name](inner(content))
    if name == "dict":
        return dict(map(inner, content))
    if name in _records():
        return _records()[name].from_plain(_from_node(content, blobs, depth + 1))
    return _plain_value(name, content, blobs)


def _plain_value(name: str, content: Any, blobs: memoryview) -> Any:
    if name == "complex":
        real, imaginary = content
        return complex(float(real), float(imaginary))
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "array":
        return _array(content, blobs)
    if name == "error":
        kind, message = content
        return restore_error(_error_class(str(kind)), str(message))
    raise UnreadableAnswer(f"it has an unknown part {name!r}")


def _array(content: Any, blobs: memoryview) -> Any:
    type_text, shape, start = content
    dtype = np.dtype(str(type_text))
    if dtype.kind not in ARRAY_KINDS or any(type(n) is not int or n < 0 for n in shape):
        raise UnreadableAnswer("it has an array of an unknown type")
    count = int(np.prod(shape, dtype=object)) if shape else 1
    end = start + count * dtype.itemsize
    if not 0 <= start <= end <= len(blobs):
        raise UnreadableAnswer("an array is cut off")
    flat = np.frombuffer(blobs[start:end], dtype=dtype, count=count)
    return flat.reshape(shape).copy()


def _error_class(name: str) -> type[ForetuneError]:
    """Return the class of Foretune's errors with a name; MeasurementError if there is none."""
    waiting = [ForetuneError]
    while waiting:
        kind = waiting.pop()
        if kind.__qualname__ == name:
            return kind
        waiting += kind.__subclasses__()
    return MeasurementError


class _Record:
    """A dataclass or mapping of Foretune that answers may contain."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind

    def to_plain(self, value: Any) -> Any:
        return {field.name: getattr(value, field.name) for field in fields(self.kind)}

    def from_plain(self, plain: Any) -> Any:
        types = {field.name: field.type for field in fields(self.kind)}
        for name, value in plain.items():
            _check_type(name, value, types[name])
        return self.kind(**plain)


class _MappingRecord(_Record):
    """A mapping of names to values."""

    def to_plain(self, value: Any) -> Any:
        return dict(value)

    def from_plain(self, plain: Any) -> Any:
        return self.kind(dict(plain))


class _TextRecord(_Record):
    """A text of a fixed set."""

    def to_plain(self, value: Any) -> Any:
        return str(value)

    def from_plain(self, plain: Any) -> Any:
        return self.kind(plain)


def _check_type(name: str, value: Any, expected: Any) -> None:
    """Raise UnreadableAnswer if a number, text or record is of another class than its field's."""
    if expected is float and type(value) is int:
        return
    if isinstance(expected, type) and type(value) is not expected:
        raise UnreadableAnswer(f"{name} is {type(value).__name__} instead of {expected.__name__}")


def _records() -> dict[str, _Record]:
    """Return the records by name. They are imported late, because some import this module."""
    if not _KNOWN_RECORDS:
        from foretune.collect.comparison import Rounds
        from foretune.collect.compiled.compile_result import CompileResult
        from foretune.collect.isolated_implementation import CallOutputs, Output, Timed, Work
        from foretune.collect.machine_load import MachineLoad
        from foretune.collect.wrapped.sent_values import SENT_CLASSES
        from foretune.device import Device
        from foretune.measurement import Measurement, Status
        from foretune.problem import Problem
        from foretune.space import Configuration

        records = (CallOutputs, CompileResult, Device, MachineLoad, Measurement, Output, Rounds)
        for kind in (*records, Timed, Work, *SENT_CLASSES):
            _KNOWN_RECORDS[kind.__name__] = _Record(kind)
        for mapping in (Problem, Configuration):
            _KNOWN_RECORDS[mapping.__name__] = _MappingRecord(mapping)
        _KNOWN_RECORDS[Status.__name__] = _TextRecord(Status)
    return _KNOWN_RECORDS


_KNOWN_RECORDS: dict[str, _Record] = {}
