import numpy as np
import pytest

from foretune.collect.wrapped.values import (
    assign,
    bytes_of,
    content_hash,
    copy_arrays,
    count_numbers,
    relative_difference,
    same_bits,
    says_something,
)


def test_the_largest_difference_of_all_arrays_counts():
    right = (np.array([3.0, 4.0]), {"n": 7})
    assert relative_difference(right, right) == 0
    assert relative_difference((np.array([3.0, 4.5]), {"n": 7}), right) == pytest.approx(
        0.125 / np.sqrt(2)
    )
    assert relative_difference((np.array([3.0, 4.0]), {"n": 14}), right) == 1


class ComputesWhenRead(list):
    def __iter__(self):
        return super().__iter__()


@pytest.mark.parametrize(
    ("got", "right"),
    [
        (np.ones(3), np.ones(4)),
        (np.array([1.0, np.nan]), np.ones(2)),
        (np.ones(2), np.array([1.0, np.nan])),
        ("a", "b"),
        ((1, 2), (1, 2, 3)),
        (None, np.ones(2)),
        (ComputesWhenRead([np.ones(2)]), (np.ones(2),)),
        ([], np.ones(2)),
    ],
)
def test_what_cannot_agree_is_infinitely_far_off(got, right):
    assert relative_difference(got, right) == np.inf


def test_what_is_not_finite_may_agree():
    x = np.array([1.0, np.nan, np.inf])
    assert relative_difference(x, x.copy()) == 0
    assert relative_difference(np.array([1j]), np.array([1j])) == 0


MISSING = [
    np.array(["a", np.nan, None], object),
    np.array(["2020-01-01", "NaT"], "datetime64[D]"),
    np.array([(1.0, 2), (np.nan, 3)], [("a", "f8"), ("b", "i4")]),
]


@pytest.mark.parametrize("x", MISSING, ids=["objects", "dates", "records"])
def test_missing_values_are_equal_to_themselves(x):
    assert same_bits(x, x.copy())
    assert relative_difference(x, x.copy()) == 0
    assert not same_bits(x, x[::-1])
    assert relative_difference(x, x[::-1]) == np.inf


def test_what_says_nothing_cannot_be_right():
    nothing = [None, [], (), np.ones(0), np.nan, [np.nan], np.full(3, np.nan), (None, [])]
    assert not any(says_something(value) for value in nothing)
    something = [0, False, "a", np.zeros(2), [np.nan, 1.0], (None, 1), object()]
    assert all(says_something(value) for value in something)


def test_arrays_are_copied_and_objects_are_not():
    thing, x, xs = object(), np.ones(2), [1, 2]
    new = copy_arrays((x, {"xs": xs, "thing": thing}))
    assert new[0] is not x
    assert new[1]["xs"] == xs
    assert new[1]["xs"] is not xs
    assert new[1]["thing"] is thing


@pytest.mark.parametrize("make", [np.array, list, "torch"])
def test_arrays_lists_and_tensors_are_put_back(make):
    if make == "torch":
        make = pytest.importorskip("torch").tensor
    now, first = make([1.0, 2.0]), make([3.0, 4.0])
    assert not same_bits(now, first)
    assign(now, first)
    assert same_bits(now, first)
    assign(now, 0)
    assert same_bits(now, make([0.0, 0.0]))


def test_sizes_of_tensors_are_counted_without_a_copy():
    torch = pytest.importorskip("torch")
    without_data = torch.empty((3, 5), dtype=torch.bfloat16, device="meta")
    values = {"a": without_data, "b": [np.ones(4), [1, 2]], "c": 7.0}
    assert bytes_of(values) == 2 * 15 + 8 * 4 + 8 * 2
    assert count_numbers(without_data, [np.ones(4)], 7.0) == 15 + 4 + 1
    assert bytes_of(torch.eye(3, dtype=torch.float64).to_sparse()) == 8 * 9


def test_contents_are_told_apart():
    values = [[np.ones(3), None], [np.ones(4), None], [np.ones(3), 2.0], np.ones(3, int), "x"]
    assert len({content_hash(v) for v in values}) == len(values)
    assert content_hash([np.ones(3), None]) == content_hash([np.ones(3), None])
