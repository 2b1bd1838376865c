"""Which problems are equal, or nearly equal: `models/distinct_problems.py`."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from foretune.models.distinct_problems import (
    MIN_PROBLEMS,
    SAME_SIZE_FACTOR,
    _leader_clusters,
    distinct_problems,
    exact_problems,
    has_few_problems,
)


def table(**columns):
    return pd.DataFrame({f"problem.{name}": values for name, values in columns.items()})


def test_distinct_problems_nearly_equal_sizes_are_one():
    rows = table(M=[1000, 1001, 1040, 2000, 1000], dtype=["a", "a", "a", "a", "b"])
    assert distinct_problems(rows).tolist() == [0, 0, 0, 1, 2]
    assert distinct_problems(table(M=[1, 2, 3, 0, -1, 0, np.nan])).tolist() == [0, 1, 2, 3, 4, 3, 5]


def test_distinct_problems_ignores_configurations():
    rows = table(M=[64, 64]).assign(**{"config.x": [1, 2]})
    assert len(set(distinct_problems(rows))) == 1
    assert len(set(distinct_problems(rows[["config.x"]]))) == 1


def test_has_few_problems_ten_thousand_near_duplicates():
    rng = np.random.default_rng(0)
    sizes = rng.choice([128, 1024, 8192], (10_000, 2)) * rng.uniform(1, 1.01, (10_000, 2))
    problems = distinct_problems(table(M=sizes[:, 0], N=sizes[:, 1]))
    assert problems.max() + 1 == 9
    assert has_few_problems(problems)


def test_distinct_problems_near_duplicates_across_bins_are_one():
    rng = np.random.default_rng(0)
    centres = 2 ** rng.uniform(7, 13, (70, 3))
    sizes = np.round(centres.repeat(60, axis=0) * rng.uniform(1, 1.04, (4200, 3)))
    rows = table(M=sizes[:, 0], N=sizes[:, 1], K=sizes[:, 2])
    problems = distinct_problems(rows)
    assert 68 <= problems.max() + 1 <= 75
    assert has_few_problems(problems, exact_problems(rows))
    assert not has_few_problems(problems, problems)


def test_distinct_problems_dense_sweep_is_many():
    assert distinct_problems(table(M=np.arange(1, 10_001))).max() + 1 > 100


def test_has_few_problems_limits():
    assert not has_few_problems(np.zeros(10, dtype=int))  # one problem: nothing to hold out
    assert has_few_problems(np.arange(MIN_PROBLEMS - 1))
    assert not has_few_problems(np.arange(MIN_PROBLEMS))


@given(st.lists(st.one_of(st.floats(1e-3, 1e9), st.just(float("nan")), st.just(0.0)), min_size=1))
def test_distinct_problems_spans_at_most_the_factor(values):
    problems = distinct_problems(table(M=values))
    for number in set(problems.tolist()):
        own = np.array(values)[problems == number]
        assert np.isnan(own).all() or own.max() <= SAME_SIZE_FACTOR * own.min() or (own == 0).all()


def test_leader_clusters_equal_comparison_of_all_pairs():
    points = np.unique(np.log(np.random.default_rng(0).integers(1, 99, (900, 2))), axis=0)
    found = _leader_clusters(points)
    reach = np.log(SAME_SIZE_FACTOR) + 1e-12
    number = np.full(len(points), -1)
    for i in range(len(points)):  # they are sorted
        if number[i] < 0:
            near = (np.abs(points - points[i]) <= reach).all(axis=1) & (number < 0)
            number[near] = number.max() + 1
    np.testing.assert_array_equal(found, number)
