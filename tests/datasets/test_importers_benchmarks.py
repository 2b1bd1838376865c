"""Results of benchmarks and profilers: summaries of nsys and rocprof, Google Benchmark, TVM, …"""

import json

import pytest

from foretune.datasets import import_runs
from foretune.errors import RunTableError

GPU = "NVIDIA H200"


def imported(tmp_path, format, text, name="results.csv", **options):
    path = tmp_path / name
    path.write_text(text)
    return import_runs(path, format, device=GPU, **options).runs


def test_nsys_takes_the_median_in_its_unit(tmp_path):
    text = (
        "Time (%),Total Time (us),Instances,Avg (us),Med (us),Name\n"
        '60.0,2500,2,1250.5,1200.0,"void gemm<float>(float*, int)"\n'
    )
    row = imported(tmp_path, "nsys", text).iloc[0]
    assert (row["kernel"], row["time_ms"], row["counter.launches"]) == ("gemm", 1.2, 2)
    assert row["config.implementation"] == "void gemm<float>(float*, int)"


def test_rocprof_takes_the_mean(tmp_path):
    header = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
    text = f'{header}"k.kd",10,12500000,1250000,6.5\n'
    row = imported(tmp_path, "rocprof", text).iloc[0]
    assert (row["kernel"], row["time_ms"]) == ("k", 1.25)


GOOGLE_BENCHMARK = (
    "name,iterations,real_time,cpu_time,time_unit,label,error_occurred,error_message\n"
    '"BM_Gemm/64/batch:8",1000,123.5,1.0,us,,,\n"BM_Gemm/128/batch:8/real_time",10,1.5,1,ms,,,\n'
    '"BM_Gemm/64/batch:8_mean",1000,999,1.0,us,,,\n"BM_Gemm/1/batch:8",,,,,,true,"too small"\n'
)


def test_google_benchmark_has_a_unit_for_each_row(tmp_path):
    runs = imported(tmp_path, "google-benchmark", GOOGLE_BENCHMARK)
    assert runs["kernel"].tolist() == ["BM_Gemm"] * 3
    assert runs["problem.arg_0"].tolist() == [64, 128, 1]
    assert runs["problem.batch"].tolist() == [8, 8, 8]
    assert runs["time_ms"].tolist()[:2] == pytest.approx([0.1235, 1.5])
    assert runs["status"].tolist() == ["ok", "ok", "runtime_error"]
    assert runs["error"].tolist()[2] == "too small"


def test_google_benchmark_writes_json(tmp_path):
    run = {"name": "BM/8", "run_type": "iteration", "real_time": 2.5, "time_unit": "ns"}
    mean = {**run, "name": "BM/8_mean", "run_type": "aggregate"}
    text = json.dumps({"context": {}, "benchmarks": [run, mean]})
    runs = imported(tmp_path, "google-benchmark", text, "results.json")
    assert runs["time_ms"].tolist() == pytest.approx([2.5e-6])
    text = text.replace('"ns"', '"cycles"')
    with pytest.raises(RunTableError, match="has the time unit 'cycles'"):
        imported(tmp_path, "google-benchmark", text, "results.json")


LLAMA = {"model_type": "llama 7B Q4_0", "n_prompt": 512, "n_gen": 0, "n_batch": 2048}


@pytest.mark.parametrize("layout", ["list", "lines", "one"])
def test_llama_bench_takes_the_mean(tmp_path, layout):
    tests = [{**LLAMA, "avg_ns": ns, "samples_ns": [ns]} for ns in (45_000_000, 50_000_000)]
    text = {
        "list": json.dumps(tests, indent=1),
        "lines": "\n".join(map(json.dumps, tests)),
        "one": json.dumps(tests[0], indent=1),
    }[layout]
    runs = imported(tmp_path, "llama-bench", text, "results.jsonl")
    assert runs["time_ms"].tolist() == pytest.approx([45.0, 50.0][: len(runs)])
    assert len(runs) == (1 if layout == "one" else 2)
    assert runs["problem.n_prompt"][0] == 512
    assert runs["config.n_batch"][0] == 2048


CLBLAST = {
    "kernel_family": "xgemm",
    "kernel": "xgemm_1",
    "device": "GeForce RTX 2080",
    "precision": "32",
    "arg_m": "1024",
    "parameter_names": ["MWG", "NWG"],
}


@pytest.mark.parametrize("parameters", [{"MWG": 64, "NWG": 32}, [64, 32]])
def test_clblast_reads_results_and_the_database(tmp_path, parameters):
    section = {**CLBLAST, "results": [{"time": "1.25", "parameters": parameters}]}
    for data in (section, {"sections": [section]}):
        row = imported(tmp_path, "clblast", json.dumps(data), "results.json").iloc[0]
        assert (row["kernel"], row["time_ms"], row["problem.m"]) == ("xgemm_1", 1.25, 1024)
        assert (row["config.MWG"], row["config.NWG"]) == (64, 32)


def test_tvm_reads_records_of_both_schedulers(tmp_path):
    ansor = {
        "i": [['["matmul", 64]', "cuda", [8]], [[], [["SP", 2]]]],
        "r": [[0.0012, 0.0013], 0, 1.2, 1700000000],
        "v": "v0.6",
    }
    failed = {**ansor, "r": [[1e10], 2, 1.2, 1700000000]}
    autotvm = {
        "input": ["cuda", "dense", [["TENSOR", [1, 64], "float32"]], {}],
        "config": {"index": 7, "entity": [["tile_x", "sp", [-1, 4]], ["unroll", "ot", 16]]},
        "result": [[0.002], 0, 1.0, 1700000000],
    }
    text = "\n".join(map(json.dumps, (ansor, failed, autotvm)))
    runs = imported(tmp_path, "tvm", text, "records.json")
    assert runs["kernel"].tolist() == ["matmul", "matmul", "dense"]
    assert runs["status"].tolist() == ["ok", "compile_error", "ok"]
    assert runs["time_ms"].dropna().tolist() == pytest.approx([1.25, 2.0])
    assert runs["config.unroll"].tolist()[2] == 16
    assert runs["problem.arg_0"].astype(str).tolist()[0] == "64"
