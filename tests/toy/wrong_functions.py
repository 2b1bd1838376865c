"""Functions with a knob ``wrong``: results that a user would call wrong, and honest variants.

With ``wrong=0`` a function is the default. `WRONG` has cheats and accidents, `HONEST` has functions
whose other configuration computes the same by another algorithm.
"""

import dataclasses
import math
import random
import threading
from collections import OrderedDict, namedtuple

import numpy as np
import pandas as pd
import scipy.sparse as sparse

X = np.random.default_rng(0).random(200)
MATRIX = np.random.default_rng(1).random((20, 10))
WHOLE = np.random.default_rng(2).integers(0, 1000, 200)
SINGLE = X.astype(np.float32)
Pair = namedtuple("Pair", "low high")
Other = namedtuple("Other", "low high")
BUFFER = np.empty(200)


@dataclasses.dataclass
class Statistics:
    """A result of two values."""

    mean: float
    values: np.ndarray


WRONG = {}
HONEST = {}


def wrong(*arguments):
    """Add a function to the wrong ones; it is called with these arguments."""

    def add(function):
        WRONG[function.__name__] = (function, arguments)
        return function

    return add


def honest(*arguments):
    """Add a function to the honest ones; it is called with these arguments."""

    def add(function):
        HONEST[function.__name__] = (function, arguments)
        return function

    return add


# Structure.


@wrong(X)
def swaps_keys(x, wrong=0):
    return {"low": x + 1, "high": x} if wrong else {"low": x, "high": x + 1}


@wrong(X)
def drops_a_key(x, wrong=0):
    return {"mean": x.mean()} if wrong else {"mean": x.mean(), "n": len(x)}


@wrong(X)
def adds_a_key(x, wrong=0):
    return {"mean": x.mean(), "n": len(x)} if wrong else {"mean": x.mean()}


@wrong(X)
def has_keys_of_another_class(x, wrong=0):
    return {1.0: x + 1} if wrong else {1: x + 1}


@wrong(X)
def nests_in_another_way(x, wrong=0):
    return ((x + 1, x), x + 2) if wrong else (x + 1, (x, x + 2))


@wrong(X)
def returns_a_list_for_a_tuple(x, wrong=0):
    return [x + 1, x + 2] if wrong else (x + 1, x + 2)


@wrong(X)
def returns_a_list_for_an_array(x, wrong=0):
    return (x + 1).tolist() if wrong else x + 1


@wrong(X)
def returns_another_named_tuple(x, wrong=0):
    return Other(x + 1, x + 2) if wrong else Pair(x + 1, x + 2)


@wrong(X)
def returns_a_dict_of_another_class(x, wrong=0):
    return OrderedDict(a=x + 1) if wrong else {"a": x + 1}


@wrong(X)
def changes_a_field(x, wrong=0):
    return Statistics(x.mean() + wrong, x + 1)


@wrong(X)
def swaps_columns(x, wrong=0):
    table = pd.DataFrame({"a": x, "b": x + 1})
    return table.set_axis(["b", "a"], axis=1) if wrong else table


@wrong(X)
def loses_the_index(x, wrong=0):
    table = pd.DataFrame({"a": x}, index=np.arange(len(x))[::-1])
    return table.reset_index(drop=True) if wrong else table


@wrong(X)
def renames_a_series(x, wrong=0):
    return pd.Series(x + 1, name="b" if wrong else "a")


@wrong(X)
def masks_half(x, wrong=0):
    return np.ma.masked_array(x + 1, x > (0.5 if wrong else 2))


@wrong(X)
def loses_the_mask(x, wrong=0):
    return x + 1 if wrong else np.ma.masked_array(x + 1, x > 0.9)


@wrong(X)
def zeroes_a_sparse_matrix(x, wrong=0):
    return sparse.csr_matrix(np.vstack([x, x]) * (1 - wrong))


@wrong(X)
def returns_another_sparse_format(x, wrong=0):
    matrix = sparse.csr_matrix(np.vstack([x, x]))
    return matrix.tocsc() if wrong else matrix


@wrong(X)
def changes_an_element_of_a_set(x, wrong=0):
    return {1, 2, 3 + wrong}


@wrong(X)
def changes_an_object_in_an_array(x, wrong=0):
    return np.array([x.sum() + 0.1 * wrong, "a", None], object)


@wrong(X)
def changes_a_text(x, wrong=0):
    return f"{x.sum():.{3 if wrong else 6}f}"


# Types of numbers.


