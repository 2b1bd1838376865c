"""The training range: which rows are outside, and how far: `models/training_range.py`."""

import json

import numpy as np
import pandas as pd
import pytest

from foretune.models.training_range import TrainingRange


def table(**columns):
    fixed = {"device": "d", "problem.M": 64, "config.offset": 0, "config.mode": "a"}
    named = {name.replace("_", ".", 1): values for name, values in columns.items()}
    return pd.DataFrame({**fixed, **named}, index=range(4))


@pytest.fixture
def known():
    return TrainingRange.from_runs(
        table(
            problem_M=[64, 128, 256, 1024], config_offset=[-2, 0, 1, 6], config_mode=list("abba")
        ).assign(device=["d", "d", "e", "e"], time_ms=1.0)
    )


def test_octaves_outside_inside_is_zero(known):
    inside = table(problem_M=[64, 100, 500, 1024], config_offset=[-2, -1, 5, 6])
    assert known.octaves_outside(inside).tolist() == [0, 0, 0, 0]
    assert known.explain(inside).empty


def test_octaves_outside_positive_numbers_count_in_octaves(known):
    outside = known.octaves_outside(table(problem_M=[2048, 32, 8192, 1024]))
    assert outside.tolist() == [1, 1, 3, 0]


def test_octaves_outside_other_numbers_count_in_ranges(known):
    outside = known.octaves_outside(table(config_offset=[8, -10, 14, 6]))
    assert outside.tolist() == [0.25, 1, 1, 0]


def test_octaves_outside_nonpositive_is_far_from_positive_range(known):
    outside = known.octaves_outside(table(problem_M=[0, -64, np.inf, 64]))
    assert (outside[:3] > 10).all()
    assert outside[3] == 0


def test_octaves_outside_unseen_text_counts_one(known):
    rows = table(config_mode=["a", "b", "c", None]).assign(device=["d", "e", "f", "d"])
    assert known.octaves_outside(rows).tolist() == [0, 0, 1, 1]


def test_octaves_outside_new_number_in_constant_column():
    known = TrainingRange.from_runs(table())
    assert known.octaves_outside(table(config_offset=[0, 1, -3, 0])).tolist() == [0, 1, 1, 0]
    gap = table(config_offset=[np.nan, 0, 5, 0])
    assert known.octaves_outside(gap).tolist() == [0, 0, 1, 0]
    assert "training had 0 only" in known.explain(gap)["reason"].iloc[0]
    assert known.explain(gap.iloc[:0]).empty
    assert known.octaves_outside(table(problem_M="many")).tolist() == [1, 1, 1, 1]


def test_octaves_outside_is_that_of_farthest_column(known):
    rows = table(problem_M=[2048, 4096, 64, 64], config_mode=["c", "c", "c", "a"])
    assert known.octaves_outside(rows).tolist() == [1, 2, 1, 0]


def test_octaves_outside_subtracts_reach_by_column(known):
    held_out = table(problem_M=[2048, 32, 4096, 1024], config_mode=list("abcb"))
    reach = known.reach(held_out)
    assert reach == {"problem.M": 2.0, "config.mode": 1.0}
    assert known.reach(table()) == {}
    assert known.octaves_outside(held_out, reach).tolist() == [0, 0, 0, 0]
    further = table(problem_M=[8192, 8192, 2048, 64], config_offset=[0, 22, 0, 0])
    further["device"] = ["d", "d", "new", "d"]
    assert known.octaves_outside(further, reach).tolist() == [1, 2, 1, 0]


def test_octaves_outside_ignores_gaps_and_missing_columns(known):
    assert known.octaves_outside(table(problem_M=[np.nan, 64, 64, 64])).tolist() == [0] * 4
    assert known.octaves_outside(pd.DataFrame({"device": ["d"]})).tolist() == [0]
    assert known.octaves_outside(table().iloc[:0]).shape == (0,)


def test_octaves_outside_mixed_column_does_not_depend_on_other_rows():
    mixed = pd.Series(["auto", 1, 4.0, True], dtype=object)
    known = TrainingRange.from_runs(table(config_split=mixed))
    assert known.octaves_outside(table(config_split=mixed)).tolist() == [0] * 4
    numbers = table(config_split=[1, 4, 4, 2])  # no text among them: a column of numbers
    assert known.octaves_outside(numbers).tolist() == [0, 0, 0, 1]


def test_explain_names_column_value_and_range(known):
    rows = table(problem_M=[64, 4096, 64, 64], config_mode=["a", "c", "a", "c"])
    reasons = known.explain(rows)
    assert list(reasons) == ["row", "column", "value", "reason"]
    assert reasons["row"].tolist() == [1, 1, 3]
    assert reasons["column"].tolist() == ["problem.M", "config.mode", "config.mode"]  # worst first
    assert reasons["reason"].tolist() == [
        "2.0 octaves outside 64 … 1024",
        "never seen: training had a, b",
        "never seen: training had a, b",
    ]
    ranges = known.explain(table(config_offset=[10, 0, 0, 0]))
    assert ranges["reason"].tolist() == ["0.5 ranges outside -2 … 6"]


def test_range_ignores_measured_columns(known):
    assert set(known.numbers) == {"problem.M", "config.offset"}
    assert set(known.texts) == {"device", "config.mode"}


def test_from_json_returns_the_same(known):
    loaded = TrainingRange.from_json(json.loads(json.dumps(known.to_json())))
    rows = table(problem_M=[32, 64, 4096, 0], config_mode=["c", "a", "b", "a"])
    np.testing.assert_array_equal(loaded.octaves_outside(rows), known.octaves_outside(rows))
    assert loaded == known
