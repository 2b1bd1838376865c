"""Predicts latency, throughput, memory, power, cost and quality of candidates."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB
from foretune.plan.cost.steps import PARTS
from foretune.plan.describe.accuracy import AccuracyResult, recovery
from foretune.plan.describe.formats import Formats, checkpoint_formats
from foretune.plan.serve.candidates import Candidate
from foretune.plan.serve.deployments.analytic import StepTimers, analytic_times
from foretune.plan.serve.deployments.calibration import Calibration
from foretune.plan.serve.deployments.correction import LatencyPredictor
from foretune.plan.serve.deployments.serving import (
    apply_prefill_limit,
    deployment_power,
    formula_latencies,
    prompts_per_token,
    tokens_per_s,
)
from foretune.plan.serve.engine_support import unsupported_formats


def predict(
    candidates: Sequence[Candidate],
    timers: StepTimers,
    correction: LatencyPredictor | None = None,
    accuracy: Sequence[AccuracyResult] | None = None,
    calibration: Calibration | None = None,
) -> pd.DataFrame:
    """Return the predictions of candidates: the columns of `Plan.candidates`, one row each.

    Without a ``correction``, latencies come from the formulas alone. Without ``accuracy``,
    qualities are the published ones. ``calibration`` is the user's stack.
    """
    rows = analytic_times([c.deployment for c in candidates], timers)
    latencies = correction.predict(rows) if correction else formula_latencies(rows)
    if calibration:
        latencies = calibration.apply(rows, latencies)
    latencies = apply_prefill_limit(rows, latencies)
    ttft_columns = [name for name in latencies if name.startswith("ttft_ms")]
    latencies = latencies.assign(**{name: latencies[name] + rows["fetch"] for name in ttft_columns})
    table = pd.DataFrame([_candidate_columns(c) for c in candidates]).join(latencies)
    table["memory_gib"] = _memory_gib(candidates)
    table["accuracy"] = _accuracy(candidates, accuracy)
    per_s = tokens_per_s(rows["concurrency"].to_numpy(), rows["osl"].to_numpy(), latencies)
    all_per_s = per_s * table["replicas"].to_numpy(dtype=float)
    table["requests_per_s"] = all_per_s / rows["osl"]
    table["tokens_per_s_per_gpu"] = all_per_s / table["gpus"]
    shares = [f"share_{part}" for part in PARTS]
    bound = ("decode_compute_bound", "prefill_compute_bound")
    copied_columns = ["guessed", "energy_guessed", *bound, "share_host", *shares]
    table[copied_columns] = rows[copied_columns]
    # A format that no engine supports was never measured.
    table.loc[_unsupported(candidates), "guessed"] = 1.0
    bound_ms = rows["decode_bound"] + prompts_per_token(rows) * rows["prefill_bound"]
    table["bound_share"] = bound_ms / latencies["tpot_ms"]
    table = table.join(deployment_power(rows, latencies)).assign(awake_w=rows["awake_w"])
    largest_part = np.argmax(np.nan_to_num(rows[shares].to_numpy()), axis=1)
    table["limited_by"] = np.array(PARTS)[largest_part]
    return _with_cost(table, candidates)


def _candidate_columns(candidate: Candidate) -> dict[str, object]:
    deployment = candidate.deployment
    layout, pools = deployment.layout, deployment.pools
    formats, published = deployment.formats, checkpoint_formats(deployment.model)
    return {
        "system": deployment.system.name,
        "gpus": candidate.gpus,
        "formats": str(formats),
        "native": (formats.weights, formats.moe) == (published.weights, published.moe),
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "ep": layout.moe_ep,
        "replicas": candidate.replicas,
        "batch": int(deployment.concurrency),
        "prefill": f"{pools.prefill_workers} × {pools.prefill}" if pools else "",
        "workers": pools.decode_workers if pools else 1,
        "offload_gib": deployment.offloaded_weight_bytes / GIB,
    }


def _memory_gib(candidates: Sequence[Candidate]) -> np.ndarray:
    same_memory: dict[tuple[object, ...], list[int]] = {}
    for i, candidate in enumerate(candidates):
        d = candidate.deployment
        same_memory.setdefault((d.model, d.layout, d.formats, d.workload, d.offload), []).append(i)
    found = np.empty(len(candidates))
    for index in same_memory.values():
        requests = np.array([candidates[i].deployment.requests_per_worker for i in index])
        found[index] = candidates[index[0]].deployment.memory(requests).gib
    return found


def _unsupported(candidates: Sequence[Candidate]) -> np.ndarray:
    """Return which candidates have formats that their engine lacks."""
    known: dict[tuple[object, ...], bool] = {}
    found = []
    for candidate in candidates:
        d = candidate.deployment
        key = d.model.name, d.formats, d.system.name, d.backend
        if key not in known:
            known[key] = bool(unsupported_formats(d, d.backend))
        found.append(known[key])
    return np.array(found, dtype=bool)


def _accuracy(
    candidates: Sequence[Candidate], results: Sequence[AccuracyResult] | None
) -> list[float]:
    """Return the share of quality that each candidate's formats keep; NaN if unpublished."""
    known: dict[Formats, float] = {}
    for candidate in candidates:
        d = candidate.deployment
        if d.formats not in known:
            share = recovery(d.formats, d.model, results)
            known[d.formats] = np.nan if share is None else share
    return [known[c.deployment.formats] for c in candidates]


def _with_cost(table: pd.DataFrame, candidates: Sequence[Candidate]) -> pd.DataFrame:
    hourly = np.array([c.deployment.system.price_per_hour for c in candidates], dtype=float)
    return table.assign(usd_per_million_tokens=hourly * 1e6 / 3600 / table["tokens_per_s_per_gpu"])
