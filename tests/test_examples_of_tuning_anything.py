"""Tests the examples of tuning functions, sources and programs, on small sizes."""

import json
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from compiled_once import compile_once
from toy_kernel import DEVICE

from foretune.cli import main
from foretune.collect import InProcessRunner, Timing
from foretune.tune import judge as judging
from foretune.tune import tuner
from foretune.tune.functions import kernel_tuner, tunable, tuning

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuner, "MIN_VERIFY_S", 0.05)
    compile_once(monkeypatch, {})
    quick = Timing(
        max_seconds=0.02, warmup_s=0.001
    )  # and in this process: isolation has its own tests
    monkeypatch.setattr(tuning, "_runner", lambda device, *_: InProcessRunner(device, quick))
    for module in (tuning, tunable, kernel_tuner):
        monkeypatch.setattr(module, "local_device", lambda name, measure=True: DEVICE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    tunable._device.cache_clear()


def python(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_tune_function_example_writes_report(monkeypatch, tmp_path, capsys):
    python(monkeypatch, "tune_function.py", "2000")
    out, err = capsys.readouterr()
    assert "the default's speed" in out
    assert "row_norms takes " in err
    assert (tmp_path / "row_norms.html").stat().st_size > 10_000


def test_network_batch_example_finds_batch_size(monkeypatch, capsys):
    pytest.importorskip("torch")
    best = python(monkeypatch, "network_batch.py", "4")["best"]
    assert best.config["batch"] in (1, 2, 4)
    assert "the default's speed" in capsys.readouterr().out


def test_tunable_example_keeps_choice(monkeypatch, capsys):
    python(monkeypatch, "tunable.py")
    first, said = capsys.readouterr()
    assert "smooth: " in said
    python(monkeypatch, "tunable.py")
    assert capsys.readouterr() == (first, ""), "the choice was kept"


def test_tune_c_example_writes_header(monkeypatch, tmp_path):
    best = python(monkeypatch, "tune_c.py", "64")["best"]
    assert f"#define block {best.config['block']}" in (tmp_path / "product.h").read_text()


@pytest.mark.opencl
def test_tune_opencl_example_finds_configuration(monkeypatch):
    found = python(monkeypatch, "tune_opencl.py", "20000")
    assert found["env"]["best_config"] in found["results"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_tune_program_example_finds_configuration(tmp_path, capsys):
    shutil.copy(EXAMPLES / "stencil.c", tmp_path)
    script = (EXAMPLES / "tune_program.sh").read_text().replace('"${1:-1500}"', "200")
    words = words_of(script)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["config"].keys() == {"tile", "opt"}


def words_of(script):
    """Return the words of the last command of a shell script, but for its name."""
    return shlex.split(script[script.index("foretune tune") :].replace("\\\n", " "))[1:]


def test_row_sums_example_is_tuned_from_command_line(monkeypatch, capsys):
    monkeypatch.setattr("foretune.collect.devices.local_device", lambda name: DEVICE)
    monkeypatch.setattr(tuner, "FINALISTS", 1)
    place = f"{EXAMPLES / 'row_sums.py'}:RowSums"
    assert main(["tune", place, "--problem", "N=512", "--budget", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["problem"] == {"N": 512}


def test_judge_example_accepts_one_and_refuses_one(monkeypatch, capsys):
    monkeypatch.setattr(judging, "MAX_ROUNDS", judging.MIN_ROUNDS)
    python(monkeypatch, "judge.py")
    first, second = capsys.readouterr().out.splitlines()
    # With the fewest rounds, a busy machine leaves open how much faster it is.
    assert first.startswith(("vectorised: correct, and faster: ", "vectorised: correct, and incon"))
    assert second.startswith("remembered: refused: wrong: ")


def test_sql_query_example_measures_default_first(monkeypatch, capsys):
    found = python(monkeypatch, "sql_query.py", "500")["found"]
    assert found.measured == 15
    assert found.trace[0].config == {
        "index": False,
        "cache_kib": 4096,
        "mmap_mib": 0,
        "temp_store": "file",
    }
    assert "default" in capsys.readouterr().out


def test_faiss_index_example_finds_configuration(monkeypatch, capsys):
    pytest.importorskip("faiss")
    best = python(monkeypatch, "faiss_index.py", "1000")["best"]
    assert best.config.keys() == {"kind", "nprobe"}
    assert "the default's speed" in capsys.readouterr().out


@pytest.mark.extended
@pytest.mark.parametrize(
    ("module", "name", "size", "knobs"),
    [
        ("duckdb", "duckdb_query.py", "2000", {"group", "codec", "threads", "keep_order"}),
        ("tokenizers", "tokenizer_batch.py", "20", {"batch", "by_length", "parallel"}),
        ("numba", "numba_stencil.py", "100", {"rows", "columns", "fastmath"}),
    ],
)
def test_optional_example_is_short_and_finds_configuration(
    monkeypatch, capsys, module, name, size, knobs
):
    pytest.importorskip(module)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")  # the example sets it
    best = python(monkeypatch, name, size)["best"]
    assert best.config.keys() == knobs
    assert "the default's speed" in capsys.readouterr().out
    assert len((EXAMPLES / name).read_text().splitlines()) <= 40
