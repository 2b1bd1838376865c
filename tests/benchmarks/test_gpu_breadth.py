"""The stages `breadth` and `tf32` of benchmarks/gpu: kernels are right and compile."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_stage_code import interpreted_kernels, killed_stage

from foretune.datasets import read_runs, to_measurements
from foretune.datasets.journal import journal_path
from foretune.device import find_device
from foretune.errors import ForetuneError
from foretune.measurement import Measurement, Status

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "gpu"
H200 = find_device("NVIDIA H200")
KERNELS = 24
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}

REPLAY_FOLDER = ROOT / "tests" / "replay_gpu"
for folder in (FOLDER, REPLAY_FOLDER):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@pytest.fixture(autouse=True)
def _fusion_is_set(monkeypatch):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a script of the folder, or code."""
    start = [str(FOLDER / script)] if script.endswith(".py") else ["-c", script]
    command = [sys.executable, "-W", "ignore", *start, *arguments]
    everything = {**ENVIRONMENT, **environment}
    return subprocess.run(command, env=everything, capture_output=True, text=True)


def printed(script: str, *arguments: str, **environment: str) -> str:
    """Return what a run that succeeds prints."""
    done = run(script, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cases():
    import breadth

    return breadth.all_cases()


@pytest.fixture(scope="module")
def replayed(tmp_path_factory) -> Path:
    """A folder with short lists of one problem per kernel; the stage was killed once."""
    out = tmp_path_factory.mktemp("breadth")
    small = ("--replay", "--out", str(out), "--listed", "12", "--problems", "1")
    killed = run(killed_stage(FOLDER, "breadth", 40), *small)
    assert killed.returncode == 9, killed.stderr
    assert len(read_runs(out / "breadth.parquet")) == 40
    printed("breadth.py", *small)
    return out


def test_breadth_kernels_interpreted_agree_with_their_references():
    lines = printed(
        interpreted_kernels(FOLDER, "breadth", "all_cases"),
        TRITON_INTERPRET="1",
        CUDA_VISIBLE_DEVICES="",
    )
    results = [json.loads(line) for line in lines.splitlines()]
    wrong = [result for result in results if not result[2] <= result[3]]
    assert not wrong
    assert len({name for name, *_ in results}) == KERNELS
    assert len(results) == 2 * KERNELS


def test_breadth_defaults_compile_for_hopper(tmp_path):
    first = ("--listed", "1", "--problems", "1", "--compilers", "1")
    text = printed("breadth.py", "--compile-for", H200.name, *first, TRITON_CACHE_DIR=str(tmp_path))
    assert "NVIDIA H200, sm_90" in text
    assert f"the default of {KERNELS} of {KERNELS} kernels does" in text


def test_breadth_compile_report_counts_refused_programs(tmp_path):
    """Triton has no fp8 with four bits of exponent for Ampere."""
    few = ("--listed", "1", "--problems", "1", "--compilers", "1", "--cases", "GEMM fp8", "SwiGLU")
    ampere = "NVIDIA A100-SXM4-80GB"
    text = printed("breadth.py", "--compile-for", ampere, *few, TRITON_CACHE_DIR=str(tmp_path))
    assert "1 of 2 compile; the default of 1 of 2 kernels does" in text


def test_breadth_problems_are_below_and_above_a_wave(cases):
    cores = H200.specs["cores"]
    for case in cases:
        waves = []
        for problem in case.problems:
            inputs = case.kernel.inputs_without_data(problem)
            launches, _ = case.kernel.launches(problem, case.default, inputs)
            waves.append(math.prod(launches[0].grid) / cores)
        assert max(waves[:2]) < 1 < min(waves[2:]), (case.name, waves)
        assert len(set(case.problems)) == 5


def test_breadth_lists_are_whole_products_evenly_thinned(cases):
    for case in cases:
        assert case.listed[0] == case.default
        assert len(set(case.listed)) == 48
        for name, values in (("num_warps", {2, 4, 8, 16}), ("num_stages", {1, 2, 3, 4, 5})):
            counts = [sum(c[name] == value for c in case.listed) for value in values]
            assert min(counts) >= 6, (case.name, name, counts)
        for name, values in case.tiles.items():
            assert {config[name] for config in case.listed} >= set(values)


def test_evenly_drawn_short_product_is_whole():
    from breadth_kernel import evenly_drawn

    knobs = {"a": (1, 2, 3), "b": (4, 5)}
    assert len(set(evenly_drawn(knobs, 48))) == 6
    assert len(set(evenly_drawn(knobs, 6))) == 6
    assert len(set(evenly_drawn(knobs, 5))) == 5
    assert evenly_drawn(knobs, 5) == evenly_drawn(knobs, 5)


def test_breadth_table_has_whole_lists_and_repeats(replayed):
    runs = read_runs(replayed / "breadth.parquet")
    assert not journal_path(replayed / "breadth.parquet").exists()
    assert (runs["status"] == "ok").all(), runs["error"].tolist()
    assert runs["role"].value_counts().to_dict() == {
        "list": 11 * KERNELS,
        "default": KERNELS,
        "repeat": 2 * KERNELS,
    }
    assert runs["case"].nunique() == KERNELS
    repeats = runs["counter.repeat"].astype(int)
    rows = zip(to_measurements(runs), repeats, strict=True)
    keys = {(m.kernel, m.problem, m.config, repeat) for m, repeat in rows}
    assert len(keys) == len(runs)
    again = printed(
        "breadth.py", "--replay", "--out", str(replayed), "--listed", "12", "--problems", "1"
    )
    assert again.startswith("0 rows in")


def test_breadth_cut_off_has_rows_of_every_kernel(cases):
    """The first round is one problem of each, in turns."""
    import argparse

    from breadth import CHUNK, jobs

    options = argparse.Namespace(listed=48, problems=5)
    planned = list(jobs(cases, options, set()))
    first = planned[: CHUNK * KERNELS]
    assert len({case.name for case, _ in first}) == KERNELS
    assert len(planned) == 5 * KERNELS * (48 + 5)
    left = list(jobs(cases, options, {job.key for _, job in first}))
    assert left == planned[len(first) :]


def test_recorded_gpu_reads_lists_of_breadth(replayed):
    import recorded_tables
    from recorded_lists import ListedProblem

    lists = recorded_tables.read(replayed / "breadth.parquet")
    problems = [
        ListedProblem.of(recorded) for of_kernel in lists.values() for recorded in of_kernel
    ]
    products = {problem.kernel for problem in problems if problem.launches}
    rows = {problem.kernel for problem in problems if problem.elements}
    assert {"triton_gemm", "triton_attention_dq", "triton_chunk_state"} <= products
    assert {"triton_cross_entropy", "triton_swiglu", "triton_selective_scan"} <= rows
    # Of the 24 cases, three are of one kernel.
    assert len(products) + len(rows) == KERNELS - 2
    gemm = [problem for problem in problems if problem.kernel == "triton_gemm"]
    split = [problem for problem in gemm if "SPLIT_K" in problem.configs[0]]
    assert (len(gemm), len(split)) == (3, 1)
    for config, launch in zip(split[0].configs, split[0].launches, strict=True):
        share_of_sum = launch.size_k / int(config["SPLIT_K"])
        assert launch.steps == math.ceil(share_of_sum / int(config["BLOCK_K"]))
        assert launch.size_k == 8192  # of the case's third problem, the first of a short run
    assert {problem.device.name for problem in problems} == {"NVIDIA H200"}


@pytest.fixture(scope="module")
def lists(replayed):
    """The lists of the replayed table, as the commands after a run keep them."""
    from recorded_lists import read_lists

    return list(read_lists([replayed / "breadth.parquet"], problems=1))


def test_shipped_table_of_breadth_has_the_same_lists(replayed, lists, tmp_path):
    from recorded_lists import read_lists

    ship = ("--system", "Linux, replayed", "--to", str(tmp_path), "--breadth=--listed 12")
    printed("ship.py", str(replayed), "nvidia-h200", *ship)
    card = json.loads((tmp_path / "nvidia-h200.json").read_text())
    assert "breadth.py --out runs --listed 12" in card["command"]
    assert "Rows of stage breadth are whole lists" in card["protocol"]
    assert len(card["kernels"]) == KERNELS - 2
    shipped = list(read_lists([tmp_path / "nvidia-h200.parquet"], problems=1))
    times = {problems.kernel: problems.problems[0].time_ms.tolist() for problems in lists}
    of_shipped = {problems.kernel: problems.problems[0].time_ms.tolist() for problems in shipped}
    assert of_shipped == times


def test_orders_learned_without_a_table_have_none_of_its_lists(lists):
    from dataclasses import replace

    from recorded_left_out import teaching

    older = [replace(problems, table="older.parquet") for problems in lists[:3]]
    assert teaching([*older, *lists], []) == [*older, *lists]
    assert teaching([*older, *lists], ["runs/breadth.parquet"]) == older
    with pytest.raises(ForetuneError, match="did you mean 'breadth"):
        teaching(lists, ["bredth.parquet"])
    with pytest.raises(ForetuneError, match="no table is left to learn from"):
        teaching(lists, ["breadth.parquet"])


def test_kept_lists_of_other_tables_are_refused(lists, replayed, tmp_path):
    import pickle

    from recorded_lists import read_or_load

    table = replayed / "breadth.parquet"
    kept = tmp_path / "lists.pickle"
    kept.write_bytes(pickle.dumps(lists))
    assert len(read_or_load(kept, [table], 1)) == len(lists)
    assert len(read_or_load(kept, [], 1)) == len(lists)
    with pytest.raises(ForetuneError, match=r"has lists of breadth\.parquet, not of mm\.parquet"):
        read_or_load(kept, [tmp_path / "mm.parquet"], 1)
    os.utime(kept, (0, 0))
    with pytest.raises(ForetuneError, match=r"breadth\.parquet is newer than"):
        read_or_load(kept, [table], 1)


def test_breadth_unknown_case_is_named():
    done = run("breadth.py", "--compile-for", H200.name, "--cases", "GEMM fp4")
    assert done.returncode == 1
    assert done.stderr.startswith("no case is called 'GEMM fp4': choose from GEMM fp16")


@pytest.mark.parametrize("script", ["breadth.py", "tf32.py"])
def test_new_stage_without_gpu_fails_in_one_line(script, tmp_path):
    done = run(script, "--out", str(tmp_path), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "--replay" in done.stderr


@pytest.mark.parametrize("script", ["breadth.py", "tf32.py"])
def test_new_stage_without_time_and_table_says_so(script, tmp_path):
    done = run(script, "--out", str(tmp_path), "--minutes", "0")
    assert done.returncode == 1
    assert done.stderr.startswith(f"there is no table {tmp_path}")


def test_breadth_prints_its_table_without_a_gpu_and_changes_no_file(replayed):
    path = replayed / "breadth.parquet"
    before = path.read_bytes()
    options = ("--out", str(replayed), "--listed", "12", "--problems", "1")
    text = printed("breadth.py", *options, "--minutes", "0", CUDA_VISIBLE_DEVICES="")
    assert text.startswith("NVIDIA H200; replay, made-up numbers")
    assert text.count("| 14   | 0      | 0     | 1 ") == KERNELS
    assert path.read_bytes() == before
    assert sorted(file.name for file in replayed.iterdir()) == ["breadth.parquet"]


def test_tf32_replayed_prints_every_layout(tmp_path):
    text = printed("tf32.py", "--replay", "--out", str(tmp_path), "--sizes", "2048")
    for layout in ("nn", "nt (K-major)", "tn", "tt"):
        assert text.count(f"| {layout} ") == 1
    runs = read_runs(tmp_path / "tf32.parquet")
    assert runs["problem.precision"].value_counts().to_dict() == {"tf32": 144, "ieee": 72}


def tf32_rows(layout: str, large_tiles_ms: float) -> list[Measurement]:
    """Return a list on which the tiles in question take ``large_tiles_ms``, and others 1 ms."""
    import tf32

    kernel = tf32.Tf32Gemm()
    problem = kernel.problem(M=2048, N=2048, K=2048, layout=layout)
    return [
        Measurement(
            kernel.name,
            problem,
            config,
            H200.name,
            Status.OK,
            time_ms=large_tiles_ms if tf32._is_asynchronous(config) else 1.0,
        )
        for config in tf32.listed("tf32")
    ]


@pytest.mark.parametrize(
    ("layout", "expected_ms", "other_ms"), [("nt", 0.4, 2.5), ("nn", 2.5, 0.4)]
)
def test_tf32_says_whether_the_rule_holds(layout, expected_ms, other_ms):
    """Foretune's order has large tiles first only where both operands are contiguous along K."""
    import tf32
    from replay_driver import ReplayDriver

    kernel = tf32.Tf32Gemm()
    as_expected = tf32_rows(layout, expected_ms)
    otherwise = tf32_rows(layout, other_ms)
    with ReplayDriver(lambda launch: 1.0, device=H200.name).active():
        assert tf32.first_share(kernel, as_expected, H200, first=1) == 1.0
        assert tf32.first_share(kernel, otherwise, H200, first=1) < tf32.GOAL
        assert tf32.first_share(kernel, otherwise, H200, first=len(otherwise)) == 1.0
    assert tf32.rule_holds(layout, as_expected)
    assert not tf32.rule_holds(layout, otherwise)
