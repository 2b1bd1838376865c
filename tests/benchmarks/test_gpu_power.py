"""The stage `power` of benchmarks/gpu after a short `breadth`, and the report of its windows."""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from gpu_stage_code import killed_stage

from foretune.datasets import read_runs, write_runs
from foretune.datasets.journal import journal_path
from foretune.errors import ForetuneError

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
FOLDER = BENCHMARKS / "gpu"
KERNELS = ("triton_gemm", "triton_attention", "triton_norm", "triton_quantized_gemm")
CASES = ("GEMM fp16", "GEMM fp8", "attention forward", "rms norm forward", "GEMM int4 weights")
CONFIGURATIONS = 24
SHORT_WINDOWS = ("--window-s", "0.5", "--warm-s", "0.2", "--idle-s", "0.3", "--compilers", "1")
POWER = ("--kernels", *KERNELS, "--windows", str(CONFIGURATIONS), "--repeated", "1")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}

for folder in (FOLDER, BENCHMARKS, ROOT / "tests" / "replay_gpu"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a script of the benchmarks, or code."""
    start = [str(BENCHMARKS / script)] if script.endswith(".py") else ["-c", script]
    command = [sys.executable, "-W", "ignore", *start, *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


def printed(script: str, *arguments: str) -> str:
    """Return what a run that succeeds prints."""
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def planned(out: Path, **changed) -> list:
    """Return the plan of a run."""
    from power import plan
    from replay import ReplayBench

    options = {"kernels": list(KERNELS), "windows": 60, "problems": 8, "repeated": 1.0}
    return plan(argparse.Namespace(out=out, **(options | changed)), ReplayBench())


@pytest.fixture(scope="module")
def metered(tmp_path_factory) -> Path:
    """A folder with short lists of breadth, two problems each, and power, killed once."""
    out = tmp_path_factory.mktemp("power")
    replayed = ("--replay", "--out", str(out))
    printed("gpu/breadth.py", *replayed, "--listed", "12", "--problems", "2", "--cases", *CASES)
    killed = run(killed_stage(FOLDER, "power", 19), *replayed, *POWER, *SHORT_WINDOWS)
    assert killed.returncode == 9, killed.stderr
    assert len(read_runs(out / "power.parquet")) == 19
    printed("gpu/power.py", *replayed, *POWER, *SHORT_WINDOWS)
    return out


def test_power_killed_and_run_again_has_two_windows_of_everything(metered):
    from stage import labels

    runs = read_runs(metered / "power.parquet")
    assert not journal_path(metered / "power.parquet").exists()
    assert runs["role"].value_counts().to_dict() == {
        "design": CONFIGURATIONS,
        "repeat": CONFIGURATIONS,
        "reference": 3,  # before the 1st, 21st and 41st of 48 windows
    }
    config = labels(runs, "problem", "config")
    of_design = config[runs["role"] == "design"]
    of_repeats = config[runs["role"] == "repeat"]
    assert set(of_design) == set(of_repeats)
    assert len(set(of_design)) == CONFIGURATIONS
    assert runs["power_w"].between(519, 521).all()  # what the replayed board takes


def test_power_second_run_meters_nothing(metered):
    before = read_runs(metered / "power.parquet")
    printed("gpu/power.py", "--replay", "--out", str(metered), *POWER, *SHORT_WINDOWS)
    assert len(read_runs(metered / "power.parquet")) == len(before)


def test_power_chooses_fastest_and_default_of_breadth(metered):
    from stage import labels

    times = read_runs(metered / "breadth.parquet")
    power = read_runs(metered / "power.parquet")
    power = power[power["role"] == "design"]
    assert power["kernel"].value_counts().to_dict() == dict.fromkeys(KERNELS, CONFIGURATIONS // 4)
    first = times[(times["counter.repeat"] == 0) & times["kernel"].isin(KERNELS)]
    both = labels(first.reindex(columns=power.columns), "problem", "config")
    chosen = set(labels(power, "problem", "config"))
    for _, of_problem in first.groupby(labels(first, "problem")):
        fastest = of_problem["time_ms"].idxmin()
        (default,) = of_problem.index[of_problem["role"] == "default"]
        if of_problem["kernel"].iloc[0] != "triton_gemm":  # two problems, three windows each
            assert {both[fastest], both[default]} <= chosen
        else:  # four problems, six windows
            assert both[fastest] in chosen


def test_power_report_has_predictors_noise_and_goal(metered):
    """The replayed board always takes the same power."""
    text = printed("shipped_power.py", str(metered / "power.parquet"))
    table = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    rows = {cells[1]: cells for cells in table if len(cells) > 1}
    assert {*KERNELS, "all"} <= set(rows)
    column = rows["kernel"].index
    for same in ("mean power", "boosted trees", "busy shares", "second window"):
        assert rows["all"][column(same)] == "0.0"
    # GEMM alone has five rows of other problems: its four, and the reference.
    foretune = rows["triton_gemm"][column("Foretune")]
    verdict = "reached" if float(foretune) <= 6 else "missed"
    assert f"Foretune predicts 7 of 25: {foretune} %. The goal of 6 % is {verdict}." in text
    assert rows["triton_norm"][column("Foretune")] == "–"


@pytest.mark.parametrize("windows", [24, 50, 90])
def test_power_plan_cut_off_is_balanced(tmp_path, windows):
    """Kernels have equal shares, and all but the last block have both windows."""
    jobs = [job for job in planned(tmp_path)[:windows] if job.role != "reference"]
    per_kernel = Counter(job.kernel.name for job in jobs)
    assert set(per_kernel) == set(KERNELS)
    assert max(per_kernel.values()) - min(per_kernel.values()) <= 4  # at most two per block
    windows_of = Counter((job.kernel.name, job.problem, job.config) for job in jobs)
    assert sum(count == 1 for count in windows_of.values()) <= 10
    problems = {(job.kernel.name, job.problem) for job in jobs}
    assert len(problems) >= min(24, len(windows_of))


def test_power_plan_second_window_comes_ten_later(tmp_path):
    jobs = [job for job in planned(tmp_path) if job.role != "reference"]
    place = {job.key: i for i, job in enumerate(jobs)}
    apart = {place[job.key] - place[(*job.key[:3], 0)] for job in jobs if job.repeat}
    assert apart == {10}
    assert len(jobs) == 120


def test_power_plan_takes_turns_of_a_kernel_that_only_breadth_has(tmp_path):
    jobs = planned(tmp_path, kernels=["triton_swiglu", "triton_softmax"], windows=6, repeated=0.0)
    of_kernels = Counter(job.kernel.name for job in jobs if job.role == "design")
    assert of_kernels == {"triton_swiglu": 3, "triton_softmax": 3}


def test_power_plan_reads_a_journal_that_a_kill_left(metered, tmp_path):
    """As the table does: its fastest configurations come first."""
    runs = read_runs(metered / "breadth.parquet")
    from_table = planned(metered, windows=8)
    path = tmp_path / "breadth.parquet"
    lines = [json.dumps(row) for row in rows_of(runs)]
    journal_path(path).write_text("\n".join([*lines, ""]))
    from_journal = planned(tmp_path, windows=8)
    assert {job.key for job in from_journal} == {job.key for job in from_table}


def rows_of(runs) -> list[dict]:
    """Return the rows of a table as a journal has them: without what is missing."""
    rows = []
    for row in runs.to_dict("records"):
        known = {name: value for name, value in row.items() if name != "time_ms_samples"}
        rows.append({name: value for name, value in known.items() if value == value})
    return rows


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"device": "NVIDIA A100-SXM4-80GB"}, "is of NVIDIA A100-SXM4-80GB, not of NVIDIA H200"),
        ({"role": None}, "is no table of breadth.py or sweep.py"),
    ],
    ids=["other-device", "other-table"],
)
def test_power_plan_refuses_times_of_others(metered, tmp_path, changed, says):
    runs = read_runs(metered / "breadth.parquet").assign(**changed).dropna(axis=1, how="all")
    write_runs(tmp_path / "breadth.parquet", runs)
    with pytest.raises(ForetuneError, match=says):
        planned(tmp_path)


def test_power_unknown_kernel_is_named(tmp_path):
    with pytest.raises(ForetuneError, match="unknown kernel 'triton_gem': did you mean"):
        planned(tmp_path, kernels=["triton_gem"])


@pytest.mark.parametrize("share", ["2", "-0.1", "all", "nan"])
def test_power_wrong_share_is_named(tmp_path, share):
    done = run("gpu/power.py", "--replay", "--out", str(tmp_path), f"--repeated={share}")
    assert done.returncode == 2
    assert "is no share: give a number from 0 to 1" in done.stderr


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("amd-epyc-2-cores", "has no windows of power: give it a file of gpu/power.py"),
        ("nvidia-h100", "did you mean 'nvidia-h100-80gb'?"),
    ],
)
def test_power_report_without_windows_says_what_to_give(table, says):
    done = run("shipped_power.py", table)
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_power_report_of_one_problem_is_refused(metered, tmp_path):
    import shipped_power

    runs = read_runs(metered / "power.parquet")
    path = tmp_path / "one.parquet"
    runs[runs["role"] == "reference"].to_parquet(path)
    with pytest.raises(ForetuneError, match="has power of 1 problems: meter two at least"):
        shipped_power.windows_of(str(path))
