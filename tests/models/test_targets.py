"""The scale on which a target is learned, and rows that can teach it: `models/targets.py`."""

import json
import math

import numpy as np
import pytest

from foretune.datasets.runs import with_specs
from foretune.device import GENERIC_CPU
from foretune.errors import DataWarning, PredictorError
from foretune.features.families.gemm import Gemm
from foretune.features.featureset import FeatureSet
from foretune.features.roofline import row_limits_ms
from foretune.models.targets import TargetScale, present_targets, usable_rows


@pytest.fixture
def ok(toy_runs):
    return toy_runs[toy_runs["status"] == "ok"].reset_index(drop=True)


def unit_of(target, family, runs):
    features = FeatureSet(family).fit(runs)
    return TargetScale.fit(target, features, runs, np.log(runs[target].to_numpy())), features


def test_scale_of_time_is_calibrated_roofline(matmul, ok):
    unit, features = unit_of("time_ms", matmul, ok)
    rest = np.log(ok["time_ms"]) - unit.log_unit(features, ok)
    bound = np.log(ok["time_ms"] / row_limits_ms(matmul, ok).max(axis=1))
    assert abs(rest.median()) < 0.05 < bound.median()
    assert rest.std() <= bound.std()


def test_scale_of_unknown_kernel_is_plain(ok):
    unit, features = unit_of("time_ms", None, ok)
    assert unit.roofline is None
    assert (unit.log_unit(features, ok) + unit.log_scale(ok)).tolist() == [0.0] * len(ok)
    unit, features = unit_of("power_w", None, ok.assign(**{"device.power_limit_w": 250.0}))
    assert unit.log_unit(features, ok).tolist() == [0.0] * len(ok)
    assert unit.log_scale(
        ok.drop(columns="device.power_limit_w", errors="ignore")
    ) == pytest.approx(np.log(250.0))


def test_scale_of_power_is_share_of_board_limit():
    """A board of twice the limit draws twice as much; on a faster one the same work idles more."""
    runs = gemms({"bf16": 0.8})
    used = row_limits_ms(Gemm(), runs).max(axis=1) / runs["time_ms"]
    runs = runs.assign(power_w=700.0 * (0.2 + 0.8 * used))
    unit, features = unit_of("power_w", Gemm(), runs)
    rest = np.log(runs["power_w"]) - unit.log_unit(features, runs) - unit.log_scale(runs)
    assert np.abs(rest).median() < 0.1 < np.log(runs["power_w"]).std()
    larger = runs.assign(**{"device.power_limit_w": 1400.0})
    np.testing.assert_allclose(unit.log_scale(larger) - unit.log_scale(runs), np.log(2.0))
    np.testing.assert_array_equal(unit.log_unit(features, larger), unit.log_unit(features, runs))
    rates = ["device.bf16_gflops", "device.memory_gbps"]
    faster = runs.assign(**{rate: 4.0 * runs[rate] for rate in rates})
    assert (unit.log_unit(features, faster) < unit.log_unit(features, runs) + 1e-9).all()
    assert (np.exp(unit.log_unit(features, runs)) <= 1.0).all()


@pytest.mark.parametrize("target", ["time_ms", "power_w"])
def test_scale_from_json_is_the_same(matmul, ok, target):
    unit, features = unit_of(target, matmul, ok)
    loaded = TargetScale.from_json(json.loads(json.dumps(unit.to_json())), target)
    np.testing.assert_array_equal(loaded.log_scale(ok), unit.log_scale(ok))
    np.testing.assert_array_equal(loaded.log_unit(features, ok), unit.log_unit(features, ok))
    assert unit.log_unit(features, ok.iloc[:0]).shape == (0,)


def test_scale_row_without_rates_counts_as_generic_device(matmul, ok):
    unit, features = unit_of("time_ms", matmul, ok)
    bare = ok.copy()
    generic = ok.copy()
    bare.loc[3, [c for c in ok if c.startswith("device.")]] = np.nan
    for spec, value in GENERIC_CPU.specs.items():  # it is called "Toy CPU"
        if f"device.{spec}" in ok:
            generic.loc[3, f"device.{spec}"] = value
    with pytest.warns(DataWarning, match="'Toy CPU' are unknown; it counts as a generic CPU"):
        found = unit.log_unit(features, bare)
    np.testing.assert_array_equal(found, unit.log_unit(features, generic))
    assert found[3] != unit.log_unit(features, ok)[3]


def test_scale_missing_size_is_refused():
    runs = gemms({"bf16": 0.8})
    unit, features = unit_of("time_ms", Gemm(), runs)
    runs.loc[3, "problem.M"] = np.nan
    with pytest.raises(PredictorError, match="row 3 lacks a size"):
        unit.log_unit(features, runs)


