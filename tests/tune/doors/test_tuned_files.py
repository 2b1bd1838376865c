"""Tuned files for a GPU that nobody tuned: `tune/doors/tuned_files.py`, `foretune store`."""

import json

import pytest

from foretune.cli import main
from foretune.errors import StoreError, UsageError
from foretune.tune.doors.tuned_files import TunedFileName, copy_file, find_nearest_file

BLOCKS = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "num_warps": 4}
EXPERTS = "E=128,N=768,device_name={},dtype=fp8_w8a8.json"
PRODUCT = "N=2048,K=4096,device_name={},dtype=fp8_w8a8,block_shape=[128,{}128].json"
H100 = TunedFileName.parse(EXPERTS.format("NVIDIA_H100_80GB_HBM3"))


@pytest.fixture
def folder(tmp_path):
    """Return an engine's folder with files of GPUs of three architectures."""
    tuned = {"NVIDIA_H20": 1, "NVIDIA_H200": 2, "NVIDIA_A100-SXM4-80GB": 3, "NVIDIA_B200": 4}
    for device, group in tuned.items():
        for name in (EXPERTS.format(device), PRODUCT.format(device, " ")):
            content = {"triton_version": "3.5.0", "1": {**BLOCKS, "GROUP_SIZE_M": group}}
            (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "E=1,N=2,device_name=NVIDIA_H800.json").write_text("{}")
    return tmp_path


def test_find_nearest_file_is_of_the_architecture_with_like_cores(folder):
    assert find_nearest_file(folder, H100).device == "NVIDIA H200"


def test_find_nearest_file_of_a_product_ignores_blanks(folder):
    name = TunedFileName.parse(PRODUCT.format("NVIDIA_H100_80GB_HBM3", ""))
    assert find_nearest_file(folder, name).path.name == PRODUCT.format("NVIDIA_H200", " ")


def test_find_nearest_file_is_of_the_newest_triton(folder):
    """SGLang has a folder for each version."""
    for version in ("3_4_0", "3_10_0", "3_9_0"):
        place = folder / f"triton_{version}"
        place.mkdir()
        (place / EXPERTS.format("NVIDIA_H200")).write_text(json.dumps({"1": BLOCKS}))
    assert find_nearest_file(folder, H100).path.parent.name == "triton_3_10_0"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("NVIDIA_GeForce_RTX_4090", "no file of this layer for a GPU of sm_89"),
        ("NVIDIA_H900X", "the architecture of NVIDIA H900X is not known"),
    ],
)
def test_find_nearest_file_refuses_what_is_unsure(folder, device, message):
    with pytest.raises(UsageError, match=message):
        find_nearest_file(folder, TunedFileName.parse(EXPERTS.format(device)))


def test_tuned_file_name_other_names_are_refused():
    with pytest.raises(UsageError, match=r"'config\.json' is no name of a tuned file"):
        TunedFileName.parse("config.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"1": {}}', '{"many": {"BLOCK_SIZE_M": 16}}', '{"1": 3}']
)
def test_copy_file_of_other_content_is_refused(tmp_path, text):
    (tmp_path / "source.json").write_text(text)
    with pytest.raises(StoreError, match=r"source\.json"):
        copy_file(tmp_path / "source.json", tmp_path / "target.json")
    assert not (tmp_path / "target.json").exists()


def test_store_nearest_copies_once_and_says_that_it_is_not_measured(folder, capsys):
    target = folder / "mine" / EXPERTS.format("NVIDIA_H100_80GB_HBM3")
    words = ["store", "--export", str(target), "--nearest", str(folder)]
    assert main(words) == 0
    assert "on NVIDIA H100 80GB HBM3 they are not measured" in capsys.readouterr().out
    assert json.loads(target.read_text())["1"]["GROUP_SIZE_M"] == 2
    assert main(words) == 2
    assert "is there already" in capsys.readouterr().err


def test_store_nearest_alone_is_refused(folder, capsys):
    assert main(["store", "--nearest", str(folder)]) == 2
    assert "--nearest is for --export" in capsys.readouterr().err
