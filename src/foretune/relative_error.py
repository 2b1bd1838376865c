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
SAMPLED = 1 << 16
"""Elements from which the usual size of a reference is estimated."""
NORMAL_MEDIAN = 0.6745
"""Median of the absolute values of a standard normal distribution."""
NOISE_EXPONENT = 0.8
"""Elements below ``rounding error ** 0.8`` of the largest one count as zero: they remain from terms
that cancel. This is 3e-6 of it in single precision, and 3e-13 in double precision."""
_CHUNK = 1 << 17
"""Elements compared at a time: they fit into a cache."""
_TENSOR_CHUNK = 64 * _CHUNK
"""The same for torch tensors, which may lie on a GPU."""
_SMALLEST_SIZE = 1e-300
"""Size of a reference of zeros: any other number is infinitely wrong."""
_NUMBER_KINDS = "biufc"
"""NumPy's kinds of numbers: booleans, integers, unsigned ones, floats, complex numbers."""
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
        return math.inf
    out = np.asarray(output)
    ref = np.asarray(expected)
    if out.shape != ref.shape:
        return math.inf
    if not (_holds_numbers(out) and _holds_numbers(ref)):
        return 0.0 if is_equal(out, ref) else math.inf

    # Everything is computed in double precision.
    is_complex = "c" in (out.dtype.kind, ref.dtype.kind)
    dtype = np.complex128 if is_complex else np.float64
    flat_out = out.reshape(-1)
    flat_ref = ref.reshape(-1)
    chunks = [slice(start, start + _CHUNK) for start in range(0, ref.size, _CHUNK)]

    # How large elements of the reference usually are.
    largest = max((_largest(flat_ref[chunk]) for chunk in chunks), default=0.0)
    sample = np.abs(flat_ref[sampled_places(ref.size)].astype(dtype))
    precision = max(rounding(out.dtype), rounding(ref.dtype))
    size = floor * usual_size(sample[np.isfinite(sample)], largest, precision)

    parts = []
    n_elements = 0
    with np.errstate(over="ignore", invalid="ignore"):  # uninitialized memory holds any number
        for chunk in chunks:
            errors = _errors(flat_out[chunk].astype(dtype), flat_ref[chunk].astype(dtype), size)
            parts.append((float(errors @ errors), float(errors.max(initial=0.0))))
            n_elements += errors.size
    return combine(parts, n_elements)


def _holds_numbers(array: npt.NDArray[Any]) -> bool:
    return array.dtype.kind in _NUMBER_KINDS


def is_equal(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether two arrays of one shape are equal, missing values (NaN, NaT) included."""
    if a.dtype.names and a.dtype.names == b.dtype.names:
        return all(is_equal(a[name], b[name]) for name in a.dtype.names)
    if "O" in (a.dtype.kind, b.dtype.kind):
        both_missing = (a != a) & (b != b)  # only missing values differ from themselves
        return bool(np.all((a == b) | both_missing))
    may_miss = a.dtype.kind in "fcmM" and b.dtype.kind in "fcmM"
    return bool(np.array_equal(a, b, equal_nan=may_miss))


def _largest(values: npt.NDArray[Any]) -> float:
    """Return the largest finite magnitude; 0 if there is none."""
    dtype = np.complex128 if values.dtype.kind == "c" else np.float64
    sizes = np.abs(values.astype(dtype))
    return float(sizes.max(where=np.isfinite(sizes), initial=0.0))


def _errors(out: npt.NDArray[Any], ref: npt.NDArray[Any], size: float) -> npt.NDArray[np.float64]:
    """Return the errors of elements; those that are not finite must be the same."""
    is_finite = np.isfinite(ref)
    if not is_finite.all():
        if not np.array_equal(out[~is_finite], ref[~is_finite], equal_nan=True):
            return np.array([np.inf])
        out = out[is_finite]
        ref = ref[is_finite]
    errors: npt.NDArray[np.float64] = np.abs(out - ref)
    errors /= np.maximum(np.abs(ref), size)
    return np.nan_to_num(errors, copy=False, nan=np.inf, posinf=np.inf)


def combine(parts: Iterable[tuple[float, float]], number: int) -> float:
    """Return the error of an array of ``number`` elements.

    ``parts`` have the sum of squares and the largest error of each part.
    """
    table = np.array([*parts, (0.0, 0.0)])
    sum_of_squares = table[:, 0].sum()
    worst = float(table[:, 1].max())
    root_mean_square = math.sqrt(sum_of_squares / max(number, 1))
    error = max(root_mean_square, worst / WORST_ELEMENT)
    return error if math.isfinite(error) else math.inf


def tensor_errors(output: Any, expected: Any, size: float) -> tuple[float, float]:
    """Return the sum of squares of the elements' errors, and the largest one, for torch tensors.

    ``output`` is in double precision, because anything else may be out of its range.
    """
    if not expected.numel():
        return 0.0, 0.0
    errors = (output - expected).abs() / expected.abs().clamp(min=size)
    is_same = (output == expected) | (output.isnan() & expected.isnan())
    errors[is_same] = 0.0  # includes infinity
    worst = float(errors.nan_to_num(math.inf, math.inf).max())  # waits for the device
    return float(errors.square().sum()), worst


def tensor_size(output: Any, expected: Any) -> float:
    """Return the `usual_size` of a reference tensor."""
    torch = sys.modules["torch"]
    flat = expected.reshape(-1)

    precision = 0.0
    for tensor in (output, expected):
        if tensor.is_floating_point():
            precision = max(precision, torch.finfo(tensor.dtype).eps)
    largest = 0.0
    if flat.numel():
        for part in flat.split(_TENSOR_CHUNK):
            sizes = part.double().abs().nan_to_num(0.0, 0.0)
            largest = max(largest, float(sizes.max()))

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
    noise = precision**NOISE_EXPONENT * largest
    counted = sample[sample > noise]
    median = float(np.median(counted)) if counted.size else largest
    return max(min(median / NORMAL_MEDIAN, largest), _SMALLEST_SIZE)


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
    if value is None:
        return True
    cls = type(value)
    package, _, _ = cls.__module__.partition(".")
    if package not in _PLAIN_MODULES:
        return False
    # A class may claim another module's name: that module must have it.
    module = sys.modules.get(cls.__module__)
    return getattr(module, cls.__qualname__, None) is cls
