"""Compares the outputs of two calls: structure and types exactly, numbers within a tolerance.

Containers must have the same class, keys and length; arrays the same class, type of number, shape
and mask. Whole numbers, booleans, texts, dates and missing values must be equal. Floating-point
numbers may differ by the rounding errors of their type, see `default_tolerance`: relative to each
element, and for elements near zero relative to a share of the output's usual size.

Objects of a user's class are compared by their attributes. Others must have the same class and are
compared as arrays, if they can be read as such.
"""

import datetime
import decimal
import enum
import fractions
import inspect
import math
import pathlib
import re
import sys
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from foretune.collect.wrapped import values as arrays
from foretune.collect.wrapped.sent_values import (
    STAND_INS,
    ExactValue,
    ObjectParts,
    SparseParts,
    TensorParts,
)
from foretune.errors import MeasurementError, first_line
from foretune.kernel import WrongResult
from foretune.relative_error import (
    is_equal,
    is_plain,
    relative_error,
    rounding,
    sampled_places,
    usual_size,
)
from foretune.support.identity import kind_of_index, type_of_column

# Largest relative errors by rounding error of the type. Double precision is that of `math.isclose`;
# it refuses sums in single precision. Single precision refuses sums in half precision.
DOUBLE_TOLERANCE = 1e-9
SINGLE_TOLERANCE = 1e-5
HALF_TOLERANCE = 2e-3
BFLOAT_TOLERANCE = 2e-2
MAX_GROWTH = 10.0
"""Largest growth of a tolerance by the number of terms."""
# Share of the usual size below which an element counts as near zero, by the type's precision.
DOUBLE_FLOOR = 0.01
SINGLE_FLOOR = 0.3
CANCELLED = 8.0
"""Elements below so many rounding errors of the usual size may be exactly 0: terms cancelled."""
SHIFTED = 64.0
"""Accepted rounding errors of shifted numbers."""
SCALARS = (bool, int, str, bytes, type(None), type(Ellipsis))
EXACT = (
    *(enum.Enum, decimal.Decimal, fractions.Fraction, pathlib.PurePath, uuid.UUID, re.Pattern),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
    *(slice, range, type, np.dtype),
)
"""Values without parts that can be compared as arrays: they must be equal, and written equally."""
ONE_PASS = "its values exist only while it runs: return a list or an array"


@dataclass(frozen=True)
class ComparisonRules:
    """How two outputs are compared.

    Attributes:
        tolerance: largest relative error; None depends on the type of number.
        input_elements: number of elements of all inputs. Sums of more terms round more; an element
            of the output has at most as many terms as there are inputs per output.
        shift: how far from 0 the inputs are, relative to their differences. Rounding errors of
            differences grow with it.
        exact_types: whether classes and types of numbers must be the same. A reference that the
            user wrote may be in other types than the function's output.
        values: whether values and lengths count; otherwise only classes, types and keys.
    """

    tolerance: float | None = None
    input_elements: int = 1
    shift: float = 1.0
    exact_types: bool = True
    values: bool = True


def output_error(
    got: Any, expected: Any, rules: ComparisonRules, place: str = "the output"
) -> float:
    """Return the largest relative error of two equal structures; messages call it ``place``.

    Raises WrongResult, with the place, if the structures differ or an error is too large;
    MeasurementError if values of the expected class cannot be compared at all.
    """
    return _Walk(rules).compare(got, expected, place)


def default_tolerance(dtype: Any, terms: float = 1.0) -> float:
    """Return the accepted relative error of numbers of a type; 0 for whole numbers.

    Rounding errors of a sum grow with the square root of its number of terms.
    """
    precision = rounding(dtype)
    return _tolerance(precision, terms) if precision else 0.0


def _tolerance(precision: float, terms: float) -> float:
    base = _base_tolerance(precision)
    grown = 2.0 * precision * math.sqrt(max(terms, 1.0))
    return max(base, min(grown, MAX_GROWTH * base))


