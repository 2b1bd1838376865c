"""``foretune inspect``, with and without ``--cache-dir``."""

import os
import shutil
from pathlib import Path

import pytest
from commands import fails, run_json

from foretune.cli import main

pytest.importorskip("triton")

MATMUL = (
    "--arg",
    "a=fp16*",
    "--arg",
    "b=fp16*",
    "--arg",
    "c=fp16*",
    "--arg",
    "M=4096",
    "--arg",
    "N=4096",
    "--arg",
    "K=4096",
)
TILE = "BM=64,BN=64,BK=32,num_warps=4"
ADD = ("--arg", "x=fp16*", "--arg", "y=fp16*", "--arg", "out=fp16*", "--arg", "n=4096")
LIMIT = ("--time-limit", "120")


@pytest.fixture(autouse=True)
def place(tmp_path, tmp_path_factory, monkeypatch):
    """A folder with a module of kernels that is on nobody's path."""
    shutil.copy(Path(__file__).parents[1] / "toy" / "triton_toys.py", tmp_path / "here_only.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is unset
    return tmp_path


def test_inspect(capsys):
    printed = run_json(
        capsys,
        "inspect",
        "here_only:matmul",
        *MATMUL,
        "--config",
        TILE,
        "--config",
        TILE + ",maxnreg=64",
        "--config",
        "BM=128,BN=128,BK=64,num_stages=5",
        "--target",
        "sm_120",
        *LIMIT,
        code=1,
    )
    free, capped, large = printed["configs"]
    assert free["config"] == {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4}
    assert free["status"] == "ok"
    assert capped["static"]["registers"] <= 64
    assert "registers per thread" in printed["features"]["registers"]
    assert printed["features"].keys() >= free["static"].keys()
    assert large["status"] == "invalid"
    assert "bytes of shared memory, sm_120 has 101376" in large["error"]
    assert large["static"]["fits"] == 0


def test_inspect_table_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert (
        main(
            [
                "inspect",
                "here_only:matmul",
                *MATMUL,
                "--config",
                f"{TILE},num_stages=3",
                "--target",
                "sm_80",
                *LIMIT,
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    table = printed[: printed.index("per SM: resident")]
    assert max(map(len, table.splitlines())) <= 80
    assert "shared" in table
    assert "CTA" not in table


def test_inspect_cache_dir_keeps_compiled_configurations(capsys, place):
    asked = (
        "inspect",
        "here_only:add",
        *ADD,
        "--config",
        "BLOCK=128",
        "--target",
        "cuda:80",
        "--cache-dir",
        "built",
        *LIMIT,
    )
    printed = run_json(capsys, *asked)
    assert (printed["built"], printed["failed"]) == (1, 0)
    assert len(list((place / "built").rglob("add.cubin"))) == 1
    assert [c["cached"] for c in printed["configs"]] == [False]
    again = run_json(capsys, *asked)
    assert [c["cached"] for c in again["configs"]] == [True]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("here_only:add", *ADD, "--target", "sm_91"), "unknown target 'sm_91'"),
        (("here_only:add", *ADD[:4], "--target", "sm_90"), "add lacks out, n, BLOCK"),
        (("here_only:gone", "--target", "sm_90"), "unknown function in here_only 'gone'"),
        (("nowhere:add", "--target", "sm_90"), "there is no module nowhere"),
        (("here_only:add", "--arg", "x", "--target", "sm_90"), "give NAME=VALUE"),
        (("here_only:add", "--arg", "x=fp16", "--target", "sm_90"), "a pointer is x=fp16*"),
        (("../k/gemm:add", *ADD, "--target", "sm_90"), "there is no file ../k/gemm"),
        (
            ("here_only:add", *ADD, "--config", "BLOCK=64,num_warp=4", "--target", "sm_90"),
            "unknown parameter of add 'num_warp': did you mean 'num_warps'? known: BLOCK, maxnreg,",
        ),
        (("here_only:add", *ADD, "--target", "sm_90", "--time-limit", "0"), "--time-limit 0"),
    ],
)
def test_inspect_wrong_use_is_one_line(capsys, place, asked, message):
    assert message in fails(capsys, 2, "inspect", *asked)


def test_inspect_module_that_fails_is_one_line(capsys, place):
    (place / "breaks_off.py").write_text("{}['nothing']\n")
    printed = fails(capsys, 1, "inspect", "breaks_off:add", *ADD, "--target", "sm_90")
    assert "breaks_off cannot be imported: KeyError" in printed


def test_inspect_module_that_sets_interpreter_is_compiled(capsys, place):
    """The configurations of its autotuner are the default."""
    text = (place / "here_only.py").read_text()
    opened = 'os.environ["TRITON_INTERPRET"] = "1"\n\nimport triton\n'
    assert text.count("import triton\n") == 1
    (place / "interprets.py").write_text(text.replace("import triton\n", opened))
    asked = ("--arg", "x=fp16*", "--arg", "out=fp16*", "--arg", "n=4096", "--target", "sm_90")
    printed = run_json(capsys, "inspect", "interprets.py:tuned_copy", *asked, *LIMIT)
    assert [c["status"] for c in printed["configs"]] == ["ok", "ok"]
    assert [c["config"]["BLOCK"] for c in printed["configs"]] == [128, 256]
    assert "TRITON_INTERPRET" not in os.environ


def test_inspect_with_interpreter_set_compiles(capsys, monkeypatch):
    """Also with an integer of which only the type is known."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    asked = (*ADD[:-1], "n=i32", "--config", "BLOCK=128", "--target", "sm_90", *LIMIT)
    assert run_json(capsys, "inspect", "here_only:add", *asked)["configs"][0]["status"] == "ok"


def test_inspect_unwritable_cache_fails_before_compiling(capsys, place):
    (place / "file").touch()
    printed = fails(
        capsys,
        1,
        "inspect",
        "here_only:add",
        *ADD,
        "--config",
        "BLOCK=128",
        "--target",
        "sm_90",
        "--cache-dir",
        "file/cache",
    )
    assert "cannot write --cache-dir file/cache" in printed


def test_inspect_one_failed_configuration_is_exit_code_1(capsys):
    printed = run_json(
        capsys,
        "inspect",
        "here_only:refuses",
        "--arg",
        "x=fp16*",
        "--config",
        "BLOCK=64",
        "--config",
        "BLOCK=63",
        "--target",
        "sm_90",
        "--cache-dir",
        "built",
        *LIMIT,
        code=1,
    )
    assert (printed["built"], printed["failed"]) == (1, 1)
    failed = printed["configs"][1]
    assert failed["status"] == "compile_error"
    assert "BLOCK must be even" in failed["error"]
    assert "\n" not in failed["error"]
    assert not failed["static"]


def test_inspect_all_gpus_names_what_cannot_run_where(capsys):
    large = "BM=128,BN=256,BK=64,num_warps=8,num_stages=4"  # 147456 bytes with three steps

    printed = run_json(
        capsys, "inspect", "here_only:matmul", *MATMUL, "--config", large, "--all-gpus", code=1
    )

    reasons = {name: entries[0]["reason"] for name, entries in printed["targets"].items()}
    assert reasons["sm_80"] == ""
    assert "has 101376" in reasons["sm_89"]
    assert "sm_89" in printed["without_any"]
    assert "sm_80" not in printed["without_any"]


def test_inspect_all_gpus_with_an_entry_everywhere_succeeds(capsys):
    printed = run_json(
        capsys, "inspect", "here_only:matmul", *MATMUL, "--config", TILE, "--all-gpus"
    )
    assert printed["without_any"] == []


THREE = ("--all-gpus", "--propose", "3")
SHAPES = ("--arg", "a=fp16[M,K]", "--arg", "b=fp16[K,N]", "--arg", "c=fp16[M,N]")


def test_inspect_proposes_entries_for_every_architecture(capsys, monkeypatch):
    from foretune.tune.triton import proposals

    monkeypatch.setattr(proposals, "EDGES", (32, 64, 128))
    monkeypatch.setattr(proposals, "STAGES", (2, 3))
    problems = ("--problem", "M=512,N=512,K=512", "--problem", "M=32,N=4096,K=4096")

    printed = run_json(
        capsys,
        "inspect",
        "here_only:matmul",
        *SHAPES,
        *problems,
        "--config",
        TILE,
        "--all-gpus",
        "--propose",
        "3",
    )

    assert printed["proposed"].keys() == proposals.CLASSES.keys()
    for configs in printed["proposed"].values():
        assert len(configs) == 3
        assert all(config.keys() >= {"BM", "BN", "BK", "num_warps"} for config in configs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "sm_90", "--propose", "4"), "needs --all-gpus"),
        (("--all-gpus", "--propose", "99"), "give 3 to 16"),
        (("--all-gpus", "--problem", "M=4"), "--problem is for --propose"),
        ((*THREE, "--problem", "M=512.5"), "M=512.5 is no size"),
        ((*THREE, "--problem", "M=many"), "M=many is no size"),
        ((*THREE, "--problem", "M=0"), "M=0 is no size"),
        ((*THREE, "--problem", "Q=7"), "Q is no argument of the kernel, and no size in --arg"),
    ],
)
def test_inspect_proposal_options_that_do_not_fit_are_refused(capsys, options, message):
    assert message in fails(capsys, 2, "inspect", "here_only:matmul", *MATMUL, *options)


@pytest.mark.parametrize("more", [(), ("--all-gpus", "--target", "sm_80")])
def test_inspect_needs_one_target_or_all(capsys, more):
    assert "--all-gpus" in fails(capsys, 2, "inspect", "here_only:matmul", *MATMUL, *more)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((*MATMUL, "--arg", "M=8"), "--arg M is given twice"),
        ((*MATMUL, "--problem", "M=8", "--propose", "3"), "M is given by --problem and by --arg"),
        (("--arg", "a=fp16[]"), "a tensor is a=fp16"),
    ],
)
def test_inspect_refuses_what_contradicts_itself(capsys, options, reason):
    message = fails(
        capsys, 2, "inspect", "here_only:matmul", *options, "--config", TILE, "--all-gpus"
    )
    assert reason in message


def test_inspect_all_gpus_prints_values_of_any_type_and_options_of_one_maker(capsys):
    printed = run_json(
        capsys,
        "inspect",
        "here_only:converted",
        "--arg",
        "x=fp16*",
        "--arg",
        "out=fp16*",
        "--config",
        "BLOCK=64,KIND=float16,BIAS=None,maxnreg=64",
        "--all-gpus",
        code=1,
    )
    (entry,) = printed["targets"]["gfx942"]
    assert entry["config"]["BIAS"] == "None"
    assert entry["reason"] == "gfx942 has no option maxnreg"
