"""Tests imports of Kernel Tuner's caches, T4 results and Triton's caches."""

import gzip
import json
import math

import pytest

from foretune.datasets import import_runs
from foretune.errors import RunTableError, UsageError

# A Kernel Tuner cache: one configuration a line, a failure in place of the time.
HEAD = """{
"schema_version": "1.0.0",
"device_name": "NVIDIA RTX A4000",
"kernel_name": "convolution_kernel",
"problem_size": [
4096,
4096
],
"tune_params_keys": [
"block_size_x",
"use_padding",
"filter_width"
],
"tune_params": {
"block_size_x": [
16,
32,
48
],
"use_padding": [
0,
1
],
"filter_width": [
15
]
},
"objective": "time",
"cache": {
"""
MEASURED = (
    '"time": 3.875, "times": [3.976, 3.774], "compile_time": 918.5, "verification_time": 0, '
    '"benchmark_time": 126.4, "GFLOP/s": 1948.2, "strategy_time": 0, "framework_time": 105.2, '
    '"nvml_power": 120.5, "nvml_energy": 0.467, "dram__bytes_read.sum": 67108864, "num_regs": 40, '
    '"timestamp": "2023-12-22 09:54:05.502007+00:00"'
)
OUTCOMES = {
    (16, 0): MEASURED,
    (32, 0): '"compile_time": 661.5, "time": "CompilationFailedConfig"',
    (32, 1): '"time": "RuntimeFailedConfig"',
    (48, 0): '"time": "InvalidConfig"',
    (48, 1): '"time": 1e20',
}
LINES = [
    f'"{x},{p},15": {{"block_size_x": {x}, "use_padding": {p}, "filter_width": 15, {outcome}}}'
    for (x, p), outcome in OUTCOMES.items()
]


def kerneltuner(tmp_path, text, name="A4000.json", **options):
    path = tmp_path / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return import_runs(path, "kerneltuner", **options)


@pytest.mark.parametrize("name", ["A4000.json", "A4000.json.gz"])
def test_kernel_tuner_cache_is_read(tmp_path, name, survives):
    done = kerneltuner(tmp_path, HEAD + ",\n".join(LINES) + "}\n}", name)
    runs = survives(done)
    assert done.rejected == {}
    statuses = ["ok", "compile_error", "runtime_error", "invalid", "runtime_error"]
    assert runs["status"].tolist() == statuses
    first = runs.iloc[0]
    assert (first["kernel"], first["device"]) == ("convolution_kernel", "NVIDIA RTX A4000")
    assert first["config.block_size_x"] == 16
    assert first["problem.filter_width"] == 15  # one value only: given, not chosen
    assert (first["problem.size_0"], first["problem.size_1"]) == (4096, 4096)
    assert (first["time_ms"], list(first["time_ms_samples"])) == (3.875, [3.976, 3.774])
    assert first["compile_s"] == pytest.approx(0.9185)
    assert (first["power_w"], first["energy_mj"]) == (120.5, pytest.approx(467))
    assert first["counter.dram__bytes_read.sum"] == 67108864
    assert first["static.registers"] == 40
    assert first["recorded_at"] == "2023-12-22T09:54:05.502007+00:00"
    assert runs["device.cores"].eq(48).all()
    assert runs["time_ms"].isna().tolist() == [False, True, True, True, True]
    assert runs["error"].tolist()[1] == "CompilationFailedConfig"
    assert not [c for c in runs if "GFLOP" in c or "framework" in c]


@pytest.mark.parametrize(
    ("tail", "rows"),
    [("\n", 2), (",\n", 2), (",\n" + LINES[2][:30], 2), (",\n" + LINES[2] + ",", 3)],
)
def test_kernel_tuner_unfinished_cache_is_read(tmp_path, tail, rows):
    done = kerneltuner(tmp_path, HEAD + ",\n".join(LINES[:2]) + tail)
    assert len(done.runs) == rows


def test_kernel_tuner_damaged_cache_is_refused(tmp_path):
    with pytest.raises(RunTableError, match="finished or not, with device_name, kernel_name"):
        kerneltuner(tmp_path, HEAD + ",\n".join(LINES[:2])[40:])


def test_kernel_tuner_given_names_replace_those_in_cache(tmp_path):
    done = kerneltuner(tmp_path, HEAD + LINES[0], kernel="convolution", device="NVIDIA L40")
    assert (done.runs["kernel"][0], done.runs["device"][0]) == ("convolution", "NVIDIA L40")


