"""New whole numbers: `collect/wrapped/whole_numbers.py`, and when a function gets them."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from foretune.collect.wrapped.function import FunctionKernel
from foretune.collect.wrapped.whole_numbers import MIN_WHOLE_NUMBERS, change, is_drawn, reorder

RNG = np.random.default_rng(0)
KNOBS = {"b": [1, 2]}
WHOLE_TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64"]


def redrawn(function, *args, **options):
    """Return the first argument with new values, and on which values a verdict rests."""
    kernel = FunctionKernel(function, KNOBS, args, **options)
    problem = kernel.problem()
    return kernel.make_inputs(problem, 1)["args"][0], kernel.describe_values(problem)


@given(
    array=hnp.arrays(
        dtype=st.sampled_from(WHOLE_TYPES),
        shape=hnp.array_shapes(max_dims=3, min_side=1, max_side=20),
    ).filter(is_drawn),
    seed=st.integers(0, 2**31),
)
def test_change_keeps_shape_type_and_range(array, seed):
    for draw in (change, reorder):
        new = draw(array, seed, 0)

        assert (new.shape, new.dtype) == (array.shape, array.dtype)
        assert new.min() >= array.min()
        assert new.max() <= array.max()


@given(
    numbers=st.lists(st.integers(-(2**62), 2**62), min_size=MIN_WHOLE_NUMBERS, unique=True),
    seed=st.integers(0, 2**31),
)
def test_change_keeps_order_and_ends_of_sorted_numbers(numbers, seed):
    offsets = np.sort(np.array(numbers))

    new = change(offsets, seed, 0)

    assert (np.diff(new.astype(object)) >= 0).all()
    assert (new[0], new[-1]) == (offsets[0], offsets[-1])


@given(
    numbers=st.lists(st.integers(-(2**40), 2**40), min_size=MIN_WHOLE_NUMBERS, unique=True),
    seed=st.integers(0, 2**31),
)
def test_change_keeps_distinct_numbers_distinct(numbers, seed):
    new = change(np.array(numbers), seed, 0)

    is_sorted = numbers in (sorted(numbers), sorted(numbers, reverse=True))
    assert is_sorted or len(set(new.tolist())) == len(numbers)


@pytest.mark.parametrize(
    "array",
    [
        RNG.integers(0, 10, 1000),
        RNG.permutation(1000),
        RNG.integers(0, 2**60, 1000),
        np.arange(1000),
        np.sort(RNG.integers(0, 10**6, 1000)),
        np.repeat(np.arange(10), 100),
        RNG.random(1000) < 0.5,
        RNG.integers(0, 255, (40, 50), dtype=np.uint8),
        np.asfortranarray(RNG.integers(0, 255, (40, 50))),
    ],
    ids=["codes", "order", "keys", "range", "offsets", "groups", "mask", "picture", "fortran"],
)
def test_change_gives_other_numbers(array):
    before = array.copy()
    new = [change(array, seed, 0) for seed in (1, 2, 1)]

    assert not np.array_equal(new[0], array)
    assert not np.array_equal(new[0], new[1])
    assert np.array_equal(new[0], new[2])
    assert new[0].strides == array.strides
    assert np.array_equal(array, before)


def test_change_draws_each_column_within_its_own_range():
    pairs = np.stack([RNG.integers(0, 10, 500), RNG.integers(1000, 2000, 500)])

    for table in (pairs, pairs.T.copy()):
        new = change(table, 1, 0)
        (first, second) = new if len(new) == 2 else new.T

        assert first.max() < 10
        assert second.min() >= 1000


def test_reorder_keeps_the_numbers():
    numbers = RNG.integers(0, 10, 1000)

    new = reorder(numbers, 1, 0)

    assert not np.array_equal(new, numbers)
    assert np.array_equal(np.sort(new), np.sort(numbers))


def test_function_of_whole_numbers_gets_new_ones():
    x = RNG.integers(0, 100, 200)

    new, described = redrawn(lambda x, b=1: np.bincount(x, minlength=100), x)

    assert not np.array_equal(np.sort(new), np.sort(x))
    assert described == "new values in every round"


def test_function_of_a_list_of_whole_numbers_gets_new_ones():
    x = [3, 1, 2] * 20

    new, _ = redrawn(lambda x, b=1: sorted(x), x)

    assert type(new) is list
    assert set(map(type, new)) == {int}
    assert new != x


def test_function_that_needs_a_sum_gets_other_orders():
    lengths = RNG.integers(1, 9, 60)

    def parts(lengths, data, b=1):
        if lengths.sum() != len(data):
            raise ValueError("the lengths do not fit")
        return np.repeat(lengths, lengths)

    new, described = redrawn(parts, lengths, [None] * int(lengths.sum()))

    assert new.sum() == lengths.sum()
    assert not np.array_equal(new, lengths)
    assert described == "the given values in new orders"


def test_function_that_needs_its_numbers_keeps_them():
    codes = RNG.integers(0, 9, 60)
    first = codes.copy()

    def check(codes, b=1):
        if not np.array_equal(codes, first):
            raise ValueError("not these")
        return codes * 2

    new, described = redrawn(check, codes)

    assert new is codes
    assert described.startswith("the given values only")


def test_function_that_needs_its_numbers_still_gets_new_fractions():
    codes = RNG.integers(0, 9, 60)
    first = codes.copy()

    def pick(codes, x, b=1):
        if not np.array_equal(codes, first):
            raise ValueError("not these")
        return x[codes]

    new, described = redrawn(pick, codes, RNG.random(9))

    assert new is codes
    assert described == "new values in every round, the given whole numbers"


def test_function_that_would_never_end_keeps_its_numbers(monkeypatch):
    monkeypatch.setattr("foretune.collect.wrapped.function.MIN_ACCEPTANCE_S", 0.05)
    codes = RNG.integers(0, 9, 60)
    first = codes.copy()

    def wait(codes, b=1):
        while not np.array_equal(codes, first):
            pass
        return codes * 2

    new, _ = redrawn(wait, codes)

    assert new is codes


def test_function_that_suppresses_exceptions_keeps_its_numbers(monkeypatch):
    """The end of its time is no exception that it could suppress."""
    monkeypatch.setattr("foretune.collect.wrapped.function.MIN_ACCEPTANCE_S", 0.05)
    codes = RNG.integers(0, 9, 60)
    first = codes.copy()

    def wait(codes, b=1):
        while True:
            with suppress(Exception):
                while not (codes == first).all():
                    pass
                return codes * 2

    new, _ = redrawn(wait, codes)

    assert new is codes


def test_pinned_whole_numbers_stay():
    x = RNG.integers(0, 100, 200)

    new, described = redrawn(lambda x, b=1: x * 2, x, pinned=["x"])

    assert new is x
    assert described.startswith("the given values only")


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_tensor_of_whole_numbers_gets_new_ones(dtype):
    torch = pytest.importorskip("torch")
    x = torch.arange(60).remainder(7).to(getattr(torch, dtype)).reshape(4, 15)

    new, _ = redrawn(lambda x, b=1: x.sum(1), x)

    assert (new.dtype, new.shape) == (x.dtype, x.shape)
    assert not torch.equal(new, x)
