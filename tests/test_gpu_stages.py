"""Tests the stages in benchmarks/gpu, replayed: each ends, and continues where it stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from foretune.datasets import card, load, read_runs, to_measurements
from foretune.datasets.journal import journal_path

pytest.importorskip("triton")

pytestmark = pytest.mark.extended
FOLDER = Path(__file__).parents[1] / "benchmarks" / "gpu"
SOURCE = FOLDER.parents[1] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
TINY = {
    "probe": [],
    "sweep": [
        "--problems",
        "2",
        "--per-problem",
        "8",
        "--listed",
        "6",
        "--blocks",
        "1",
        "--compilers",
        "1",
        "--kernels",
        "triton_gemm",
        "triton_softmax",
    ],
    "power": ["--windows", "12", "--window-s", "0.6", "--idle-s", "1", "--compilers", "1"],
    "verify": ["--finalists", "2"],
}
NOT_WHILE_MEASURING = ("xgboost", "optuna", "mlflow")
RUN = """
import os, sys, runpy
sys.path.insert(0, {folder!r})
import stage
write, written = stage.Table.append, []
def append(self, *args, **named):
    write(self, *args, **named)
    written.append(1)
    if len(written) == {kill_after}:
        self._journal.write('{{"half a li')
        self._journal.flush()
        os._exit(9)