def _base_tolerance(precision: float) -> float:
    if precision <= np.finfo(np.float64).eps:
        return DOUBLE_TOLERANCE
    if precision <= np.finfo(np.float32).eps:
        return SINGLE_TOLERANCE
    if precision <= np.finfo(np.float16).eps:
        return HALF_TOLERANCE
    return BFLOAT_TOLERANCE


class _Walk:
    """Walks through two nested values at once."""

    def __init__(self, rules: ComparisonRules) -> None:
        self.rules = rules
        self._open: set[tuple[int, int]] = set()
        """Pairs of objects that are being compared: they may hold themselves."""

    def compare(self, got: Any, expected: Any, place: str) -> float:
        """Return the largest relative error below a place."""
        self._check_class(got, expected, place)
        if _is_numbers(expected) and (_is_numbers(got) or not self.rules.exact_types):
            return self._compare_lists(got, expected, place)
        for applies, compare in self._kinds():
            if applies(expected):
                return compare(got, expected, place)
        return self._compare_objects(got, expected, place)

    def _kinds(self) -> list[tuple[Callable[[Any], bool], Callable[[Any, Any, str], float]]]:
        return [
            (lambda value: isinstance(value, Mapping), self._compare_mappings),
            (lambda value: isinstance(value, list | tuple | deque), self._compare_sequences),
            (lambda value: isinstance(value, set | frozenset), self._compare_sets),
            (lambda value: isinstance(value, SCALARS), self._compare_scalars),
            (is_exact, self._compare_exactly),
            (lambda value: isinstance(value, np.ma.MaskedArray), self._compare_masked),
            (_is_number_array, self._compare_arrays),
            (lambda value: isinstance(value, TensorParts), self._compare_sent_tensors),
            (arrays.is_tensor, self._compare_tensors),
            (is_sparse, self._compare_sparse),
            (is_table, self._compare_tables),
            (lambda value: isinstance(value, ObjectParts), self._compare_parts),
            (_has_attributes, self._compare_attributes),
        ]

    def _check_class(self, got: Any, expected: Any, place: str) -> None:
        """Check the class of a value; a check's own result may be a list for an array."""
        if type(got) is type(expected) and _sent_kind(got) == _sent_kind(expected):
            return
        if not self.rules.exact_types and _is_loosely_alike(got, expected):
            return
        raise WrongResult(f"{place} is {class_name(got)} instead of {class_name(expected)}")

    def _compare_mappings(self, got: Any, expected: Any, place: str) -> float:
        # Equal keys may be of different classes: 1, 1.0 and True.
        actual_keys = {(type(key), key) for key in got}
        expected_keys = {(type(key), key) for key in expected}
        for _, key in expected_keys - actual_keys:
            raise WrongResult(f"{place} has no key {key!r}")
        for _, key in actual_keys - expected_keys:
            raise WrongResult(f"{place} has the key {key!r}, which is not expected")
        if isinstance(expected, OrderedDict) and list(got) != list(expected):
            raise WrongResult(f"{place} has its keys in another order than expected")
        errors = [self.compare(got[key], expected[key], f"{place}[{key!r}]") for key in expected]
        return max(errors, default=0.0)

    def _compare_sequences(self, got: Any, expected: Any, place: str) -> float:
        limits = [getattr(value, "maxlen", None) for value in (got, expected)]
        if limits[0] != limits[1]:
            raise WrongResult(f"{place} has maxlen {limits[0]} instead of {limits[1]}")
        if len(got) != len(expected):
            if not self.rules.values:
                return 0.0
            raise WrongResult(f"{place} has {len(got)} elements instead of {len(expected)}")
        pairs = zip(got, expected, strict=True)
        return max(
            (self.compare(a, b, f"{place}[{i}]") for i, (a, b) in enumerate(pairs)), default=0.0
        )

    def _compare_lists(self, got: Any, expected: Any, place: str) -> float:
        """Compare two lists of numbers at once: it is faster, and small ones use the others' size.

        The class of each number counts.
        """
        classes = [type(x) for x in expected]
        if self.rules.exact_types and self.rules.values and [type(x) for x in got] != classes:
            return self._compare_sequences(got, expected, place)
        numbers = set(classes) <= {float, complex, np.float64, np.float32, np.complex128}
        if numbers or not self.rules.exact_types:
            return self._compare_arrays(np.asarray(got), np.asarray(expected), place)
        return self._compare_sequences(got, expected, place)

    def _compare_sets(self, got: Any, expected: Any, place: str) -> float:
        if not self.rules.values:
            return 0.0
        # Equal elements may be of different classes: 1, 1.0 and True.
        elements = [{(type(x), x) for x in value} for value in (got, expected)]
        if elements[0] != elements[1]:
            raise WrongResult(f"{place} has other elements than expected")
        return 0.0

    def _compare_attributes(self, got: Any, expected: Any, place: str) -> float:
        pair = (id(got), id(expected))
        if pair in self._open:
            return 0.0
        self._open.add(pair)
        ours, theirs = (arrays.parts_of_object(value) or {} for value in (got, expected))
        for name in [*ours, *theirs]:
            if name not in ours or name not in theirs:
                what = "no" if name in theirs else "an unexpected"
                raise WrongResult(f"{place} has {what} attribute {name!r}")
        errors = [self.compare(ours[name], theirs[name], f"{place}.{name}") for name in theirs]
        return max(errors, default=0.0)

    def _compare_exactly(self, got: Any, expected: Any, place: str) -> float:
        is_same = got is expected or (repr(got) == repr(expected) and bool(got == expected))
        if self.rules.values and not is_same and not (_is_nan(got) and _is_nan(expected)):
            raise WrongResult(f"{place} is {_short(got)} instead of {_short(expected)}")
        return 0.0

    def _compare_scalars(self, got: Any, expected: Any, place: str) -> float:
        if self.rules.values and got != expected:
            if self.rules.tolerance is not None and type(expected) is int:
                return self._compare_arrays(np.asarray(got), np.asarray(expected), place)
            raise WrongResult(f"{place} is {_short(got)} instead of {_short(expected)}")
        return 0.0

    def _compare_masked(self, got: Any, expected: Any, place: str) -> float:
        self._check_layout(got, expected, place)
        if not self.rules.values:
            return 0.0
        mask = np.ma.getmaskarray(expected)
        if not np.array_equal(np.ma.getmaskarray(got), mask):
            raise WrongResult(f"{place} masks other elements than expected")
        fills = [repr(value.fill_value) for value in (got, expected)]
        if fills[0] != fills[1]:
            raise WrongResult(f"{place} has fill value {fills[0]} instead of {fills[1]}")
        visible = ~mask
        return self._compare_arrays(
            np.ma.getdata(got)[visible], np.ma.getdata(expected)[visible], place
        )

    def _compare_tensors(self, got: Any, expected: Any, place: str) -> float:
        if self.rules.exact_types:
            for name in ("layout", "device"):
                ours, theirs = getattr(got, name), getattr(expected, name)
                if ours != theirs:
                    raise WrongResult(f"{place} has {name} {ours} instead of {theirs}")
            if got.is_conj() != expected.is_conj() or got.is_neg() != expected.is_neg():
                raise WrongResult(f"{place} is a lazy view: its conjugate is computed on access")
            self._check_layout(got, expected, place)
        precision = None if "float" not in str(got.dtype) else tensor_precision(got)
        return self._compare_arrays(
            arrays.as_numpy(got), arrays.as_numpy(expected), place, precision=precision
        )

    def _compare_sent_tensors(self, got: Any, expected: TensorParts, place: str) -> float:
        if self.rules.exact_types and got.traits != expected.traits:
            pairs = zip(got.traits, expected.traits, strict=True)
            ours, theirs = next((a, b) for a, b in pairs if a != b)
            raise WrongResult(f"{place} is {ours} instead of {theirs}")
        precision = getattr(got, "precision", None) or None
        return self._compare_arrays(np.asarray(got), expected.values, place, precision=precision)

    def _compare_parts(self, got: ObjectParts, expected: ObjectParts, place: str) -> float:
        """Compare what was sent of two objects of one class."""
        return self._compare_mappings(got.parts, expected.parts, place)

    def _compare_sparse(self, got: Any, expected: Any, place: str) -> float:
        self._check_layout(got, expected, place)
        if got.format != expected.format:
            raise WrongResult(f"{place} has format {got.format} instead of {expected.format}")
        if not self.rules.values:
            return 0.0
        # Compare at all places where either has an element; other places are zero in both.
        ours, theirs = got.tocsr(), expected.tocsr()
        pattern = ((abs(ours) + abs(theirs)) != 0).tocoo()
        rows, columns = pattern.row, pattern.col
        pair = [np.asarray(matrix[rows, columns]).ravel() for matrix in (ours, theirs)]
        return self._compare_arrays(pair[0], pair[1], place)

    def _compare_tables(self, got: Any, expected: Any, place: str) -> float:
        """Compare tables, columns and indexes of pandas: labels, names, types and values."""
        errors = [0.0]
        names = [getattr(value, "name", None) for value in (got, expected)]
        if names[0] != names[1]:
            raise WrongResult(f"{place} is named {names[0]!r} instead of {names[1]!r}")
        if hasattr(expected, "columns"):
            self._compare_labels(got.columns, expected.columns, f"the columns of {place}")
        if hasattr(expected, "index") and not callable(expected.index):
            self._compare_labels(got.index, expected.index, f"the index of {place}")
        for name, ours, theirs in _columns(got, expected):
            column = f"{place}[{name!r}]" if name is not None else place
            if str(ours.dtype) != str(theirs.dtype):
                raise WrongResult(f"{column} is {ours.dtype} instead of {theirs.dtype}")
            if type_of_column(ours.dtype) != type_of_column(theirs.dtype):
                raise WrongResult(f"{column} has other categories than expected")
            errors.append(self._compare_arrays(ours.to_numpy(), theirs.to_numpy(), column))
        return max(errors)

    def _compare_labels(self, got: Any, expected: Any, place: str) -> None:
        if kind_of_index(got) != kind_of_index(expected):
            raise WrongResult(f"{place} are of another kind than expected")
        if self.rules.values and (len(got) != len(expected) or not got.equals(expected)):
            raise WrongResult(f"{place} has other labels than expected")

    def _compare_objects(self, got: Any, expected: Any, place: str) -> float:
        """Compare objects of an unknown class as arrays, for example another library's arrays."""
        kind = class_name(expected)
        if inspect.isgenerator(expected) or isinstance(expected, Iterator):
            raise MeasurementError(f"{place} is a {kind}, and {ONE_PASS}")
        if inspect.isawaitable(expected) or inspect.isasyncgen(expected):
            raise MeasurementError(
                f"{place} is a {kind}, which has not run: give a function that waits for it"
            )
        try:
            pair = [np.asarray(value) for value in (got, expected)]
        except Exception as e:
            raise MeasurementError(f"{place} is a {kind}: {first_line(e)}") from e
        if pair[1].dtype.kind == "O":
            raise MeasurementError(f"{place} is a {kind}, which has no values to compare")
        return self._compare_arrays(pair[0], pair[1], place)

    def _check_layout(self, got: Any, expected: Any, place: str) -> None:
        """Check type of number and shape of two arrays."""
        if self.rules.exact_types and got.dtype != expected.dtype:
            raise WrongResult(f"{place} is {_dtype_name(got)} instead of {_dtype_name(expected)}")
        if self.rules.values and tuple(got.shape) != tuple(expected.shape):
            raise WrongResult(
                f"{place} has shape {tuple(got.shape)}, the expected one has "
                f"{tuple(expected.shape)}"
            )

    def _compare_arrays(
        self, got: Any, expected: Any, place: str, precision: float | None = None
    ) -> float:
        """Compare two arrays or numbers of NumPy; ``precision`` is that of a type NumPy lacks."""
        ours, theirs = arrays.as_numpy(got), arrays.as_numpy(expected)
        if isinstance(got, np.ndarray | np.generic) or not self.rules.exact_types:
            self._check_layout(ours, theirs, place)
        if not self.rules.values:
            return 0.0
        if theirs.dtype.names:
            fields = theirs.dtype.names
            return max(
                self._compare_arrays(ours[name], theirs[name], f"{place}[{name!r}]")
                for name in fields
            )
        if "O" in (ours.dtype.kind, theirs.dtype.kind):
            pairs = zip(ours.ravel(), theirs.ravel(), strict=True)
            walked = (self.compare(a, b, f"{place}[{i}]") for i, (a, b) in enumerate(pairs))
            return max(walked, default=0.0)

        kinds = {ours.dtype.kind, theirs.dtype.kind}
        exact = kinds <= set("biu") and (self.rules.tolerance is None or "b" in kinds)
        if exact or not kinds <= set("biufc"):
            if is_equal(ours, theirs):
                return 0.0
            raise WrongResult(_different_element(ours, theirs, place))
        return self._number_error(ours, theirs, place, precision)

    def _number_error(
        self,
        ours: npt.NDArray[Any],
        theirs: npt.NDArray[Any],
        place: str,
        precision: float | None,
    ) -> float:
        if precision is None:
            precision = max(rounding(ours.dtype), rounding(theirs.dtype))
        limit, floor = self.rules.tolerance, 1.0
        if limit is None:
            terms = max(1.0, self.rules.input_elements / max(1, theirs.size))
            limit = _tolerance(precision, terms)
            floor = _floor_share(precision)
        if self.rules.shift > 1.0:
            limit = max(limit, SHIFTED * precision * self.rules.shift)

        error = relative_error(ours, theirs, floor=floor)
        if not error <= limit:
            what = f"relative error {error:.2g} is above {limit:.2g}"
            raise WrongResult(f"{what}: {_different_element(ours, theirs, place)}")
        if self.rules.tolerance is None:
            self._check_zeros(ours, theirs, place, precision)
        return error

    def _check_zeros(
        self, ours: npt.NDArray[Any], theirs: npt.NDArray[Any], place: str, precision: float
    ) -> None:
        """Check elements that are exactly 0, and the signs of zeros.

        A small element may not become 0, unless it remained from terms that cancelled. Signs of
        zeros count if the reference has zeros of negative sign.
        """
        zero = ours == 0
        if not zero.any():
            return
        finite = np.abs(theirs[np.isfinite(theirs)]).ravel()
        if finite.size:
            sample = finite[sampled_places(finite.size)]
            size = usual_size(sample, float(finite.max()), precision)
            terms = max(1.0, self.rules.input_elements / max(1, theirs.size))
            remains = CANCELLED * precision * math.sqrt(terms) * self.rules.shift * size
            lost = zero & (np.abs(theirs) > remains)
            if lost.any():
                number = int(np.flatnonzero(lost)[0])
                raise WrongResult(
                    f"relative error 1 of a small element: {place}[{number}] is 0 instead of "
                    f"{_short(theirs.ravel()[number])}"
                )
        if theirs.dtype.kind != "f" or ours.dtype.kind != "f":
            return
        both = zero & (theirs == 0)
        negative = np.signbit(theirs)
        if (both & negative).any() and (np.signbit(ours) != negative)[both].any():
            raise WrongResult(f"{place} has zeros of another sign than expected")


