"""Arguments and results: arrays nested in tuples, lists and dicts, and others like them.

Redrawn arguments keep all properties that affect a run: shape, type, memory order, range and
distribution, and also frequent zeros, the places of NaN and infinity, and a sorted order. Single
numbers and texts are kept, because they may be sizes or modes; for arrays of whole numbers see
`foretune.collect.wrapped.whole_numbers`.
"""

import copy
import dataclasses
import hashlib
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import isfunction
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.collect.wrapped import whole_numbers
from foretune.relative_error import is_equal, is_plain, relative_error
from foretune.support.identity import attributes_of, shape_of

PLAIN_KINDS = "biufc"
"""Kinds of NumPy's types of numbers."""
TABLE_LIBRARIES = ("pandas", "scipy")
"""Libraries whose objects are copied as a whole: tables and sparse matrices."""
IMMUTABLE_TYPES = (int, float, complex, bool, str, bytes, type(None), np.generic)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested tuples, lists and dicts, in order; a list of numbers is a leaf.

    A container with its own Python code is also a leaf, because reading it may compute.
    """
    if is_array(value):
        yield value
    elif isinstance(value, Mapping) and not isfunction(type(value).values):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list | tuple) and not isfunction(type(value).__iter__):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor; does not import torch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def is_array(value: Any) -> bool:
    """Whether this is writable: an array, a torch tensor, or a list of numbers."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(x, IMMUTABLE_TYPES) for x in value)
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_plain_array(value: Any) -> bool:
    """Whether this is a writable array of numbers, whose values can be copied as they are."""
    is_plain = type(value) is np.ndarray and value.dtype.kind in PLAIN_KINDS
    return is_plain and value.flags.writeable


