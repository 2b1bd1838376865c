"""Results of benchmarks and profilers: summaries of nsys and rocprof, Google Benchmark, TVM, …"""

import json
import sqlite3
from contextlib import closing

import pytest

from foretune.datasets import import_runs
from foretune.errors import RunTableError, UsageError

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


def test_google_benchmark_writes_the_machine_above_its_table(tmp_path):
    machine = "2026-11-29T07:33:05+00:00\nRun on (2 X 2445 MHz CPU s)\nLoad Average: 1, 2, 3\n"
    runs = imported(tmp_path, "google-benchmark", machine + GOOGLE_BENCHMARK)
    assert runs["time_ms"].tolist()[:2] == pytest.approx([0.1235, 1.5])


def test_nsys_prints_what_it_processes_above_its_table(tmp_path):
    text = "Processing [x.sqlite] with [kern_sum.py]...\n\nInstances,Med (ns),Name\n2,1200000,k\n"
    assert imported(tmp_path, "nsys", text)["time_ms"].tolist() == [1.2]


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


NSYS_TRACE = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,Device,Strm,Name\n"
    "1,1250000,5,64,1,1,128,1,1,32,NVIDIA H100 80GB HBM3 (0),7,void gemm<float>(float*)\n"
    "2,5000,6,,,,,,,,NVIDIA H100 80GB HBM3 (0),7,[CUDA memcpy Host-to-Device]\n"
)


