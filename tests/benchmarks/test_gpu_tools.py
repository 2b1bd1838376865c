"""The stages `tools` and `unfit` of benchmarks/gpu, and what runs their items."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "gpu"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT / "src"),
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TRITON_DEFAULT_FP_FUSION": "1",
}
# A list of items whose processes are real: of the GPU, only its presence is made up.
ITEMS = """
import os, sys, time
from pathlib import Path

sys.path.extend([{folder!r}, {benchmarks!r}])
import torch

torch.zeros = lambda *args, **named: None
torch.cuda.get_device_name = lambda: "made up"
import smoke_rows

smoke_rows.REAL = True
from item_runner import Item, ItemList


def wrong(run):
    run.check("sum", 1 + 1 == 3, os.environ["OF_ITEM"])


def fails(run):
    raise ValueError("it fails by itself")


def hangs(run):
    time.sleep(600)


def ends(run):
    os._exit(7)


def absent(run):
    run.leave_out("a tool", "not installed")


def late(run):
    run.check("sum", 1 + 1 == 2, os.environ["OF_ITEM"])


functions = (wrong, fails, hangs, ends, absent, late)
names = ("wrong", "fails", "hangs", "ends", "absent", "late")
items = {{
    name: Item(f"it {{name}}", function, 3 if name == "hangs" else 60)
    for name, function in zip(names, functions)
}}
stage = ItemList(
    script=Path(__file__),
    title="Made up",
    items=items,
    turns=[names[:-1], names[-1:]],
    minutes=5.0,
    replay_device="NVIDIA H200",
    variables=lambda name: {{"OF_ITEM": f"variable of {{name}}"}},
)
stage.main("A stage.")
"""


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a script."""
    command = [sys.executable, "-W", "ignore", str(script), *arguments]
    return subprocess.run(
        command, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, cwd=ROOT
    )


def printed(script: Path, *arguments: str, **environment: str) -> str:
    """Return what a run that succeeds prints."""
    done = run(script, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def results(text: str) -> dict[str, str]:
    """Return the result of each item in a printed table."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    return {row[0]: row[2] for row in cells}


@pytest.fixture
def modules(monkeypatch):
    """Import a module of the folder."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set

    for folder in (FOLDER.parent, FOLDER, ROOT / "examples" / "kernels", ROOT / "tests/replay_gpu"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module


def test_items_in_processes_of_their_own_do_not_stop_each_other(tmp_path):
    script = tmp_path / "stage.py"
    script.write_text(ITEMS.format(folder=str(FOLDER), benchmarks=str(FOLDER.parent)))
    out = tmp_path / "rows.jsonl"
    text = printed(script, "--out", str(out))
    assert results(text) == {
        "wrong": "FAIL",
        "fails": "FAIL",
        "hangs": "FAIL",
        "ends": "FAIL",
        "absent": "not installed",
        "late": "PASS",
    }
    assert "ok   late sum: variable of late" in text
    assert "it fails by itself" in text
    assert "FAIL hangs it took too long" in text
    assert "FAIL ends it ended with 7" in text
    assert printed(script, "--out", str(out), "--minutes", "0") == text

    # What an older run has left is not taken for this run's.
    again = printed(script, "--out", str(out), "--minutes", "1e-9", "--items", "late")
    assert results(again) == {"late": "FAIL"}
    assert "no end" in again


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"item": "", "device": "made up", "vers',
        "[1, 2]\n",
        '{"item": "", "stage": "smoke", "device": "a GPU", "versions": ""}\n',
    ],
)
def test_items_of_another_file_are_refused(modules, content, tmp_path, capsys):
    runner = modules("item_runner")
    out = tmp_path / "rows.jsonl"
    out.write_text(content)
    stage = runner.ItemList(Path("tools.py"), "Tools", {}, [], 1.0, "NVIDIA H200")
    with pytest.raises(SystemExit, match=r"is no file of tools\.py, or damaged: run it again"):
        stage.main("A stage.", ["--minutes", "0", "--out", str(out)])
    assert out.read_text() == content
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("stage", "minutes", "message"),
    [("tools", "1", "--replay"), ("unfit", "0", "there is no file")],
)
def test_stage_without_gpu_or_file_fails_in_one_line(stage, minutes, message, tmp_path):
    out = str(tmp_path / "rows.jsonl")
    done = run(FOLDER / f"{stage}.py", "--out", out, "--minutes", minutes)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_tools_that_cannot_be_imported_are_named(tmp_path):
    """As Helion 1.5.1, which needs a newer torch than 2.11."""
    for tool in ("helion", "flashinfer", "jax"):
        (tmp_path / f"{tool}.py").write_text("raise ImportError('torch has no IntelGPUError')")
    out = ("--out", str(tmp_path / "rows.jsonl"), "--items", "flashinfer", "helion")
    path = os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])
    text = printed(FOLDER / "tools.py", "--replay", *out, PYTHONPATH=path)
    assert results(text) == {"flashinfer": "not installed", "helion": "not installed"}
    assert "Helion: it cannot be imported: ImportError: torch has no IntelGPUError" in text
    assert printed(FOLDER / "tools.py", "--minutes", "0", *out) == text


