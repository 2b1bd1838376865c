"""Predictors of CSV files with anybody's columns, from the command line."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import fails

from foretune.cli import main
from foretune.errors import DataWarning, RunTableError, UnknownName
from foretune.models import Predictor, train_predictor

pytestmark = pytest.mark.usefixtures("short_fits")
TRAIN = ("train", "theirs.csv", "--map", "time_ms=latency_us*0.001", "--sizes", "M,N")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    m = rng.integers(1, 60, 200) * 16
    n = rng.integers(1, 60, 200) * 16
    tile = [16, 32] * 100
    latency_us = (5 + m * n * 1e-3) * np.where(np.array(tile) == 16, 1.3, 1.0)
    noisy = latency_us * rng.lognormal(0, 0.02, 200)
    rows = {"M": m, "N": n, "tile": tile, "order": rng.choice(["a", "b"], 200)}
    pd.DataFrame({**rows, "latency_us": noisy}).to_csv("theirs.csv", index=False)


def test_plain_table_trains_and_ranks(capsys):
    assert main([*TRAIN, "--out", "p", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["time_ms"]["grouped"]["mape"] < 0.2
    runs = Predictor.load("p").runs_
    assert set(runs["kernel"]) == {"theirs"}
    columns = {"problem.M", "problem.N", "config.tile", "config.order", "time_ms"}
    assert columns <= set(runs.columns)
    assert not [c for c in runs.columns if "latency" in c]
    again = ("theirs.csv", "--map", "time_ms=latency_us*0.001")
    assert main(["evaluate", "p", *again]) == 0
    assert "200 of these 200 runs were in training" in capsys.readouterr().out
    assert main(["evaluate", "p", "--drift", *again]) == 0
    assert "inside the interval" in capsys.readouterr().out
    assert main(["predict", "p", "--problem", "M=256,N=512"]) == 0
    assert "tile=32" in capsys.readouterr().out.splitlines()[3]


def test_plain_table_column_with_unit_is_time(capsys):
    assert main([*TRAIN[:2], "--sizes", "M,N", "--out", "p", "--validate", "none"]) == 0
    assert "theirs.csv: time in us (latency_us)" in capsys.readouterr().err
    table = pd.read_csv("theirs.csv")
    times = Predictor.load("p").runs_["time_ms"]
    assert times.to_numpy() == pytest.approx(table["latency_us"].to_numpy() / 1000)


def test_plain_table_unclear_columns_are_refused(capsys):
    table = pd.read_csv("theirs.csv")
    table.rename(columns={"latency_us": "latency"}).to_csv("unnamed.csv", index=False)
    printed = fails(capsys, 2, "train", "unnamed.csv", "--out", "p")
    assert "the unit of latency is unknown: give --map time_ms=latency for milliseconds" in printed
    assert "unknown column 'Q'" in fails(capsys, 2, *TRAIN[:-1], "M,Q", "--out", "p")
    assert "no column 'ms'" in fails(capsys, 2, *TRAIN[:3], "time_ms=ms*1", "--out", "p")
    assert "not of the form" in fails(capsys, 2, *TRAIN[:3], "latency_us", "--out", "p")


def test_plain_table_counts_rows_without_time(capsys):
    table = pd.read_csv("theirs.csv")
    table.loc[3, "latency_us"] = np.nan
    table.to_csv("theirs.csv", index=False)
    with pytest.warns(match="1 row of theirs.csv left out: time is not a number"):
        assert main([*TRAIN, "--out", "p", "--validate", "none"]) == 0
    assert len(Predictor.load("p").runs_) == 199
    capsys.readouterr()
    table.assign(latency_us=0.0).to_csv("theirs.csv", index=False)
    with pytest.warns(match="200 rows of theirs.csv left out: time is zero"):
        assert "no rows are left to train on" in fails(capsys, 1, *TRAIN, "--out", "p")


def test_train_says_that_it_replaces_predictor(capsys):
    for printed in ("predictor: p\n", "predictor: p, which replaced another one\n"):
        assert main([*TRAIN, "--out", "p", "--validate", "none"]) == 0
        assert printed in capsys.readouterr().out


def test_plain_table_python_reads_same_columns():
    table = pd.read_csv("theirs.csv")
    table["time_ms"] = table.pop("latency_us") * 0.001
    training = train_predictor(table, sizes=["M", "N"])
    columns = {"problem.M", "problem.N", "config.tile", "config.order", "time_ms"}
    assert columns <= set(training.predictor.runs_.columns)
    assert training.metrics()["time_ms"]["grouped"]["mape"] < 0.2
    assert "problem.tile" in train_predictor(table).predictor.runs_
    table.loc[:2, "time_ms"] = 0.0
    with pytest.warns(DataWarning, match="3 rows left out: time is zero"):
        assert len(train_predictor(table).predictor.runs_) == len(table) - 3
    with pytest.raises(RunTableError, match="no column is named time_ms"):
        train_predictor(table.drop(columns="time_ms"))
    with pytest.raises(UnknownName, match="'K'"):
        train_predictor(table, sizes=["K"])


def test_run_table_takes_no_mapping(capsys):
    Path("theirs.csv").rename("theirs.tsv")
    message = "only CSV files take --sizes and --map: leave that out, or give files that end with"
    assert message in fails(capsys, 2, "train", "theirs.tsv", *TRAIN[2:], "--out", "p")


def test_plain_table_without_sizes_names_give_roles(capsys):
    assert main([*TRAIN[:4], "--out", "p", "--validate", "none"]) == 0
    assert "theirs.csv: sizes M, N, order; configuration tile" in capsys.readouterr().err


def test_plain_table_without_known_names_has_no_configuration(capsys):
    table = pd.read_csv("theirs.csv").rename(columns={"tile": "third"})
    table.to_csv("theirs.csv", index=False)
    assert main([*TRAIN[:4], "--out", "p", "--validate", "none"]) == 0
    assert "no column is configuration: for a CSV file, name its sizes" in capsys.readouterr().out


def test_resume_reads_plain_table_of_same_columns(capsys):
    assert main([*TRAIN, "--out", "p", "--validate", "none"]) == 0
    pd.read_csv("theirs.csv").head(20).assign(M=5000).to_csv("new.csv", index=False)
    resume = ("--resume", "p", "--map", "time_ms=latency_us*0.001", "--validate", "none")
    assert main(["train", "new.csv", *resume, "--out", "q"]) == 0
    before, after = (Predictor.load(name).runs_ for name in "pq")
    assert list(after) == list(before)
    assert set(after["kernel"]) == {"theirs"}
    assert after.notna().all(axis=None)


def test_plain_table_work_keeps_sizes(capsys):
    work = ("--map", "problem.flops=2*M*N", "--map", "problem.bytes=4*(M+N)")
    assert main([*TRAIN, *work, "--out", "p", "--validate", "none"]) == 0
    columns = {"problem.M", "problem.N", "problem.flops", "problem.bytes"}
    assert columns == {c for c in Predictor.load("p").runs_ if c.startswith("problem.")}


@pytest.mark.filterwarnings("ignore:the rates of 'unnamed' are unknown")
@pytest.mark.parametrize("name", ["matmul", "softmax"])
@pytest.mark.parametrize("sizes", ["M,N,K", "rows,columns"])
def test_plain_table_may_have_name_of_built_in_kernel(name, sizes):
    names = sizes.split(",")
    table = (
        pd.read_csv("theirs.csv").assign(K=64).rename(columns=dict(zip("MN", names, strict=False)))
    )
    table.to_csv(f"{name}.csv", index=False)
    command = ("train", f"{name}.csv", "--map", "time_ms=latency_us*0.001", "--sizes", sizes)
    assert main([*command, "--out", "p", "--validate", "none"]) == 0
    asked = ",".join(f"{size}=256" for size in names)
    assert main(["predict", "p", "--problem", asked]) == 0


def test_plain_table_other_content_is_named(capsys):
    Path("bench.jsonl").write_text('{"avg_ns": 4.5e7, "n_prompt": 512}\n{"avg_ns": 4.6e7}\n')
    printed = fails(capsys, 1, "train", "bench.jsonl", "--out", "p")
    assert "results of llama-bench: give --format llama-bench" in printed
    Path("runs.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "a Git LFS pointer" in fails(capsys, 1, "train", "runs.parquet", "--out", "p")


def test_plain_table_several_kernels_are_configuration(capsys):
    table = pd.read_csv("theirs.csv").assign(kernel=["mine", "theirs", "third", "mine"] * 50)
    table.to_csv("theirs.csv", index=False)
    command = ("train", "theirs.csv", "--out", "p", "--validate", "none")
    assert main([*command]) == 0
    assert "configuration tile, kernel" in capsys.readouterr().err
    runs = Predictor.load("p").runs_
    assert set(runs["config.kernel"]) == {"mine", "theirs", "third"}
    assert main(["evaluate", "p", "theirs.csv"]) == 0
    assert "200 of these 200 runs were in training" in capsys.readouterr().out
    assert main(["predict", "p", "--problem", "M=64,N=64,order=a"]) == 0
    assert "kernel=mine" in capsys.readouterr().out
    assert main([*command, "--kernel", "mine"]) == 0
    runs = Predictor.load("p").runs_
    assert set(runs["kernel"]) == {"mine"}
    assert len(runs) == 100


def test_plain_table_device_by_option_or_column(capsys):
    command = ("train", "theirs.csv", "--out", "p", "--validate", "none")
    assert main([*command, "--device", "rtx 4070"]) == 0
    runs = Predictor.load("p").runs_
    assert set(runs["device"]) == {"NVIDIA GeForce RTX 4070"}
    assert (runs["device.memory_gbps"] > 0).all()
    pd.read_csv("theirs.csv").assign(GPU=["RTX 4070", "My board"] * 100).to_csv(
        "theirs.csv", index=False
    )
    assert main([*command]) == 0
    assert "devices from GPU" in capsys.readouterr().err
    assert set(Predictor.load("p").runs_["device"]) == {"NVIDIA GeForce RTX 4070", "My board"}
    printed = fails(capsys, 2, *command, "--device", "rtx 4070")
    assert "theirs.csv names its devices: leave --device out" in printed


def test_plain_table_unknown_device_is_named(capsys):
    command = ("train", "theirs.csv", "--out", "p", "--validate", "none")
    assert main([*command, "--device", "Chip 9"]) == 0
    assert "device 'Chip 9' is unknown here, and so are its rates" in capsys.readouterr().err
    assert set(Predictor.load("p").runs_["device"]) == {"Chip 9"}


def test_plain_table_leaves_out_results_and_reads_power(capsys):
    table = pd.read_csv("theirs.csv")
    table["TFLOP/s"] = table["M"] * table["N"] / table["latency_us"]
    table["avg_power"] = 100.0 + table["M"] % 7
    table.to_csv("theirs.csv", index=False)
    command = ("train", "theirs.csv", "--out", "p", "--validate", "none")
    assert main([*command]) == 0
    printed = capsys.readouterr().err
    assert "power in W from avg_power; left out TFLOP/s" in printed
    assert set(Predictor.load("p").targets_) == {"time_ms", "power_w"}
    table["score"] = table["latency_us"] * 0.37
    table.to_csv("theirs.csv", index=False)
    assert "column 'score' may be a result" in fails(capsys, 2, *command)
    assert main([*command, "--ignore", "score"]) == 0


def test_calibrate_plain_table_names_device(capsys):
    command = ("train", "theirs.csv", "--out", "p", "--validate", "none", "--device", "L40S")
    assert main([*command]) == 0
    assert main(["calibrate", "p", "theirs.csv", "--device", "RTX 4070", "--out", "q"]) == 0
    assert "calibrated for NVIDIA GeForce RTX 4070 with 200 runs" in capsys.readouterr().out


def test_a_useless_predictor_says_so_first_and_again_when_used(capsys):
    table = pd.read_csv("theirs.csv")
    noise = np.random.default_rng(1).lognormal(0.0, 1.0, len(table))
    table.assign(latency_us=noise).to_csv("theirs.csv", index=False)
    assert main(["train", "theirs.csv", "--out", "p"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("This predictor of time_ms is ")
    assert main(["predict", "p", "--problem", "M=64,N=64,order=a"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == first
    assert Predictor.load("p").weakness == first


def test_the_names_of_sizes_are_read_and_said(capsys):
    rng = np.random.default_rng(0)
    sizes = 64 * rng.integers(1, 40, (80, 3))
    latency_us = (20.0 + 2e-3 * sizes.prod(axis=1)) * rng.lognormal(0.0, 0.02, 80)
    table = pd.DataFrame(sizes, columns=["rows", "cols", "inner"]).assign(latency_us=latency_us)
    table.to_csv("theirs.csv", index=False)
    assert main(["train", "theirs.csv", "--out", "p"]) == 0
    printed = capsys.readouterr().out
    assert "read as a matrix product: M = rows, N = cols, K = inner" in printed
    assert "grouped: law + XGBoost" in printed
    assert main(["train", "theirs.csv", "--out", "p", "--read-as", "none"]) == 0
    assert "read as" not in capsys.readouterr().out
