"""Which rows are in a fold together: `models/splits.py`."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import UnknownName
from foretune.models.splits import (
    FOLDS,
    NO_FOLD,
    fold_of_rows,
    group_columns,
    group_numbers,
    task_numbers,
)

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 4), st.sampled_from([None, 1, 2])),
    min_size=2,
    max_size=40,
)


def table(rows):
    device, m, n = zip(*rows, strict=True)
    return pd.DataFrame(
        {"device": device, "problem.M": m, "problem.N": n, "config.x": range(len(rows))}
    )


@given(ROWS, st.sampled_from(["problem", "task", "device"]), st.integers(0, 3))
def test_fold_of_rows_grouped_keeps_groups_together(rows, group, seed):
    runs = table(rows)
    key = [{"problem": r[1:], "task": r, "device": r[0]}[group] for r in rows]
    groups = group_numbers(runs, group)
    assert [key.index(k) for k in key] == [groups.tolist().index(g) for g in groups]
    folds = fold_of_rows(runs, "grouped", seed, group)
    if len(set(key)) == 1:
        assert folds is None
        return
    assert set(folds) == set(range(min(FOLDS, len(set(key)))))
    for k in set(key):
        assert len({f for f, other in zip(folds, key, strict=True) if other == k}) == 1


@given(ROWS, st.integers(0, 3))
def test_fold_of_rows_random_is_even(rows, seed):
    folds = fold_of_rows(table(rows), "random", seed)
    sizes = np.bincount(folds, minlength=min(FOLDS, len(rows)))
    assert len(sizes) == min(FOLDS, len(rows))
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(folds, fold_of_rows(table(rows), "random", seed))


def test_fold_of_rows_depends_on_seed(toy_runs):
    one, other = (fold_of_rows(toy_runs, "random", seed) for seed in (0, 1))
    assert (one != other).any()


def test_fold_of_rows_one_row_is_impossible():
    assert fold_of_rows(table([("a", 1, 1)]), "random") is None


def test_toy_problems(toy_runs):
    assert len(np.unique(task_numbers(toy_runs))) == 6
    assert np.unique(group_numbers(toy_runs, "device")).tolist() == [0]
    assert fold_of_rows(toy_runs, "grouped", group="device") is None


def test_groups_by_column(toy_runs):
    problem = list(toy_runs.filter(like="problem."))
    assert group_columns(toy_runs) == problem
    assert group_columns(toy_runs, "task") == ["device", *problem]
    assert fold_of_rows(toy_runs.drop(columns=problem), "grouped") is None
    assert group_columns(toy_runs, "problem.N, problem.K") == ["problem.N", "problem.K"]
    folds = fold_of_rows(toy_runs, "grouped", group="problem.K")
    assert len(np.unique(folds)) == toy_runs["problem.K"].nunique()
    assert all(len(set(part)) == 1 for _, part in pd.Series(folds).groupby(toy_runs["problem.K"]))
    with pytest.raises(UnknownName, match=r"unknown group 'problem.L': did you mean 'problem"):
        fold_of_rows(toy_runs, "grouped", group="problem.L")


def test_devices_are_held_out_whole(toy_runs):
    assert fold_of_rows(toy_runs, "device") is None
    three = pd.concat([toy_runs.assign(device=d) for d in "abc"], ignore_index=True)
    folds = fold_of_rows(three, "device")
    assert sorted(set(folds)) == [0, 1, 2]
    assert pd.crosstab(three["device"], folds).gt(0).to_numpy().sum() == 3


def test_fold_of_rows_by_time_holds_out_latest_fifth(toy_runs):
    assert fold_of_rows(toy_runs.assign(recorded_at="2030"), "time") is None
    times = [f"2030-01-{1 + i % 28:02}T00:00:00+00:00" for i in range(len(toy_runs))]
    folds = fold_of_rows(toy_runs.assign(recorded_at=times), "time")
    assert set(folds) == {0, NO_FOLD}
    assert np.mean(folds == 0) == pytest.approx(0.2, abs=0.05)
    held_out, before = (pd.Series(times)[folds == f] for f in (0, NO_FOLD))
    assert held_out.min() > before.max()


@pytest.mark.parametrize(
    "times", [["2030"] * 10, ["2030"] * 9 + [None]], ids=["all at once", "one unknown"]
)
def test_fold_of_rows_by_time_needs_different_times(times):
    runs = table([("a", 1, 1)] * 10).assign(recorded_at=times)
    assert fold_of_rows(runs, "time") is None
