"""Planned throughput beside what TensorRT-LLM publishes of itself: prints tables, or JSON.

Run: ``python benchmarks/plan_published.py TABLE.csv [--json]``. Every row is one model in one
layout at maximum load: all requests are there at the beginning, and the last of them ends the run.
No model is fitted to the rows: operators' times come from measured operators alone, and requests
are replayed step by step as ``trtllm-bench throughput`` runs them by default (TensorRT-LLM 1.0:
``docs/source/performance/perf-overview.md``, ``tensorrt_llm/bench/build/tuning.py`` and
``tensorrt_llm/bench/benchmark/utils/general.py``).

With ``--aiconfigurator PYTHON``, an interpreter that has the package aiconfigurator, that is asked
about the same rows.
"""

import argparse
import csv
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from plan_beside import ask

from foretune.errors import ForetuneError, UsageError
from foretune.plan.cost.memory import (
    GIB,
    activation_bytes,
    engine_bytes,
    request_bytes,
    weight_bytes,
)
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.describe.catalog import find_system
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.model_catalog import describe_model
from foretune.plan.describe.system import System
from foretune.plan.engine.host import Host
from foretune.plan.engine.requests import Requests
from foretune.plan.engine.simulator import Scheduler, simulate_requests
from foretune.plan.engine.stage_times import StageTimes

REQUESTS = {
    (128, 128): 30000,
    (128, 2048): 3000,
    (128, 4096): 1500,
    (500, 2000): 3000,
    (1000, 1000): 3000,
    (1000, 2000): 1500,
    (2048, 128): 3000,
    (2048, 2048): 1500,
    (5000, 500): 1500,
    (20000, 2000): 1000,
}
"""Lengths of prompts and answers -> requests of a run, as documented."""
GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
"""Sizes of decode steps that are captured, as documented."""
CACHE_SHARE = 0.95
"""Share of the memory beside weights and a step that the cache gets, as documented."""
TAKEN_GIB = 0.9
"""Memory of a GPU that its context and captured graphs take."""
MOST = 4096
MOST_TOKENS = 32768
"""Requests and tokens beyond which ``trtllm-bench`` does not tune its limits."""
SHARES = (1.0, 0.5, 0.25)
"""Shares of the requests in flight for which AIConfigurator is asked."""
FIGURES = ("n", "ratio", "median_ape", "p90_ape", "within_20")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--operators", type=Path, help="folder of measured operators")
    parser.add_argument("--models", default="", help="only models with one of these in their names")
    parser.add_argument("--rows", type=Path, metavar="CSV", help="write each row's prediction here")
    parser.add_argument("--aiconfigurator", type=Path, metavar="PYTHON|ANSWERS.parquet")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with arguments.table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = arguments.models.split(",")
    rows = [row for row in rows if any(name in row["model"] for name in wanted)]
    scored, refused = predictions(rows, StepTimerFactory(find_tables(arguments.operators)))
    rival = _asked(arguments.aiconfigurator, scored) if arguments.aiconfigurator else None
    if arguments.rows:
        scored.to_csv(arguments.rows, index=False)
    result = {**summary(scored, scored["predicted"]), "refused": refused}
    if rival is not None:
        scored["aiconfigurator"] = rival
        there = scored[rival.notna()]
        result["aiconfigurator"] = summary(there, there["aiconfigurator"])
        result["beside_aiconfigurator"] = summary(there, there["predicted"])
    if arguments.json:
        json.dump(result, sys.stdout)
        print()
    else:
        _print(result)


