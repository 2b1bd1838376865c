"""Sizes that follow from others: `models/repeated_sizes.py`."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.features.arrays import Rows
from foretune.models.neighbors import NeighborIndex
from foretune.models.repeated_sizes import repeated_sizes

GRID = [(batch, length) for batch in (1, 2, 4, 8) for length in (1, 3, 100, 4096)]


def table(pairs=GRID, **columns):
    runs = pd.DataFrame(pairs, columns=["problem.batch", "problem.length"]).astype(float)
    runs = runs.assign(device="d", **columns)
    return runs.assign(**{"problem.tokens": runs["problem.batch"] * runs["problem.length"]})


def test_repeated_sizes_finds_products_and_multiples():
    runs = table().assign(**{"problem.ranks": lambda t: t["problem.batch"] / 3})
    found = {size.column: size for size in repeated_sizes(runs)}
    assert set(found) == {"problem.batch", "problem.tokens"}  # what comes first goes
    assert found["problem.batch"].factors == ("problem.ranks",)
    assert set(found["problem.tokens"].factors) == {"problem.length", "problem.ranks"}
    for size in found.values():
        assert size.holds(Rows(runs)).all()


@pytest.mark.parametrize(
    "other",
    [
        {"problem.tokens": [8.0] * 15 + [9.0]},
        {"problem.tokens": [0.0] * 16},
        {"problem.tokens": [np.nan] * 16},
        {"problem.tokens": ["many"] * 16},
        {"problem.tokens": [5.0] * 16},
    ],
    ids=["another number", "nothing", "unknown", "text", "constant"],
)
def test_repeated_sizes_independent_size_is_kept(other):
    assert repeated_sizes(table().assign(**other)) == []


def test_repeated_sizes_one_exception_refutes_the_rule():
    rng = np.random.default_rng(0)
    runs = table(rng.integers(1, 99, (5000, 2)))
    assert [size.column for size in repeated_sizes(runs)] == ["problem.tokens"]
    runs.loc[4321, "problem.tokens"] += 1
    assert repeated_sizes(runs) == []


@given(st.floats(1e-3, 1e3), st.lists(st.integers(1, 10**6), min_size=2, max_size=30, unique=True))
def test_repeated_sizes_tolerates_rounded_ratios(ratio, values):
    a = np.array(values, dtype=float)
    runs = pd.DataFrame({"problem.a": a, "problem.b": ratio * a})
    (size,) = repeated_sizes(runs)
    assert size.ratio == pytest.approx(1 / ratio)
    assert size.holds(Rows(runs)).all()
    assert not size.holds(Rows(runs.assign(**{"problem.b": ratio * a * 1.001}))).any()


def test_repeated_sizes_are_no_axes():
    around = NeighborIndex.from_runs(table())
    assert [axis.column for axis in around.axes] == ["problem.batch", "problem.length"]
    known = around.locate(table())
    look = around.neighbor_features(
        known, np.zeros(len(GRID)), around.locate(table([(3, 100), (2, 50)]))
    )
    names = around.columns
    assert look[0, names.index("problem.batch.step_below")] == pytest.approx(np.log2(3 / 2))
    assert look[1, names.index("problem.length.step_above")] == pytest.approx(1.0)


def test_row_that_breaks_the_rule_has_no_neighbors():
    around = NeighborIndex.from_runs(table())
    known = around.locate(table())
    odd = table([(3, 100)]).assign(**{"problem.tokens": 7.0})
    values = np.zeros(len(GRID))
    assert np.isnan(around.neighbor_features(known, values, around.locate(odd))).all()
    fine = around.neighbor_features(known, values, around.locate(table([(3, 100)])))
    assert np.isfinite(fine).any()
