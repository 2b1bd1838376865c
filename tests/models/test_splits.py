"""Splits: what is held out together stays together."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.models.splits import FOLDS, fold_of_rows, groups_of, out_of_fold

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


@given(ROWS, st.sampled_from(["problem", "device"]), st.integers(0, 3))
def test_grouped_folds_never_split_a_group(rows, group, seed):
    runs = table(rows)
    key = [r if group == "problem" else r[0] for r in rows]
    groups = groups_of(runs, group)
    assert [key.index(k) for k in key] == [groups.tolist().index(g) for g in groups]
    folds = fold_of_rows(runs, "grouped", seed, group)
    if len(set(key)) == 1:
        assert folds is None
        return
    assert set(folds) == set(range(min(FOLDS, len(set(key)))))
    for k in set(key):
        assert len({f for f, other in zip(folds, key, strict=True) if other == k}) == 1


@given(ROWS, st.integers(0, 3))
def test_random_folds_are_even(rows, seed):
    folds = fold_of_rows(table(rows), "random", seed)
    sizes = np.bincount(folds, minlength=min(FOLDS, len(rows)))
    assert len(sizes) == min(FOLDS, len(rows))
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(folds, fold_of_rows(table(rows), "random", seed))


def test_the_seed_decides(toy_runs):
    one, other = (fold_of_rows(toy_runs, "random", seed) for seed in (0, 1))
    assert (one != other).any()


def test_one_row_cannot_be_split():
    assert fold_of_rows(table([("a", 1, 1)]), "random") is None


def test_toy_problems(toy_runs):
    assert len(np.unique(groups_of(toy_runs))) == 6
    assert np.unique(groups_of(toy_runs, "device")).tolist() == [0]
    assert fold_of_rows(toy_runs, "grouped", group="device") is None


@pytest.mark.parametrize("split", ["random", "grouped"])
def test_no_model_sees_what_it_predicts(toy_runs, split):
    folds = fold_of_rows(toy_runs, split)
    X = np.arange(len(toy_runs))[:, None]
    y = X[:, 0].astype(float)

    def learn(X, y, X_new):
        assert not set(X[:, 0]) & set(X_new[:, 0])
        assert len(X) + len(X_new) == len(toy_runs)
        np.testing.assert_array_equal(X[:, 0], y)
        return -X_new[:, 0]

    np.testing.assert_array_equal(out_of_fold(learn, X, y, folds), -y)
