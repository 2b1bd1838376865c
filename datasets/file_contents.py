"""What a file holds, told by its content: its name may say otherwise."""

import json
from typing import Any

PARQUET = b"PAR1"
"""First bytes of a Parquet file."""

SQLITE = b"SQLite format 3\0"
"""First bytes of an SQLite database."""

_LFS = b"version https://git-lfs.github.com/spec/"

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
    b"%PDF": "a PDF document: save the table as CSV",
}
"""First bytes -> what the file is, and what to do."""

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
    ("sections",): "tuning results of CLBlast: give --format clblast",
    ("kernel_family", "results"): "tuning results of CLBlast: give --format clblast",
}
"""Keys of a JSON object -> what the file is."""

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
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    is_list = start[:1] == b"[" and start[1:].lstrip()[:1] in (b"{", b"[", b"]")
    if start[:1] == b"{" or is_list:
        raise ValueError(f"it is {_json_kind(start)}")
    if start[:1] == b"<":
        raise ValueError("it is HTML or XML: save the table as CSV")


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


def _json_kind(start: bytes) -> str:
    """Return what a file of JSON is: known records by their keys."""
    try:
        text = start.decode("utf-8")
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return f"damaged JSON: {_CONVERT}"
    if tool := json_tool(value):
        return tool
    is_lines = bool(text[end:].strip())
    return f"{'JSON lines' if is_lines else 'JSON'}: {_CONVERT}"