def test_kernel_tuner_problem_sizes_of_every_shape(tmp_path):
    cache = json.loads(HEAD + LINES[0] + "}}")
    for size, columns in ((100, [100]), (["n", 2], ["n", 2]), ([], [])):
        done = kerneltuner(tmp_path, json.dumps({**cache, "problem_size": size}))
        sizes = [c for c in done.runs if c.startswith("problem.size")]
        assert [done.runs[c][0] for c in sizes] == columns


def test_kernel_tuner_parameters_may_be_objects(tmp_path):
    cache = json.loads(HEAD + LINES[0] + "}}")
    cache["cache"]["16,0,15"]["block_size_x"] = {"a": 1}
    done = kerneltuner(tmp_path, json.dumps(cache))
    assert done.runs["config.block_size_x"][0] == '{"a": 1}'


def t4_result(value, unit="ms", invalidity="correct", **more):
    return {
        "timestamp": "2023-12-21 10:44:42+00:00",
        "configuration": {"block_size_x": 16, "mode": "fast"},
        "times": {"compilation": 661.5, "runtimes": [12.25, 12.5, 12.0], "framework": 53.1},
        "invalidity": invalidity,
        "correctness": 1,
        "measurements": [
            {"name": "time", "value": value, "unit": unit},
            {"name": "GFLOP/s", "value": 615.6, "unit": ""},
        ],
        "objectives": ["time"],
        **more,
    }


MILLISECONDS = {"timeunit": "milliseconds"}


def t4(tmp_path, *results, metadata=MILLISECONDS, **options):
    path = tmp_path / "t4.json"
    data = {"results": results, "schema_version": "1.0.0", "metadata": metadata}
    path.write_text(json.dumps(data))
    return import_runs(path, "t4", **options)


def test_t4_results_of_kernel_tuner(tmp_path, survives):
    failures = ("timeout", "compile", "runtime", "correctness", "constraints", "news")
    results = [t4_result("failed", invalidity=i) for i in failures]
    named = {"kernel": "convolution", "device": "NVIDIA H200"}
    done = t4(tmp_path, t4_result(12.2), *results, t4_result(12200, "us"), **named)
    runs = survives(done)
    expected = [
        "ok",
        "timeout",
        "compile_error",
        "runtime_error",
        "wrong_result",
        "invalid",
        "runtime_error",
        "ok",
    ]
    assert runs["status"].tolist() == expected
    assert runs["time_ms"].dropna().tolist() == pytest.approx([12.2, 12.2])
    assert runs["config.block_size_x"].tolist() == [16] * 8
    assert list(runs["time_ms_samples"][0]) == [12.25, 12.5, 12.0]
    assert runs["error"][6] == "news"


def test_t4_without_time_takes_median(tmp_path):
    done = t4(tmp_path, t4_result(0) | {"measurements": []}, kernel="k", device="d")
    assert done.runs["time_ms"].tolist() == [12.25]
    result = t4_result(0) | {"measurements": [], "times": {}}
    assert t4(tmp_path, result, kernel="k", device="d").rejected == {"time is not a number": 1}


@pytest.mark.parametrize(
    "result",
    [{"measurements": []}, {"measurements": [{"name": "time", "value": 1.5, "unit": ""}]}],
    ids=["runtimes", "measurement"],
)
def test_t4_time_without_a_unit_is_asked_for(tmp_path, result):
    with pytest.raises(RunTableError, match="timeunit"):
        t4(tmp_path, t4_result(0) | result, metadata={}, kernel="k", device="d")


def test_t4_time_in_another_unit_is_refused(tmp_path):
    with pytest.raises(RunTableError, match="the measurement 'time' has the unit 'gflop/s'"):
        t4(tmp_path, t4_result(12.2, "GFLOP/s"), kernel="k", device="d")


