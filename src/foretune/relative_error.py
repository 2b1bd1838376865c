"""Relative error, element by element: large values do not hide the errors of small ones."""

import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

WORST_ELEMENT = 8.0
"""One element's error may be this many times the mean error: rounding errors of millions of
elements are distributed like that."""
SAMPLED = 1 << 16  # elements from which the usual size of a reference is estimated
NORMAL_MEDIAN = 0.6745  # median of the absolute values of a standard normal distribution
NOISE_EXPONENT = 0.8
"""Elements below ``rounding error ** 0.8`` of the largest one count as zero: they remain from terms
that cancel. This is 3e-6 of it in single precision, and 3e-13 in double precision."""
_CHUNK = 1 << 17  # elements compared at a time: they fit into a cache
_PLAIN_MODULES = ("builtins", "numpy", "torch")


def relative_error(output: Any, expected: Any, floor: float = 1.0) -> float:
    """Return the root mean square of ``|output − expected| / max(|expected|, floor · size)``.

    It is at least the error of the worst element divided by `WORST_ELEMENT`. ``size`` is the usual
    size of the reference, see `usual_size`: an element near zero is as accurate as its neighbors.
    A smaller ``floor`` asks more of small elements.
    NaN and infinity must be at the same places. The error is infinite if shapes differ, if values
    other than numbers differ, or if the output is an object of another class, which could compute
    its content when it is read.
    """
    if not is_plain(output) and type(output) is not type(expected):
        return np.inf
    out, ref = np.asarray(output), np.asarray(expected)
    if out.shape != ref.shape:
        return np.inf
    if out.dtype.kind not in "biufc" or ref.dtype.kind not in "biufc":
        return 0.0 if is_equal(out, ref) else np.inf
    precision = max(rounding(out.dtype), rounding(ref.dtype))
    kind = np.complex128 if "c" in (out.dtype.kind, ref.dtype.kind) else np.float64
    out, ref = out.reshape(-1), ref.reshape(-1)
    chunks = [slice(start, start + _CHUNK) for start in range(0, ref.size, _CHUNK)]
    largest = max((_largest(ref[chunk]) for chunk in chunks), default=0.0)
    sample = np.abs(ref[sampled_places(ref.size)].astype(kind))
    size = floor * usual_size(sample[np.isfinite(sample)], largest, precision)
    parts, number = [], 0
    with np.errstate(over="ignore", invalid="ignore"):  # uninitialized memory holds any number
        for chunk in chunks:
            errors = _errors(out[chunk].astype(kind), ref[chunk].astype(kind), size)
            parts.append((float(errors @ errors), float(errors.max(initial=0.0))))
            number += errors.size
    return combine(parts, number)


def is_equal(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether two arrays of one shape are equal, missing values (NaN, NaT) included."""
    if a.dtype.names and a.dtype.names == b.dtype.names:
        return all(is_equal(a[name], b[name]) for name in a.dtype.names)
    if "O" in (a.dtype.kind, b.dtype.kind):
        return bool(np.all((a == b) | (a != a) & (b != b)))
    may_miss = a.dtype.kind in "fcmM" and b.dtype.kind in "fcmM"
    return bool(np.array_equal(a, b, equal_nan=may_miss))


def _largest(values: npt.NDArray[Any]) -> float:
    sizes = np.abs(values.astype(np.complex128 if values.dtype.kind == "c" else np.float64))
    return float(sizes.max(where=np.isfinite(sizes), initial=0.0))


def _errors(out: npt.NDArray[Any], ref: npt.NDArray[Any], size: float) -> npt.NDArray[np.float64]:
    """Return the errors of elements; those that are not finite must be the same."""
    finite = np.isfinite(ref)
    if not finite.all():
        if not np.array_equal(out[~finite], ref[~finite], equal_nan=True):
            return np.array([np.inf])
        out, ref = out[finite], ref[finite]
    errors: npt.NDArray[np.float64] = np.abs(out - ref)
    errors /= np.maximum(np.abs(ref), size)
    return np.nan_to_num(errors, copy=False, nan=np.inf, posinf=np.inf)


def combine(parts: Iterable[tuple[float, float]], number: int) -> float:
    """Return the error of an array from the sum of squares and the largest error of each part."""
    squares, worst = (np.array([*parts, (0.0, 0.0)])[:, i] for i in (0, 1))
    error = max(math.sqrt(squares.sum() / max(number, 1)), float(worst.max()) / WORST_ELEMENT)
    return error if math.isfinite(error) else math.inf


def tensor_errors(output: Any, expected: Any, size: float) -> tuple[float, float]:
    """Return the sum of squares of the elements' errors, and the largest one, for torch tensors.

    ``output`` is in double precision, because anything else may be out of its range.
    """
    if not expected.numel():
        return 0.0, 0.0
    errors = (output - expected).abs() / expected.abs().clamp(min=size)
    errors[(output == expected) | output.isnan() & expected.isnan()] = 0.0  # includes infinity
    worst = float(errors.nan_to_num(math.inf, math.inf).max())  # waits for the device
    return float(errors.square().sum()), worst


def tensor_size(output: Any, expected: Any) -> float:
    """Return the `usual_size` of a reference tensor."""
    torch, flat = sys.modules["torch"], expected.reshape(-1)
    floats = [t.dtype for t in (output, expected) if t.is_floating_point()]
    precision = max((torch.finfo(dtype).eps for dtype in floats), default=0.0)
    largest = 0.0
    for part in flat.split(64 * _CHUNK) if flat.numel() else ():
        largest = max(largest, float(part.double().abs().nan_to_num(0.0, 0.0).max()))
    places = sampled_places(flat.numel())
    if not isinstance(places, slice):
        places = torch.from_numpy(places).to(flat.device)
    sample = flat[places].double().abs().cpu().numpy()
    return usual_size(sample[np.isfinite(sample)], largest, precision)


def usual_size(sample: npt.NDArray[Any], largest: float, precision: float) -> float:
    """Return the standard deviation of a normal distribution with the same median magnitude.

    Values that are zero or rounding noise do not count. ``largest`` limits the result;
    ``precision`` is the relative rounding error of the coarser of two number formats.
    """
    counted = sample[sample > precision**NOISE_EXPONENT * largest]
    median = float(np.median(counted)) if counted.size else largest
    return max(min(median / NORMAL_MEDIAN, largest), 1e-300)


def sampled_places(size: int) -> Any:
    """Return the places of a sample among ``size`` elements: all if there are few, else random."""
    if size <= SAMPLED:
        return slice(None)
    return np.random.default_rng(0).integers(size, size=SAMPLED)


def rounding(dtype: Any) -> float:
    """Return the relative rounding error of a NumPy type; 0 for whole numbers."""
    return float(np.finfo(dtype).eps) if np.dtype(dtype).kind in "fc" else 0.0


def is_plain(value: Any) -> bool:
    """Whether this is a number, text, array or tensor, whose content is not computed on access."""
    kind = type(value)
    known = kind.__module__.partition(".")[0] in _PLAIN_MODULES
    module = sys.modules.get(kind.__module__) if known else None
    return value is None or getattr(module, kind.__qualname__, None) is kind