def test_predicted_power_stays_within_board_limit(ok):
    limit = ok["power_w"].max() / 0.8
    runs = ok.assign(**{"device.power_limit_w": limit})
    unit, _ = unit_of("power_w", None, runs)
    least, most = unit.log_range(runs)
    assert np.exp(most) == pytest.approx(1.05 * limit)
    assert np.exp(least) == pytest.approx(0.5 * ok["power_w"].min())
    assert np.isinf(unit.log_range(runs.drop(columns="device.power_limit_w"))).all()
    assert unit_of("time_ms", None, runs)[0].log_range(runs) is None
    bare = runs.drop(columns="device.power_limit_w")
    least, most = unit_of("power_w", None, bare)[0].log_range(bare)
    assert np.exp(least) == pytest.approx(0.5 * ok["power_w"].min())
    assert np.exp(most) == pytest.approx(2 * ok["power_w"].max())


def gemms(formats, n=60):
    """Products whose efficiency depends on the format alone."""
    import pandas as pd

    rng = np.random.default_rng(0)
    sizes = {f"problem.{s}": 2 ** rng.integers(7, 14, n * len(formats)) for s in "MNK"}
    fixed = {"kernel": "gemm", "device": "NVIDIA H200", "status": "ok"}
    kinds = np.repeat(list(formats), n)
    runs = with_specs(pd.DataFrame({**fixed, **sizes, "config.format": kinds}))
    slower = 1.0 / np.array([formats[kind] for kind in kinds])
    limits = row_limits_ms(Gemm(), runs) * slower[:, None]
    return runs.assign(time_ms=np.hypot(limits[:, 0], limits[:, 1]) + 0.005)


def test_scale_ignores_rates_unknown_in_training(matmul, ok):
    unit, features = unit_of("time_ms", matmul, ok)
    more = {f"device.{name}": 1e6 for name in ("fp16_tflops", "bf16_tflops", "l2_gbps")}
    more = {name: value for name, value in more.items() if name not in ok}
    assert more
    np.testing.assert_array_equal(
        unit.log_unit(features, ok.assign(**more)), unit.log_unit(features, ok)
    )


def test_scale_calibrates_formats_apart():
    runs = gemms({"bf16": 0.8, "fp8": 0.4})
    unit, features = unit_of("time_ms", Gemm(), runs)
    rest = np.log(runs["time_ms"]) - unit.log_unit(features, runs)
    assert np.abs(rest).max() < 0.25
    assert rest.groupby(runs["config.format"]).median().abs().max() < 0.05


def test_scale_of_row_does_not_depend_on_other_rows():
    """Neither on other rows, nor on the order of columns, nor on what never varied."""
    runs = gemms({"bf16": 0.8, "fp8": 0.4}).assign(**{"config.mode": "x", "config.backend": "b"})
    runs.loc[::2, "config.backend"] = None
    unit, features = unit_of("time_ms", Gemm(), runs)
    together = unit.log_unit(features, runs)
    for i in (0, 1, len(runs) - 1):
        alone = runs.iloc[[i]].astype({"config.backend": object})
        np.testing.assert_array_equal(unit.log_unit(features, alone), together[[i]])
    turned = runs[runs.columns[::-1]].drop(columns="config.mode")
    np.testing.assert_array_equal(unit.log_unit(features, turned), together)


def test_rows_that_teach(toy_runs):
    rows = usable_rows("time_ms", toy_runs)
    assert (rows["status"] == "ok").all()
    assert rows.index.tolist() == list(range(len(rows)))
    unmetered = toy_runs.assign(power_w=toy_runs["power_w"].where(toy_runs.index < 20))
    assert len(usable_rows("power_w", unmetered)) < 20
    with pytest.raises(PredictorError, match="no column 'power_w'"):
        usable_rows("power_w", toy_runs.drop(columns="power_w"))
    with pytest.raises(PredictorError, match="only 0 successful runs with time_ms"):
        usable_rows("time_ms", toy_runs.assign(status="timeout", time_ms=math.nan))


def test_targets_with_too_few_rows_are_not_present(toy_runs):
    assert present_targets(toy_runs) == ["time_ms", "power_w"]
    few = toy_runs.assign(power_w=toy_runs["power_w"].where(toy_runs.index < 4))
    assert present_targets(few) == ["time_ms"]
    failed = toy_runs.assign(power_w=toy_runs["power_w"].where(toy_runs["status"] == "ok"))
    failed.loc[failed["status"] != "ok", "power_w"] = 50.0
    failed.loc[failed["status"] == "ok", "power_w"] = math.nan
    assert present_targets(failed) == ["time_ms"]  # what failed teaches no power