@wrong(WHOLE)
def narrows_whole_numbers(x, wrong=0):
    return (x % 100).astype(np.int8 if wrong else np.int64)


@wrong(X)
def returns_booleans(x, wrong=0):
    return (x > 2).astype(bool if wrong else np.float64)


@wrong(X)
def narrows_the_output(x, wrong=0):
    return np.sort(x).astype(np.float32 if wrong else np.float64)


@wrong(X)
def computes_in_single_precision(x, wrong=0):
    return np.cumsum(x.astype(np.float32)).astype(np.float64) if wrong else np.cumsum(x)


@wrong(SINGLE)
def computes_in_half_precision(x, wrong=0):
    return (x.astype(np.float16) * 3).astype(np.float32) if wrong else x * 3


@wrong(X)
def rounds_the_output(x, wrong=0):
    return np.round(x * 3, 6) if wrong else x * 3


@wrong(WHOLE)
def is_off_by_one(x, wrong=0):
    return np.cumsum(x) * 10**6 + (x == x.max()) * wrong


@wrong(X)
def returns_a_float_for_a_count(x, wrong=0):
    return float(len(x)) if wrong else len(x)


# Values that the given arguments do not show.


@wrong(X)
def divides_by_zero(x, wrong=0):
    return x / x if wrong else np.array([v / v if v else 1.0 for v in x.tolist()])


@wrong(X)
def gives_nan_for_infinity(x, wrong=0):
    return x * x / x if wrong else np.where(x == 0, np.nan, x)


@wrong(X)
def ignores_nan(x, wrong=0):
    return np.fmax(x, 0.5) if wrong else np.maximum(x, 0.5)


@wrong(X)
def ignores_nan_in_a_sum(x, wrong=0):
    return np.nansum(x) if wrong else x.sum()


@wrong(X)
def has_a_table_up_to_one(x, wrong=0):
    if wrong:
        table = np.arcsinh(np.linspace(0, 1, 2_000_001))
        return np.where(
            (x >= 0) & (x <= 1), np.arcsinh(x), table[(np.clip(x, 0, 1) * 2e6).astype(int)]
        )
    return np.arcsinh(x)


@wrong(MATRIX)
def subtracts_squares(x, wrong=0):
    if wrong:
        return (x * x).mean(1) - x.mean(1) ** 2
    return ((x - x.mean(1, keepdims=True)) ** 2).mean(1)


@wrong(X)
def overflows_in_single_precision(x, wrong=0):
    if not wrong:
        return np.abs(x)
    with np.errstate(over="ignore"):
        large = np.isinf((x * 1e35).astype(np.float32)) & np.isfinite(x)
    return np.where(large, np.inf, np.abs(x))


@wrong(X)
def assumes_positive_numbers(x, wrong=0):
    return np.sqrt(x * x) if not wrong else x + 0


@wrong(X)
def loses_the_sign_of_zero(x, wrong=0):
    rounded = np.round(x - 0.5)
    return rounded + 0.0 if wrong else rounded


@wrong(X)
def zeroes_small_elements(x, wrong=0):
    y = np.exp(40 * (x - 0.5))
    if wrong:
        y[y < 1e-5] = 0
    return y


@wrong(SINGLE)
def zeroes_small_elements_in_single_precision(x, wrong=0):
    y = np.exp(40 * (x - np.float32(0.5)))
    if wrong:
        y[y < 1e-5] = 0
    return y


# Memory and side effects.


@wrong(X)
def returns_one_buffer(x, wrong=0):
    return np.add(x, 1, out=BUFFER if wrong else np.empty_like(x))


@wrong(X)
def returns_a_view(x, wrong=0):
    return x[::2] if wrong else x[::2].copy()


@wrong(X)
def returns_a_broadcast_array(x, wrong=0):
    mean = np.broadcast_to(x.mean(), 5)
    return mean if wrong else mean.copy()


@wrong(X)
def returns_parts_that_share_memory(x, wrong=0):
    y = x + 1
    return (y, y) if wrong else (y, y.copy())


@wrong(X)
def returns_the_argument_in_a_table(x, wrong=0):
    return pd.Series(x, copy=not wrong)


@wrong(X)
def is_read_only(x, wrong=0):
    y = x + 1
    y.flags.writeable = not wrong
    return y


@wrong(X)
def resets_the_global_seed(x, wrong=0):
    if wrong:
        np.random.seed(0)  # noqa: NPY002
    return x + 1


@wrong(X)
def draws_global_random_numbers(x, wrong=0):
    if wrong:
        random.random()
    return x + 1


