"""New values for arrays of whole numbers and booleans, which may be indices, labels or counts.

An index must stay within its range, sorted offsets must stay sorted and keep their ends, and
distinct numbers must stay distinct. So `change` draws by what the given numbers have in common:

- Sorted: each new one lies between the given one before it and the given one itself. Without room
  between them, some numbers occur more often and some less, in order. Both ends stay.
- Distinct: the given ones in another order, and all are shifted; what leaves the range at its end
  enters it at its begin.
- Others: the given ones in another order; some occur more often and some less.

`reorder` only rolls them. A table of several columns, such as pairs of nodes, is drawn column by
column, because each may have a range of its own.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

MIN_WHOLE_NUMBERS = 16
"""A shorter array of whole numbers is kept: it may hold sizes, axes or modes."""
MAX_COLUMNS = 8
"""A table with more columns is one population, like a picture."""
REPLACED_SHARE = 0.125
"""Share of an array that comes from another place of it."""

Numbers = npt.NDArray[np.integer | np.bool_]


def is_drawn(array: npt.NDArray[np.generic]) -> bool:
    """Whether an array holds whole numbers or booleans, and enough of them to be data."""
    return array.dtype.kind in "iub" and array.size >= MIN_WHOLE_NUMBERS


def change(array: Numbers, seed: int, number: int) -> Numbers:
    """Return other numbers of the same range and shape; ``number`` is that of the array."""
    return _by_column(array, np.random.default_rng([seed, number]), _changed)


def reorder(array: Numbers, seed: int, number: int) -> Numbers:
    """Return the same numbers in another order; sorted ones stay as they are."""
    return _by_column(array, np.random.default_rng([seed, number]), _reordered)


def _by_column(
    array: Numbers,
    rng: np.random.Generator,
    draw: Callable[[Numbers, np.random.Generator], Numbers],
) -> Numbers:
    """Draw each column of a table of few columns, and any other array as a whole."""
    new = np.array(array, order="K")
    long_axis = int(np.argmax(array.shape))
    columns = array.size // array.shape[long_axis]
    if columns > MAX_COLUMNS:
        new[...] = draw(array.reshape(-1), rng).reshape(array.shape)
        return new
    table = np.moveaxis(new, long_axis, 0)  # a view: what is written to it is in `new`
    for place in np.ndindex(table.shape[1:]):
        table[(slice(None), *place)] = draw(table[(slice(None), *place)].copy(), rng)
    return new


def _changed(numbers: Numbers, rng: np.random.Generator) -> Numbers:
    if _is_rising(numbers):
        return _changed_in_order(numbers, rng)
    if _is_rising(numbers[::-1]):
        return _changed_in_order(numbers[::-1], rng)[::-1]
    if _are_distinct(numbers):
        return _shifted_within_range(_rolled(numbers, rng), rng)
    return _with_another_part(_rolled(numbers, rng), rng)


def _reordered(numbers: Numbers, rng: np.random.Generator) -> Numbers:
    if _is_rising(numbers) or _is_rising(numbers[::-1]):
        return numbers
    return _rolled(numbers, rng)


def _is_rising(numbers: Numbers) -> bool:
    return bool((numbers[1:] >= numbers[:-1]).all())


def _are_distinct(numbers: Numbers) -> bool:
    # A small range tells without sorting.
    if int(numbers.max()) - int(numbers.min()) + 1 < len(numbers):
        return False
    in_order = np.sort(numbers)
    return bool((in_order[1:] != in_order[:-1]).all())


def _rolled(numbers: Numbers, rng: np.random.Generator) -> Numbers:
    return np.roll(numbers, int(rng.integers(1, len(numbers))))


def _with_another_part(numbers: Numbers, rng: np.random.Generator) -> Numbers:
    """Return the numbers, a block of which is overwritten by another block of them."""
    length = max(1, round(REPLACED_SHARE * len(numbers)))
    to, source = rng.integers(len(numbers) - length + 1, size=2)
    new = numbers.copy()
    new[to : to + length] = numbers[source : source + length]
    return new


def _changed_in_order(numbers: Numbers, rng: np.random.Generator) -> Numbers:
    """Return other sorted numbers with the same ends: offsets begin at 0 and end at a length."""
    new = _between_neighbors(numbers, rng)
    if np.array_equal(new, numbers):
        new = np.sort(_with_another_part(numbers, rng), kind="stable")
        new[0], new[-1] = numbers[0], numbers[-1]
    return new


def _between_neighbors(numbers: Numbers, rng: np.random.Generator) -> Numbers:
    """Return sorted numbers: each above the given one before it, at most the given one itself."""
    if numbers.dtype.kind == "b":
        return numbers
    new = numbers.copy()
    # Differences wrap around in their own type, which gives the right unsigned number.
    unsigned = np.dtype(f"u{numbers.dtype.itemsize}")
    gaps = (numbers[1:-1] - numbers[:-2]).astype(unsigned, copy=False)
    shares = rng.random(len(gaps))
    steps = np.floor(np.minimum(gaps.astype(np.float64), 2.0**52) * shares).astype(unsigned)
    new[1:-1] = numbers[1:-1] - steps.astype(numbers.dtype)
    return new


def _shifted_within_range(numbers: Numbers, rng: np.random.Generator) -> Numbers:
    """Add one number to all; what leaves the range at its end enters it at its begin."""
    low, high = int(numbers.min()), int(numbers.max())
    span = high - low + 1
    bits = 8 * numbers.dtype.itemsize
    if span >= 2 ** (bits - 1):  # a sum would not fit
        return numbers
    shift = int(rng.integers(1, span)) if span > 1 else 0
    unsigned = np.dtype(f"u{numbers.dtype.itemsize}")
    above_low = (numbers - numbers.dtype.type(low)).astype(unsigned)
    moved = (above_low + unsigned.type(shift)) % unsigned.type(span)
    return moved.astype(numbers.dtype) + numbers.dtype.type(low)
