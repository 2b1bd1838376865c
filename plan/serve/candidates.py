"""Enumerates the deployments that fit memory, and predicts latency, power, cost and quality."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import ceil

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB, USABLE_SHARE, layer_bytes
from foretune.plan.cost.steps import PARTS
from foretune.plan.describe.accuracy import AccuracyResult, recovery
from foretune.plan.describe.catalog import System
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import (
    DEFAULT_CACHE_FORMATS,
    Formats,
    checkpoint_formats,
    describe_formats,
    find_format,
    supported,
)
from foretune.plan.describe.layout import (
    Layout,
    Offload,
    Speculation,
    Workload,
    divisors,
    legal_layouts,
)
from foretune.plan.serve.deployments import analytic
from foretune.plan.serve.deployments.analytic import StepTimers
from foretune.plan.serve.deployments.correction import Calibration, LatencyPredictor
from foretune.plan.serve.deployments.deployment import Deployment, Pools
from foretune.plan.serve.launching import unsupported_formats, unsupported_layout

CONCURRENCIES = (1, *(m for i in range(1, 10) for m in (2**i, 3 * 2 ** (i - 1))), 1024)
"""Requests in flight per attention-DP group to plan, as far as memory allows. The largest number
that fits is also planned."""
WEIGHT_FORMATS = ("bf16", "fp8", "fp8_block", "int8", "int4_wo", "nvfp4")


def supported_formats(
    model: ModelDescription, system: System, caches: Sequence[str] = ()
) -> list[Formats]:
    """Return the formats to plan: the checkpoint's, then those native to the GPU.

    The checkpoint's formats come first, then the same with other usual caches. Weights wider than
    the checkpoint's are left out: they take more memory and gain nothing. Other formats as narrow
    as a quantized checkpoint's are also left out, and int8 on GPUs with fp8, which is as fast and
    loses less. ``caches`` restricts the cache formats; empty takes the usual ones of the GPU.
    """
    published = checkpoint_formats(model)
    if caches:
        found = supported_formats(model, system)
        return list(dict.fromkeys(replace(f, kv=kv) for f in found for kv in caches))
    architecture = system.device.architecture
    max_bits = min(find_format(kind).bits for kind in (published.weights, published.moe))
    native_fp8 = supported("fp8", architecture) == "native"
    standard = [
        Formats(weights, kv=kv)
        for weights in WEIGHT_FORMATS
        if (max_bits == 16 or find_format(weights).bits < max_bits)
        and not (native_fp8 and weights == "int8")
        for kv in DEFAULT_CACHE_FORMATS
    ]
    native = [f for f in standard if f.support(architecture) == "native"]
    published_variants = [
        replace(published, kv=kv)
        for kv in DEFAULT_CACHE_FORMATS
        if supported(kv, architecture) == "native"
    ]
    return list(dict.fromkeys([published, *published_variants, *native]))


def candidate_deployments(
    model: ModelDescription,
    system: System,
    gpus: int,
    workload: Workload,
    backend: str,
    formats: Sequence[Formats] | None = None,
    speculation: Speculation | None = None,
    caches: Sequence[str] = (),
    offload: Offload = Offload(),  # noqa: B008  # immutable
) -> Iterator[Deployment]:
    """Yield every format and layout that the engine supports, replicated to use all GPUs.

    Each has one request in flight; see `concurrencies`. Tensor- and expert-parallel ranks stay
    within the fast links: exchanges over a network were not measured.
    """
    for candidate_formats in formats or supported_formats(model, system, caches):
        for size in divisors(gpus):
            for layout in legal_layouts(model, size, candidate_formats):
                # Attention-DP of a dense model equals several replicas of a smaller layout.
                useful = layout.dp == 1 or model.is_moe
                connected = layout.tp * layout.dp <= system.fast_domain_gpus
                can_draft = speculation is None or speculation.illegal_because(layout) is None
                if useful and connected and can_draft and not unsupported_layout(layout, backend):
                    replica = Deployment(
                        model,
                        system,
                        backend,
                        layout,
                        candidate_formats,
                        workload,
                        1,
                        speculation=speculation,
                        replicas=gpus // size,
                    )
                    for weights in _offload_sizes(replica, offload.weights_gib):
                        placed = replace(offload, weights_gib=weights)
                        yield replace(replica, offload=placed)


def _offload_sizes(replica: Deployment, max_gib: float) -> list[float]:
    """Return the whole GiB of weights per GPU to try in host memory, none first.

    The minimum for a request to fit, and a quarter, half and all of the allowed size.
    """
    if max_gib <= 0:
        return [0.0]
    d, max_size = replica, float(ceil(max_gib))
    total = ceil(sum(layer_bytes(d.model, d.layout, d.formats)) / GIB)
    min_size = ceil(d.memory(d.layout.dp).gib - USABLE_SHARE * d.system.memory_gib)
    sizes = {min(float(ceil(max_size * share)), total) for share in (0.25, 0.5, 1.0)}
    return [
        0.0,
        *sorted(sizes | ({float(min_size)} if 0 < min_size <= min(max_size, total) else set())),
    ]


def concurrencies(deployment: Deployment) -> list[int]:
    """Return the requests in flight per replica to plan."""
    dp, max_requests = deployment.layout.dp, deployment.max_requests
    most = min(max_requests, dp * CONCURRENCIES[-1])
    return sorted(n for n in {most, *(dp * m for m in CONCURRENCIES)} if dp <= n <= max_requests)


def one_pool_candidates(found: Sequence[Deployment]) -> list[Deployment]:
    """Return deployments at every load, with prefill and decode on the same workers."""
    return [replace(d, concurrency=n) for d in found for n in concurrencies(d)]


def two_pool_candidates(
    found: Sequence[Deployment], gpus: int, timers: StepTimers
) -> list[Deployment]:
    """Return deployments with separate prefill and decode pools.

    Decode layouts have no pipeline, and either whole or fully sliced experts. Prefill uses the same
    formats, and the layouts with the highest throughput per GPU and the lowest latency. The numbers
    of workers maximize requests per second.
    """
    by_formats: dict[tuple[str, Formats], list[Deployment]] = {}
    for d in found:
        simple = d.layout.pp == 1 and min(d.layout.moe_tp, d.layout.moe_ep) == 1
        if simple and d.gpus < gpus and concurrencies(d):
            by_formats.setdefault((d.system.name, d.formats), []).append(d)
    candidates = []
    for group in by_formats.values():
        loaded = one_pool_candidates(group)
        steps = analytic.decode_ms(loaded, timers)
        for prefill_layout, prompt_time_ms in _prefill_layouts(group, timers):
            for d, step in zip(loaded, steps, strict=True):
                busy_workers = d.concurrency * prompt_time_ms / (d.workload.osl * step)
                candidates += _matched_pools(d, prefill_layout, busy_workers, gpus)
    return candidates


def _prefill_layouts(group: Sequence[Deployment], timers: StepTimers) -> list[tuple[Layout, float]]:
    """Return the best prefill layouts, with a worker's milliseconds per prompt."""
    deployments = [replace(d, concurrency=d.layout.dp) for d in group]
    first_ms, per_prompt_ms = analytic.prompt_ms(deployments, timers)
    sizes = np.array([d.gpus for d in deployments])
    best = sorted({int(np.argmin(per_prompt_ms * sizes)), int(np.argmin(first_ms))})
    return [(deployments[i].layout, float(per_prompt_ms[i])) for i in best]


