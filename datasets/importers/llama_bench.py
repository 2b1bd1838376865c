"""llama.cpp: ``llama-bench -o json`` or ``-o jsonl``."""

from pathlib import Path

import pandas as pd

from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request
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


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per test: the mean time of its repeats."""
    records = []
    for test in read_records(path, KEYS, "a result of llama-bench"):
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
