"""Warnings about suspect rows and columns: `models/suspicions.py`."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretune.datasets import import_runs, read_runs
from foretune.datasets.runs import with_specs
from foretune.errors import DataWarning
from foretune.features.families_of_runs import family_for
from foretune.models import Predictor
from foretune.models.suspicions import warn_about_data
from foretune.models.targets import present_targets

QUICK = {"rounds": 15}
H100 = "NVIDIA H100 80GB HBM3"


def products(count=300, seed=0, device=H100, **columns):
    """Return products of matrices, each with an overhead and a scatter of two percent."""
    rng = np.random.default_rng(seed)
    sizes = 2 ** rng.integers(6, 14, (count, 3))
    time_ms = 2.0 * sizes.prod(axis=1) / 5e11 + 0.005
    runs = pd.DataFrame(sizes, columns=["problem.M", "problem.N", "problem.K"]).assign(
        kernel="gemm",
        device=device,
        status="ok",
        time_ms=time_ms * rng.lognormal(0, 0.02, count),
        **{"config.format": "bf16", **columns},
    )
    return with_specs(runs)


def found(runs, targets=("time_ms",)):
    family = family_for("gemm", runs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_about_data(family, runs, targets)
    assert all(w.category is DataWarning and "\n" not in str(w.message) for w in caught)
    return [str(w.message) for w in caught]


def test_correct_table_causes_no_warning():
    assert found(products()) == []


@pytest.mark.parametrize("factor", [1000, 0.001])
@pytest.mark.parametrize("known", [True, False])
def test_other_unit_many_rows_are_named(factor, known):
    runs = products(device=H100 if known else "nobody's")
    wrong = np.random.default_rng(1).random(len(runs)) < 0.1
    mixed = runs.assign(time_ms=runs["time_ms"] * np.where(wrong, factor, 1))
    (text,) = (text for text in found(mixed) if "generic GPU" not in text)
    first = re.search(r"rows (\d+), (\d+), .* about 1000 times off", text)
    assert first is not None
    assert all(wrong[int(row)] for row in first.groups())


def test_other_unit_whole_group_is_named():
    runs = products()
    late = runs["problem.N"] >= 4096
    (text,) = found(runs.assign(time_ms=runs["time_ms"] * np.where(late, 1000, 1)))
    assert "unit different" in text


def test_other_unit_few_rows_are_named():
    runs = products(1000)
    wrong = runs.index.isin([5, 50, 500])
    (text,) = found(runs.assign(time_ms=runs["time_ms"] * np.where(wrong, 1000, 1)))
    assert "time_ms of rows 5, 50, 500 is about 1000 times off" in text


def test_other_unit_training_warns_and_still_learns():
    runs = products()
    wrong = np.arange(len(runs)) % 10 == 3
    with pytest.warns(DataWarning, match="about 1000 times off"):
        fitted = Predictor(parameters=QUICK).fit(
            runs.assign(time_ms=runs["time_ms"] * np.where(wrong, 1000, 1))
        )
    assert len(fitted.runs_) == len(runs)


def test_other_unit_few_problems_of_different_size_cause_no_warning():
    """Then the neighbors of a row are of other problems, up to a million times larger."""
    rng = np.random.default_rng(0)
    for seed in range(8):
        few = products(32, seed)
        runs = few.loc[few.index.repeat(20)].reset_index(drop=True)
        blocks = {f"config.{name}": 2 ** rng.integers(4, 9, len(runs)) for name in ("M", "N", "K")}
        runs = runs.assign(time_ms=runs["time_ms"] * rng.lognormal(0, 0.3, len(runs)), **blocks)
        assert found(runs) == []
        assert found(runs.assign(device="nobody's").drop(columns="device.fp32_gflops")) == []


LEAKS = {
    "itself": lambda t, work: t,
    "microseconds, whole": lambda t, work: np.round(1000 * t * 1000),
    "its logarithm": lambda t, work: np.log(t),
    "the rate": lambda t, work: work / t,
    "a grade": lambda t, work: 10 - np.tanh(np.log10(t)),
}


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("group", ["problem", "config", "device"])
def test_leak_column_computed_from_target_is_named(name, group):
    runs = products()
    work = 2.0 * runs[["problem.M", "problem.N", "problem.K"]].prod(axis=1)
    (text,) = found(runs.assign(**{f"{group}.hint": LEAKS[name](runs["time_ms"], work)}))
    assert text.startswith(f"{group}.hint predicts time_ms suspiciously well")


@given(noise=st.floats(0.02, 1.0), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_leak_estimate_of_target_is_none(noise, seed):
    runs = products()
    guess = runs["time_ms"] * np.random.default_rng(seed).lognormal(0, noise, len(runs))
    assert found(runs.assign(**{"config.estimate": guess})) == []


def test_unknown_format_is_named():
    runs = products()
    odd = runs.index % 100 == 7
    texts = found(runs.assign(**{"config.format": np.where(odd, "posit16", "bf16")}))
    assert texts == [
        "config.format=posit16 is an unknown format: rows 7, 107, 207 count as 16 bits"
    ]


def test_unknown_device_is_named_and_others_keep_roofline():
    known = products()
    unknown = products(60, 1, "nobody's")
    unknown = unknown.assign(time_ms=3 * unknown["time_ms"])
    both = pd.concat([known, unknown], ignore_index=True)
    with pytest.warns(DataWarning, match='the rates of "nobody\'s" are unknown'):
        predictor = Predictor(targets=("time_ms",), parameters=QUICK).fit(both)
    test = products(100, 2)
    alone = Predictor(targets=("time_ms",), parameters=QUICK).fit(known)
    truth = test["time_ms"]
    off = [np.median(np.abs(p.predict(test)["time_ms"] / truth - 1)) for p in (predictor, alone)]
    assert predictor.targets_["time_ms"].scale.roofline is not None
    assert off[0] < 1.5 * off[1] + 0.01
    again = products(60, 3, "nobody's")
    there = predictor.predict(again.reindex(columns=both.columns))["time_ms"]
    assert np.median(np.abs(there / (3 * again["time_ms"]) - 1)) < 0.3


def around(centres, per, seed):
    """Return near-duplicates of few products, each of which has something of its own."""
    rng = np.random.default_rng(seed)
    runs = products(centres, seed).loc[lambda r: r.index.repeat(per)].reset_index(drop=True)
    near = rng.uniform(1, 1.04, (len(runs), 3))
    sizes = np.round(runs[["problem.M", "problem.N", "problem.K"]] * near)
    own = rng.lognormal(0, 0.3, centres).repeat(per)
    return runs.assign(**sizes, time_ms=runs["time_ms"] * own * rng.lognormal(0, 0.01, len(own)))


def test_near_duplicates_are_named():
    (text,) = found(around(1, 200, 0))
    assert re.match(r"only 1 of \d+ problems differ, .* near-duplicates \(rows 1, 2, 3, 4", text)
    assert found(around(200, 2, 0)) == []


@pytest.mark.parametrize("centres", [12, 60])
def test_near_duplicates_interval_covers_new_problems(centres):
    shares = []
    for seed in range(2):  # one draw of so few problems may be lucky or not
        predictor = Predictor(targets=("time_ms",), parameters=QUICK)
        with pytest.warns(DataWarning, match="near-duplicates"):
            predictor.fit(around(centres, 600 // centres, seed))
        new = around(200, 1, seed + 1000)
        predicted = predictor.predict(new)
        inside = new["time_ms"].between(predicted["time_ms_low"], predicted["time_ms_high"])
        shares.append(inside.mean())
    assert np.mean(shares) >= 0.85


@pytest.mark.shared_data
@pytest.mark.parametrize(
    "name",
    [
        "llm/gemm",
        "llm/moe",
        "llm/power_h200_gemm",
        "spaces/convolution_milo__W6600",
        "triton/mm__A100",
    ],
)
def test_measured_tables_cause_no_warning(shared_data, tmp_path, name):
    path = shared_data / f"{name}.parquet"
    table = pd.read_parquet(path) if "llm" in name else read_runs(path)
    table = table.sample(min(len(table), 3000), random_state=0).reset_index(drop=True)
    if "llm" in name:
        table.to_parquet(tmp_path / path.name)
        runs = import_runs(tmp_path / path.name, "aiconfigurator").runs
    else:
        runs = with_specs(table)
    kernel = str(runs["kernel"].iloc[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_data(family_for(kernel, runs), runs, present_targets(runs))
