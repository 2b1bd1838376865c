"""Tests the scripts that make shipped tables and predictors, on a kernel with known times."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from toy_kernel import DEVICE, FakeRunner, Toy, config

from foretune.datasets import card, load, shipped
from foretune.device import Device
from foretune.models import find_pretrained
from foretune.models.guides.request import PredictorRequest
from foretune.models.saved import pretrained

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CPU = Device(DEVICE.name, "cpu", "toy", DEVICE.specs)


@pytest.fixture
def scripts(monkeypatch):
    """The two scripts as modules, found as when they run; forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import cpu_sweep
    import shipped as shipping

    yield SimpleNamespace(sweep=cpu_sweep, ship=shipping)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


class CheckedRunner(FakeRunner):
    """Notes whom it was asked to compare."""

    def __init__(self):
        super().__init__(CPU, noise=0.01)
        self.races = []

    def compare_interleaved(self, kernel, problem, configs, max_seconds=0.5, seed=0):
        self.races.append((problem, list(configs)))
        return super().compare_interleaved(kernel, problem, configs, max_seconds)


def options(out, **more):
    return SimpleNamespace(
        **{"out": out, "name": None, "minutes": 1, "problems": 5, "configs": 12}
        | {"provisional": "", **more}
    )


def test_sweep_runs_every_configuration_on_every_problem(scripts, tmp_path):
    runner = CheckedRunner()
    text = scripts.sweep.sweep(options(tmp_path), [Toy()], runner)
    assert shipped(tmp_path) == ["toy-cpu-2-cores"]
    runs = load("toy-cpu-2-cores", tmp_path)
    of_it = card("toy-cpu-2-cores", tmp_path)
    first = runs[(runs["counter.repeat"] == 0)]
    assert len(first) == 5 * 12
    assert (first.groupby("problem.n")["config.work"].size() == 12).all()
    assert runs["role"].value_counts()[["default", "list", "repeat"]].tolist() == [5, 55, 5]
    assert set(runs["role"]) == {"default", "list", "repeat", "finalist"}
    assert of_it.kernels == {"toy": Toy().source_hash}
    assert (of_it.device, of_it.rows) == (CPU.name, len(runs))
    assert "| toy " in text


def test_sweep_finalists_are_fastest_and_default(scripts, tmp_path):
    runner = CheckedRunner()
    scripts.sweep.sweep(options(tmp_path, configs=300), [Toy()], runner)
    assert len(runner.races) == 5
    for problem, finalists in runner.races:
        assert finalists == [config(), config(order="ba"), Toy().default(problem)]
    final = load("toy-cpu-2-cores", tmp_path).query("role == 'finalist'")
    assert len(final) == 15
    assert set(final["library"]) == {"NumPy"}
    assert final["counter.library_ms"].between(0.4, 0.7).all()


def test_sweep_interrupted_continues(scripts, tmp_path):
    stopped = FakeRunner(CPU, interrupt_after=17)
    with pytest.raises(KeyboardInterrupt):
        scripts.sweep.sweep(options(tmp_path), [Toy()], stopped)
    runner = CheckedRunner()
    scripts.sweep.sweep(options(tmp_path), [Toy()], runner)
    done = {(p, c) for p, c in stopped.measured} & {
        (p, c) for p, c in runner.measured if c != Toy().default(p)
    }
    assert not done
    assert len(load("toy-cpu-2-cores", tmp_path).query("`counter.repeat` == 0")) == 5 * 12
    again = CheckedRunner()
    scripts.sweep.sweep(options(tmp_path), [Toy()], again)
    assert not again.measured
    assert not again.races


def test_sweep_provisional_table_is_measured_again(scripts, tmp_path, capsys):
    scripts.sweep.sweep(
        options(tmp_path, provisional="a trial", configs=6), [Toy()], FakeRunner(CPU)
    )
    assert card("toy-cpu-2-cores", tmp_path).provisional == "a trial"
    runner = CheckedRunner()
    scripts.sweep.sweep(options(tmp_path), [Toy()], runner)
    assert "measured anew: it was provisional: a trial" in capsys.readouterr().out
    assert len(runner.measured) == 5 * 12 + 5
    assert card("toy-cpu-2-cores", tmp_path).provisional == ""


def test_sweep_table_of_other_code_is_measured_again(scripts, tmp_path, capsys):
    scripts.sweep.sweep(options(tmp_path), [Toy()], FakeRunner(CPU))
    path = tmp_path / "toy-cpu-2-cores.json"
    path.write_text(path.read_text().replace(Toy().source_hash, "0" * 16))
    runner = CheckedRunner()
    scripts.sweep.sweep(options(tmp_path), [Toy()], runner)
    assert "measured anew: it is of other code of toy" in capsys.readouterr().out
    assert len(runner.measured) == 5 * 12 + 5


