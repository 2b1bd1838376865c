"""What a file holds, told by its content: its name may say otherwise."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

PARQUET = b"PAR1"
"""First bytes of a Parquet file."""

SQLITE = b"SQLite format 3\0"
"""First bytes of an SQLite database."""

_LFS = b"version https://git-lfs.github.com/spec/"

_PICKLE = "a pickle, which may run code when it is read: save the table as CSV"

_BEGINNINGS = {
    SQLITE: "an SQLite database: --format optuna reads studies, --format nsys exported reports",
    PARQUET: "a Parquet file: let its name end with .parquet",
    b"\x1f\x8b": "compressed with gzip: let its name end with .gz",
    b"PK\x03\x04": "a ZIP archive or a spreadsheet: save the table as CSV",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard: unpack it first",
    b"\xfd7zXZ\0": "compressed with xz: unpack it first",
    b"BZh": "compressed with bzip2: unpack it first",
    b"\x04\x22\x4d\x18": "compressed with LZ4: unpack it first",
    b"7z\xbc\xaf": "a 7z archive: unpack it first",
    b"\xd0\xcf\x11\xe0": "a spreadsheet of Excel: save the table as CSV",
    b"\x89HDF": "an HDF5 file: save the table as CSV or Parquet",
    b"ARROW1": "an Arrow file: save the table as Parquet",
    b"\x93NUMPY": "an array of NumPy: save the table as CSV",
    **{bytes([0x80, protocol]): _PICKLE for protocol in range(2, 6)},
    b"%PDF": "a PDF document: save the table as CSV",
    b"MATLAB ": "a MAT-file of MATLAB: save the table with writetable",
    b"RDX": "a file of R: save the table with write.csv",
    b"RDA": "a file of R: save the table with write.csv",
    b"FEA1": "a Feather file: save the table as Parquet",
}
"""First bytes -> what the file is, and what to do."""

MAX_TABLES = 5
"""Tables of a database that a message names."""

_TAR_MARK = slice(257, 262)
"""Where a tar archive says ``ustar``."""

_REPORTS = {
    ".ncu-rep": "a report of Nsight Compute: write its table with ncu --import REPORT --csv",
    ".nsys-rep": "a report of Nsight Systems: export it with nsys export --type sqlite REPORT",
    ".qdrep": "a report of Nsight Systems: export it with nsys export --type sqlite REPORT",
    ".rds": "a file of R: save the table with write.csv",
    ".rdata": "a file of R: save the table with write.csv",
    ".mat": "a MAT-file of MATLAB: save the table with writetable",
    ".hatchet": "a profile of Triton's Proton, which has no sizes of runs: time every "
    "configuration with triton.testing.do_bench",
}
"""How names of profilers' reports end -> what the file is, and what to do."""

_DATABASES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "a database of nsys export: give --format nsys",
    "studies": "a database of Optuna: give --format optuna",
    "tuning_run": "a database of OpenTuner, which has pickled objects: write its results as CSV",
    "rocpd_kernel_dispatch": "a database of rocprofv3: profile with --output-format csv",
    "experiment_tags": "a database of MLflow: write the table of mlflow.search_runs() as CSV",
}
"""Beginning of a table's name -> what the SQLite database is, and what to do."""

_PRINTED = {
    r"^Benchmark\s+Time\s+CPU\s+Iterations": "what Google Benchmark prints: run it with "
    "--benchmark_out=FILE.json",
    r"^\s*Metric Name\s+Metric Unit\s+Metric Value": "what ncu prints: run it with --csv",
    r"^==\d+== (NVPROF|Profiling result)": "output of nvprof, which is not read: profile with nsys",
    r"^ *Performance counter stats for": "what perf stat prints, which has no times of runs",
    r"^[\d.,]+([,;])\w*\1(task-clock|duration_time|cpu-clock|cycles|instructions)\b": "what perf "
    "stat -x prints, which has no times of runs",
    r"^=+ Serving Benchmark Result =+": "what a serving benchmark prints: give its JSON "
    "(--save-result) to foretune plan --calibrate",
    r"^\|.*\| *Samples *\| *CPU Time *\|.*Noise": "what NVBench prints: run it with --json FILE",
    r"\\begin\{tabular": "LaTeX: save the table as CSV",
    r"\A(---\s*\n)?- \w+: ": "YAML: save the table as CSV",
    r"^# +(nThread \d+ nGpus \d+|size +count +type)": "what nccl-tests prints: save its columns "
    "size and time as CSV",
    r"^\tCommand being timed: ": "what GNU time -v prints: write the times as CSV",
    r"^ +Name +Self C(PU|UDA) %": "what torch.profiler prints: save the trace with "
    "export_chrome_trace, and give --format torch-profiler",
    r"\A<torch\.utils\.benchmark": "what torch.utils.benchmark prints: write its median as CSV",
    r"^Benchmark\S+\s+\d+\s+[\d.]+ ns/op": "what go test -bench prints: write its times as CSV",
    r"\Ashape: \(\d+, \d+\)": "what Polars prints: write the table with write_csv",
    r"^ *Problem ID: \d": "what CUTLASS's profiler prints: run it with --output=FILE.csv",
    r"^Benchmark \d+: .*\r?\n +Time \(mean": "what hyperfine prints: run it with --export-csv FILE",
    r"^-+ benchmark.*: \d+ tests": "what pytest-benchmark prints: run it with "
    "--benchmark-json=FILE",
    r"^\| *model +\|.*\| *t/s *\|": "what llama-bench prints: run it with -o json",
    r"\A\s*(CREATE TABLE|INSERT INTO|BEGIN TRANSACTION|PRAGMA) ": "SQL: load it into a database, "
    "and save the table as CSV",
    r"\A[45]\d\d: [A-Z][A-Za-z ]+\s*\Z": "the message of a server, not a file: download it again",
    r"^Traceback \(most recent call last\):": "output of a Python program that failed",
}
"""Pattern in a text -> which program printed it, and what to do: it has no table of runs."""