def test_t4_results_of_ktt(tmp_path, survives):
    about = {
        "autotuner": "KTT",
        "autotuner_version": "2.2.0",
        "device": "NVIDIA GeForce RTX 3090",
        "timeunit": "microseconds",
        "compute_api": "CUDA",
    }
    result = {
        "configuration": {"multiply_block_size": "32", "scale": "0.5", "on": "true", "kind": "a"},
        "correctness": 1,
        "invalidity": "correct",
        "measurements": [
            {"name": "time", "unit": "", "value": 90.656},
            {"name": "dram__sectors_read.sum", "type": "Double", "unit": "", "value": 4828.0},
        ],
        "compilation_data": {
            "global_size": {"x": 32768, "y": 1, "z": 1},
            "local_memory_size": 64,
            "registers": 12,
        },
        "times": {"compilation_time": 16215.021, "runtimes": [90.656]},
    }
    done = t4(tmp_path, result, metadata=about, kernel="add")
    row = survives(done).iloc[0]
    assert (row["device"], row["environment"]) == ("NVIDIA GeForce RTX 3090", "KTT 2.2.0")
    assert (row["time_ms"], row["compile_s"]) == pytest.approx((0.090656, 0.016215021))
    config = [row[f"config.{n}"] for n in ("multiply_block_size", "scale", "on", "kind")]
    assert config == [32, 0.5, True, "a"]
    assert (row["static.registers"], row["static.shared_bytes"]) == (12, 64)
    assert row["counter.dram__sectors_read.sum"] == 4828
    with pytest.raises(RunTableError, match="the timeunit 'fortnights', which is no time"):
        t4(tmp_path, result, metadata={**about, "timeunit": "Fortnights"}, kernel="add")


def test_t4_without_kernel_or_device_is_refused(tmp_path):
    with pytest.raises(UsageError, match="does not name its kernel: give --kernel NAME"):
        t4(tmp_path, t4_result(1.0), device="d")
    with pytest.raises(UsageError, match="does not name its device: give --device NAME"):
        t4(tmp_path, t4_result(1.0), kernel="k")


def triton(tmp_path, key, timings, name="matmul_kernel.autotune.json", **options):
    path = tmp_path / name
    path.write_text(json.dumps({"key": key, "configs_timings": timings}))
    return import_runs(path, "triton", **options)


def triton_config(warps, **kwargs):
    return {
        "kwargs": kwargs,
        "num_warps": warps,
        "num_ctas": 1,
        "num_stages": 3,
        "maxnreg": None,
        "pre_hook": None,
        "ir_override": None,
    }


TRITON_KEY = [512, 256, 128, "torch.float16", "torch.float16", True]


def test_triton_cache_is_read(tmp_path, survives):
    timings = [
        [triton_config(4, BLOCK_M=64, SPLIT=None), [0.05, 0.04, 0.06]],
        [triton_config(8, BLOCK_M=128, SPLIT=2), [math.inf, math.inf, math.inf]],
        [triton_config(8, BLOCK_M=32), 0.07],
        [triton_config(2, BLOCK_M=32), None],
    ]
    mapping = {"problem.M": "key_0", "problem.N": "key_1", "problem.K": "key_2"}
    done = triton(tmp_path, TRITON_KEY, timings, device="NVIDIA H200", mapping=mapping)
    runs = survives(done)
    assert done.rejected == {"time is not a number": 1}
    assert runs["kernel"].tolist() == ["matmul_kernel"] * 3
    assert runs["status"].tolist() == ["ok", "compile_error", "ok"]
    assert runs["time_ms"].dropna().tolist() == [0.05, 0.07]
    assert [runs[f"problem.{n}"][0] for n in ("M", "N", "K", "key_3", "key_5")] == [
        512,
        256,
        128,
        "fp16",
        True,
    ]
    assert [runs[f"config.{n}"][0] for n in ("BLOCK_M", "num_warps", "num_stages")] == [64, 4, 3]
    assert "config.maxnreg" not in runs
    assert "config.ir_override" not in runs


def test_triton_cache_without_device_or_with_wrong_mapping_is_refused(tmp_path):
    timings = [[triton_config(4, BLOCK_M=64), [0.05, 0.04, 0.06]]]
    with pytest.raises(UsageError, match="give --device"):
        triton(tmp_path, TRITON_KEY, timings)
    with pytest.raises(UsageError, match=r"--map problem\.M=M: the key has key_0, key_1"):
        triton(tmp_path, TRITON_KEY, timings, device="d", mapping={"problem.M": "M"})


def test_triton_cache_written_by_triton_is_read(tmp_path):
    triton_package = pytest.importorskip("triton")
    config = triton_package.Config({"BLOCK": 128}, num_warps=8)
    assert {"kwargs", "num_warps", "num_stages", "num_ctas"} <= set(vars(config))
    done = triton(tmp_path, [64], [[vars(config), [0.5, 0.4, 0.6]]], device="d", kernel="k")
    assert done.runs[["config.BLOCK", "config.num_warps"]].iloc[0].tolist() == [128, 8]
    assert done.kernels == {"k": 1}