def test_unfit_tries_what_is_foretold(tmp_path):
    """The default of a kernel runs on Hopper; more shared memory than it has, and AMD's type, do
    not."""
    out = ("--out", str(tmp_path / "rows.jsonl"), "--items", "softmax", "attention-128")
    out = (*out, "e4m3fnuz")
    text = printed(FOLDER / "unfit.py", "--replay", *out)
    assert "3 of 3 that were foretold to fail do, 3 for this reason, 0 false alarms" in text
    assert "2 of 2 others run" in text
    assert "out of resource: shared memory" in text
    assert "out of resource: threads" in text
    assert "type fp8e4b8 not supported" in text
    assert printed(FOLDER / "unfit.py", "--minutes", "0", *out) == text

    # A false alarm, and a failure that nobody foretold, are told.
    file = tmp_path / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    tried = [row for row in rows if "has_run" in row]
    alarm, other, *_ = (row for row in tried if row["reason"])
    missed = next(row for row in tried if not row["reason"])
    alarm |= {"has_run": True, "same_reason": False, "ok": False}
    other["same_reason"] = False
    missed |= {"has_run": False, "ok": False}
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    text = printed(FOLDER / "unfit.py", "--minutes", "0", *out)
    assert "2 of 3 that were foretold to fail do, 1 for this reason, 1 false alarms" in text
    assert "1 of 2 others run" in text
    assert text.count("WRONG") == 2
    assert text.count("another reason") == 1


def test_unfit_has_ten_of_each_for_several_gpus(modules):
    from foretune.collect.compiled.gpu_targets import get_target

    entries = modules("unfit_entries")
    for name in ("sm_80", "sm_90", "sm_100"):
        chosen = entries.chosen_entries(get_target(name))
        unfit = [entry for entry in chosen if entry.reason]
        assert len(chosen) == 20
        assert len(unfit) == 10
        assert len({entry.trial for entry in unfit}) >= 5
        reasons = " ".join(entry.reason for entry in unfit)
        for part in ("shared memory", "threads", "not supported", "power of 2"):
            assert part in reasons, name


def test_gate_repository_has_the_work_it_names(modules, tmp_path):
    tool = modules("tool_gate")
    language = tool.language_here()
    if language is None:
        pytest.skip("needs a compiler of C")
    folder = tmp_path / "gate"
    commits = tool.make_repository(folder, language)
    assert len(set(commits.values())) == 3
    for name, steps in (("base", 400_000), ("equal", 400_000), ("slower", 800_000)):
        text = tool.git(folder, "show", f"{commits[name]}:src/{language.file}")
        assert f"#define SLOWER {steps}\n#define EQUAL 400000\n" in text
    python = tool.build(folder, "slower", commits["slower"])
    code = "import twin; twin.run('slower'); twin.run('equal'); print(twin.__file__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "builds/slower/environment" in done.stdout, done.stderr


def test_gate_answer_is_red_for_the_slower_kernel_only(modules, tmp_path):
    tool = modules("tool_gate")
    rows = modules("smoke_rows")
    language = tool.Language("", "", [], 0.1)

    def passed(code, slower, equal):
        verdicts = [
            {"benchmark": f"bench_twin.py::bench_{name}", "verdict": verdict, "change": None}
            for name, verdict in (("slower", slower), ("equal", equal))
        ]
        out = tmp_path / "rows.jsonl"
        run_of_item = rows.Run("gate", out, tmp_path)
        tool.check_slower(run_of_item, "here", (code, {"verdicts": verdicts}), language)
        return rows.rows_of(out, "gate")[-1]["ok"]

    assert passed(1, "slower", "same")
    assert passed(1, "slower", "cannot tell")
    assert not passed(0, "cannot tell", "same")
    assert not passed(1, "slower", "slower")
    assert not passed(1, "same", "slower")
    assert not passed(2, "slower", "same")


def test_judge_refuses_the_wrong_solution(modules, tmp_path):
    """In one form; the extended test judges all of them."""
    tool = modules("tool_judge")
    tool.write_trace(tmp_path, tool.KERNEL.replace(*tool.WRONG))
    verdict = tool.verdict_of(tmp_path, is_timed=False)
    assert verdict["refused"].startswith("wrong: relative error")
    assert "15] is 0.0" in verdict["refused"] or "15] is -0.0" in verdict["refused"]


@pytest.mark.extended
def test_tools_replayed_run_to_their_end(tmp_path):
    out = ("--out", str(tmp_path / "rows.jsonl"))
    # As the page says it, with a relative path.
    text = printed(FOLDER / "tools.py", "--replay", *out, PYTHONPATH="src")
    found = results(text)
    assert found.pop("server") == "PASS", text
    assert found.pop("judge") == "PASS", text
    # Whether equal kernels are called equal is a matter of chance, of at most 1 in 100.
    assert "ok   gate 100 % more work, BASE..HEAD: exit code 1" in text
    assert "gate equal twin: exit code" in text
    assert found.pop("gate") in ("PASS", "FAIL")
    assert set(found.values()) <= {"PASS", "not installed"}, text
    assert printed(FOLDER / "tools.py", "--minutes", "0", *out) == text
