"""What AIConfigurator itself estimates for measured deployments.

Run by an interpreter that has the package ``aiconfigurator`` (``plan.py --aiconfigurator PYTHON``
does it): ``PYTHON benchmarks/plan_aiconfigurator.py TABLE.parquet ANSWERS.parquet``. It is asked as
its users ask: by the table's labels, at its newest data; measured operators first, and where it
refuses, with those borrowed from other shapes and formats (its HYBRID mode).
"""

import contextlib
import io
import logging
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import pandas as pd
from aiconfigurator.cli.api import cli_estimate
from aiconfigurator.sdk.perf_database import get_latest_database_version

MODES = ("SILICON", "HYBRID")
BUNDLED = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}
"""Names of the table -> those of the networks that the package knows without a download."""
LAYOUT = ("tp", "pp", "attention_dp", "moe_tp", "moe_ep")


def main() -> None:
    """Write the answers."""
    source, target = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    rows = pd.read_parquet(source)
    answers = [_answer(row) for row in rows.to_dict("records")]
    pd.DataFrame(answers, index=rows.index).to_parquet(target)


def _answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return its times and throughput, and in which mode; else why it refuses."""
    refused = ""
    for mode in MODES:
        try:
            # It prints tables of missing operators.
            with contextlib.redirect_stdout(io.StringIO()):
                found = cli_estimate(**_question(row), database_mode=mode)
        except Exception as error:  # any exception is a refusal
            refused = refused or f"{type(error).__name__}: {error}"[:200]
            continue
        if found.tpot > 0 and found.ttft > 0:
            return {
                "tpot_ms": found.tpot,
                "ttft_ms": found.ttft,
                "mode": mode,
                "refused": "",
                "tokens_per_s": found.tokens_per_second,
            }
        refused = refused or "no time"
    nothing = dict.fromkeys(("tpot_ms", "ttft_ms", "tokens_per_s"))
    return {**nothing, "mode": "", "refused": refused}


def _question(row: Mapping[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model_path": BUNDLED.get(row["model_path"], row["model_path"]),
        "system_name": row["system"],
        "backend_name": row["backend"],
        "backend_version": _version(row["system"], row["backend"]),
        "isl": int(row["isl"]),
        "osl": int(row["osl"]),
        "gemm_quant_mode": _known(row, "gemm_quant_mode"),
        "moe_quant_mode": _known(row, "moe_quant_mode"),
    }
    if row["mode"] != "disagg":
        return asked | _layout(row, "") | {"batch_size": _load(row)}
    asked |= {"mode": "disagg", **_layout(row, "prefill_"), **_layout(row, "decode_")}
    return asked | {
        f"{pool}_{name}": max(int(_known(row, f"{pool}_{name}") or 0), 1)
        for pool in ("prefill", "decode")
        for name in ("batch_size", "num_workers")
    }


def _load(row: Mapping[str, Any]) -> int:
    """Return the requests in flight per attention-DP group."""
    groups = _known(row, "attention_dp_size") or 1.0
    concurrency = _known(row, "silicon_concurrency")
    return max(round(concurrency / groups if concurrency else row["batch_size"]), 1)


def _layout(row: Mapping[str, Any], pool: str) -> dict[str, int | None]:
    degrees = {f"{pool}{name}_size": int(_known(row, f"{pool}{name}_size") or 0) for name in LAYOUT}
    experts = {k: v or None for k, v in degrees.items() if "moe" in k}
    return {k: max(v, 1) for k, v in degrees.items()} | experts


def _known(row: Mapping[str, Any], column: str) -> Any:
    value = row.get(column)
    return None if value is None or pd.isna(value) else value


@cache
def _version(system: str, backend: str) -> str | None:
    """Return the newest measured version; the package looks all of them up at every call."""
    version: str | None = get_latest_database_version(system=system, backend=backend)
    return version


if __name__ == "__main__":
    main()
