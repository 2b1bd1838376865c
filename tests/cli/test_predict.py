"""`foretune predict` and `calibrate` of kernels that cannot run here, or never ran."""

import numpy as np
import pandas as pd
import pytest
from commands import fails, run_json

from foretune.cli import main
from foretune.datasets import read_runs, write_runs
from foretune.models import Predictor
from foretune.models.saved.pretrained import SHIPPED

pytestmark = pytest.mark.usefixtures("toy_place")


def gemm_table(path, device="NVIDIA H100 80GB HBM3", n=240, factor=1.0):
    """Write runs that another tool measured: there is no kernel of ours to run."""
    from foretune.device import find_device

    specs = {f"device.{k}": v for k, v in find_device(device).specs.items()}
    rng = np.random.default_rng(3)
    runs = pd.DataFrame({f"problem.{axis}": 2.0 ** rng.integers(5, 12, n) for axis in "MNK"})
    runs = runs.assign(kernel="gemm", device=device, status="ok", **specs)
    runs["config.format"] = rng.choice(["bf16", "fp8"], n)
    flops = 2.0 * runs["problem.M"] * runs["problem.N"] * runs["problem.K"]
    rate = specs["device.bf16_gflops"] * (1 + (runs["config.format"] == "fp8"))
    runs["time_ms"] = factor * (0.004 + flops / rate / 1e6)
    write_runs(path, runs)
    return path


@pytest.fixture(scope="module")
def gemm_predictor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemm")
    runs = read_runs(gemm_table(folder / "gemm.parquet"))
    Predictor(parameters={"rounds": 60}).fit(runs).save(folder / "predictor")
    return str(folder / "predictor")


def test_predict_kernel_that_cannot_run_here(capsys, gemm_predictor):
    device = ("--device", "NVIDIA H100 80GB HBM3")
    asked = ("predict", gemm_predictor, "--kernel", "gemm", *device)
    found = run_json(capsys, *asked, "--problem", "M=512,N=1024,K=2048")
    assert {c["config"]["format"] for c in found["configs"]} == {"bf16", "fp8"}
    assert found["configs"][0]["config"]["format"] == "fp8"
    assert found["configs"][0]["outside"] == []
    assert main([*asked, "--problem", "M=512,N=1024,K=65536"]) == 0
    assert "problem.K=65536" in capsys.readouterr().out


def test_calibrate_corrects_new_device(capsys, gemm_predictor, toy_place):
    there = str(gemm_table(toy_place / "there.parquet", "NVIDIA L40S", 60, 1.7))
    done = run_json(capsys, "calibrate", gemm_predictor, there, "--out", "calibrated")
    assert done["rows"] == 60
    assert done["devices"] == "NVIDIA L40S"
    before, after = (
        run_json(capsys, "evaluate", folder, there)["time_ms"]["mape"]
        for folder in (gemm_predictor, "calibrated")
    )
    assert after < 0.5 * before
    assert Predictor.load("calibrated").training_["calibrated"] == ["NVIDIA L40S"]


def test_predict_leaves_out_settings_of_other_devices(capsys, toy_place):
    """Runs of a CPU with threads and of a GPU with warps; a size that only some runs have."""
    sizes = [64 * (1 + i % 10) for i in range(60)]
    blocks = [16, 32, 64] * 20
    there = pd.DataFrame({"kernel": "mine", "status": "ok", "problem.M": sizes})
    there["config.block"], there["time_ms"] = blocks, np.array(sizes) * (1 + 8 / np.array(blocks))
    cpu = there.assign(device="cpu X", **{"config.threads": [1, 2] * 30, "problem.K": 3})
    gpu = there.assign(device="gpu Y", **{"config.warps": [4, 8] * 30})
    write_runs("mixed.parquet", pd.concat([cpu, gpu], ignore_index=True))
    assert main(["train", "mixed.parquet", "--validate", "none", "--out", "p"]) == 0
    capsys.readouterr()
    asked = ("predict", "p", "--problem", "M=256", "--device", "gpu Y")
    found = run_json(capsys, *asked)["configs"]
    assert {tuple(sorted(c["config"])) for c in found} == {("block", "warps")}
    pair = ("--config", "block=16,warps=4", "--config", "block=64,warps=4")
    assert run_json(capsys, *asked, "--explain", *pair)["predicted_ratio"] < 1


def test_predict_prints_long_times_without_exponent(capsys, toy_place):
    gemm_table(toy_place / "slow.parquet", n=60, factor=1e6)
    assert main(["train", "slow.parquet", "--validate", "none", "--out", "slow"]) == 0
    capsys.readouterr()
    assert main(["predict", "slow", "--problem", "M=512,N=1024,K=2048"]) == 0
    assert "e+" not in capsys.readouterr().out


def test_predict_auto_takes_shipped_predictor(capsys):
    shipped = str(next(SHIPPED.glob("softmax/*")))
    asked = ("--kernel", "softmax", "--problem", "R=512,C=4096", "--top", "2")
    found = run_json(capsys, "predict", "auto", *asked)
    assert found["configs"] == run_json(capsys, "predict", shipped, *asked)["configs"]
    assert "give --kernel" in fails(capsys, 2, "predict", "auto", "--problem", "R=512,C=4096")
    assert "choose from" in fails(
        capsys, 1, "predict", "auto", "--kernel", "nix", "--problem", "R=1"
    )


def test_predict_problem_larger_than_memory(capsys):
    folder = str(SHIPPED / "softmax" / "amd-epyc-2-cores")
    assert main(["predict", folder, "--problem", "R=1000000,C=1000000", "--top", "1"]) == 0


def test_train_power_of_one_problem_names_missing_hold_out(capsys):
    runs = read_runs(gemm_table("few.parquet"))
    first = runs.index < 6
    power_w = np.where(first, 400.0 + runs.index, np.nan)
    runs = runs.assign(power_w=power_w, **{"config.tile": runs.index % 7})
    problem = runs.loc[0, ["problem.M", "problem.N", "problem.K"]].to_numpy(float)
    runs.loc[first, ["problem.M", "problem.N", "problem.K"]] = problem
    write_runs("few.parquet", runs)
    assert main(["train", "few.parquet", "--out", "p"]) == 0
    out = capsys.readouterr().out
    assert Predictor.load("p").targets_.keys() == {"time_ms", "power_w"}
    assert "not held out: grouped of power_w: there is only one group" in " ".join(out.split())
    assert "predicting time_ms" in out
    assert "predicting power_w" not in out