def class_name(value: Any) -> str:
    """Return the class of a value, and its type of number, as a user writes them."""
    if isinstance(value, STAND_INS):
        return value.kind
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if kind.__module__ == "__main__":
        name = kind.__qualname__
    return "None" if value is None else name


def _sent_kind(value: Any) -> str:
    """Return the class of which a value was sent; empty for the values themselves."""
    return value.kind if isinstance(value, STAND_INS) else ""


def without_values(rules: ComparisonRules) -> ComparisonRules:
    """Return rules that compare classes, types and keys only."""
    return replace(rules, values=False, exact_types=True)


def _is_numbers(value: Any) -> bool:
    """Whether this is a list or tuple of numbers."""
    plain_class = type(value) in (list, tuple)
    return plain_class and bool(value) and all(isinstance(x, int | float | complex) for x in value)


def _is_loosely_alike(got: Any, expected: Any) -> bool:
    """Whether both are sequences, or both are plain numbers or arrays."""
    sequences = (list, tuple)
    if isinstance(got, sequences) and isinstance(expected, sequences):
        return True
    if not is_plain(got) and type(got) not in (list, tuple, TensorParts):
        return False
    numeric = (int, float, complex, np.generic, np.ndarray, list, tuple, TensorParts)
    return all(isinstance(value, numeric) or arrays.is_tensor(value) for value in (got, expected))