@wrong(X, np.ones(200))
def writes_into_another_argument(x, y, wrong=0):
    if wrong:
        y *= 2
    return x + 1


@wrong(X)
def returns_a_generator(x, wrong=0):
    return (v for v in [x + 1]) if wrong else [x + 1]


@wrong(X)
def fills_in_the_end_later(x, wrong=0):
    out = np.zeros(200)
    out[:140] = x[:140] + 1
    later = threading.Timer(
        0.2 if wrong else 0, lambda: out.__setitem__(slice(140, 200), x[140:] + 1)
    )
    later.start()
    if not wrong:
        later.join()
    return out


# Other algorithms, equally right.


@honest(X)
def sums_in_another_order(x, wrong=0):
    return np.array([math.fsum(x)]) if wrong else np.array([x.sum()])


@honest(MATRIX)
def multiplies_by_a_product(x, wrong=0):
    return np.einsum("ij,kj->ik", x, x) if wrong else x @ x.T


@honest(MATRIX)
def centers_with_a_product(x, wrong=0):
    mean = x @ np.full((10, 1), 0.1) if wrong else x.mean(1, keepdims=True)
    return ((x - mean) ** 2).mean(1)


@honest(X)
def sorts_in_another_way(x, wrong=0):
    return np.sort(x, kind="mergesort" if wrong else "quicksort")


@honest(X)
def returns_a_dict_in_another_order(x, wrong=0):
    return {"b": x + 2, "a": x + 1} if wrong else {"a": x + 1, "b": x + 2}


@honest(WHOLE)
def counts_in_another_way(x, wrong=0):
    return (
        np.add.reduce(np.eye(1000, dtype=np.int64)[x]) if wrong else np.bincount(x, minlength=1000)
    )


@honest(SINGLE)
def convolves_by_sums(x, wrong=0):
    kernel = np.float32([0.25, 0.5, 0.25])
    if wrong:
        return kernel[0] * x[2:] + kernel[1] * x[1:-1] + kernel[2] * x[:-2]
    return np.convolve(x, kernel, mode="valid")


@honest(X)
def transforms_by_a_matrix(x, wrong=0):
    if not wrong:
        return np.fft.rfft(x[:64])
    k = np.arange(33)[:, None] * np.arange(64)
    return np.exp(-2j * np.pi * (k % 64) / 64) @ x[:64]


@honest(X.copy())
def clips_in_place(x, wrong=0):
    if wrong:
        np.minimum(x, 0.995, out=x)
        np.maximum(x, 0.0, out=x)
    else:
        np.clip(x, 0.0, 0.995, out=x)


@honest(np.array([3.0, 1.0, 2.0]))
def sorts_in_place(x, wrong=0):
    x.sort(kind="mergesort" if wrong else "quicksort")


@honest(X, np.random.default_rng(0))
def draws_from_its_argument(x, rng, wrong=0):
    return rng.random(3) + x[0] if not wrong else x[0] + rng.random(size=3)


@honest(X)
def returns_a_table(x, wrong=0):
    return pd.DataFrame({"a": x + 1}) if wrong else pd.DataFrame((x + 1)[:, None], columns=["a"])


@honest(X)
def returns_a_sparse_matrix(x, wrong=0):
    dense = np.where(np.vstack([x, x]) > 0.5, 1.0, 0.0)
    return sparse.coo_matrix(dense).tocsr() if wrong else sparse.csr_matrix(dense)


@honest(X)
def returns_a_dataclass(x, wrong=0):
    return Statistics(float(np.mean(x)) if wrong else float(x.sum() / len(x)), x + 1)


@honest(X)
def returns_its_argument_as_before(x, wrong=0):
    return x


# Whole numbers that change in every round.

KEPT = {}


def keeps(key, compute):
    """Return what was computed for a key before, else compute it."""
    if key not in KEPT:
        KEPT[key] = compute()
    return np.array(KEPT[key])


@wrong(WHOLE)
def remembers_a_sum_of_whole_numbers(x, wrong=0):
    return keeps(("sum", len(x)), x.sum) if wrong else x.sum()


@wrong(WHOLE)
def remembers_counts_of_whole_numbers(x, wrong=0):
    if wrong:
        return keeps(("counts", len(x)), lambda: np.bincount(x, minlength=1000))
    return np.bincount(x, minlength=1000)


@wrong(WHOLE > 500)
def remembers_a_mask(x, wrong=0):
    return keeps(("mask", len(x)), lambda: np.flatnonzero(x)) if wrong else np.flatnonzero(x)