stage.Table.append = append
import {stage}
{stage}.main(sys.argv[1:])
heavy = [name for name in {heavy!r} if name in sys.modules]
assert not heavy, heavy
print("rows written:", len(written))
"""


def run(stage: str, out: Path, kill_after: int = -1, *more: str) -> subprocess.CompletedProcess:
    """Run a stage in a process of its own; it may kill itself in the middle of a row."""
    code = RUN.format(
        folder=str(FOLDER), stage=stage, kill_after=kill_after, heavy=NOT_WHILE_MEASURING
    )
    command = [sys.executable, "-P", "-W", "ignore", "-c", code, "--out", str(out), "--replay"]
    return subprocess.run(
        [*command, *TINY[stage], *more], env=ENVIRONMENT, capture_output=True, text=True
    )


def finish(stage: str, out: Path, *more: str) -> int:
    """Run a stage to its end; return how many rows it has written."""
    done = run(stage, out, -1, *more)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.rpartition("rows written:")[2])


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[Path, pd.DataFrame]:
    """A folder in which a sweep was killed twice, and what could be read of it then."""
    out = tmp_path_factory.mktemp("stages")
    assert run("sweep", out, 5).returncode == 9
    assert run("sweep", out, 11).returncode == 9
    return out, read_runs(out / "sweep.parquet")


@pytest.fixture(scope="module")
def finished(killed) -> Path:
    """A folder in which all stages have run; power was killed as well."""
    out, early = killed
    assert len(early) == 16
    finish("probe", out)
    finish("sweep", out)
    assert run("power", out, 4).returncode == 9
    finish("power", out)
    finish("verify", out)
    return out


def measured(runs: pd.DataFrame) -> list[tuple]:
    """Return what tells rows apart."""
    repeats = runs["counter.repeat"].astype(int)
    rows = zip(to_measurements(runs), repeats, strict=True)
    return [(m.kernel, m.problem, m.config, repeat) for m, repeat in rows]


@pytest.mark.parametrize("stage", ["sweep", "power", "verify"])
def test_stage_second_run_measures_nothing(finished, stage):
    before = read_runs(finished / f"{stage}.parquet")
    assert finish(stage, finished) == 0
    pd.testing.assert_frame_equal(read_runs(finished / f"{stage}.parquet"), before)


@pytest.mark.parametrize("stage", ["sweep", "power", "verify"])
def test_stage_measures_no_row_twice(finished, stage):
    runs = read_runs(finished / f"{stage}.parquet")
    assert len(set(measured(runs))) == len(runs)
    assert not journal_path(finished / f"{stage}.parquet").exists()


def test_sweep_killed_keeps_its_rows(killed, finished):
    early = killed[1]
    runs = read_runs(finished / "sweep.parquet")
    assert runs["time_ms"].tolist()[:16] == early["time_ms"].tolist()
    assert measured(runs)[:16] == measured(early)


def test_power_killed_before_journal_is_removed_has_no_row_twice(tmp_path):
    """Power is metered without a sweep, too."""
    path = tmp_path / "power.parquet"
    assert run("power", tmp_path, 4).returncode == 9
    journal = journal_path(path).read_bytes()
    finish("power", tmp_path)
    rows = len(read_runs(path))
    journal_path(path).write_bytes(journal)
    assert finish("power", tmp_path) == 0
    assert len(read_runs(path)) == rows == 12 + 2 + 1


def test_sweep_has_whole_lists_of_every_problem(finished):
    runs = read_runs(finished / "sweep.parquet")
    assert set(runs["kernel"]) == {"triton_gemm", "triton_softmax"}
    assert (runs["status"] == "ok").all()
    assert runs["counter.sm_clock_mhz"].notna().all()
    assert runs["device.memory_gbps"].notna().all()
    first = runs[runs["counter.repeat"] == 0]
    problems = [c for c in runs if c.startswith("problem.")]
    sizes = first.groupby(["kernel", *problems], dropna=False).size()
    assert sizes.min() >= 8
    assert len(sizes) == 4
    assert {"default", "list", "spread", "repeat"} <= set(runs["role"])
    assert (runs["role"] == "repeat").sum() == 4  # the default of every problem


def test_sweep_without_time_names_option(tmp_path):
    done = run("sweep", tmp_path, -1, "--minutes", "0")
    assert done.returncode == 0
    assert "--minutes" in done.stdout


def test_power_is_slope_of_energy_counter(finished):
    runs = read_runs(finished / "power.parquet")
    assert runs["power_w"].between(519, 521).all()  # what the replayed board takes
    launched_mj = runs["power_w"] * runs["counter.window_launch_ms"]
    assert (runs["energy_mj"] / launched_mj).between(0.999, 1.001).all()
    assert runs["counter.idle_w"].between(75, 77).all()
    assert (runs["counter.ticks"] >= 4).all()
    assert (runs["counter.throttle_reasons"] == 0).all()
    assert runs["role"].tolist()[0] == "reference"
    assert (runs["role"] == "design").sum() == 12
    assert (runs["role"] == "repeat").sum() == 2
    lines = (finished / "power-baselines.jsonl").read_text().splitlines()
    assert [json.loads(line)["what"] for line in lines] == [
        "idle",
        "spin",
    ] * 3  # before and after, and before the kill


@pytest.fixture(scope="module")
def made(finished, tmp_path_factory) -> Path:
    """A folder with the table and the card of what the stages measured."""
    folder = tmp_path_factory.mktemp("made")
    command = [str(FOLDER / "ship.py"), str(finished), "replayed", "--to", str(folder)]
    options = ["--system", "Replayed OS", "--sweep=--problems 2", "--provisional", "made up"]
    subprocess.run([sys.executable, *command, *options], env=ENVIRONMENT, check=True)
    return folder


def test_table_and_card_hold_rows_of_all_stages(made, finished):
    runs = load("replayed", made)
    of_it = card("replayed", made)
    parts = {s: read_runs(finished / f"{s}.parquet") for s in ("sweep", "power", "verify")}
    assert runs["stage"].value_counts().to_dict() == {s: len(p) for s, p in parts.items()}
    assert (of_it.device, of_it.architecture) == ("NVIDIA H200", "sm_90")
    assert of_it.specs["cores"] == 132
    assert set(of_it.kernels) == set(runs["kernel"])
    assert f"{len(parts['power'])} windows of 0." in of_it.protocol
    assert "python benchmarks/gpu/sweep.py --out runs --problems 2; python" in of_it.command
    assert (of_it.system.startswith("Replayed OS; python "), of_it.provisional) == (True, "made up")
    for stage in ("sweep", "power"):
        roles = runs["role"][runs["stage"] == stage]
        assert roles.tolist() == parts[stage]["role"].tolist()
    assert set(runs["role"][runs["stage"] == "verify"]) == {"finalist"}


def test_energy_report_compares_time_with_energy(made):
    script = (
        "import sys, energy; from foretune.datasets import load; from pathlib import Path;"
        f"print(energy.report(load('replayed', Path({str(made)!r})), 'a board', 3))"
    )
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{FOLDER}"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("a board; ")
    assert "The fastest is the most economical on " in done.stdout


def test_verify_measures_default_and_library(finished):
    runs = read_runs(finished / "verify.parquet")
    assert (runs["role"] == "default").sum() == 4
    assert (runs["role"] == "finalist").sum() == 8
    softmax = runs[runs["kernel"] == "triton_softmax"]
    assert (softmax["library"] == "torch.softmax").all()
    assert (softmax["counter.library_ms"] > 0).all()


def test_verify_without_sweep_says_to_run_it(tmp_path):
    done = run("verify", tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("run sweep.py first")


def test_probe_writes_device_descriptor(finished):
    found = json.loads((finished / "probe.json").read_text())
    assert found["device"] == "NVIDIA H200"
    assert found["missing"] == {}
    assert found["measured"]["memory_gbps"] == pytest.approx(found["specs"]["memory_gbps"])
    assert found["measured"]["fp8_gflops"] == pytest.approx(found["specs"]["fp8_gflops"])
    assert set(found["measured"]) >= {"l2_gbps", "int8_gflops", "launch_latency_us"}


@pytest.mark.parametrize("stage", list(TINY))
def test_stage_without_gpu_fails_in_one_line(stage, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", str(FOLDER / f"{stage}.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "--replay" in done.stderr


LOST = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import replay, sweep

flag = Path({out!r}) / "lost-once"
run = replay.ReplayBench.run


def lose(self, job, compiled):
    m = run(self, job, compiled)
    if len(bests) == 3 and not flag.exists():
        flag.touch()
        self.synchronize = broken
        return self.failed(job, RuntimeError("an illegal memory access was encountered"))
    bests.append(m)
    return m


def broken():
    raise RuntimeError("an illegal memory access was encountered")


bests = []
replay.ReplayBench.run = lose
if __name__ == "__main__":
    sweep.main(sys.argv[1:])
"""