_JSON_RECORDS = {
    ("traceEvents",): "a chrome trace: give --format torch-profiler",
    ("tune_params", "cache"): "a cache file of Kernel Tuner: give --format kerneltuner",
    ("results", "schema_version"): "a T4 results file: give --format t4",
    ("key", "configs_timings"): "an autotuning cache of Triton: give --format triton",
    ("i", "r", "v"): "tuning records of TVM (JSON lines): give --format tvm",
    ("input", "config", "result"): "tuning records of AutoTVM (JSON lines): give --format tvm",
    ("workload", "data"): "tuning records of TVM's MetaSchedule",
    ("avg_ns", "n_prompt"): "results of llama-bench: give --format llama-bench",
    ("context", "benchmarks"): "results of Google Benchmark (JSON): give --format google-benchmark",
    ("devices", "benchmarks"): "results of NVBench: give --format nvbench",
    ("counter-value", "event"): "what perf stat -j prints, which has no times of runs",
    ("frame", "metrics", "children"): "a profile of Triton's Proton, which has no sizes of runs",
    ("sections",): "tuning results of CLBlast: give --format clblast",
    ("kernel_family", "results"): "tuning results of CLBlast: give --format clblast",
    ("Metadata", "Results"): "results of KTT in its own JSON: give --format ktt",
}
"""Keys of a JSON object -> what the file is."""

_LIKE_JSON = {
    rb"\[+[\w.-]+\]+\s*\n": "TOML: save the table as CSV",
    rb"\[?\s*\{\s*'": "a literal of Python: write it with json.dump",
}
"""Pattern of a beginning like that of JSON -> what the file is, and what to do."""

_NO_TABLES = {
    ("median_ttft_ms",): "the result of a serving benchmark: foretune plan --calibrate reads it",
    ("mean_ttft_ms",): "the result of a serving benchmark: foretune plan --calibrate reads it",
    (
        "time_to_first_token",
    ): "the report of a serving benchmark: foretune plan --calibrate reads it",
    ("result_columns", "results"): "results of asv, in seconds: write them as a CSV table",
    ("message", "documentation_url"): "a message of GitHub, not a file: download it again",
    ("quantization_config",): "the config.json of a model: foretune plan --model reads it",
    ("num_hidden_layers",): "the config.json of a model: foretune plan --model reads it",
}
"""Keys of a JSON object without a table -> what it is, and what to do."""

_CONVERT = "give --format generic for a list of objects, else write its rows as a CSV table"

_HEADERS = {
    ("Time (%)", "Total Time (ns)", "Instances"): "a summary of nsys stats (--format nsys)",
    (
        "name",
        "iterations",
        "real_time",
        "time_unit",
    ): "a result of Google Benchmark (--format google-benchmark)",
    ("Name", "Calls", "TotalDurationNs"): "a summary of rocprof --stats (--format rocprof)",
    ("Kernel_Name", "Start_Timestamp"): "a trace of rocprof (--format rocprof)",
    ("KernelName", "BeginNs"): "a trace of rocprof (--format rocprof)",
    ("Kernel Name", "Metric Name"): "output of ncu --csv (--format ncu)",
    ("ID", "Kernel Name"): "output of ncu --csv (--format ncu)",
    ("GrdX", "BlkX", "Name"): "a trace of nsys stats (--format nsys)",
    ("model_type", "n_prompt", "avg_ns"): "results of llama-bench (--format llama-bench)",
    (
        "stats.median",
        "stats.rounds",
    ): "results of pytest-benchmark, in seconds (--map time_ms=stats.median*1000)",
    (
        "rounds",
        "median",
        "iqr",
    ): "results of pytest-benchmark, in seconds (--map time_ms=median*1000)",
    ("command", "mean", "user"): "results of hyperfine, in seconds (--map time_ms=median*1000)",
    (
        "number",
        "state",
        "datetime_start",
    ): "a table of Optuna's trials, whose study says what a value is (--map time_ms=value)",
    ("median_ttft_ms",): "a result of a serving benchmark (foretune plan --calibrate)",
    (
        "Benchmark",
        "Device Name",
        "Samples",
    ): "a table of NVBench, in which columns share names: run it with --json FILE (--format "
    "nvbench)",
    (
        "training_iteration",
        "time_this_iter_s",
    ): "a table of Ray Tune, whose times are those of the trial (--map time_ms=METRIC*FACTOR)",
    (
        "timeMs",
        "averageMs",
    ): "a profile of trtexec, whose timeMs is a sum (--map time_ms=averageMs)",
    ("objective", "elapsed_sec"): "a table of ytopt, whose elapsed_sec is the time since the start "
    "(--map time_ms=objective*1000)",
}
"""Columns -> the tool that wrote the table."""


