"""New values for the arrays of given arguments: other content, but alike in all that affects a run.

Shape, type, memory order, range and distribution stay, and so do many zeros, the places of NaN and
infinity, and a sorted order. Only fractions are drawn: whole numbers, booleans and texts may be
indices, sizes or modes.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.collect.wrapped.values import as_numpy, is_tensor

MANY_ZEROS = 0.25
"""Zeros keep their places if they are more than this share: a mask, a triangle, a sparse matrix."""
Draw = Callable[[npt.NDArray[Any], int, int], npt.NDArray[Any]]
"""Returns new values of an array, from a seed and the array's number."""


def blend(array: npt.NDArray[Any], seed: int, number: int) -> npt.NDArray[Any]:
    """Return the array rolled along its first axis, blended with another roll.

    This is fast, and the result is within the convex hull of the rows: sums and ranges stay.
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
    if array.dtype.kind == "f" and array.ndim:
        if _is_rising(array):
            new.sort(axis=-1)
        elif _is_rising(array[..., ::-1]):
            new[...] = np.sort(new, axis=-1)[..., ::-1]
    return new


def rescale(array: npt.NDArray[Any], seed: int, number: int) -> npt.NDArray[Any]:
    """Return the array times a random factor, the same for all arrays: any structure stays."""
    factor = np.random.default_rng(seed).uniform(0.5, 1.0)
    return np.array(array * array.dtype.type(factor), order="K", subok=True)


def find_draw(draws_work: Callable[[Draw], bool]) -> Draw | None:
    """Return the first draw whose values a function accepts; None if it accepts only the given."""
    for draw in (blend, rescale):
        with suppress(Exception), np.errstate(all="ignore"):
            if draws_work(draw):
                return draw
    return None


def redraw(values: Iterable[Any], draw: Draw, seed: int) -> list[Any]:
    """Return values with new content in all arrays of fractions, also in nested containers.

    An array that occurs twice remains the same one.
    """
    known: dict[int, Any] = {}
    return [_redraw(value, draw, seed, known) for value in values]


def count_nan(arrays: Iterable[Any]) -> int:
    """Return the number of elements that are NaN."""
    found = (as_numpy(array) for array in arrays)
    return sum(int(np.isnan(a).sum()) for a in found if a.dtype.kind in "fc")


def _redraw(value: Any, draw: Draw, seed: int, known: dict[int, Any]) -> Any:
    if id(value) not in known:
        known[id(value)] = _new_value(value, draw, seed, known)
    return known[id(value)]


def _new_value(value: Any, draw: Draw, seed: int, known: dict[int, Any]) -> Any:
    number = len(known)
    if is_tensor(value) and (value.is_floating_point() or value.is_complex()):
        new = value.detach().clone()
        new.copy_(new.new_tensor(draw(as_numpy(value), seed, number)))
        return new
    if isinstance(value, np.ndarray):
        return draw(value, seed, number) if value.dtype.kind in "fc" and value.size else value
    if type(value) is list and value and all(type(x) in (float, complex) for x in value):
        return draw(np.array(value), seed, number).tolist()
    if type(value) in (list, tuple):
        return type(value)(_redraw(inner, draw, seed, known) for inner in value)
    if type(value) is dict:
        return {key: _redraw(inner, draw, seed, known) for key, inner in value.items()}
    return value


def _is_rising(array: npt.NDArray[Any]) -> bool:
    """Whether values rise along the last axis."""
    first = array[(0,) * (array.ndim - 1)]  # mostly tells at once that they do not
    return all(bool((part[..., 1:] >= part[..., :-1]).all()) for part in (first, array))


def _mix(values: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Return other values within the range of some; constant ones shrink by up to a tenth."""
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