def test_sweep_broken_device_continues_in_new_process(tmp_path):
    script = tmp_path / "lost.py"
    script.write_text(LOST.format(folder=str(FOLDER), out=str(tmp_path)))
    command = [sys.executable, "-W", "ignore", str(script), "--out", str(tmp_path), "--replay"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *TINY["sweep"]], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("starting again") == 1
    runs = read_runs(tmp_path / "sweep.parquet")
    failed = runs[runs["status"] != "ok"]
    assert failed.index.tolist() == [3]
    assert "illegal memory access" in failed["error"].iloc[0]
    assert len(set(measured(runs))) == len(runs) > 20


AHEAD = """
import sys
import triton
from bench import Bench
from compiling import Compiled, compile_in_process, compiled_ahead, processes
from design import kernels
from stage import Job

import torch
from replay_driver import ReplayDriver


def crash(job):
    if job.role == "crashes":
        import os
        os._exit(11)
    return compile_in_process(job)


def files():
    return sorted(Path(triton.knobs.cache.dir).rglob("*.cubin"))


if __name__ == "__main__":
    from pathlib import Path

    gemm, softmax = (k for k in kernels() if k.name in ("triton_gemm", "triton_softmax"))
    of = gemm.problem(M=32, N=64, K=64, layout="nn")
    small = softmax.problem(R=4, C=64)
    wrong = {**gemm.default(of), "BLOCK_K": 48}
    jobs = [
        Job(gemm, of, gemm.default(of), "default"),
        Job(gemm, of, wrong, "fails"),
        Job(softmax, small, softmax.default(small), "crashes"),
        Job(softmax, small, softmax.default(small), "default"),
    ]
    came = [(j.role, c) for j, c in compiled_ahead(processes("NVIDIA H200"), crash, jobs, 1)]
    assert [role for role, c in came] == ["default", "fails", "crashes", "default"]
    assert came[0][1].seconds > 0 and not came[0][1].error, came
    assert "power of" in came[1][1].error, came
    assert came[2][1].error == "the compiler crashed", came
    assert came[3][1].seconds > 0, came
    before = files()
    assert len(before) == 2, before
    real = {n: torch.zeros(v.shape, dtype=v.dtype) for n, v in gemm.inputs_without_data(of).items()}
    with ReplayDriver(lambda launch: 1.0, compile=True).active() as driver:
        gemm.build(of, jobs[0].config, real)
        softmax.build(small, jobs[3].config, {"x": torch.zeros(4, 64, dtype=torch.float16)})
        assert len(driver.launches) == 2
    assert files() == before, "compiled again for what is launched"
"""


def test_compiling_ahead_fills_cache_of_launching_process(tmp_path):
    script = tmp_path / "ahead.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\n{AHEAD}")
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "more", "right"),
    [
        ("known_gains", ["--minutes", "0.2"], "False wins: 0 of 192"),
        ("smoke", ["--items", "2", "2b", "3", "7"], "a second process finds the choices | PASS"),
    ],
)
def test_gpu_script_replayed_runs_to_its_end(script, more, right, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}
    out = str(tmp_path / "rows.jsonl")
    command = [sys.executable, "-W", "ignore", str(FOLDER / f"{script}.py"), "--out", out, *more]
    replay = subprocess.run([*command, "--replay"], env=environment, capture_output=True, text=True)
    assert replay.returncode == 0, replay.stderr
    assert right in " ".join(replay.stdout.split())
    assert "FAIL" not in replay.stdout
    again = subprocess.run(
        [*command, "--minutes", "0"], env=environment, capture_output=True, text=True
    )
    assert again.stdout == replay.stdout
    without = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert without.returncode == 1
    assert "--replay" in without.stderr
