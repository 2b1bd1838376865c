"""Features of adjacent runs: `models/neighbors.py`, `models/axis_positions.py`."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.features.arrays import Rows
from foretune.models.axis_positions import AxisPositions
from foretune.models.neighbors import MAX_AXES, NeighborIndex

AXES = ["problem.M", "problem.x"]
SIZES = [1.0, 2.0, 3.0, 8.0, 64.0, None]
TILES = [10.0, 11.0, 13.0, 14.0]
PLACES = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from(SIZES),
    st.sampled_from(TILES),
    st.sampled_from(["row", "column"]),
)


def table(rows):
    device, m, x, order = zip(*rows, strict=True)
    sizes = pd.array(m, dtype="Float64")
    return pd.DataFrame(
        {"device": device, "problem.M": sizes, "problem.x": x, "config.order": order}
    )


def hood():
    """Every value once or more: axes and series are those of the whole table."""
    every = [(d, m, x, o) for d in "ab" for m in SIZES for x in TILES for o in ("row", "column")]
    return NeighborIndex.from_runs(table(every))


def position(axis, row):
    if axis == "problem.x":
        return row[2] / (4.0 / 8.0)  # in eighths of the span
    return np.nan if row[1] is None else np.log2(row[1])


def beside_by_looking_at_all(axis, rows, values, wanted):
    """Return value and step below and above ``wanted``, as `AxisPositions.adjacent` does."""
    at = position(axis, wanted)
    varies = 1 if axis == "problem.M" else 2
    rest = [i for i in range(4) if i != varies]
    found = [np.nan] * 4
    for row, value in zip(rows, values, strict=True):
        step = position(axis, row) - at
        if not step or np.isnan(step) or any(row[i] != wanted[i] for i in rest):
            continue
        side = 0 if step < 0 else 2
        if not abs(step) >= found[side + 1]:
            found[side : side + 2] = [value, abs(step)]
    return found


@given(
    st.lists(PLACES, min_size=1, max_size=40, unique=True),
    st.lists(PLACES, min_size=0, max_size=12),
)
def test_adjacent_equals_search_over_all_runs(rows, wanted):
    around = hood()
    assert [axis.column for axis in around.axes] == AXES
    values = np.arange(len(rows)) * 1.0
    asked = table(wanted) if wanted else table(rows).iloc[:0]
    known = around.locate(table(rows))
    places = around.locate(asked)
    for i, axis in enumerate(AXES):
        adjacent = known.adjacent(i, values, places)
        found = np.column_stack(
            [adjacent.below, adjacent.step_below, adjacent.above, adjacent.step_above]
        )
        expected = [beside_by_looking_at_all(axis, rows, values, row) for row in wanted]
        np.testing.assert_allclose(found, np.array(expected).reshape(-1, 4), atol=1e-9)


@given(st.lists(PLACES, min_size=1, max_size=30, unique=True), PLACES)
def test_neighbor_features_hold_values_of_neighbors(rows, wanted):
    around = hood()
    values = np.linspace(-1, 1, len(rows))
    look = around.neighbor_features(
        around.locate(table(rows)), values, around.locate(table([wanted]))
    )
    seen = dict(zip(around.columns, look[0], strict=True))
    guesses = []
    for axis in AXES:
        below, step_below, above, step_above = beside_by_looking_at_all(axis, rows, values, wanted)
        assert seen[f"{axis}.step_below"] == pytest.approx(step_below, nan_ok=True)
        assert seen[f"{axis}.step_above"] == pytest.approx(step_above, nan_ok=True)
        base = seen["interpolation"]
        assert seen[f"{axis}.below"] + base == pytest.approx(below, nan_ok=True, abs=1e-6)
        assert seen[f"{axis}.above"] + base == pytest.approx(above, nan_ok=True, abs=1e-6)
        share = step_below / (step_below + step_above)
        guess = np.nansum([above * share, below * (1 - share)]) if share == share else above
        guesses.append(below if np.isnan(guess) else guess)
    known = [g for g in guesses if not np.isnan(g)]
    assert np.isnan(seen["trust"]) == np.isnan(seen["interpolation"]) == (not known)
    if known:  # a weighted mean of what the axes say
        assert min(known) - 1e-6 <= seen["interpolation"] <= max(known) + 1e-6


def line(sizes, **columns):
    return pd.DataFrame({"device": "d", "problem.N": sizes, **columns})


@pytest.fixture
def powers():
    """A law that is straight in octaves, measured at powers of two."""
    runs = line(2.0 ** np.arange(8))
    around = NeighborIndex.from_runs(runs)
    places = around.locate(runs)
    values = 3.0 * np.arange(8)
    around.measure_axes(places, values)
    return around, places, values


def test_neighbor_features_interpolate_linear_law_exactly(powers):
    around, places, values = powers
    look = around.neighbor_features(places, values, around.locate(line([3.0, 48.0])))
    np.testing.assert_allclose(look[:, -2], 3.0 * np.log2([3.0, 48.0]), rtol=1e-6)
    assert (look[:, -1] > 5).all()  # and much is trusted: nothing was ever missed


def test_neighbor_features_beyond_runs_repeat_last_with_less_trust(powers):
    around, places, values = powers
    near, far, between = around.neighbor_features(
        places, values, around.locate(line([200.0, 4096.0, 48.0]))
    )
    assert near[-2] == far[-2] == values[-1]
    assert between[-1] > near[-1] > far[-1]
    seen = dict(zip(around.columns, far, strict=True))
    assert seen["problem.N.step_below"] == 5
    assert np.isnan(seen["problem.N.above"])


def test_neighbor_features_ignore_run_at_same_position(powers):
    around, places, values = powers
    wrong = values.copy()
    wrong[3] = 1000.0
    look = around.neighbor_features(places, wrong, around.locate(line([8.0])))
    assert look[0, -2] == pytest.approx(9.0)


def test_neighbor_features_one_sided_ignore_upper_neighbors(powers):
    around, places, values = powers
    asked = around.locate(line([3.0, 3.0]))
    both, below = around.neighbor_features(places, values, asked, np.array([False, True]))
    assert both[-2] == pytest.approx(3 * np.log2(3))
    assert below[-2] == values[1]


def test_neighbor_features_unknown_series_is_nan():
    runs = line(np.tile(2.0 ** np.arange(4), 2), **{"config.mode": ["a"] * 4 + ["b"] * 4})
    around = NeighborIndex.from_runs(runs)
    places = around.locate(runs)
    values = np.arange(8.0)
    strange = line([4.0, 4.0], **{"config.mode": ["a", "c"]})
    look = around.neighbor_features(places, values, around.locate(strange))
    assert look[0, -2] == 2.0
    assert np.isnan(look[1]).all()
    other = around.locate(line([4.0], **{"config.mode": ["a"]}).assign(device="elsewhere"))
    assert np.isnan(around.neighbor_features(places, values, other)).all()


def test_neighbor_features_gaps_are_no_neighbors():
    runs = line([1.0, 2.0, np.nan, 8.0, 16.0])
    around = NeighborIndex.from_runs(runs)
    look = around.neighbor_features(
        around.locate(runs), np.arange(5.0), around.locate(line([4.0, np.nan]))
    )
    assert look[0, -2] == pytest.approx(2.0)  # halfway between 1 and 3
    assert np.isnan(look[1]).all()


def test_neighbor_features_without_rows_or_runs(powers):
    around, places, values = powers
    assert around.neighbor_features(places, values, around.locate(line([]))).shape == (
        0,
        len(around.columns),
    )
    nobody = around.neighbor_features(places[np.array([], dtype=int)], values[:0], places)
    assert np.isnan(nobody).all()


def test_neighbor_features_without_axes():
    runs = pd.DataFrame({"device": ["d"] * 4, "config.mode": list("abab")})
    around = NeighborIndex.from_runs(runs)
    assert around.columns == ["interpolation", "trust"]
    places = around.locate(runs)
    around.measure_axes(places, np.zeros(4))
    assert np.isnan(around.neighbor_features(places, np.zeros(4), places)).all()


def test_from_runs_separates_axes_and_groups():
    n = 64
    columns = {f"problem.x{i}": np.arange(n) % (3 + i) for i in range(MAX_AXES + 2)}
    runs = line(np.ones(n), **columns, **{"config.two": np.arange(n) % 2, "config.mode": "only"})
    around = NeighborIndex.from_runs(runs)
    # those of most values; the others must agree, and what never varies says nothing
    assert [a.column for a in around.axes] == [f"problem.x{i}" for i in range(MAX_AXES + 1, 1, -1)]
    assert set(around.group_columns) == {"device", "config.two", "problem.x0", "problem.x1"}
    assert not any(axis.octaves for axis in around.axes)  # they contain 0
    bare = runs.drop(columns=["config.mode", "problem.N"])
    np.testing.assert_array_equal(around.locate(bare).shared, around.locate(runs).shared)


def test_from_runs_wide_positive_axes_are_in_octaves():
    wide, narrow, negative = (
        NeighborIndex.from_runs(line(sizes)).axes[0] for sizes in ([1, 2, 8], [4, 5, 6], [-8, 1, 8])
    )
    assert (wide.octaves, narrow.octaves, negative.octaves) == (True, False, False)
    np.testing.assert_allclose(wide.coordinates(Rows(line([2, 8]))), [1, 3])
    np.testing.assert_allclose(narrow.coordinates(Rows(line([4, 6]))), [16, 24])  # eighths of 2


def on_devices(speeds):
    """One law on every device: twice the bandwidth takes half the time."""
    rows = [(d, s, 2.0**i) for d, s in speeds.items() for i in range(4)]
    return pd.DataFrame(rows, columns=["device", "device.memory_gbps", "problem.N"])


def test_device_axis_same_work_elsewhere_is_a_neighbor():
    runs = on_devices({"slow": 100.0, "middle": 400.0, "fast": 1600.0})
    around = NeighborIndex.from_runs(runs)
    assert [axis.column for axis in around.axes] == ["device.memory_gbps", "problem.N"]
    values = np.log2(runs["problem.N"] / runs["device.memory_gbps"]).to_numpy()
    others = (runs["device"] != "middle").to_numpy()
    places = around.locate(runs)
    look = around.neighbor_features(places[others], values[others], places[~others])
    np.testing.assert_allclose(look[:, -2], values[~others], rtol=1e-6)
    seen = dict(zip(around.columns, look[0], strict=True))
    assert seen["device.memory_gbps.step_below"] == seen["device.memory_gbps.step_above"] == 2
    assert np.isnan(seen["problem.N.below"])  # none of this device's runs is known


def test_device_axis_same_bandwidth_is_another_device():
    runs = on_devices({"slow": 100.0, "fast": 1600.0})
    around = NeighborIndex.from_runs(runs)
    twin = on_devices({"twin": 1600.0})
    look = around.neighbor_features(
        around.locate(runs), np.arange(len(runs)) * 1.0, around.locate(twin)
    )
    seen = pd.DataFrame(look[:, : len(around.columns)], columns=around.columns)
    assert seen["device.memory_gbps.step_below"].tolist() == [4.0] * 4  # to the slow one


def test_device_axis_unknown_bandwidth_has_no_neighbors():
    runs = on_devices({"slow": 100.0, "fast": 1600.0})
    around = NeighborIndex.from_runs(runs)
    nameless = on_devices({"new": 0.0}).drop(columns="device.memory_gbps")
    wanted = around.locate(nameless)
    look = around.neighbor_features(around.locate(runs), np.arange(len(runs)) * 1.0, wanted)
    assert np.isnan(look[:, -2]).all()


@pytest.mark.parametrize(
    "speeds",
    [{"only": 100.0}, {"a": 100.0, "twin": 100.0}, {"a": 100.0, "unknown": np.nan}],
    ids=["one device", "two of one speed", "one unknown"],
)
def test_device_axis_needs_distinct_known_bandwidths(speeds):
    around = NeighborIndex.from_runs(on_devices(speeds))
    assert [axis.column for axis in around.axes] == ["problem.N"]
    assert around.group_columns == ["device"]


def test_measure_axes_lowers_trust_of_rough_axis():
    rng = np.random.default_rng(0)
    runs = pd.DataFrame(
        [("d", 2.0**i, float(j)) for i in range(8) for j in range(8)],
        columns=["device", "problem.N", "problem.x"],
    )
    values = (
        np.log2(runs["problem.N"]).to_numpy() + rng.normal(0, 5, 8)[runs["problem.x"].astype(int)]
    )
    around = NeighborIndex.from_runs(runs)
    places = around.locate(runs)
    around.measure_axes(places, values)
    errors = {axis.column: axis.error for axis in around.axes}
    assert errors["problem.N"] < 0.1 * errors["problem.x"]
    look = around.neighbor_features(places, values, places)
    inner = runs["problem.N"].between(2, 64).to_numpy()
    np.testing.assert_allclose(look[inner, -2], values[inner], atol=0.2)


def test_locate_row_does_not_depend_on_other_rows():
    """Text that looks like a number, or is missing, must not depend on the other rows."""
    mixed = pd.Series(["auto", 1, 4.0, None] * 3, dtype=object)
    runs = line(np.repeat([1.0, 2.0, 8.0], 4), **{"config.split": mixed})
    around = NeighborIndex.from_runs(runs)
    together = around.locate(runs)
    for i in range(4):
        alone = around.locate(runs.iloc[[i]].assign(**{"config.split": [mixed[i]]}))
        assert alone.shared[0] == together.shared[i], mixed[i]


def test_adjacent_many_long_series_stay_apart():
    """All series lie on one line: there, a place far beyond one must not reach the next."""
    rng = np.random.default_rng(0)
    n = 2000
    runs = line(2.0 ** rng.uniform(0, 40, n), **{"problem.id": rng.integers(0, 500, n)})
    runs["problem.id"] = "p" + runs["problem.id"].astype(str)
    around = NeighborIndex.from_runs(runs)
    places = around.locate(runs)
    values = pd.factorize(runs["problem.id"])[0] * 1.0
    for size in (1e-6, 1.0, 1e30):
        wanted = around.locate(runs.assign(**{"problem.N": size}))
        adjacent = places.adjacent(0, values, wanted)
        for found in (adjacent.below, adjacent.above):
            assert (np.isnan(found) | (found == values)).all()
        assert (np.isnan(adjacent.below) != np.isnan(adjacent.above)).all()


def test_positions_load_as_saved(powers, tmp_path):
    around, places, values = powers
    places.save(tmp_path / "n.npz", values)
    loaded, read = AxisPositions.load(tmp_path / "n.npz")
    np.testing.assert_array_equal(read, values)
    asked = around.locate(line([3.0, 7.0, 1e9]))
    np.testing.assert_array_equal(
        around.neighbor_features(loaded, read, asked),
        around.neighbor_features(places, values, asked),
    )


def test_combination_numbers_rows_that_agree():
    runs = pd.DataFrame(
        {"device": "d", "problem.N": [1, 1, 2, 2, 4], "problem.x": [5.0, 6.0, 5.0, 7.0, 5.0]}
    )
    places = NeighborIndex.from_runs(runs).locate(runs)
    assert places.combination([0]).tolist() == [0, 0, 1, 1, 2]
    assert len(set(places.combination([0, 1]))) == 5
    assert places.combination([]).tolist() == [0] * 5


def test_locate_is_cached_without_values():
    runs = line([1.0, 2.0, 4.0, 8.0, 16.0])
    around = NeighborIndex.from_runs(runs)
    rows = Rows(line([3.0, 20.0, 0.5]))
    known = around.locate(runs)
    asked = around.locate(rows)
    assert around.locate(rows) is asked
    for values in (np.arange(5.0), -np.arange(5.0)):  # what was measured does not stick
        fresh = around.locate(line([3.0, 20.0, 0.5]))
        np.testing.assert_array_equal(
            around.neighbor_features(known, values, asked),
            around.neighbor_features(known, values, fresh),
        )
    fewer = known[np.array([0, 4])]  # nor where it was measured
    adjacent = fewer.adjacent(0, np.arange(2.0), asked)
    np.testing.assert_array_equal(adjacent.below, [0.0, 1.0, np.nan])


@given(
    st.lists(PLACES, min_size=1, max_size=40, unique=True),
    st.randoms(use_true_random=False),
    st.lists(PLACES, min_size=1, max_size=12),
)
def test_subset_of_positions_has_its_own_neighbors(rows, random, wanted):
    around = hood()
    some = random.sample(range(len(rows)), random.randint(1, len(rows)))
    part = around.locate(table(rows))[np.array(some)]
    alone = around.locate(table([rows[i] for i in some]))
    asked = around.locate(table(wanted))
    values = np.arange(len(some)) * 1.0
    of_part, of_alone = (around.neighbor_features(known, values, asked) for known in (part, alone))
    np.testing.assert_array_equal(of_part, of_alone)


def test_two_sided_axes_counts_axes_with_both_neighbors():
    columns = [f"problem.{c}" for c in "abcd"]
    grid = pd.DataFrame(list(product([1.0, 2.0, 4.0], repeat=4)), columns=columns).assign(
        device="d"
    )
    around = NeighborIndex.from_runs(grid)
    cases = {
        (2, 2, 2, 2): 3,
        (2, 2, 1, 4): 2,
        (1, 2, 1, 4): 1,
        (1, 1, 4, 4): 0,
        (3, 2, 2, 2): 1,
        (3, 3, 2, 2): 0,
        (8, 2, 2, 2): 0,
    }
    wanted = pd.DataFrame(list(cases), columns=columns).assign(device="d")
    look = around.neighbor_features(around.locate(grid), np.zeros(len(grid)), around.locate(wanted))
    assert around.two_sided_axes(look).tolist() == list(cases.values())
