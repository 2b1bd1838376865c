"""Power that was sampled on an idle board: `models/idle_power.py`."""

import math
import re
import warnings

import numpy as np
import pandas as pd
import pytest

from foretune.datasets import import_runs
from foretune.datasets.runs import with_specs
from foretune.errors import DataWarning
from foretune.features.families_of_runs import family_for
from foretune.models import Predictor
from foretune.models.idle_power import is_idle_power
from foretune.models.plausibility import drop_implausible

QUICK = {"rounds": 15}


def metered(device="NVIDIA H100 80GB HBM3", count=200):
    """Return products that draw power as they are busy: 100 W at idle, 700 W at most."""
    rng = np.random.default_rng(0)
    sizes = 2 ** rng.integers(6, 14, (count, 3))
    compute_ms = 2.0 * sizes.prod(axis=1) / 5e11
    time_ms = compute_ms + 0.01
    watts = 100 + 550 * compute_ms / time_ms * rng.uniform(0.9, 1.0, count)
    runs = pd.DataFrame(sizes, columns=[f"problem.{size}" for size in "MNK"]).assign(
        kernel="gemm",
        device=device,
        status="ok",
        time_ms=time_ms,
        power_w=watts,
        energy_mj=watts * time_ms,
        **{"config.format": "bf16"},
    )
    return with_specs(runs)


def late(runs, share=0.5, watts=102.0):
    """Return ``runs``, a share of them metered after the kernel, and which those are."""
    out = np.random.default_rng(1).random(len(runs)) < share
    busy = out & (runs["time_ms"] > 0.05).to_numpy()
    return runs.assign(power_w=runs["power_w"].mask(out, watts)), busy


def test_is_idle_power_little_power_for_little_work_is_kept():
    runs = metered()
    assert runs["power_w"].min() < 101
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert drop_implausible(family_for("gemm", runs), runs).equals(runs)


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "nobody's"])
def test_drop_idle_power_names_and_empties_rows(device):
    runs, busy = late(metered(device))
    with pytest.warns(DataWarning, match="is that of an idle board") as caught:
        kept = drop_implausible(family_for("gemm", runs), runs)
    emptied = kept["power_w"].isna()
    assert emptied[busy].mean() > 0.95
    assert not emptied[runs["power_w"] > 150].any()
    assert kept["time_ms"].equals(runs["time_ms"])
    assert kept["energy_mj"].isna().equals(emptied)
    text = str(caught[0].message)
    assert "\n" not in text
    assert f"({emptied.sum()} of 200)" in text
    first = re.search(r"rows (\d+), (\d+)", text)
    assert first is not None
    assert emptied[[int(row) for row in first.groups()]].all()


def test_drop_idle_power_is_not_learned(tmp_path):
    runs, busy = late(metered())
    with pytest.warns(DataWarning, match="idle board"):
        fitted = Predictor(parameters=QUICK).fit(runs)
    predicted = fitted.predict(runs[busy])
    assert (predicted["power_w"] > 300).mean() > 0.95
    fitted.save(tmp_path / "p")
    assert Predictor.load(tmp_path / "p").predict(runs[busy]).equals(predicted)


def test_drop_idle_power_too_few_others_empties_all():
    runs = metered()
    runs, _ = late(runs[runs["time_ms"] > 0.1], share=0.95)
    with pytest.warns(DataWarning, match="power is not learned: .* other rows are too few"):
        fitted = Predictor(parameters=QUICK).fit(runs)
    assert set(fitted.targets_) == {"time_ms"}


def test_drop_idle_power_drops_rows_without_time():
    runs, _ = late(metered().assign(time_ms=math.nan, energy_mj=math.nan), share=0.3)
    with pytest.warns(DataWarning, match="idle board"):
        kept = drop_implausible(family_for("gemm", runs), runs)
    assert 100 < len(kept) < len(runs)
    assert kept["power_w"].notna().all()


def test_is_idle_power_without_a_family_finds_long_launches_at_the_lowest_power():
    runs, busy = late(metered())
    found = is_idle_power(None, runs)
    assert found[busy].all()
    assert not found[runs["power_w"] > 150].any()
    assert not found[runs["time_ms"] < 0.03].any()


@pytest.mark.parametrize(("share", "learned"), [(0.1, True), (0.6, False)])
def test_drop_idle_power_without_a_family_refuses_power_if_a_third_is_idle(share, learned):
    runs = metered(count=400).assign(kernel="theirs")
    runs, _ = late(runs[runs["time_ms"] > 0.03].reset_index(drop=True), share)
    with pytest.warns(DataWarning, match="idle board") as caught:
        kept = drop_implausible(None, runs)
    assert kept["power_w"].notna().any() == learned
    refusal = r"power is not learned: \d+% of the rows are idle"
    assert (re.search(refusal, str(caught[0].message)) is None) == learned
    assert kept["time_ms"].notna().all()


def test_is_idle_power_short_runs_are_kept(toy_runs, matmul):
    runs, _ = late(metered())
    short = runs.assign(time_ms=runs["time_ms"] * 0.029 / runs["time_ms"].max())
    assert not is_idle_power(family_for("gemm", short), short).any()
    hot = runs[runs["power_w"] > 400]
    assert not is_idle_power(family_for("gemm", hot), hot).any()
    ok = toy_runs[toy_runs["status"] == "ok"]
    assert not is_idle_power(matmul, ok).any()


@pytest.mark.shared_data
def test_is_idle_power_finds_recorded_sweep(shared_data):
    """GPPerf's: more than half of its power is below 40 W, up to 20 TFLOP/s."""
    table = pd.read_parquet(shared_data / "gpperf" / "sweep.parquet").dropna(subset="power")
    sizes = {f"problem.{size}": table[size.lower()] for size in "MNK"}
    runs = pd.DataFrame(
        {
            "kernel": "gemm",
            "device": "a board without specs",
            "status": "ok",
            "time_ms": table["runtime"],
            "power_w": table["power"],
            **sizes,
            "config.format": "fp32",
        }
    )
    idle = runs["power_w"] < 40
    for family in (family_for("gemm", runs), None):
        found = is_idle_power(family, runs)
        assert found[idle].mean() > 0.95
        assert not found[~idle].any()


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["gemm", "moe", "context_attention", "generation_attention"])
def test_is_idle_power_recorded_meters_are_kept(shared_data, name):
    path = shared_data / "llm" / f"power_h200_{name}.parquet"
    runs = import_runs(path, "aiconfigurator").runs
    for family in (family_for(str(runs["kernel"].iloc[0]), runs), None):
        assert is_idle_power(family, runs).mean() < 0.01
