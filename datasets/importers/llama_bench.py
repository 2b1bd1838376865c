"""llama.cpp: ``llama-bench -o json``, ``-o jsonl`` or ``-o csv``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.file_contents import begins_like_json
from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, read_beginning, read_table, require
from foretune.datasets.importers.json_records import read_records
from foretune.device import canonical_name

KEYS = ("model_type", "n_prompt", "n_gen", "avg_ns")

PROBLEM = ("n_prompt", "n_gen", "n_depth")
CONFIG = (
    "n_batch",
    "n_ubatch",
    "n_threads",
    "n_gpu_layers",
    "type_k",
    "type_v",
    "flash_attn",
    "split_mode",
    "no_kv_offload",
    "use_mmap",
    "backends",
)
"""Fields that describe what was run, and how."""

_MS = 1e-6  # per nanosecond
_WHAT = "a result of llama-bench (-o json, jsonl or csv)"


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per test: the mean time of its repeats."""
    records = []
    for test in _tests(path, request):
        device = str(test.get("gpu_info") or test.get("cpu_info") or "").strip()
        samples = test.get("samples_ns")
        records.append(
            {
                "kernel": request.kernel or "llama-bench",
                "device": request.device or canonical_name(device) or request.given("device", path),
                "problem.model": str(test["model_type"]),
                **{f"problem.{name}": test[name] for name in PROBLEM if name in test},
                **{f"config.{name}": test[name] for name in CONFIG if name in test},
                "time_ms": test["avg_ns"] * _MS,
                "time_ms_samples": [s * _MS for s in samples] if samples else None,
            }
        )
    return table_from_records(
        records, {"source": f"llama-bench {path.name}", "environment": "llama.cpp"}
    )


def _tests(path: Path, request: Request) -> Iterable[Mapping[str, Any]]:
    """Return the tests of a file in JSON or CSV."""
    if begins_like_json(read_beginning(path)):
        tests: list[Mapping[str, Any]] = read_records(path, KEYS, _WHAT)
        return tests
    table = read_table(path, KEYS, dialect=request.dialect, notes=request.notes)
    require(set(table.columns), KEYS, path, _WHAT)
    rows = table.astype(object)
    return [
        {str(name): value for name, value in row.items()}
        for row in rows.where(rows.notna(), None).to_dict("records")
    ]
