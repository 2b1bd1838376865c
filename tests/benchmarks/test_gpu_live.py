"""The stage `live` of benchmarks/gpu, and the command that runs all parts one after another."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_stage_code import interpreted_kernels

from foretune.datasets import read_runs

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "gpu"
KERNELS = 6
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT / "src"),
    "OMP_NUM_THREADS": "1",
    "TRITON_DEFAULT_FP_FUSION": "1",  # Triton 3.9 warns where it is not set
}
COMPILED = """
import json, sys
sys.path[:0] = [{folder!r}, {folder!r} + "/../../tests/replay_gpu"]
import live_kernels
from replay_driver import ReplayDriver

with ReplayDriver(lambda launch: 1.0, device="NVIDIA H200", compile=True).active():
    for case in live_kernels.cases():
        problem = case.problems[0]
        case.kernel.build(problem, case.default, case.kernel.inputs_without_data(problem))
        print(case.kernel.name)
"""

for folder in (FOLDER, ROOT / "tests" / "replay_gpu"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def run(*command: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a script of the folder, or code."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
    )


def printed(*command: str, **environment: str) -> str:
    """Return what a run that succeeds prints."""
    done = run(*command, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def live(out: Path, *options: str) -> list[str]:
    """Return the command of the stage."""
    return [str(FOLDER / "live.py"), "--out", str(out), *options]


@pytest.fixture(scope="module")
def replayed(tmp_path_factory) -> Path:
    """A folder with short lists of one problem per kernel."""
    out = tmp_path_factory.mktemp("live")
    printed(*live(out, "--replay", "--listed", "8", "--problems", "1"))
    return out


def test_live_kernels_interpreted_agree_with_their_references():
    code = interpreted_kernels(FOLDER, "live_kernels", "cases")
    lines = printed("-c", code, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    results = [json.loads(line) for line in lines.splitlines()]
    wrong = [result for result in results if not result[2] <= result[3]]
    assert not wrong
    assert len(results) == 2 * KERNELS


def test_live_defaults_compile_for_hopper(tmp_path):
    code = COMPILED.format(folder=str(FOLDER))
    names = printed("-c", code, TRITON_CACHE_DIR=str(tmp_path)).split()
    assert len(set(names)) == KERNELS


def test_live_kernels_are_in_no_table():
    """No order has learned from them."""
    import breadth
    import live_kernels
    from design import kernels

    known = {case.kernel.name for case in breadth.all_cases()} | {k.name for k in kernels()}
    names = {case.kernel.name for case in live_kernels.cases()}
    assert len(names) == KERNELS
    assert not names & known


def test_live_writes_lists_choices_and_their_rounds(replayed):
    runs = read_runs(replayed / "live.parquet")
    assert (runs["status"] == "ok").all(), runs["error"].tolist()
    assert runs["role"].value_counts()["list"] == 7 * KERNELS
    assert runs["role"].value_counts()["default"] == KERNELS
    of_products = runs.loc[runs["role"] == "proposed", "kernel"].unique()
    assert set(of_products) == {"triton_squared_distances", "triton_batched_layer"}

    rows = [json.loads(line) for line in (replayed / "live.jsonl").read_text().splitlines()]
    assert not [row for row in rows if "failed" in row]
    ways = ["4", "8", "auto", "auto, learning", "rounds"]
    assert sorted(row["way"] for row in rows) == sorted(KERNELS * ways)
    for row in rows:
        if row["way"] in ("4", "8"):
            assert row["measured"] == int(row["way"])


def test_live_again_measures_nothing_and_prints_the_same_without_a_gpu(replayed):
    before = {path: path.read_bytes() for path in replayed.glob("live.*")}
    again = printed(*live(replayed, "--replay", "--listed", "8", "--problems", "1"))
    assert again.startswith("0 rows in")
    table = printed(*live(replayed, "--minutes", "0"), CUDA_VISIBLE_DEVICES="")
    assert table in again
    assert "auto, cold: mean" in table
    assert {path: path.read_bytes() for path in replayed.glob("live.*")} == before


def test_live_killed_between_choices_goes_on(tmp_path):
    """A half line and a missing comparison are made good; no choice is made twice."""
    few = ("--replay", "--listed", "6", "--problems", "1", "--cases", "triton_stencil")
    printed(*live(tmp_path, *few))
    path = tmp_path / "live.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:3]) + whole[3][:20])
    printed(*live(tmp_path, *few))
    after = path.read_text().splitlines(keepends=True)
    assert after[:3] == whole[:3]
    assert [json.loads(line)["way"] for line in after[3:]] == ["auto, learning", "rounds"]


def test_recorded_replays_what_the_decorator_chose(replayed):
    """On recorded times, the replayed decorator measures as many as the real one."""
    recorded = str(ROOT / "benchmarks" / "recorded.py")
    text = printed(recorded, str(replayed / "live.parquet"), "--only-cold", "--json")
    found = json.loads(text)["tables"]
    rows = [json.loads(line) for line in (replayed / "live.jsonl").read_text().splitlines()]
    measured = {row["kernel"]: row["measured"] for row in rows if row["way"] == "auto"}
    assert {name: table["cold"]["auto"]["measured"] for name, table in found.items()} == measured


def test_live_unknown_case_is_named(tmp_path):
    done = run(*live(tmp_path, "--replay", "--cases", "triton_sort"))
    assert done.returncode == 1
    assert done.stderr.startswith("no case is called 'triton_sort': choose from triton_squared")


SCRIPTS = {
    "ends": "print('measured')",
    "fails": "raise SystemExit(3)",
    "hangs": "import time; print('begun', flush=True); time.sleep(600)",
    "reads": "import sys; print(sys.argv[1:])",
}


@pytest.fixture
def quarter_hour(tmp_path, monkeypatch):
    """The command, with other parts and hardly any patience; and the folder of its files."""
    import quarter_hour

    for name, code in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(code)
    parts = tuple(quarter_hour.Part(name, 0.02, short=("--few",)) for name in SCRIPTS)
    monkeypatch.setattr(quarter_hour, "HERE", tmp_path)
    monkeypatch.setattr(quarter_hour, "PARTS", parts)
    monkeypatch.setattr(quarter_hour, "GRACE_S", 2.0)
    monkeypatch.setattr(quarter_hour, "MIN_MINUTES", 0.0)
    return quarter_hour, tmp_path / "out"


def test_quarter_hour_runs_all_parts_although_one_fails_and_one_hangs(quarter_hour, capfd):
    command, out = quarter_hour
    began_s = time.monotonic()
    with pytest.raises(SystemExit):
        command.main(["--out", str(out), "--replay", "--short"])
    assert time.monotonic() - began_s < 300
    rows = [json.loads(line) for line in (out / "parts.jsonl").read_text().splitlines()]
    assert {row["part"]: row["ended"] for row in rows} == {
        "ends": "by itself",
        "fails": "with code 3",
        "hangs": "killed, after its time",
        "reads": "by itself",
    }
    assert (out / "hangs.txt").read_text() == "begun\n"
    assert "'--replay', '--few'" in (out / "reads.txt").read_text()
    assert "killed, after its time" in capfd.readouterr().out


def test_quarter_hour_leaves_out_parts_that_have_ended(quarter_hour, capfd):
    command, out = quarter_hour
    out.mkdir()
    ended = {"part": "ends", "minutes": 1.0, "seconds": 2.0, "ended": "by itself"}
    cut_off = {"part": "fails", "minutes": 1.0, "seconds": 62.0, "ended": "by itself"}
    (out / "parts.jsonl").write_text(f"{json.dumps(ended)}\n{json.dumps(cut_off)}\n")
    command.main(["--out", str(out), "--parts", "ends", "fails"])
    printed_text = capfd.readouterr().out
    assert "ends has come to its end before" in printed_text
    assert "fails has no time left" in printed_text
    assert len((out / "parts.jsonl").read_text().splitlines()) == 2


def test_quarter_hour_without_minutes_prints_and_notes_nothing(quarter_hour):
    command, out = quarter_hour
    command.main(["--out", str(out), "--minutes", "0", "--parts", "reads"])
    assert "'--minutes', '0.000'" in (out / "reads.txt").read_text()
    assert not (out / "parts.jsonl").exists()


def test_quarter_hour_parts_are_scripts_that_take_the_given_options():
    import quarter_hour

    assert sum(part.minutes for part in quarter_hour.PARTS) <= 14
    for part in quarter_hour.PARTS:
        usage = printed(str(FOLDER / f"{part.name}.py"), "--help")
        options = [text for text in (*part.options, *part.short) if text.startswith("--")]
        for option in ("--out", "--minutes", "--replay", *options):
            assert option in usage, (part.name, option)