def copy_arrays(value: Any, with_objects: bool = False) -> Any:
    """Copy arrays and their containers; return other objects as they are.

    ``with_objects`` also copies objects of a user's class: a result may be one that lasts.
    """
    copied = partial(copy_arrays, with_objects=with_objects)
    if is_tensor(value):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return _copy_of_array(value)
    if type(value) is dict:
        return {key: copied(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named one
        return value._make(map(copied, value))
    if isinstance(value, dict):
        return _copy_of_mapping(value, copied)
    if is_generator(value) or _library_of(value) in TABLE_LIBRARIES:
        return copy.deepcopy(value)
    if isinstance(value, deque | bytearray):
        return copy.copy(value)
    if with_objects or is_dataclass(value):
        return _copy_of_object(value, parts_of_object(value) or {}, copied)
    return value


def _copy_of_mapping(mapping: dict[Any, Any], copied: Callable[[Any], Any]) -> Any:
    """Return a copy of a class that is derived from `dict`, such as a counter."""
    new = copy.copy(mapping)
    for key, inner in mapping.items():
        new[key] = copied(inner)
    return new


def _copy_of_object(value: Any, parts: Mapping[str, Any], copied: Callable[[Any], Any]) -> Any:
    if not parts:
        return value
    try:
        new = copy.copy(value)
        for name, part in parts.items():
            object.__setattr__(new, name, copied(part))
    except Exception:  # its class may refuse in any way, or hold itself
        return value
    return new


def _copy_of_array(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy; of an array of objects, the objects are copied too."""
    copied = array.copy(order="K")
    if array.dtype.kind == "O":
        for index, inner in np.ndenumerate(array):
            copied[index] = copy_arrays(inner)
    return copied


def is_dataclass(value: Any) -> bool:
    """Whether this is an object of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def parts_of_object(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass, or the attributes of an object of a user's class."""
    if is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: object.__getattribute__(value, name) for name in names}
    return attributes_of(value)


def is_generator(value: Any) -> bool:
    """Whether this draws random numbers, so that a call changes its state."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Generator):
        return True
    return isinstance(value, np.random.Generator | np.random.RandomState | random.Random)


def generator_state(generator: Any) -> Any:
    """Return the state of a generator of random numbers."""
    if isinstance(generator, np.random.Generator):
        return copy.deepcopy(generator.bit_generator.state)
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Set the state of a generator of random numbers."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def global_random_state() -> int:
    """Return a hash of the states of the global generators of Python and NumPy."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    keys = state["state"]
    numbers = keys["key"].tobytes() if "key" in keys else repr(keys).encode()
    return hash((numbers, keys.get("pos"), random.getstate()))


def _library_of(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def as_numpy(value: Any) -> npt.NDArray[Any]:
    """Return numbers as a NumPy array on the host."""
    if is_tensor(value):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value.layout is not sys.modules["torch"].strided:
            value = value.to_dense()
        if "bfloat16" in str(value.dtype) or "float8" in str(value.dtype):
            value = value.float()
        return np.asarray(value.numpy())
    return np.asarray(value)


PROBES = 1024
"""Elements of an array that are read at once after a call: it takes microseconds."""


def samples(value: Any) -> list[npt.NDArray[Any]]:
    """Return a copy of a few evenly spaced elements of each array on the host, from the last on.

    A thread that still fills in an array is slower than this, but may be faster than a copy.
    """
    return [_sample(leaf) for leaf in leaves(value) if isinstance(leaf, np.ndarray)]


def have_samples(value: Any, early: list[npt.NDArray[Any]]) -> bool:
    """Whether arrays have the same elements as before."""
    now = samples(value)
    return all(is_equal(a, b) for a, b in zip(now, early, strict=True))


def _sample(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.size == 0 or array.dtype.kind == "O":
        return np.zeros(0)
    plain = np.ma.getdata(array)
    if array.size <= PROBES:
        return np.array(plain)
    index = np.unravel_index(np.linspace(array.size - 1, 0, PROBES).astype(np.intp), array.shape)
    return np.array(plain[index])


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays of one shape are equal, missing values and signs of zeros included."""
    if isinstance(a, list):
        return repr(a) == repr(b)
    one, other = as_numpy(a), as_numpy(b)
    if not is_equal(one, other):
        return False
    if one.dtype.kind != "f":
        return True
    return bool(np.array_equal(np.signbit(one), np.signbit(other)))


def assign(target: Any, source: Any) -> None:
    """Copy an array of the same shape, or a number, into every element of an array."""
    if isinstance(target, list):
        target[:] = source if isinstance(source, list) else [type(x)(source) for x in target]
    else:
        (target.detach() if is_tensor(target) else target)[...] = source


def assign_all(targets: Any, values: Any) -> bool:
    """Copy nested arrays into others, and return True; do nothing if the layouts differ."""
    if not have_same_layout(targets, values):
        return False
    for target, value in zip(leaves(targets), leaves(values), strict=True):
        if is_array(target) and target is not value:
            assign(target, value)
    return True


def have_same_layout(one: Any, other: Any) -> bool:
    """Whether nested values have arrays of the same shapes and types, and the same numbers."""
    leaves_of_one, leaves_of_other = list(leaves(one)), list(leaves(other))
    return len(leaves_of_one) == len(leaves_of_other) and all(
        map(_has_same_layout, leaves_of_one, leaves_of_other)
    )


def _has_same_layout(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if not is_array(one):
        return not isinstance(one, IMMUTABLE_TYPES) or one == other
    shapes = [getattr(x, "shape", None) or len(x) for x in (one, other)]
    return shapes[0] == shapes[1] and getattr(one, "dtype", 0) == getattr(other, "dtype", 0)


def relative_difference(got: Any, expected: Any) -> float:
    """Return the largest `relative_error` of all arrays; it is infinite if layouts differ."""
    actual_arrays, expected_arrays = list(leaves(got)), list(leaves(expected))
    if len(actual_arrays) != len(expected_arrays):
        return float("inf")
    pairs = zip(actual_arrays, expected_arrays, strict=True)
    return max((relative_error(_on_host(a), _on_host(b)) for a, b in pairs), default=0.0)


def shape_difference(got: Any, expected: Any) -> str:
    """Return how the layouts of two values differ, in words; empty if only numbers may."""
    found, right = (
        [(len(x),) if isinstance(x, list) else shape_of(x) for x in leaves(value)]
        for value in (got, expected)
    )
    if found == right:
        return ""
    return f"the output has shape {_listed(found)}, the expected one has {_listed(right)}"


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes)) or "of nothing"


def says_something(value: Any) -> bool:
    """Whether any part of an output can be checked: it is not None, empty, or all NaN."""
    return any(_says_something(leaf) for leaf in leaves(value))


def _says_something(leaf: Any) -> bool:
    if leaf is None:
        return False
    array = as_numpy(leaf) if is_array(leaf) or isinstance(leaf, IMMUTABLE_TYPES) else None
    if array is None:
        return True
    return array.size > 0 and not (array.dtype.kind in "fc" and bool(np.isnan(array).all()))


def _on_host(value: Any) -> Any:
    return as_numpy(value) if is_tensor(value) and is_plain(value) else value


def content_hash(value: Any) -> str:
    """Return a hash of the values' content: sixteen hexadecimal digits."""
    digest = hashlib.sha256()
    for leaf in leaves(value):
        if is_array(leaf) or isinstance(leaf, np.generic):
            array = as_numpy(leaf)
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(array.tobytes() if array.dtype.kind != "O" else repr(leaf).encode())
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()[:16]


MANY_ZEROS = 0.25
"""Zeros keep their places if their share exceeds this: a mask, a triangle, a sparse matrix."""
Draw = Callable[[npt.NDArray[Any], int, int], npt.NDArray[Any]]
"""Returns new values of an array, from a seed and the array's number."""


def blend(array: npt.NDArray[Any], seed: int, number: int) -> npt.NDArray[Any]:
    """Return the array rolled along its first axis, blended with another roll.

    This is fast, and the result is within the convex hull of the rows, which keeps sums and ranges.
    """
    rng = np.random.default_rng([seed, number])
    new = np.array(array, order="K", subok=True)
    kept = ~np.isfinite(new)
    if np.count_nonzero(new) < (1 - MANY_ZEROS) * new.size:
        kept |= new == 0
    if kept.any():
        new[~kept] = _mix(new[~kept], rng)
    else:
        new[...] = _mix(new, rng)
    return keep_order(array, new)


def keep_order(array: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sort new values if the array is sorted, and return them."""
    if array.dtype.kind == "f" and array.ndim:
        if _is_rising(array):
            new.sort(axis=-1)
        elif _is_rising(array[..., ::-1]):
            new[...] = np.sort(new, axis=-1)[..., ::-1]
    return new


def rescale(array: npt.NDArray[Any], seed: int, number: int) -> npt.NDArray[Any]:
    """Return the array times a random factor, equal for all arrays, which keeps their structure."""
    factor = np.random.default_rng(seed).uniform(0.5, 1.0)
    return np.array(array * array.dtype.type(factor), order="K", subok=True)


def find_draw(draws_work: Callable[[Draw], bool]) -> Draw | None:
    """Return the first `Draw` whose values the function accepts; None if it accepts neither."""
    for draw in (blend, rescale):
        with suppress(Exception), np.errstate(all="ignore"):
            if draws_work(draw):
                return draw
    return None


def redraw(
    values: Iterable[Any], draw: Draw | None, seed: int, whole: Draw | None = None
) -> list[Any]:
    """Return values with new content in arrays of fractions; equal objects remain equal.

    ``whole`` draws arrays of whole numbers and booleans; None keeps them, or the fractions.
    """
    return _Redraw(draw, whole, seed).values(values)


def bytes_of(value: Any) -> int:
    """Return the bytes of all arrays in nested values; no tensor is copied to the host for it."""
    return sum(_array_bytes(leaf) for leaf in leaves(value) if is_array(leaf))


def _array_bytes(array: Any) -> int:
    if is_tensor(array) and array.layout is sys.modules["torch"].strided:
        return int(array.numel() * array.element_size())
    return as_numpy(array).nbytes


def count_numbers(*values: Any) -> int:
    """Return how many numbers there are in all values."""
    return sum(as_numpy(x).size for x in leaves(values) if is_array(x) or np.isscalar(x))


def count_infinite(value: Any) -> int:
    """Return how many of all numbers in a value are NaN or infinite."""
    numbers = (int, float, complex, np.number)
    found = (as_numpy(x) for x in leaves(value) if is_array(x) or isinstance(x, numbers))
    return sum(int((~np.isfinite(a)).sum()) for a in found if a.dtype.kind in "fc")


def count_nan(value: Any) -> int:
    """Return how many of all numbers in a value are NaN."""
    numbers = (int, float, complex, np.number)
    found = (as_numpy(x) for x in leaves(value) if is_array(x) or isinstance(x, numbers))
    return sum(int(np.isnan(a).sum()) for a in found if a.dtype.kind in "fc")


class _Redraw:
    """Draws the arrays of nested values."""

    def __init__(self, fractions: Draw | None, whole: Draw | None, seed: int) -> None:
        self._fractions, self._whole, self._seed = fractions, whole, seed
        self._known: dict[int, Any] = {}

    def values(self, values: Iterable[Any]) -> list[Any]:
        """Return new values; equal objects remain equal."""
        return [self._redraw(value) for value in values]

    def _redraw(self, value: Any) -> Any:
        if id(value) not in self._known:
            self._known[id(value)] = self._new_value(value)
        return self._known[id(value)]

    def _new_value(self, value: Any) -> Any:
        if is_tensor(value):
            return self._new_tensor(value)
        if isinstance(value, np.ndarray):
            return self._new_array(value)
        if is_array(value):  # a list of numbers
            return self._new_list(value)
        if type(value) in (list, tuple):
            return type(value)(map(self._redraw, value))
        if type(value) is dict:
            return {key: self._redraw(inner) for key, inner in value.items()}
        return value

    def _new_array(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return new values; the array itself if it is not drawn."""
        number = len(self._known)
        if array.dtype.kind in "fc" and array.size and self._fractions is not None:
            return self._fractions(array, self._seed, number)
        is_plain_array = type(array) is np.ndarray
        if is_plain_array and whole_numbers.is_drawn(array) and self._whole is not None:
            drawn = self._whole(array, self._seed, number)
            return array if np.array_equal(drawn, array) else drawn
        return array

    def _new_tensor(self, tensor: Any) -> Any:
        is_fraction = tensor.is_floating_point() or tensor.is_complex()
        is_dense = str(tensor.layout) == "torch.strided"
        if not is_fraction and (self._whole is None or not is_dense):
            return tensor
        array = as_numpy(tensor)
        drawn = self._new_array(array)
        if drawn is array:
            return tensor
        new = tensor.detach().clone()
        new.copy_(new.new_tensor(drawn))
        return new

    def _new_list(self, numbers: list[Any]) -> list[Any]:
        kinds = set(map(type, numbers))
        if not (kinds <= {float, complex} or kinds == {int} or kinds == {bool}):
            return numbers
        array = np.array(numbers)
        drawn = self._new_array(array)
        return numbers if drawn is array else drawn.tolist()


def _is_rising(array: npt.NDArray[Any]) -> bool:
    first = array[(0,) * (array.ndim - 1)]  # mostly tells at once that they do not
    return all(bool((part[..., 1:] >= part[..., :-1]).all()) for part in (first, array))


def _mix(values: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Return other values within the range of ``values``; constant ones shrink by up to a tenth."""
    axis = next((i for i, n in enumerate(values.shape) if n > 1), None)
    if axis is not None:
        one, other = rng.integers(1, values.shape[axis], size=2)
        share = values.dtype.type(rng.uniform(1 / 32, 1 / 8))
        mixed: npt.NDArray[Any] = np.roll(values, one, axis)
        mixed *= 1 - share
        mixed += np.roll(values, one + other, axis) * share
        if not np.array_equal(mixed, values):
            return mixed
    return values * rng.uniform(0.9, 1.0, values.shape).astype(values.real.dtype)