def predictions(
    rows: Iterable[Mapping[str, str]], clocks: StepTimerFactory
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the rows with ``predicted`` tokens per second, and how many are refused, by reason."""
    found = []
    refused = dict[str, int]()
    known: dict[tuple[object, ...], StageTimes] = {}
    for row in rows:
        start = time.perf_counter()
        try:
            predicted, in_flight = tokens_per_s(row, clocks, known)
        except ForetuneError as error:
            refused[str(error)] = refused.get(str(error), 0) + 1
            continue
        print(
            f"{row['model']} {row['system']} tp{row['tp']} pp{row['pp']} dp{row['dp']} "
            f"{row['isl']}/{row['osl']}: {predicted / float(row['out_tok_s']):.3f} "
            f"({time.perf_counter() - start:.1f} s)",
            file=sys.stderr,
        )
        found.append({**row, "predicted": predicted, "in_flight": in_flight})
    return pd.DataFrame(found), refused


def tokens_per_s(
    row: Mapping[str, str], clocks: StepTimerFactory, known: dict[tuple[object, ...], StageTimes]
) -> tuple[float, int]:
    """Return the generated tokens per second of a run, and the most requests in flight."""
    if not row["out_tok_s"]:
        raise UsageError("the row has no throughput")
    model = describe_model(row["model"])
    system = find_system(row["system"])
    degrees = (int(row[name] or 1) for name in ("tp", "pp", "dp", "moe_tp", "moe_ep"))
    layout = Layout.from_labels(model, *degrees)
    formats = Formats(row["weights"], kv=row["kv"] or "bf16", moe=row["moe"])
    isl = int(row["isl"])
    osl = int(row["osl"])
    scheduler = as_benchmarked(model, system, layout, formats, isl, osl)
    count = requests_of(isl, osl)

    # Rows that differ in their lengths alone share the times of steps.
    key = (model, system.name, row["backend"], layout, formats)
    if key not in known:
        clock = clocks(system, row["backend"])
        known[key] = StageTimes(model, layout, formats, clock, MOST_TOKENS, 2**15, 2 * MOST)

    # One group of attention data parallelism is simulated; the others do the same.
    max_in_flight = ceil(int(row["concurrency"] or 0) / layout.dp)  # 0: all come at once
    n_requests = ceil(count / layout.dp)
    requests = Requests.uniform(np.zeros(n_requests), isl, osl, in_flight=max_in_flight)
    table = simulate_requests(requests, scheduler, known[key], layout.pp)

    room = int(scheduler.cache_tokens // (isl + osl))
    max_scheduled = scheduler.max_batch * layout.pp
    in_flight = layout.dp * min(room, max_scheduled, max_in_flight or n_requests)
    return float(1e3 * count * osl / table["last_ms"].max()), in_flight


def requests_of(isl: int, osl: int) -> int:
    """Return the number of requests of a run, or that of the nearest documented lengths."""
    nearest = min(REQUESTS, key=lambda known: abs(log2(known[0] / isl)) + abs(log2(known[1] / osl)))
    return REQUESTS[nearest]


def as_benchmarked(
    model: ModelDescription, system: System, layout: Layout, formats: Formats, isl: int, osl: int
) -> Scheduler:
    """Return the limits that ``trtllm-bench`` sets by itself, of one attention-DP group."""
    room = (system.memory_gib - TAKEN_GIB) * GIB - weight_bytes(model, layout, formats)
    token = request_bytes(model, layout, formats, isl + osl) / (isl + osl)
    fit = CACHE_SHARE * room / (token * (isl + osl)) * layout.dp
    batch, tokens = tuned(fit, isl, osl, layout.pp)
    logits = 4.0 * batch * model.vocab / layout.tp  # its sampler keeps no more
    used = activation_bytes(model, layout, tokens, 0) + logits + engine_bytes(layout)
    cache = CACHE_SHARE * (room - used)
    host = Host.for_system(system, layout.pp)
    return Scheduler(tokens, batch, cache / token, chunked=False, host=host, graph_sizes=GRAPHS)


def tuned(fit: float, isl: int, osl: int, pp: int) -> tuple[int, int]:
    """Return the most requests and tokens of a step where ``fit`` requests fit the cache.

    That is ``finetune_setting`` of ``tensorrt_llm/bench/build/tuning.py``, and that a step holds a
    whole prompt beside all answers, as prompts are not read in parts.
    """
    requests = min(fit, MOST) / pp
    tokens = min(requests * (1 + isl / osl), MOST_TOKENS)
    if requests < 256:
        batch = max(64, 32 * ceil(requests / 32))
    else:
        batch = (128 if requests < 1024 else 256) * ceil(
            requests / (128 if requests < 1024 else 256)
        )
    size = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    return batch, max(2048, size * ceil(tokens / size), isl + batch)


def _asked(rival: Path, scored: pd.DataFrame) -> "pd.Series[float]":
    """Return AIConfigurator's throughput of the same rows; NaN if it refuses.

    It is the largest of its answers for the requests in flight of the replay, and for fewer.
    """
    names = {
        "tp_size": "tp",
        "pp_size": "pp",
        "attention_dp_size": "dp",
        "moe_tp_size": "moe_tp",
        "moe_ep_size": "moe_ep",
        "isl": "isl",
        "osl": "osl",
    }
    asked = pd.DataFrame({column: scored[name].astype(int) for column, name in names.items()})
    asked = asked.assign(
        model_path=scored["model"],
        system=scored["system"],
        backend="trtllm",
        mode="agg",
        gemm_quant_mode=scored["weights"],
        moe_quant_mode=scored["moe"].replace("", None),
    )
    loads = [np.maximum(scored["in_flight"] * share, 1).astype(int) for share in SHARES]
    tables = [asked.assign(silicon_concurrency=load, batch_size=load) for load in loads]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pd.concat(tables).to_parquet(path)
        said = ask(rival, path)["tokens_per_s"].to_numpy(dtype=float)
    with warnings.catch_warnings(action="ignore"):  # rows that it refuses at any load
        return pd.Series(np.nanmax(said.reshape(len(SHARES), -1), axis=0), scored.index)


def summary(
    scored: pd.DataFrame, predicted: "pd.Series[float]"
) -> dict[str, dict[str, dict[str, float]]]:
    """Return errors by kind and stages, by group of the bars, by model and by system."""
    sparse = scored["model"].map(lambda name: describe_model(name).is_moe)
    kind = sparse.map({True: "experts", False: "dense"})
    stages = scored["pp"].astype(int)
    error = predicted / scored["out_tok_s"].astype(float)
    bars = (kind + ", one stage").where(stages == 1, "pipelines")
    names = {
        "groups": bars,
        "stages": kind + " pp" + stages.astype(str),
        "models": scored["model"],
        "systems": scored["system"],
    }
    return {
        name: {str(key): _errors(part.to_numpy()) for key, part in error.groupby(of)}
        for name, of in names.items()
    }


def _errors(ratio: np.ndarray) -> dict[str, float]:
    ape = np.abs(ratio - 1.0)
    return {
        "n": len(ratio),
        "ratio": float(np.exp(np.log(ratio).mean())),
        "median_ape": float(np.median(ape)),
        "p90_ape": float(np.quantile(ape, 0.9)),
        "within_20": float((ape <= 0.2).mean()),
    }


def _print(result: Mapping[str, Any]) -> None:
    print(
        "| published | n | predicted / published | median error, % | 90th percentile | "
        "within 20 % |"
    )
    print("|---|---|---|---|---|---|")
    for part in ("groups", "stages", "models", "systems"):
        for name, line in result[part].items():
            print(f"| {name} | {_cells([line[key] for key in FIGURES])} |")
    for source in ("aiconfigurator", "beside_aiconfigurator"):
        for name, line in result.get(source, {}).get("groups", {}).items():
            print(f"| {source}: {name} | {_cells([line[key] for key in FIGURES])} |")
    for reason, count in result["refused"].items():
        print(f"\nrefused, {count} rows: {reason}")


def _cells(figures: Sequence[float]) -> str:
    n, ratio, *shares = figures
    return " | ".join([str(n), f"{ratio:.2f}", *(f"{100 * share:.1f}" for share in shares)])


if __name__ == "__main__":
    main()
