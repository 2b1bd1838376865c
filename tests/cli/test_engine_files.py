"""``foretune engine-config``: what it lists, what it writes, what it refuses."""

import json

import pytest

from foretune.__main__ import main
from foretune.plan.engine_files.layer import Layer
from foretune.plan.engine_files.tuned_layers import PARAMETERS

B200 = "NVIDIA B200"
MODEL = "Qwen/Qwen3-30B-A3B"
SOME = Layer(128, 384, B200).file_name_for("vllm")


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """A folder with two tuned files; this model needs one of them, and none for its twin."""
    monkeypatch.chdir(tmp_path)
    config = dict(zip(PARAMETERS, (16, 64, 128, 1, 4, 3), strict=True))
    for experts, size in ((128, 384), (64, 384)):
        path = tmp_path / "tuned" / Layer(experts, size, B200).file_name_for("vllm")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"1": config, "64": config}))
    return str(path.parent)


def run(capsys, *options):
    assert main(["engine-config", "vllm", MODEL, "--device", "b200_sxm", *options]) == 0
    return capsys.readouterr().out


def test_a_file_that_is_there(tuned, capsys):
    said = run(capsys, "--layout", "tp=2", "--tuned", tuned, "--out", "out")
    assert "E=128 N=384 16 bit" in said
    assert "there" in said
    assert "no file was written" in said


def test_a_file_that_is_missing(tuned, capsys, tmp_path):
    said = run(capsys, "--layout", "tp=4", "--tuned", tuned, "--out", "out")
    assert "out: 1 file, guessed and not measured" in said
    assert f"VLLM_TUNED_CONFIG_FOLDER={tmp_path / 'out'}" in said
    assert max(map(len, said.splitlines()[:3])) <= 80
    name = Layer(128, 192, B200).file_name
    assert {p.name for p in (tmp_path / "out").iterdir()} == {name, "foretune.json"}
    found = json.loads(run(capsys, "--layout", "tp=4", "--tuned", tuned, "--json"))
    assert found["out"] is None
    (file,) = found["files"]
    assert (file["name"], file["status"]) == (name, "guessed")
    assert file["configs"]["1"]["BLOCK_SIZE_K"] == 128


def test_a_model_without_any(capsys):
    assert "vllm looks for no tuned file" in run(capsys, "--format", "nvfp4")


def test_sglang_learns_from_vllms_files_too(tuned, capsys, tmp_path):
    (tmp_path / "own").mkdir()
    name = Layer(8, 64, "AMD Instinct MI300X").file_name_for("sglang")
    (tmp_path / "own" / name).write_text((tmp_path / "tuned" / SOME).read_text())
    arguments = ["sglang", MODEL, "--device", "NVIDIA_B200", "--layout", "tp=2", "--tuned", "own"]
    assert main(["engine-config", *arguments]) == 0
    assert "nothing similar" in capsys.readouterr().out
    arguments += ["--also", tuned, "--triton", "3.5.1", "--out", "out"]
    assert main(["engine-config", *arguments]) == 0
    assert "copy out/configs to sglang/" in capsys.readouterr().out
    assert (tmp_path / "out" / "configs" / "triton_3_5_1" / SOME).exists()


def test_an_unknown_gpu_is_said_to_be_one(tuned, capsys):
    assert main(["engine-config", "vllm", MODEL, "--device", "B2OO", "--tuned", tuned]) == 0
    assert "B2OO has no known architecture" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["lmdeploy", MODEL, "--device", "b200_sxm"], "unknown engine with tuned files 'lmdeploy'"),
        (["vllm", MODEL], "give --device: tuned files"),
        (["vllm", MODEL, "--device", "b200_sxn"], "did you mean 'b200_sxm'"),
        (["vllm", MODEL, "--device", "b200_sxm", "--layout", "tp=8,ep=2"], "give 1 or 8"),
        (["sglang", MODEL, "--device", "b200_sxm", "--layout", "tp=2,ep=3"], "divisor of 2"),
        (["vllm", MODEL, "--device", "b200_sxm", "--layout", "pp=2"], "known: dp, ep, tp"),
        (["vllm", MODEL, "--device", "A/b"], "give the name that nvidia-smi"),
        (["vllm", MODEL, "--device", "b200_sxm", "--layout", "tp=0"], "--layout tp 0"),
        (["vllm", MODEL, "--device", "b200_sxm"], "vllm is not installed here"),
        (["vllm", MODEL, "--device", "b200_sxm", "--tuned", "empty"], "no tuned file in empty"),
        (["vllm", "no/model", "--device", "b200_sxm"], "no/model"),
    ],
)
def test_what_is_refused(arguments, reason, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("foretune.cli.engine_files.find_spec", lambda name: None)
    assert main(["engine-config", *arguments]) in (1, 2)
    assert reason in capsys.readouterr().err


def test_a_missing_version_of_triton_is_said_before_the_work(tuned, capsys, monkeypatch):
    def never(*args):
        raise AssertionError("the layers were read")

    monkeypatch.setattr("foretune.cli.engine_files._guess_files", never)
    arguments = ["engine-config", "sglang", MODEL, "--device", "b200_sxm", "--tuned", tuned]
    assert main([*arguments, "--out", "out"]) == 2
    assert "add --triton VERSION" in capsys.readouterr().err