def test_nsys_trace_has_a_row_per_launch_of_a_kernel(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(NSYS_TRACE)
    (row,) = import_runs(path, "nsys").runs.to_dict("records")
    assert (row["kernel"], row["device"]) == ("gemm", "NVIDIA H100 80GB HBM3")
    assert (row["time_ms"], row["static.grid_x"], row["static.registers"]) == (1.25, 64, 32)


def test_nsys_summary_of_old_releases_has_the_total_in_its_unit(tmp_path):
    text = "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n60,2500000,2,1,1,1,k\n"
    assert imported(tmp_path, "nsys", text)["time_ms"].tolist() == [1.25]


def test_nsys_summary_of_other_things_is_refused_by_name(tmp_path):
    text = "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n60,2500000,2,1,cudaMalloc\n"
    with pytest.raises(RunTableError, match="a summary of API calls"):
        imported(tmp_path, "nsys", text)


def nsys_database(path, gpus=((0, "NVIDIA H100 80GB HBM3"),), launches=((0, 10, 1_250_010),)):
    """Write a database as ``nsys export --type sqlite`` does, with the columns that are read."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        database.execute("INSERT INTO StringIds VALUES (7, 'void gemm<float>(float*)')")
        database.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, cuDevice INTEGER)")
        database.executemany(
            "INSERT INTO TARGET_INFO_GPU VALUES (?, ?, ?)",
            [(10 + number, name, number) for number, name in gpus],
        )
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
            " demangledName INTEGER, registersPerThread INTEGER, gridX INTEGER, blockX INTEGER)"
        )
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 7, 32, 64, 128)",
            [(start, end, device) for device, start, end in launches],
        )


def test_nsys_database_has_nanoseconds_and_the_gpu(tmp_path):
    path = tmp_path / "report.sqlite"
    nsys_database(path)
    (row,) = import_runs(path, "nsys").runs.to_dict("records")
    assert (row["kernel"], row["device"]) == ("gemm", "NVIDIA H100 80GB HBM3")
    assert (row["time_ms"], row["static.grid_x"], row["static.block_x"]) == (1.25, 64, 128)


def test_nsys_database_of_two_gpus_takes_no_device(tmp_path):
    path = tmp_path / "report.sqlite"
    gpus = ((0, "NVIDIA H100 80GB HBM3"), (1, "NVIDIA L40S"))
    nsys_database(path, gpus, launches=((0, 0, 1_000_000), (1, 5, 2_000_005)))
    runs = import_runs(path, "nsys").runs
    assert dict(zip(runs["device"], runs["time_ms"], strict=True)) == {
        "NVIDIA H100 80GB HBM3": 1.0,
        "NVIDIA L40S": 2.0,
    }
    with pytest.raises(UsageError, match="leave --device out"):
        import_runs(path, "nsys", device=GPU)


def test_nsys_other_database_is_refused(tmp_path):
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE t (x)")
    with pytest.raises(RunTableError, match="has the tables CUPTI_ACTIVITY_KIND_KERNEL"):
        import_runs(path, "nsys", device=GPU)


ROCPROF_TRACES = {
    "1": (
        "Index,KernelName,lds,arch_vgpr,BeginNs,EndNs\n"
        '0,"gemm(float*) [clone .kd]",0,32,9,1250009\n'
    ),
    "2": (
        "Dispatch_ID,LDS_Per_Workgroup,Arch_VGPR,Kernel_Name,Start_Timestamp,End_Timestamp\n"
        '0,0,32,"gemm(float*) [clone .kd]",9,1250009\n'
    ),
    "3": (
        '"Kind","Dispatch_Id","Kernel_Name","Start_Timestamp","End_Timestamp","VGPR_Count"\n'
        '"KERNEL_DISPATCH",1,"gemm(float*)",9,1250009,32\n'
    ),
    "3 with counters": (
        "Dispatch_Id,Kernel_Name,VGPR_Count,Counter_Name,Counter_Value,Start_Timestamp,"
        "End_Timestamp\n1,gemm(float*),32,SQ_WAVES,4,9,1250009\n"
        "1,gemm(float*),32,SQ_INSTS,5,9,1250009\n"
    ),
}


@pytest.mark.parametrize("version", ROCPROF_TRACES)
def test_rocprof_trace_has_a_row_per_launch(tmp_path, version):
    (row,) = imported(tmp_path, "rocprof", ROCPROF_TRACES[version]).to_dict("records")
    assert (row["kernel"], row["time_ms"], row["static.registers"]) == ("gemm", 1.25, 32)
    if "Counter_Name" in ROCPROF_TRACES[version]:
        assert (row["counter.SQ_WAVES"], row["counter.SQ_INSTS"]) == (4, 5)


def test_llama_bench_writes_csv(tmp_path):
    text = "model_type,n_prompt,n_gen,n_batch,avg_ns\nllama 7B Q4_0,512,0,2048,45000000\n"
    (row,) = imported(tmp_path, "llama-bench", text).to_dict("records")
    assert (row["time_ms"], row["problem.n_prompt"], row["config.n_batch"]) == (45, 512, 2048)


@pytest.mark.parametrize(
    ("seconds", "status"), [([0.00125], "ok"), ([1e10], "runtime_error"), (None, "runtime_error")]
)
def test_tvm_reads_records_of_metaschedule(tmp_path, seconds, status):
    record = [0, [[["Tile", [1, 2]]], seconds, {"kind": "cuda"}, [["TENSOR", "float32", [64]]]]]
    text = json.dumps(record) + "\n"
    (row,) = imported(tmp_path, "tvm", text, "database_tuning_record.json").to_dict("records")
    assert (row["kernel"], row["status"]) == ("workload_0", status)
    if status == "ok":
        assert row["time_ms"] == pytest.approx(1.25)


def test_google_benchmark_that_was_skipped_is_invalid(tmp_path):
    run = {"name": "BM/8", "skipped": True, "real_time": 0.0, "time_unit": "ns"}
    text = json.dumps({"context": {}, "benchmarks": [run]})
    runs = imported(tmp_path, "google-benchmark", text, "results.json")
    assert runs["status"].tolist() == ["invalid"]


ROCPROF_SUMMARY = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'


@pytest.mark.parametrize(
    "names",
    [
        ("hipLaunchKernel", "hipMemcpy"),
        ("KERNEL_DISPATCH", "HIP_API"),
        ("MEMORY_COPY_HOST_TO_DEVICE",),
    ],
)
def test_rocprof_refuses_summaries_of_anything_but_kernels(tmp_path, names):
    text = ROCPROF_SUMMARY + "".join(f'"{name}",10,1000,100,50\n' for name in names)
    with pytest.raises(RunTableError, match="not kernels"):
        imported(tmp_path, "rocprof", text)


def test_rocprof_says_that_launches_are_on_several_gpus(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        '"Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n'
        '"Agent 4","k",1000,3000\n"Agent 5","k",1000,4000\n'
    )
    done = import_runs(path, "rocprof", device=GPU)
    assert done.runs["time_ms"].tolist() == pytest.approx([0.002, 0.003])
    assert any("2 GPUs (Agent_Id)" in note for note in done.notes)


def test_google_benchmark_reads_the_median_where_only_aggregates_are(tmp_path):
    shared = {"run_type": "aggregate", "time_unit": "us", "iterations": 3}
    rows = [
        {**shared, "name": "BM_A/8_mean", "real_time": 1.5},
        {**shared, "name": "BM_A/8_median", "real_time": 1.25},
        {**shared, "name": "BM_A/8_cv", "real_time": 0.01},
    ]
    text = json.dumps({"context": {}, "benchmarks": rows})
    row = imported(tmp_path, "google-benchmark", text, name="out.json").iloc[0]
    assert (row["kernel"], row["problem.arg_0"], row["time_ms"]) == ("BM_A", 8, 0.00125)


def test_google_benchmark_how_long_it_ran_is_no_problem(tmp_path):
    run = {"name": "BM_A/m:8/iterations:5/repeats:2", "real_time": 2.0, "time_unit": "ms"}
    text = json.dumps({"context": {}, "benchmarks": [run]})
    row = imported(tmp_path, "google-benchmark", text, name="out.json")
    assert [c for c in row if c.startswith("problem.")] == ["problem.m"]


def test_tvm_reads_the_first_format_of_autotvm_and_skips_comments(tmp_path):
    config = {"i": 5, "t": "direct", "c": None, "e": [["tile_k", "ot", 4]]}
    task = ["cuda", "dense", [["TENSOR", [1, 64], "float32"]], {}, ["dense", [1, 64]], config]
    record = {"i": task, "r": [[0.0012], 0, 1.5, 0], "v": 0.1}
    text = f"# valid\n{json.dumps(record)}\n"
    row = imported(tmp_path, "tvm", text, name="tuning.log").iloc[0]
    assert (row["kernel"], row["config.tile_k"]) == ("dense", 4)
    assert row["time_ms"] == pytest.approx(1.2)