def _matched_pools(
    decoder: Deployment, prefill_layout: Layout, busy_workers: float, gpus: int
) -> list[Deployment]:
    """Return the best pools, if any; a decode worker needs ``busy_workers`` prefill workers."""
    decode_workers = np.arange(1, gpus // decoder.gpus + 1)
    prefill_workers = (gpus - decode_workers * decoder.gpus) // prefill_layout.gpus
    rate = np.where(
        prefill_workers > 0, np.minimum(decode_workers, prefill_workers / busy_workers), 0.0
    )
    best = int(np.argmax(rate))
    if rate[best] <= 0:
        return []
    needed = min(int(prefill_workers[best]), ceil(decode_workers[best] * busy_workers))
    pools = Pools(prefill_layout, needed, int(decode_workers[best]))
    in_flight = decoder.concurrency * pools.decode_workers
    return [replace(decoder, concurrency=in_flight, pools=pools, replicas=1)]


def predict(
    candidates: Sequence[Deployment],
    timers: StepTimers,
    correction: LatencyPredictor | None = None,
    accuracy: Sequence[AccuracyResult] | None = None,
    calibration: Calibration | None = None,
) -> pd.DataFrame:
    """Return the predictions of candidates: the columns of `Plan.candidates`, one row each.

    Without a ``correction``, latencies come from the formulas alone. Without ``accuracy``,
    qualities are the published ones. ``calibration`` is the user's stack.
    """
    rows = analytic.analytic_times(candidates, timers)
    latencies = correction.predict(rows) if correction else analytic.formula_latencies(rows)
    if calibration:
        latencies = calibration.apply(rows, latencies)
    latencies = analytic.apply_prefill_limit(rows, latencies)
    ttft_columns = [name for name in latencies if name.startswith("ttft_ms")]
    latencies = latencies.assign(**{name: latencies[name] + rows["fetch"] for name in ttft_columns})
    table = pd.DataFrame([_candidate_columns(c) for c in candidates]).join(latencies)
    table["memory_gib"] = _memory_gib(candidates)
    kept = cache(lambda formats, model: recovery(formats, model, accuracy))
    table["accuracy"] = np.array([kept(d.formats, d.model) for d in candidates], dtype=float)
    per_s = analytic.tokens_per_s(rows["concurrency"].to_numpy(), rows["osl"].to_numpy(), latencies)
    all_per_s = per_s * table["replicas"].to_numpy(dtype=float)
    table["requests_per_s"] = all_per_s / rows["osl"]
    table["tokens_per_s_per_gpu"] = all_per_s / table["gpus"]
    shares = [f"share_{part}" for part in PARTS]
    bound = ("decode_compute_bound", "prefill_compute_bound")
    copied_columns = ["guessed", "energy_guessed", *bound, "share_host", *shares]
    table[copied_columns] = rows[copied_columns]
    # A format that no engine supports was never measured.
    unsupported = [bool(unsupported_formats(d, d.backend)) for d in candidates]
    table.loc[unsupported, "guessed"] = 1.0
    bound_ms = rows["decode_bound"] + analytic.prompts_per_token(rows) * rows["prefill_bound"]
    table["bound_share"] = bound_ms / latencies["tpot_ms"]
    table = table.join(analytic.deployment_power(rows, latencies)).assign(awake_w=rows["awake_w"])
    largest_part = np.argmax(np.nan_to_num(rows[shares].to_numpy()), axis=1)
    waits_for_cpu = rows["cpu"] >= latencies["tpot_ms"]
    table["limited_by"] = np.where(waits_for_cpu, "engine", np.array(PARTS)[largest_part])
    hourly = np.array([d.system.price_per_hour for d in candidates], dtype=float)
    return table.assign(usd_per_million_tokens=hourly * 1e6 / 3600 / table["tokens_per_s_per_gpu"])


def _candidate_columns(deployment: Deployment) -> dict[str, object]:
    layout, pools = deployment.layout, deployment.pools
    formats, published = deployment.formats, checkpoint_formats(deployment.model)
    return {
        "system": deployment.system.name,
        "gpus": deployment.replicas * deployment.gpus,
        "formats": describe_formats(formats, deployment.model),
        "native": (formats.weights, formats.moe) == (published.weights, published.moe),
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "ep": layout.moe_ep,
        "replicas": deployment.replicas,
        "batch": int(deployment.concurrency),
        "prefill": f"{pools.prefill_workers} × {pools.prefill}" if pools else "",
        "workers": pools.decode_workers if pools else 1,
        "offload_gib": deployment.offloaded_weight_bytes / GIB,
    }


def _memory_gib(candidates: Sequence[Deployment]) -> np.ndarray:
    same_memory: dict[tuple[object, ...], list[int]] = {}
    for i, d in enumerate(candidates):
        same_memory.setdefault((d.model, d.layout, d.formats, d.workload, d.offload), []).append(i)
    found = np.empty(len(candidates))
    for index in same_memory.values():
        requests = np.array([candidates[i].requests_per_worker for i in index])
        found[index] = candidates[index[0]].memory(requests).gib
    return found
