"""Which rows are held out: `models/holdouts.py`."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.models.holdouts import (
    MAX_HELD_OUT_DEVICES,
    MAX_SHARE,
    PROBLEM_FOLDS,
    device_holdouts,
    holdout_axes,
    mixed_holdouts,
    problem_holdouts,
)
from foretune.models.neighbors import Axis, NeighborIndex


def axes(*columns):
    return [Axis(column, True, 1.0) for column in columns]


def test_holdout_axes_are_single_axes_and_combinations():
    assert holdout_axes([]) == [()]
    assert holdout_axes(axes("problem.M")) == [(0,)]
    kinds = holdout_axes(axes("problem.M", "config.x", "problem.N", "problem.K"))
    assert kinds[:4] == [(0,), (1,), (2,), (3,)]
    assert {(0, 2), (2, 3), (0, 3), (0, 2, 3), (0, 1, 2, 3)} == set(kinds[4:])
    assert len(set(kinds)) == len(kinds)


@given(st.integers(1, 4), st.integers(2, 6), st.integers(0, 3), st.integers(10, 200))
def test_mixed_holdouts_leave_more_than_half(width, values, seed, n):
    rng = np.random.default_rng(seed)
    runs = pd.DataFrame({"device": "d"}, index=range(n))
    for i in range(width):
        runs[f"problem.p{i}"] = 2.0 ** rng.integers(0, values, n)
    around = NeighborIndex.from_runs(runs)
    if not around.axes:
        return
    places = around.locate(runs)
    kinds = holdout_axes(around.axes)
    every = mixed_holdouts(places, kinds, 3, np.random.default_rng(seed))
    assert len(every) == 3
    for out in every:
        assert out.dtype == bool
        assert out.shape == (n,)
        assert (
            0 < out.mean() <= max(MAX_SHARE, 0.6)
        )  # by chance, where only single rows can be held out
    again = mixed_holdouts(places, kinds, 3, np.random.default_rng(seed))
    np.testing.assert_array_equal(every, again)


@pytest.fixture
def grid():
    sizes = 2.0 ** np.arange(8)
    runs = pd.DataFrame(
        [("d", m, n, k) for m in sizes for n in sizes for k in sizes],
        columns=["device", "problem.M", "problem.N", "problem.K"],
    )
    return runs, NeighborIndex.from_runs(runs)


def test_mixed_holdouts_are_new_in_every_way(grid):
    """Over some hold-outs: sizes nobody ran, pairs nobody ran, and what lies beyond all runs."""
    runs, around = grid
    places = around.locate(runs)
    kinds = holdout_axes(around.axes)
    ways = set()
    for out in mixed_holdouts(places, kinds, 10, np.random.default_rng(0)):
        assert 0.1 < out.mean() <= MAX_SHARE
        known = runs[~out]
        new = runs[out]
        for column in ("problem.M", "problem.N", "problem.K"):
            missing = set(new[column]) - set(known[column])
            ways |= {"a size"} if missing else set()
            ways |= {"beyond"} if missing and max(missing) > known[column].max() else set()
        pairs = [set(zip(t["problem.M"], t["problem.N"], strict=True)) for t in (known, new)]
        ways |= {"a pair"} if pairs[1] - pairs[0] else set()
    assert ways == {"a size", "a pair", "beyond"}


@pytest.mark.parametrize("seed", range(5))
def test_mixed_holdouts_alternate_if_one_size_has_few_values(seed):
    """A third of the rows have each number of devices: alone they are more than a hold-out."""
    table = [("d", n, 2.0**size) for n in (2, 4, 8) for size in range(20)]
    runs = pd.DataFrame(table, columns=["device", "problem.devices", "problem.bytes"])
    around = NeighborIndex.from_runs(runs)
    places = around.locate(runs)
    kinds = holdout_axes(around.axes)
    missing = {"problem.devices": 0, "problem.bytes": 0}
    for out in mixed_holdouts(places, kinds, 3, np.random.default_rng(seed)):
        for column in missing:
            missing[column] += bool(set(runs[column][out]) - set(runs[column][~out]))
    assert all(missing.values())


def test_mixed_holdouts_of_single_rows_if_no_kind_fits():
    runs = pd.DataFrame({"device": "d", "problem.N": [1.0, 2.0, 3.0] * 20})
    around = NeighborIndex.from_runs(runs)
    (out,) = mixed_holdouts(around.locate(runs.head(2)), [(0,)], 1, np.random.default_rng(3))
    assert out.shape == (2,)
    (out,) = mixed_holdouts(around.locate(runs), [(0,)], 1, np.random.default_rng(0))
    assert 0 < out.mean() < 0.5


def test_mixed_holdouts_prefer_frequent_values():
    """Nine of ten rows have one of four lengths, the others one of twenty each."""
    lengths = np.repeat([*range(4), *range(4, 24)], [90] * 4 + [2] * 20)
    runs = pd.DataFrame({"device": "d", "problem.length": 1.0 + lengths})
    runs["problem.batch"] = 2.0 ** np.arange(len(runs)) % 7
    around = NeighborIndex.from_runs(runs)
    places = around.locate(runs)
    kinds = [(0,)]
    common = [
        (lengths[out] < 4).any()
        for seed in range(50)
        for out in mixed_holdouts(places, kinds, 1, np.random.default_rng(seed))
    ]
    assert np.mean(common) > 0.5


@pytest.mark.parametrize("n_problems", [2, PROBLEM_FOLDS, 20])
def test_problem_holdouts_hold_each_problem_out_once(n_problems):
    problems = np.repeat(np.arange(n_problems), 5)

    masks = problem_holdouts(problems, np.random.default_rng(0))

    assert len(masks) == min(n_problems, PROBLEM_FOLDS)
    assert np.sum(masks, axis=0).tolist() == [1] * len(problems)
    for is_held_out in masks:
        assert not set(problems[is_held_out]) & set(problems[~is_held_out])


@pytest.mark.parametrize(
    ("n_devices", "n_holdouts"), [(1, 0), (2, 2), (MAX_HELD_OUT_DEVICES + 3, MAX_HELD_OUT_DEVICES)]
)
def test_device_holdouts_hold_out_one_device_each(n_devices, n_holdouts):
    rows = pd.DataFrame({"device": [f"GPU {i}" for i in range(n_devices)] * 3})

    masks = device_holdouts(rows, np.random.default_rng(0))

    held_out = [set(rows["device"][is_held_out]) for is_held_out in masks]
    assert len(held_out) == n_holdouts
    assert all(len(devices) == 1 for devices in held_out)
    assert len(set.union(set(), *held_out)) == n_holdouts
