"""``foretune inspect`` and ``foretune precompile``."""

import shutil
from pathlib import Path

import pytest
from commands import fails, run_json

from foretune.cli import main

pytest.importorskip("triton", reason="triton is not installed: foretune[gpu]")

MATMUL = ("--arg", "a=fp16*", "--arg", "b=fp16*", "--arg", "c=fp16*", "--arg", "M=4096", "--arg",
          "N=4096", "--arg", "K=4096")  # fmt: skip
TILE = "BM=64,BN=64,BK=32,num_warps=4"
ADD = ("--arg", "x=fp16*", "--arg", "y=fp16*", "--arg", "out=fp16*", "--arg", "n=4096")
JOBS = ("--jobs", "1", "--limit", "120")


@pytest.fixture(autouse=True)
def place(tmp_path, tmp_path_factory, monkeypatch):
    """A folder with a module of kernels that is on nobody's path."""
    shutil.copy(Path(__file__).parent / "toy" / "triton_toys.py", tmp_path / "here_only.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is unset
    return tmp_path


def test_inspect(capsys):
    said = run_json(
        capsys, "inspect", "here_only:matmul", *MATMUL, "--config", TILE,
        "--config", TILE + ",maxnreg=64", "--target", "sm_90", *JOBS,
    )  # fmt: skip
    free, capped = said["configs"]
    assert free["config"] == {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4}
    assert (free["status"], free["static"]["mma_version"]) == ("ok", 3)
    assert capped["static"]["registers"] <= 64
    assert "registers per thread" in said["features"]["registers"]
    assert said["features"].keys() >= free["static"].keys()


def test_people_see_a_table_of_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["inspect", "here_only:matmul", *MATMUL, "--config", TILE, "--config",
                 "BM=128,BN=128,BK=64,num_stages=5", "--target", "sm_80", *JOBS]) == 0  # fmt: skip
    said = capsys.readouterr().out
    table = said[: said.index("per SM: resident")]
    assert max(map(len, table.splitlines())) <= 80
    assert "mma" in table
    assert "CTA" not in table
    assert main(["inspect", "here_only:matmul", *MATMUL, "--config", TILE, "--ttgir",
                 "--target", "gfx942", *JOBS]) == 0  # fmt: skip
    assert "–" in capsys.readouterr().out


def test_too_large_is_said(capsys):
    said = run_json(
        capsys, "inspect", "here_only:matmul", *MATMUL, "--config",
        "BM=128,BN=128,BK=64,num_stages=5", "--target", "sm_120", "--ttgir", *JOBS,
    )  # fmt: skip
    (only,) = said["configs"]
    assert only["status"] == "invalid"
    assert "sm_120 has 101376" in only["error"]


def test_precompile(capsys, place):
    asked = ("precompile", "here_only:add", *ADD, "--config", "BLOCK=128", "--config",
             "BLOCK=256", "--target", "cuda:80", "--cache-dir", "built", *JOBS)  # fmt: skip
    said = run_json(capsys, *asked)
    assert (said["built"], said["failed"]) == (2, 0)
    cubins = list((place / "built").rglob("add.cubin"))
    assert len(cubins) == 2
    assert [c["cached"] for c in said["configs"]] == [False, False]
    again = run_json(capsys, *asked)
    assert [c["cached"] for c in again["configs"]] == [True, True]


def test_an_autotuners_own_configurations_are_the_default(capsys):
    said = run_json(
        capsys, "precompile", "here_only:tuned_copy", "--arg", "x=fp16*", "--arg", "out=fp16*",
        "--arg", "n=1000", "--target", "sm_90", "--cache-dir", "built", *JOBS,
    )  # fmt: skip
    assert [c["config"]["BLOCK"] for c in said["configs"]] == [128, 256]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("here_only:add", *ADD, "--target", "sm_91"), "unknown target 'sm_91'"),
        (("here_only:add", *ADD[:4], "--target", "sm_90"), "add misses out, n, BLOCK"),
        (("here_only:gone", "--target", "sm_90"), "has no 'gone'"),
        (("nowhere:add", "--target", "sm_90"), "'nowhere' cannot be imported here"),
        (("here_only:add", "--arg", "x", "--target", "sm_90"), "give NAME=VALUE"),
        (("here_only:add", *ADD, "--target", "sm_90", "--limit", "0"), "--limit 0"),
        (("here_only:add", *ADD, "--target", "sm_90", "--jobs", "-1"), "--jobs -1"),
    ],
)
def test_what_cannot_be_done(capsys, asked, message):
    assert message in fails(capsys, 2, "inspect", *asked)
