"""The feature columns of runs: `features/featureset.py`, `candidates.py`, `roofline.py`."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from foretune.device import GENERIC_CPU, Device
from foretune.errors import DataWarning, PredictorError, UnknownName
from foretune.features.arrays import Rows, as_array, groups_of
from foretune.features.candidates import candidate_rows, rows_of
from foretune.features.families.collectives import AllGather
from foretune.features.families.gemm import Gemm
from foretune.features.families.user_defined import UserDefinedCost
from foretune.features.featureset import FeatureSet
from foretune.features.roofline import (
    row_cost,
    row_limits_ms,
    row_roofline_ms,
    text_columns,
    with_rates,
)
from foretune.problem import Problem
from foretune.space import Configuration, SearchSpace


@pytest.fixture
def fitted(matmul, toy_runs):
    return FeatureSet(matmul).fit(toy_runs)


def raw(**columns):
    """A run table of a kernel nobody has registered."""
    n = len(next(iter(columns.values())))
    fixed = {"kernel": ["theirs"] * n, "device": ["d"] * n, "status": ["ok"] * n}
    return pd.DataFrame({**fixed, **columns})


def test_columns_are_named_float32_numbers(fitted, toy_runs):
    X = fitted.transform(toy_runs)
    assert X.shape == (len(toy_runs), len(fitted.columns_))
    assert (X.dtypes == np.float32).all()
    assert list(X.columns) == fitted.columns_ == list(fitted.get_feature_names_out())
    np.testing.assert_array_equal(X["problem.M"], toy_runs["problem.M"])
    np.testing.assert_array_equal(X["config.pack_b"], toy_runs["config.pack_b"].astype(float))
    np.testing.assert_array_equal(X["config.split=n"], toy_runs["config.split"] == "n")


def test_cost_and_derived_quantities_are_features(fitted, matmul, toy_runs, toy_device):
    X = fitted.transform(toy_runs)
    row = toy_runs.iloc[17]
    problem = {"M": row["problem.M"], "N": row["problem.N"], "K": row["problem.K"], "dtype": "fp32"}
    config = {c[7:]: row[c] for c in toy_runs if c.startswith("config.")}
    cost = matmul.cost(problem, config)
    assert X["log2_flops"][17] == pytest.approx(np.log2(cost.flops))
    assert X["log2_bytes"][17] == pytest.approx(np.log2(cost.bytes_moved))
    expected_ms = float(toy_device.roofline_ms(cost))
    assert X["log2_roofline_ms"][17] == pytest.approx(np.log2(expected_ms), rel=1e-5)
    for name, value in matmul.derived(problem, config, {}).items():
        if name in X:
            assert X[name][17] == pytest.approx(float(value), rel=1e-5), name


def test_columns_that_never_vary_are_left_out(fitted, toy_runs):
    constant = {c for c in toy_runs if toy_runs[c].astype(str).nunique() == 1}
    assert {"device.cores", "problem.dtype"} <= constant
    assert not constant & set(fitted.columns_)
    assert not [c for c in fitted.columns_ if c.startswith(("problem.dtype=", "device."))]
    assert (fitted.transform(toy_runs).nunique() > 1).all()


def test_fit_measured_columns_are_never_features(fitted):
    assert not [c for c in fitted.columns_ if c.startswith(("time", "power", "energy", "static"))]


def test_transform_one_row_equals_many(fitted, toy_runs):
    everything = fitted.transform(toy_runs)
    for i in (0, 60, len(toy_runs) - 1):
        alone = fitted.transform(toy_runs.iloc[[i]])
        np.testing.assert_array_equal(alone.to_numpy()[0], everything.to_numpy()[i])


def test_transform_no_rows(fitted, toy_runs):
    assert fitted.transform(toy_runs.iloc[:0]).shape == (0, len(fitted.columns_))


def test_categorical_and_text_columns_are_the_same(fitted, matmul, toy_runs):
    text = [c for c in toy_runs if pd.api.types.is_string_dtype(toy_runs[c])]
    assert {"config.order", "config.split", "problem.dtype", "device"} <= set(text)
    categorical = toy_runs.astype(dict.fromkeys(text, "category"))
    pd.testing.assert_frame_equal(fitted.transform(categorical), fitted.transform(toy_runs))
    other = FeatureSet(matmul).fit(categorical)
    assert other.columns_ == fitted.columns_
    pd.testing.assert_frame_equal(other.transform(toy_runs), fitted.transform(toy_runs))


def test_transform_unseen_category_sets_no_indicator(fitted, toy_runs):
    strange = toy_runs.head(3).assign(**{"config.order": ["zzz", "mnk", "mnk"]})
    indicators = fitted.transform(strange).filter(like="config.order=")
    assert indicators.shape[1] > 1
    assert indicators.sum(axis=1).tolist() == [0.0, 1.0, 1.0]


def test_text_where_training_had_numbers(fitted, toy_runs):
    with pytest.raises(PredictorError, match=r"'config.micro_m' holds text, but in training"):
        fitted.transform(toy_runs.assign(**{"config.micro_m": "four"}))


@pytest.mark.parametrize("column", ["config.micro_m", "config.order"])
def test_transform_missing_column_is_named(fitted, toy_runs, column):
    with pytest.raises(PredictorError, match=f"the runs lack column '{column}'"):
        fitted.transform(toy_runs.drop(columns=column))


def test_transform_missing_spec_is_nan(matmul, toy_runs):
    two = pd.concat(
        [toy_runs, toy_runs.assign(device="other", **{"device.l9_kib": 2.0})], ignore_index=True
    )
    features = FeatureSet(matmul).fit(two.fillna({"device.l9_kib": 1.0}))
    assert "device.l9_kib" in features.columns_
    assert features.transform(toy_runs)["device.l9_kib"].isna().all()


def test_runs_that_lack_what_the_kernel_needs(matmul, toy_runs):
    with pytest.raises(PredictorError, match="the runs lack 'K', which kernel 'matmul' needs"):
        FeatureSet(matmul).fit(toy_runs.drop(columns="problem.K"))


def test_transform_changed_kernel_is_refused(fitted, toy_runs):
    fitted.columns_ = [*fitted.columns_, "gone"]
    with pytest.raises(PredictorError, match=r"feature 'gone' cannot be computed.*train it again"):
        fitted.transform(toy_runs)


def test_unfitted(matmul, toy_runs):
    with pytest.raises(Exception, match="not fitted"):
        FeatureSet(matmul).transform(toy_runs)


def test_featureset_follows_estimator_contract(fitted, matmul, toy_runs):
    copy = clone(fitted)
    assert copy.get_params()["family"].name == matmul.name
    assert not hasattr(copy, "columns_")
    assert copy.fit(toy_runs).columns_ == fitted.columns_
    pd.testing.assert_frame_equal(copy.fit_transform(toy_runs), fitted.transform(toy_runs))


def test_fit_unknown_kernel_has_raw_columns():
    runs = raw(
        **{
            "problem.n": [8, 8, 16],
            "config.x": [1, 2, 4],
            "config.mode": ["a", "b", None],
            "config.flag": [True, None, False],
            "config.same": [3, 3, 3],
        }
    )
    features = FeatureSet().fit(runs)
    X = features.transform(runs)
    assert list(X) == [
        "problem.n",
        "config.x",
        "config.flag",
        "config.mode=a",
        "config.mode=b",
        "alignment.n",
    ]
    np.testing.assert_array_equal(
        X.to_numpy(), [[8, 1, 1, 1, 0, 3], [8, 2, np.nan, 0, 1, 3], [16, 4, 0, 0, 0, 4]]
    )
    assert not features.roofline_known_


def test_transform_alignment_of_sizes():
    sizes = [1, 6, 96, 1024, 1.5, 0, None, 2**60]
    X = FeatureSet().fit_transform(raw(**{"problem.n": sizes}))
    expected = [0, 1, 5, 8, np.nan, np.nan, np.nan, np.nan]  # up to 256; not of such large ones
    np.testing.assert_array_equal(X["alignment.n"], expected)


def test_transform_launch_geometry():
    blocks = raw(**{"config.block_size_x": [16, 64, 128], "problem.size_0": [256, 256, 1000]})
    X = FeatureSet().fit_transform(blocks)
    assert X["log2_threads"].tolist() == [4, 6, 7]
    assert X["fill_blocks"].tolist() == pytest.approx([16 / 128, 4 / 128, 8 / 128])


@pytest.mark.parametrize("group", ["static", "counter"])
def test_fit_extra_columns(group):
    runs = raw(**{"config.x": [1, 2, 3], f"{group}.value": [32.0, 64.0, 96.0]})
    assert FeatureSet().fit(runs).columns_ == ["config.x"]
    features = FeatureSet(extra_columns=(group,)).fit(runs)
    assert features.columns_ == ["config.x", f"{group}.value"]
    lacking = rf"lack column '{group}.value'.*--extra-columns {group}"
    with pytest.raises(PredictorError, match=lacking):  # not compiled, or not run, yet
        features.transform(runs.drop(columns=f"{group}.value"))


def test_fit_unknown_group_is_refused():
    with pytest.raises(UnknownName, match="did you mean 'counter'"):
        FeatureSet(extra_columns=("counters",)).fit(raw(**{"config.x": [1, 2, 3]}))


@pytest.mark.parametrize("column", ["problem.n", "config.x"])
def test_fit_infinite_values_are_refused(column):
    runs = raw(**{"problem.n": [8.0, 16.0], "config.x": [1.0, 2.0]})
    features = FeatureSet().fit(runs)
    infinite = runs.assign(**{column: [1.0, np.inf]})
    for use in (features.transform, FeatureSet().fit):
        with pytest.raises(PredictorError, match=rf"column '{column}' is infinite in row 1"):
            use(infinite)


def test_transform_undefined_feature_is_nan(matmul, toy_runs):
    """Logarithms of nothing, and numbers beyond single precision, are gaps."""
    nothing = toy_runs.head(3).assign(**{"problem.M": [0, 64, 96]})
    X = FeatureSet(matmul).fit(toy_runs).transform(nothing)
    assert not np.isinf(X.to_numpy()).any()
    large = FeatureSet().fit_transform(raw(**{"config.x": [1.0, 2.0, 1e200]}))
    np.testing.assert_array_equal(large["config.x"], [1, 2, np.nan])


def test_text_where_the_cost_needs_a_number(matmul, toy_runs):
    with pytest.raises(PredictorError, match="hold text where 'matmul' needs a number"):
        FeatureSet(matmul).fit(toy_runs.assign(**{"problem.M": "many"}))


def test_fit_constant_table_keeps_one_column():
    runs = raw(**{"config.x": [3, 3], "time_ms": [1.0, 2.0]})
    assert FeatureSet().fit(runs).transform(runs).to_numpy().tolist() == [[3.0], [3.0]]


def test_fit_gaps_are_information():
    runs = raw(**{"config.x": [3, None, 3], "config.y": [1, 2, 3]})
    assert FeatureSet().fit(runs).columns_ == ["config.x", "config.y"]


MIXED = {"split": ("auto", 1, 4, 0.5), "x": (1, 2)}


def test_fit_mixed_column_is_text():
    space = SearchSpace(MIXED)
    device = Device("d", "cpu")
    rows = candidate_rows("theirs", Problem(n=1), space, device)
    features = FeatureSet().fit(rows)
    X = features.transform(rows)
    indicators = [c for c in X if c.startswith("config.split=")]
    assert sorted(indicators) == [f"config.split={v}" for v in ("0.5", "1", "4", "auto")]
    np.testing.assert_array_equal(X[indicators].sum(axis=1), 1)
    for configs in ([space[7]], [space[2], space[4]], list(space)):  # numbers alone, or both
        by_row = rows_of("theirs", Problem(n=1), configs, device)
        expected = X.iloc[[space.index(c) for c in configs]]
        np.testing.assert_array_equal(features.transform(by_row), expected)


def test_candidate_rows_equal_rows_of(matmul, toy_runs, toy_device, fitted):
    problem = matmul.problem(M=100, N=200, K=300)
    space = matmul.space(problem)
    numbers = np.array([0, 5, 77, len(space) - 1])
    fast = candidate_rows(matmul.name, problem, space, toy_device, numbers)
    slow = rows_of(matmul.name, problem, [space[int(i)] for i in numbers], toy_device)
    assert set(fast.columns) == set(slow.columns)
    for column in slow:
        assert fast[column].tolist() == slow[column].tolist(), column
    pd.testing.assert_frame_equal(fitted.transform(fast), fitted.transform(slow))


def test_candidate_rows_of_space_or_indices():
    space = SearchSpace({"x": (1, 2, 3), "flag": (False, True)}, ["x < 3 or flag"])
    rows = candidate_rows(
        "k", Problem(n=4, mode="a"), space, Device("d", "cpu", specs={"cores": 2})
    )
    assert [
        Configuration(x=x, flag=f)
        for x, f in zip(rows["config.x"], rows["config.flag"], strict=True)
    ] == (list(space))
    assert rows["problem.n"].tolist() == [4] * 5
    assert rows["problem.mode"].tolist() == ["a"] * 5
    assert rows["device.cores"].tolist() == [2] * 5
    none = candidate_rows("k", Problem(n=4), space, Device("d", "cpu"), np.array([], dtype=int))
    assert len(none) == 0


def test_candidate_rows_many_texts():
    values = tuple(f"v{i:05}" for i in range(40_000))
    rows = candidate_rows("k", Problem(n=1), SearchSpace({"x": values}), Device("d", "cpu"))
    assert rows["config.x"].tolist() == list(values)


def test_costs_and_rooflines_are_per_row(matmul, toy_runs, toy_device):
    cost = row_cost(matmul, toy_runs)
    roofline = row_roofline_ms(matmul, toy_runs)
    assert cost.flops.shape == cost.bytes_moved.shape == roofline.shape == (len(toy_runs),)
    i = 40
    problem = Problem({c[8:]: toy_runs[c][i] for c in toy_runs if c.startswith("problem.")})
    expected = matmul.cost(problem, matmul.default(problem))
    assert cost.flops[i] == expected.flops
    assert roofline[i] == pytest.approx(float(toy_device.roofline_ms(expected)))


def test_roofline_of_unknown_device_is_generic(matmul, toy_runs):
    bare = toy_runs.drop(columns=[c for c in toy_runs if c.startswith("device.")])
    assert np.isnan(row_roofline_ms(matmul, bare)).all()
    cpu = {f"device.{spec}": float(v) for spec, v in GENERIC_CPU.specs.items()}
    generic = FeatureSet(matmul).fit(bare.assign(**cpu))
    expected = generic.transform(bare.assign(**cpu))
    with pytest.warns(DataWarning, match="give device.fp32_gflops, device.memory_gbps"):
        features = FeatureSet(matmul).fit(bare)
    assert features.roofline_known_
    pd.testing.assert_frame_equal(features.transform(bare), expected)  # said only once
    one = features.matrix(bare.iloc[[5]])
    np.testing.assert_array_equal(one, expected.iloc[[5]])


def test_with_rates_known_device_has_its_rates():
    runs = pd.DataFrame(
        {"problem.M": [64, 128], "problem.N": 64, "problem.K": 64, "config.format": "fp32"}
    )
    bare = runs.assign(kernel="gemm", status="ok", device=["rtx 4070", "NVIDIA H200"])
    told = with_rates(Gemm(), Rows(bare))
    assert told["device.memory_gbps"].tolist() == [504.2, 4800.0]
    partly = with_rates(Gemm(), Rows(bare.assign(**{"device.memory_gbps": [100.0, np.nan]})))
    assert partly["device.memory_gbps"].tolist() == [100.0, 4800.0]


def test_with_rates_unnamed_device_is_unchanged():
    work = UserDefinedCost("unnamed", "n", "n")
    runs = raw(**{"problem.n": [1.0, 2.0]}).assign(kernel="unnamed", device="unnamed")
    for family in (None, work):
        rows = Rows(runs)
        assert with_rates(family, rows) is rows
    with pytest.warns(DataWarning, match="'mine' are unknown"):
        assert "device.memory_gbps" in with_rates(work, Rows(runs.assign(device="mine")))


def test_roofline_of_partly_known_devices(matmul, toy_runs):
    half = toy_runs.assign(**{"device.fp32_gflops": np.nan})
    expected = row_cost(matmul, toy_runs).bytes_moved / (toy_runs["device.memory_gbps"] * 1e6)
    np.testing.assert_allclose(row_roofline_ms(matmul, half), expected)
    assert np.isnan(row_limits_ms(None, toy_runs)).all()


def test_limits_by_the_hand(matmul, toy_runs):
    cost = row_cost(matmul, toy_runs)
    limits = row_limits_ms(matmul, toy_runs)
    np.testing.assert_allclose(limits[:, 0], cost.flops / 200e6)  # the toy's 200 Gflop/s
    np.testing.assert_allclose(limits[:, 1], cost.bytes_moved / 20e6)  # and 20 GB/s
    np.testing.assert_array_equal(row_roofline_ms(matmul, toy_runs), limits.max(axis=1))


def test_row_parts_without_work_in_one_limit():
    runs = raw(
        **{"problem.message_bytes": [1e6], "problem.devices": [2], "device.memory_gbps": 1.0}
    )
    limits = row_limits_ms(AllGather(), runs)
    assert limits[0].tolist() == [1e-9, 0.5]  # half a megabyte at 1 GB/s, and no operations


def test_groups_of_common_columns():
    table = pd.DataFrame(
        {"a": ["x", "y", "x", None], "b": pd.Series([1, 1.0, "z", 1], dtype=object)}
    )
    groups = groups_of(table, ["a", "b"])
    assert [groups.names[c] for c in groups.codes] == ["x/1", "y/1", "x/z", "/1"]
    alone = groups_of(table.iloc[[0]].infer_objects(), ["a", "b"])  # b holds but numbers here
    assert alone.names == ["x/1"]
    assert groups_of(table.iloc[:0], ["a"]).names == []


def test_text_columns_that_distinguish_runs():
    runs = raw(**{"config.mode": ["a", "b"], "config.same": ["c", "c"], "config.x": [1, 2]})
    assert text_columns(runs) == ["config.mode"]
    assert text_columns(runs.head(1)) == text_columns(runs.head(0)) == []


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pd.Series([1, 2]), [1.0, 2.0]),
        (pd.Series([True, None], dtype=object), [1.0, np.nan]),
        (pd.Series([True, False]), [1.0, 0.0]),
        (pd.Series([1, None], dtype="Int64"), [1.0, np.nan]),
        (pd.Series([1, 2.5, None], dtype=object), [1.0, 2.5, np.nan]),
        (pd.Categorical([4, None, 8]), [4.0, np.nan, 8.0]),
    ],
)
def test_as_array_numbers_are_floats(column, expected):
    values = as_array(pd.Series(column))
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pd.Series(["a", None, "bc"]), ["a", "", "bc"]),
        (pd.Series(["a", None, "bc"], dtype=object), ["a", "", "bc"]),
        (pd.Categorical(["b", None, "a"]), ["b", "", "a"]),
        (pd.Series(["a", 1, 2.0, True, None], dtype=object), ["a", "1", "2", "1", ""]),
    ],
)
def test_as_array_text_gaps_are_empty(column, expected):
    values = as_array(pd.Series(column))
    assert values.dtype.kind == "U"
    assert values.tolist() == expected


def on_two_devices(**columns):
    """One matrix product of which half the weights fit into one device's cache."""
    sizes = {f"problem.{s}": [256.0, 4096.0] for s in "MNK"}
    fixed = {"config.format": "bf16", "device.memory_gbps": 1000.0}
    return raw(**sizes, **columns).assign(kernel="gemm", **fixed)


def test_fit_cache_features_need_different_caches():
    names = ["weights_of_cache", "bytes_of_cache"]
    several = FeatureSet(Gemm()).fit(on_two_devices(**{"device.l2_kib": [1024.0, 65536.0]}))
    X = several.transform(on_two_devices(**{"device.l2_kib": [64.0, 2048.0]}))
    np.testing.assert_allclose(2.0 ** X["weights_of_cache"], [2.0, 16.0])
    assert (X["bytes_of_cache"] > X["weights_of_cache"]).all()
    for same in (
        {"device.l2_kib": [1024.0, 1024.0]},
        {},
    ):  # they would repeat log2_b and log2_bytes
        assert not set(names) & set(FeatureSet(Gemm()).fit(on_two_devices(**same)).columns_)
    unknown = several.transform(on_two_devices())
    assert unknown[names].isna().all(axis=None)


def test_fit_name_with_equals_sign():
    runs = pd.DataFrame({"problem.M": [1, 2, 3], "config.x=1": ["u", "v", "u"]})
    features = FeatureSet().fit(runs).transform(runs)
    assert features["config.x=1=u"].tolist() == [1, 0, 1]
