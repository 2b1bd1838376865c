"""``foretune tune -- PROGRAM``: options before and after it, results, and what is refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import fails
from toy_kernel import DEVICE

from foretune.cli import main
from foretune.cli.tune_program import parse_argument
from foretune.collect import Timing
from foretune.errors import UsageError
from foretune.tune import tuner, verifier
from foretune.tune.functions import tuning

SCRIPT = "import sys; print(f'took {8.0 / int(sys.argv[1])} us, sum 0x1f {sys.argv[2:]}')"
PROGRAM = ("--", sys.executable, "-S", "-c", SCRIPT, "{tile}")
FAST = ("--repeats", "1", "--time", r"took (\S+) us", "--time-unit", "us")


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuner, "MIN_VERIFY_S", 0.05)
    monkeypatch.setattr(tuning, "local_device", lambda name, measure: DEVICE)


ON_IMPORT = """
import numpy as np
import foretune as ft

def sums(x, parts=64):
    return np.concatenate([part.sum(1) for part in np.split(x, parts)])

best = ft.tune_function(sums, {"parts": [1, 64]}, args=(np.ones((64, 64)),), budget=1, verify_s=0)
print("imported")
"""


@pytest.mark.extended
def test_tune_function_of_module_that_tunes_at_import(capsys, monkeypatch):
    monkeypatch.setattr(verifier, "LOOKS", {1: 1.0})  # each process imports the module
    quick = Timing(max_seconds=0.02, warmup_s=0.001)
    monkeypatch.setattr(Timing, "__init__", lambda self, **_: vars(self).update(vars(quick)))
    Path("tuned_on_import.py").write_text(ON_IMPORT)
    line = ("tuned_on_import.py:sums", "--param", "parts=1,64", "--arg", "float64[512,8]")
    assert main(["tune", "--json", *line, "--budget", "2"]) == 0
    printed, said = capsys.readouterr()
    out = json.loads(printed)
    assert "imported" in said
    assert {step["config"]["parts"] for step in out["trace"]} == {1, 64}
    assert out["best"]["baseline_time_ms"] > 0


def test_tune_function_refuses_other_options(capsys):
    Path("undecorated.py").write_text("def sums(x, n=1): return x")
    for arguments, message in (
        (("sum", "--param", "n=1,2"), "did you mean 'sums'? known: sums"),
        (("sums",), "undecorated.py:sums has no knobs: add --param ARGUMENT=VALUE,VALUE"),
        (("sums", "--param", "n=1,2"), "undecorated.py:sums needs x: give every argument"),
        (("sums", "--param", "m=1", "--arg", "int32=1"), "sums takes no argument 'm'"),
        (("sums", "--param", "n=1", "--check", "x"), "a function does not take check: leave"),
        (("sums", "--param", "n=1", *("--arg", "int32=1") * 2), "takes 1 arguments besides knobs"),
        (("sums", "--param", "n=1", "--problem", "x=1"), "a function does not take problem"),
    ):
        name, *rest = arguments
        assert message in fails(capsys, 2, "tune", f"undecorated.py:{name}", *rest)


def test_tune_program_options_before_or_after(capsys):
    own = ("--param", "tile=1..8:x2", *FAST, "--check", "sum 0x1f", "--budget", "4")
    before = ("--export", "t.json", "--name", "mine")
    assert main(["tune", "--json", *before, *PROGRAM, *own]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["best"]["config"] == {"tile": 8}
    assert out["best"]["speedup"] == pytest.approx(8)
    assert out["verified"] == "win"
    assert len(out["trace"]) == 4
    assert json.loads(Path("t.json").read_text())["config"] == {"tile": 8}


def test_tune_program_keeps_its_own_options(capsys):
    arguments = ("--json", "--param", "tile=1,2", *FAST, "--check", r"\['--budget', '--check'\]")
    assert main(["tune", *arguments, *PROGRAM, "--budget", "--check"]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["config"] == {"tile": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("matmul", "--param", "tile=1", *PROGRAM), "give a kernel (matmul) or a program"),
        (PROGRAM, "there are no knobs: add --param"),
        ((*PROGRAM, "--param", "til=1,2"), "knob 'til' is used nowhere: write {til}"),
        ((*PROGRAM, "--param", "tile=1", "--param", "tile=2"), "--param tile is given twice"),
        ((*PROGRAM, "--param", "tile=1,2", "--export", "a.txt"), "a.txt: use a name that ends"),
        ((*PROGRAM, "--param", "tile"), "--param 'tile' is not of the form"),
        ((*PROGRAM, "--param", "tile=9..8"), "9..8 holds no value"),
        ((*PROGRAM, "--param", "tile=1,2", "--template", "a"), "is not of the form FILE:OTHER"),
        ((*PROGRAM, "--param", "tile=1,2", "--problem", "N=3"), "a program does not take problem"),
        ((*PROGRAM, "--param", "tile=1,2", "--repeats", "0"), "0 runs leave nothing to time"),
        (("matmul", "--problem", "M=3", "--build", "make"), "a kernel does not take build"),
        (("matmull", "--param", "tile=1,2"), "unknown kernel 'matmull': did you mean 'matmul'?"),
        ((), "nothing to tune: give a kernel, FILE.py:NAME, FILE.c or -- PROGRAM"),
    ],
)
def test_tune_program_wrong_use_is_one_line(capsys, arguments, message):
    assert message in fails(capsys, 2, "tune", *arguments)


def test_tune_program_counts_failures(capsys, monkeypatch):
    monkeypatch.setattr(verifier, "LOOKS", {1: 1.0})
    script = "import sys; sys.exit({tile} == 3)"
    options = ("--budget", "3", "--param", "tile=1,2,3", "--repeats", "1")
    assert main(["tune", *options, "--", sys.executable, "-S", "-c", script]) == 0
    said = capsys.readouterr().out
    assert "1 of 3 failed, like tile=3: RuntimeError: it ends with exit code 1" in said


def test_tune_program_without_time_in_output_is_one_line(capsys):
    line = fails(capsys, 1, "tune", *PROGRAM, "--param", "tile=1,2", "--time", "elapsed (.*)")
    assert "none of 2 configurations" in line
    assert "'elapsed (.*)' finds no time in its output: it ends with 'took 8.0 us" in line


C = """
void scale(float *x, const float *by, int n) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < work; k++) x[i] = by[i] * 2;
}
"""


def test_tune_source_file(capsys, tmp_path):
    (tmp_path / "scale.c").write_text(C.replace("x[i] =", "((volatile float *)x)[i] ="))
    arguments = [
        "--kernel",
        "scale",
        "--arg",
        "float32[500]=0",
        "--arg",
        "float32[500]",
        "--arg",
        "int32=500",
        "--param",
        "work=64,1",
        "--option=-O1",
    ]
    assert main(["tune", "scale.c", "--json", *arguments]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["config"] == {"work": 1}
    arguments = {
        "x": "float32",
        "x_0": 500,
        "by": "float32",
        "by_0": 500,
        "n": 500,
        "n_type": "int32",
    }
    assert best["problem"] == {**arguments, "n_": 500}  # and the launch size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--param", "work=1,2"), "name the function in scale.c, and its arguments"),
        (("--kernel", "scale", "--arg", "float32[2]", "--check", "x"), "a source does not take ch"),
        (("--kernel", "scale", "--arg", "floaty[2]", "--param", "work=1"), "write float32[512,64]"),
        (("--kernel", "scale", "--arg", "float32", "--param", "work=1"), "--arg 'float32': write"),
    ],
)
def test_tune_source_wrong_use_is_one_line(capsys, arguments, message):
    Path("scale.c").write_text(C)
    assert message in fails(capsys, 2, "tune", "scale.c", *arguments)


def test_parse_argument_arrays_and_numbers():
    for text in ("int32=5000000000", "int8[4]=300"):  # no number of its type
        with pytest.raises(UsageError, match="write float32"):
            parse_argument(text)
    x = parse_argument("float32[3,4]", 1)
    assert (x.shape, x.dtype) == ((3, 4), np.float32)
    assert 0 < x.std() < 1
    assert (parse_argument("int32[5]=7") == [7] * 5).all()
    assert parse_argument("int8=5").dtype == np.int8
    assert set(parse_argument("bool[99]")) == {True, False}