def require_real_file(data: bytes) -> None:
    """Raise ValueError if the file is a Git LFS pointer, which stands for another file."""
    if data.startswith(_LFS):
        raise ValueError("it is a Git LFS pointer: fetch the file itself (git lfs pull)")


def require_text_table(data: bytes) -> None:
    """Raise ValueError, which says what the file is, unless it may be a text table."""
    require_real_file(data)
    for beginning, what in _BEGINNINGS.items():
        if data.startswith(beginning):
            raise ValueError(f"it is {what}")
    if data[_TAR_MARK] == b"ustar":
        raise ValueError("it is a tar archive: unpack it first")
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if begins_like_json(data):
        raise ValueError(f"it is {_json_kind(start)}")
    if start[:1] == b"<" and not start.startswith(b"<torch."):
        raise ValueError("it is HTML or XML: save the table as CSV")


def begins_like_json(data: bytes) -> bool:
    """Whether a file begins like a JSON object, or like a list of objects, lists or texts."""
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    is_list = start[:1] == b"[" and start[1:].lstrip()[:1] in (b"{", b"[", b"]", b'"')
    return start[:1] == b"{" or is_list


def require_no_report(path: Path) -> None:
    """Raise ValueError, which says what to do, for a profiler's report and for a database."""
    what = _REPORTS.get(path.suffix.lower())
    if what is not None:
        raise ValueError(f"it is {what}")
    with path.open("rb") as file:
        is_database = file.read(len(SQLITE)) == SQLITE
    if is_database:
        raise ValueError(f"it is {database_tool(path) or _BEGINNINGS[SQLITE]}")


def database_tool(path: Path) -> str | None:
    """Return which tool wrote an SQLite database, or which tables it has, and what to do.

    None if it cannot be read, or has no tables.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            listed = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names = [str(name) for (name,) in listed]
    except sqlite3.Error:
        return None
    for beginning, what in _DATABASES.items():
        if any(name.startswith(beginning) for name in names):
            return what
    if not names:
        return None
    listed_names = ", ".join(names[:MAX_TABLES])
    command = f"sqlite3 -header -csv {path.name} 'SELECT * FROM {names[0]}' > {path.stem}.csv"
    return f"an SQLite database with the tables {listed_names}: save one as CSV, like {command}"


def printed_by(text: str) -> str | None:
    """Return which program printed a text for people, and what to do; None if none is known."""
    for pattern, what in _PRINTED.items():
        if re.search(pattern, text, re.MULTILINE) is not None:
            return what
    return None


def tool_of_text(text: str) -> str | None:
    """Return which tool wrote the table that begins somewhere in a text."""
    for line in text.splitlines():
        columns = {cell.strip('" ') for cell in re.split("[,;\t]", line)}
        tool = tool_of_columns(columns)
        if tool is not None:
            return tool
    return None


def tool_of_columns(columns: set[str]) -> str | None:
    """Return which tool wrote a table with these columns, if a known one did."""
    for names, what in _HEADERS.items():
        if columns.issuperset(names):
            return what
    return None


def json_tool(document: Any) -> str | None:
    """Return which tool wrote a JSON document, told by its keys or those of its first record."""
    record: Any = document[0] if isinstance(document, list) and document else document
    keys = set(record) if isinstance(record, dict) else set()
    for names, what in _JSON_RECORDS.items():
        if keys.issuperset(names):
            return what if "--format" in what else f"{what}: {_CONVERT}"
    return None


def json_without_table(document: Any) -> str | None:
    """Return what a JSON object without a table of runs is; None if it is unknown."""
    if not isinstance(document, dict):
        return None
    for names, what in _NO_TABLES.items():
        if all(name in document for name in names):
            return what
    sizes = [value for value in document.values() if isinstance(value, dict)]
    if sizes and all("BLOCK_SIZE_M" in size for size in sizes):
        return "a list of tuned configurations, which have no times"
    return None


def like_json(start: bytes) -> str | None:
    """Return what a file is that begins like JSON and is none; None if nothing is known."""
    for beginning, what in _LIKE_JSON.items():
        if re.match(beginning, start) is not None:
            return what
    return None


def _json_kind(start: bytes) -> str:
    """Return what a file of JSON is: known records by their keys."""
    try:
        text = start.decode("utf-8")
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return like_json(start) or f"damaged JSON: {_CONVERT}"
    if tool := json_tool(value):
        return tool
    is_lines = bool(text[end:].strip())
    return f"{'JSON lines' if is_lines else 'JSON'}: {_CONVERT}"