def _has_attributes(value: Any) -> bool:
    return arrays.parts_of_object(value) is not None


def is_exact(value: Any) -> bool:
    """Whether a value must be equal, and written equally: an enum, a date, a class."""
    pandas = sys.modules.get("pandas")
    if isinstance(value, (*EXACT, ExactValue)):
        return True
    return pandas is not None and isinstance(
        value, (pandas.Timestamp, pandas.Timedelta, pandas.Interval, pandas.Period, type(pandas.NA))
    )


def _is_nan(value: Any) -> bool:
    return isinstance(value, decimal.Decimal) and value.is_nan()


def _is_number_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic | float | complex)


def is_sparse(value: Any) -> bool:
    """Whether this is a sparse matrix of SciPy."""
    if isinstance(value, SparseParts):
        return True
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(value))


def is_table(value: Any) -> bool:
    """Whether this is a table, a column or an index of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series | pandas.Index)


def _columns(got: Any, expected: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield name and both columns of two tables with the same labels."""
    if not hasattr(expected, "columns"):
        yield None, got, expected
        return
    if got.shape[1] != expected.shape[1]:
        return
    for number, name in enumerate(expected.columns):
        yield name, got.iloc[:, number], expected.iloc[:, number]


def tensor_precision(tensor: Any) -> float:
    """Return the relative rounding error of a tensor's numbers; 0 for whole numbers."""
    torch = sys.modules["torch"]
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    return float(torch.finfo(tensor.dtype).eps)