@pytest.mark.usefixtures("toy_registered")
def test_shipped_predictor_is_found_and_card_states_its_error(scripts, tmp_path, monkeypatch):
    tables = tmp_path / "tables"
    models = tmp_path / "models"
    readme = tmp_path / "README.md"
    scripts.sweep.sweep(options(tables, configs=40), [Toy()], CheckedRunner())
    readme.write_text(f"before\n{scripts.ship.BEGIN}\nwhat stood here\n{scripts.ship.END}\nafter\n")
    scripts.ship.main(["--from", str(tables), "--out", str(models), "--readme", str(readme)])
    text = readme.read_text()
    assert text.startswith(f"before\n{scripts.ship.BEGIN}\n\n### toy-cpu-2-cores")
    assert text.endswith(f"{scripts.ship.END}\nafter\n")
    assert "what stood here" not in text
    assert "| toy    | NumPy   | 5        |" in text
    monkeypatch.setattr(pretrained, "SHIPPED", models)
    guide = find_pretrained(PredictorRequest("toy", Toy().source_hash, CPU))
    assert guide.predictor.kernel_name_ == "toy"
    assert not guide.mismatch
    stated = json.loads((models / "toy" / "toy-cpu-2-cores" / "card.json").read_text())["held_out"]
    assert stated["rows"] == len(
        load("toy-cpu-2-cores", tables).query(
            "status == 'ok' and role != 'finalist' and `counter.repeat` == 0"
        )
    )
    assert stated["top1_regret"] < 0.1


@pytest.mark.usefixtures("toy_registered")
def test_shipped_predictor_worse_than_baseline_is_left_out(scripts, tmp_path, monkeypatch):
    tables = tmp_path / "tables"
    models = tmp_path / "models"
    readme = tmp_path / "README.md"
    scripts.sweep.sweep(options(tables, configs=12), [Toy()], CheckedRunner())
    hold_out = scripts.ship.hold_out
    wrong = lambda runs: hold_out(runs).assign(predicted=lambda t: 1 / t["time_ms"])  # noqa: E731
    readme.write_text(
        f"{scripts.ship.BEGIN}\n### toy-cpu-2-cores\n\nbefore\n\n### gone\n{scripts.ship.END}\n"
    )
    arguments = ["--from", str(tables), "--out", str(models), "--readme", str(readme)]
    scripts.ship.main(arguments)
    assert (models / "toy" / "toy-cpu-2-cores").exists()
    monkeypatch.setattr(scripts.ship, "hold_out", wrong)
    scripts.ship.main(arguments)
    assert not (models / "toy" / "toy-cpu-2-cores").exists()
    text = readme.read_text()
    assert "No predictor of toy is shipped: calibrated roofline errs less on problems" in text
    assert "its choice keeps " in text
    assert "before" not in text
    assert "### gone" not in text


def test_sections_splits_text_by_table(scripts):
    text = "\n\n### a\n\nfirst\n\n#### more\n\n### b-2\n\nsecond\n"
    assert scripts.ship.sections(text) == {
        "a": "### a\n\nfirst\n\n#### more\n",
        "b-2": "### b-2\n\nsecond\n",
    }


def test_hold_out_power_predicts_problem_from_others(scripts):
    pytest.importorskip("triton")
    import shipped_power

    runs = load("nvidia-h100-80gb")
    runs = runs[shipped_power.is_metered(runs)]
    few = runs[runs["kernel"].isin(["triton_gemm", "triton_quantized_gemm"])]
    found = shipped_power.hold_out_power(few, shipped_power.families())
    assert len(found) == 13
    errors = shipped_power.power_errors(found)
    assert errors.index.tolist() == ["triton_gemm", "triton_quantized_gemm", "all"]
    assert errors["Foretune"].isna().tolist() == [False, True, False]  # four rows are too few
    own = found[found["kernel"] == "triton_gemm"]
    for problem, rows in own.groupby("problem"):
        rest = own["power_w"][own["problem"] != problem]
        assert rows["mean power"].tolist() == pytest.approx([rest.mean()] * len(rows), rel=0.02)
    assert scripts.ship.targets_of("triton_gemm", few, found) == ("time_ms",)
    perfect = found.assign(Foretune=found["power_w"])
    assert scripts.ship.targets_of("triton_gemm", few, perfect) == ("time_ms", "power_w")


def test_shipped_elsewhere_compares_on_other_device(scripts):
    pytest.importorskip("triton")
    import shipped_elsewhere

    rows = [
        {"status": "ok", "device": "NVIDIA A100-SXM4-40GB", "time_ms": 1000 / m + b / 100}
        | {"problem.M": m, "problem.N": 512, "problem.K": 256, "problem.mat1_dtype": "float16"}
        | {"problem.mat1_stride_1": 1, "problem.mat2_stride_0": 1, "problem.mat2_stride_1": 256}
        | {"config.BLOCK_M": b, "config.BLOCK_N": 64, "config.BLOCK_K": 32}
        | {"config.num_warps": 4, "config.num_stages": 3}
        for m in (512, 1024, 2048)
        for b in (16, 32, 64, 128)
    ]
    runs = shipped_elsewhere.as_gemm(pd.DataFrame(rows), problems=2)
    assert len(runs) == 8
    assert set(runs["problem.layout"]) == {"nt"}
    assert set(runs["problem.dtype"]) == {"fp16"}
    folder = pretrained.SHIPPED / "triton_gemm" / "nvidia-h100-80gb"
    text = shipped_elsewhere.compared(runs, folder, repeats=1)
    assert text.startswith("NVIDIA A100-SXM4-40GB; 2 lists of 4 configurations")
    assert text.count("1.000 / 1.000") >= 4  # after four and eight measurements


def test_check_code_refuses_changed_kernel(scripts):
    of_it = SimpleNamespace(kernels={"matmul": "0" * 16}, name="here", command="measure")
    with pytest.raises(Exception, match="the code of matmul is not what here measured"):
        scripts.ship.check_code("matmul", of_it)
    scripts.ship.check_code("somebody_elses", of_it)
