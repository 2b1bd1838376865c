"""What is no table of runs is refused by the name of the tool that wrote it."""

import sqlite3
from contextlib import closing

import pytest

from foretune.datasets.importers.files import read_table
from foretune.errors import RunTableError

NCU_HEADER = '"ID","Process ID","Kernel Name","Device","gpu__time_duration.sum"'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "Run on 8 CPUs\nBenchmark    Time   CPU  Iterations\nBM_A  1 ns  1 ns  5\n",
            "--benchmark_out",
        ),
        (
            "    Metric Name   Metric Unit Metric Value\n    Duration   us   12.34\n",
            "run it with --csv",
        ),
        ("==12== NVPROF is profiling process 12\nType,Time\nGPU,1\n", "nvprof"),
        (" Performance counter stats for './a':\n\n  1,234 cycles\n", "perf stat"),
        ("  Problem ID: 1\n\n    Provider: CUTLASS\n", "--output=FILE.csv"),
        ("Benchmark 1: ./a\n  Time (mean ± σ):  1.2 ms ± 0.1 ms\n", "--export-csv"),
        ("| model | size | t/s |\n| --- | --- | --- |\n| llama | 1 GiB | 2.5 ± 0.1 |\n", "-o json"),
        ("CREATE TABLE IF NOT EXISTS test (\n  a TEXT\n);\n", "SQL"),
        ("404: Not Found", "message of a server"),
        ("Traceback (most recent call last):\n  File a\n", "Python program that failed"),
        (f"==PROF== Connected\n{NCU_HEADER}\n", "--format ncu"),
        ("GEMM of May,,\n,,\nM,N,time_ms\n64,64,1.5\n", "names no columns"),
        ('M,time_ms\n"64,1.5\n128,2.5\n', "not closed"),
        ('{"median_ttft_ms": 1.0, "rates": [1]}', "plan --calibrate"),
        ('{"1": {"BLOCK_SIZE_M": 16}, "4": {"BLOCK_SIZE_M": 32}}', "no times"),
        ('{"message": "Not Found", "documentation_url": "https://docs"}', "GitHub"),
        ("0.52,msec,task-clock,520000,100.00,0.9,CPUs utilized\n", "perf stat -x"),
        ("| N | Samples | CPU Time | Noise | GPU Time |\n|---|---|---|---|---|\n", "NVBench"),
        ("\\begin{tabular}{ll}\nN & time_ms\n", "LaTeX"),
        ('{"counter-value": "0.5", "unit": "msec", "event": "task-clock"}', "perf stat -j"),
        ('[{"frame": {"name": "ROOT"}, "metrics": {}, "children": []}, {"CUDA": {}}]', "Proton"),
        ('{"devices": [{"id": 0}], "benchmarks": [{"name": "copy"}]}', "--format nvbench"),
        ('{"Metadata": {"TimeUnit": "Microseconds"}, "Results": [{"Status": "Ok"}]}', "KTT"),
    ],
)
def test_read_table_names_what_is_no_table(tmp_path, text, named):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunTableError, match=named):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("gemm.ncu-rep", b"NVR\0", "ncu --import"),
        ("gemm.nsys-rep", b"\0\1", "nsys export"),
        ("timer.pkl", b"\x80\x04\x95", "pickle"),
        ("times.npy", b"\x93NUMPY\x01", "NumPy"),
        ("runs.tar", b"a" * 257 + b"ustar\0", "tar archive"),
        ("runs.mat", b"MATLAB 5.0 MAT-file", "writetable"),
        ("runs.rds", b"\x1f\x8b\x08", "write.csv"),
        ("runs.RData", b"RDX3\n", "write.csv"),
        ("runs.feather", b"FEA1", "as Parquet"),
        ("vector.hatchet", b"[]", "do_bench"),
    ],
)
def test_read_table_names_binary_files(tmp_path, name, content, named):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(RunTableError, match=named):
        read_table(path)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("tuning_run", "OpenTuner"),
        ("rocpd_kernel_dispatch_0001", "--output-format csv"),
        ("studies", "--format optuna"),
        ("experiment_tags", "mlflow.search_runs"),
        ("anything", "with the tables anything: save one as CSV, like sqlite3 -header"),
    ],
)
def test_read_table_names_databases(tmp_path, table, named):
    path = tmp_path / "results.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE {table} (id INTEGER)")
        database.commit()
    with pytest.raises(RunTableError, match=named):
        read_table(path)