def _floor_share(precision: float) -> float:
    if precision <= np.finfo(np.float64).eps:
        return DOUBLE_FLOOR
    if precision <= np.finfo(np.float32).eps:
        return SINGLE_FLOOR
    return 1.0


def _dtype_name(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _different_element(ours: npt.NDArray[Any], theirs: npt.NDArray[Any], place: str) -> str:
    """Return the place and the values of the element that differs most."""
    if ours.ndim == 0:
        return f"{place} is {_short(ours)} instead of {_short(theirs)}"
    a, b = ours.ravel(), theirs.ravel()
    if a.dtype.kind in "biufc" and b.dtype.kind in "biufc":
        with np.errstate(all="ignore"):
            wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
            difference = np.abs(a.astype(wide) - b.astype(wide))
            same = (a == b) | ((a != a) & (b != b))
        number = int(np.argmax(np.where(same, -1.0, np.nan_to_num(difference, nan=np.inf))))
    else:
        number = int(np.argmax(a != b))
    index = ", ".join(map(str, np.unravel_index(number, ours.shape)))
    return f"{place}[{index}] is {_short(a[number])} instead of {_short(b[number])}"


def _short(value: Any) -> str:
    plain = (
        value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value
    )
    text = repr(plain)
    return text if len(text) <= 40 else f"{text[:37]}..."
