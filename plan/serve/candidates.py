"""Enumerates the deployments that fit memory, and predicts latency, power, cost and quality.

A deployment is a number format × layout × requests in flight. With separate pools, it also has a
layout for prefill, and numbers of workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB, USABLE_SHARE, layer_bytes
from foretune.plan.cost.steps import PARTS
from foretune.plan.describe.accuracy import AccuracyResult, recovery
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import (
    DEFAULT_CACHE_FORMATS,
    Formats,
    checkpoint_formats,
    describe_formats,
    find_format,
    supported,
)
from foretune.plan.describe.layout import Layout, divisors, legal_layouts
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.calibration import MeasuredLatencies
from foretune.plan.serve.deployments.deployment import Deployment, Pools
from foretune.plan.serve.deployments.deployment_steps import StepTimers, decode_ms, prompt_ms
from foretune.plan.serve.deployments.latency_formulas import (
    apply_prefill_limit,
    prompts_per_token,
    tokens_per_s,
)
from foretune.plan.serve.deployments.power import deployment_power
from foretune.plan.serve.engine_support import unsupported_formats, unsupported_layout
from foretune.plan.serve.request import PlanRequest
from foretune.search.pareto_front import pareto_front

CONCURRENCIES = (1, *(m for i in range(1, 10) for m in (2**i, 3 * 2 ** (i - 1))), 1024)
"""Requests in flight per attention-DP group to plan, if memory allows. The largest number
that fits is also planned."""
WEIGHT_FORMATS = ("bf16", "fp8", "fp8_block", "int8", "int4_wo", "nvfp4")
"""Weight formats to plan; those wider than the checkpoint's are left out."""
CPU_FORMATS = Formats("fp32", kv="fp32")
"""Tried on CPUs, where 16 bits may be computed in wider formats at a tenth of the speed."""
UNQUANTIZED_BITS = 16
OFFLOAD_SHARES = (0.25, 0.5, 1.0)
"""Shares of the allowed host memory to try for weights."""
SECONDS_PER_HOUR = 3600


def supported_formats(
    model: ModelDescription, system: System, caches: Sequence[str] = ()
) -> list[Formats]:
    """Return the formats to plan: the checkpoint's, then those that the GPU computes natively.

    The checkpoint's formats come first, then the same with other usual caches. Weights wider than
    the checkpoint's are left out: they take more memory and gain nothing. Other formats as narrow
    as a quantized checkpoint's are also left out, and int8 on GPUs with fp8, which is as fast and
    loses less. ``caches`` restricts the cache formats; empty takes the usual ones of the GPU.
    """
    if caches:
        usual = supported_formats(model, system)
        return list(dict.fromkeys(replace(f, kv=kv) for f in usual for kv in caches))

    published = checkpoint_formats(model)
    architecture = system.device.architecture
    published_variants = [
        replace(published, kv=kv)
        for kv in DEFAULT_CACHE_FORMATS
        if supported(kv, architecture) == "native"
    ]
    others = [
        Formats(weights, kv=kv)
        for weights in WEIGHT_FORMATS
        if _is_worth_trying(weights, published, architecture)
        for kv in DEFAULT_CACHE_FORMATS
    ]
    of_gpu = [formats for formats in others if formats.support(architecture) == "native"]
    if system.device.kind == "cpu" and published.weights == published.moe == "bf16":
        of_gpu.append(CPU_FORMATS)
    return list(dict.fromkeys([published, *published_variants, *of_gpu]))


def _is_worth_trying(weights: str, published: Formats, architecture: str) -> bool:
    """Return whether a weight format may gain anything over the checkpoint's."""
    native_fp8 = supported("fp8", architecture) == "native"
    if weights == "int8" and native_fp8:
        return False
    published_bits = min(
        find_format(name).narrowest_bits for name in (published.weights, published.moe)
    )
    return published_bits == UNQUANTIZED_BITS or find_format(weights).bits < published_bits


def candidate_deployments(request: PlanRequest, system: System) -> Iterator[Deployment]:
    """Yield every format and layout that the engine supports, replicated to use all GPUs.

    Each has one request in flight, and may not fit in memory. `one_pool_candidates` and
    `two_pool_candidates` give it every load that fits.
    """
    formats = request.formats or supported_formats(request.model, system, request.caches)
    for candidate_formats in formats:
        for size in divisors(request.gpus):
            for layout in legal_layouts(request.model, size, candidate_formats):
                if not _is_useful(layout, request, system):
                    continue
                replica = Deployment(
                    model=request.model,
                    system=system,
                    backend=request.engine,
                    layout=layout,
                    formats=candidate_formats,
                    workload=request.workload,
                    concurrency=1,
                    speculation=request.speculation,
                    replicas=request.gpus // size,
                )
                for weights_gib in _offload_sizes(replica, request.offload.weights_gib):
                    offload = replace(request.offload, weights_gib=weights_gib)
                    yield replace(replica, offload=offload)


def _is_useful(layout: Layout, request: PlanRequest, system: System) -> bool:
    """Return whether a layout is worth planning, and the engine supports it."""
    # Attention-DP of a dense model equals several replicas of a smaller layout.
    if layout.dp > 1 and not request.model.is_moe:
        return False
    # Ranks beyond the fast links fill whole nodes, as engines start them.
    ranks = layout.tp * layout.dp
    if ranks > system.fast_domain_gpus and ranks % system.fast_domain_gpus:
        return False
    if request.speculation is not None and request.speculation.illegal_because(layout) is not None:
        return False
    return not unsupported_layout(layout, request.engine)


def _offload_sizes(replica: Deployment, max_gib: float) -> list[float]:
    """Return the whole GiB of weights per GPU to try in host memory, none first.

    The minimum for a request to fit, and a quarter, half and all of the allowed size.
    """
    if max_gib <= 0:
        return [0.0]

    allowed_gib = float(ceil(max_gib))
    layers_gib = ceil(sum(layer_bytes(replica.model, replica.layout, replica.formats)) / GIB)
    sizes = {min(float(ceil(allowed_gib * share)), layers_gib) for share in OFFLOAD_SHARES}

    needed_gib = replica.memory(replica.layout.dp).gib
    missing_gib = ceil(needed_gib - USABLE_SHARE * replica.system.memory_gib)
    if 0 < missing_gib <= min(allowed_gib, layers_gib):
        sizes.add(float(missing_gib))
    return [0.0, *sorted(sizes)]


def concurrencies(deployment: Deployment) -> list[int]:
    """Return the requests in flight per replica to plan."""
    dp = deployment.layout.dp
    max_requests = deployment.max_requests
    most = min(max_requests, dp * CONCURRENCIES[-1])
    tried = {most, *(dp * per_group for per_group in CONCURRENCIES)}
    return sorted(requests for requests in tried if dp <= requests <= max_requests)


def one_pool_candidates(deployments: Sequence[Deployment]) -> list[Deployment]:
    """Return deployments at every load that fits, with prefill and decode on the same workers."""
    return [
        replace(deployment, concurrency=requests)
        for deployment in deployments
        for requests in concurrencies(deployment)
    ]


def two_pool_candidates(
    deployments: Sequence[Deployment],
    gpus: int,
    timers: StepTimers,
    prefill: Sequence[Deployment] | None = None,
) -> list[Deployment]:
    """Return deployments with separate prefill and decode pools.

    Decode layouts have no pipeline, and either whole or fully sliced experts. Prefill uses the same
    formats, and the layouts that none beats in throughput per GPU and latency. The numbers of
    workers maximize requests per second. With ``prefill``, those are the deployments that may
    prefill, on another kind of GPU.
    """
    # Which deployments can decode, and which prefill? Both pools share the formats.
    decoders_of_formats = _pool_workers(deployments, gpus)
    readers_of_formats = decoders_of_formats if prefill is None else _pool_workers(prefill, gpus)

    # Every decode worker at every load, with each prefill layout.
    candidates = []
    for formats, group in decoders_of_formats.items():
        readers = readers_of_formats.get(formats)
        if readers is None:
            continue
        decoders = one_pool_candidates(group)
        step_times_ms = decode_ms(decoders, timers)
        for choice in _prefill_choices(readers, timers):
            for decoder, step_ms in zip(decoders, step_times_ms, strict=True):
                # In steady state, a decode worker finishes `concurrency` requests per `answer_ms`.
                # Each of them needs a prefill first.
                answer_ms = decoder.workload.osl * step_ms
                prefill_ms = decoder.concurrency * choice.ms_per_prompt
                with_pools = _with_matched_pools(
                    decoder, choice, prefills_per_decoder=prefill_ms / answer_ms, gpus=gpus
                )
                if with_pools is not None:
                    candidates.append(with_pools)
    return candidates


def _pool_workers(deployments: Sequence[Deployment], gpus: int) -> dict[Formats, list[Deployment]]:
    """Return the deployments of a system that can be a worker of a pool, by formats."""
    by_formats: dict[Formats, list[Deployment]] = {}
    for deployment in deployments:
        layout = deployment.layout
        is_simple = layout.pp == 1 and min(layout.moe_tp, layout.moe_ep) == 1
        leaves_gpus = deployment.gpus < gpus
        if is_simple and leaves_gpus and concurrencies(deployment):
            by_formats.setdefault(deployment.formats, []).append(deployment)
    return by_formats


@dataclass(frozen=True)
class _PrefillChoice:
    """A layout of prefill workers; one of them prefills a prompt every ``ms_per_prompt``."""

    layout: Layout
    system: System
    ms_per_prompt: float


def _prefill_choices(group: Sequence[Deployment], timers: StepTimers) -> list[_PrefillChoice]:
    """Return the layouts that none beats in both throughput per GPU and latency."""
    deployments = [replace(d, concurrency=d.layout.dp) for d in group]
    single_prompt_ms, per_prompt_ms = prompt_ms(deployments, timers)
    gpus = np.array([d.gpus for d in deployments])
    is_on_front = pareto_front(np.column_stack([per_prompt_ms * gpus, single_prompt_ms]))
    return [
        _PrefillChoice(
            deployments[i].layout, deployments[i].system, ms_per_prompt=float(per_prompt_ms[i])
        )
        for i in np.flatnonzero(is_on_front)
    ]


def _with_matched_pools(
    decoder: Deployment, prefill: _PrefillChoice, *, prefills_per_decoder: float, gpus: int
) -> Deployment | None:
    """Return the deployment with the pools that serve most; None if GPUs are too few for both.

    One decode worker keeps ``prefills_per_decoder`` prefill workers busy; this may be a fraction.
    """
    # For each number of decode workers, the other GPUs prefill.
    decode_workers = np.arange(1, gpus // decoder.gpus + 1)
    prefill_workers = (gpus - decode_workers * decoder.gpus) // prefill.layout.gpus

    # The slower pool limits the requests per second. Here they are counted in decode workers: a
    # rate of 3 keeps three of them busy.
    prefill_rate = prefill_workers / prefills_per_decoder
    rate = np.where(prefill_workers > 0, np.minimum(decode_workers, prefill_rate), 0.0)
    best = int(np.argmax(rate))
    if rate[best] <= 0:
        return None

    # No more prefill workers than the decode workers keep busy.
    busy_prefill_workers = ceil(decode_workers[best] * prefills_per_decoder)
    needed = min(int(prefill_workers[best]), busy_prefill_workers)
    is_same_system = prefill.system.name == decoder.system.name
    pools = Pools(
        prefill.layout,
        prefill_workers=needed,
        decode_workers=int(decode_workers[best]),
        prefill_system=None if is_same_system else prefill.system,
    )
    in_flight = decoder.concurrency * pools.decode_workers
    return replace(decoder, concurrency=in_flight, pools=pools, replicas=1)


def predict(
    candidates: Sequence[Deployment],
    timers: StepTimers,
    measured: MeasuredLatencies | None = None,
    accuracy: Sequence[AccuracyResult] | None = None,
) -> pd.DataFrame:
    """Return the predictions of candidates: the columns of `Plan.candidates`, one row each.

    ``measured`` corrects the latencies of the formulas. Without ``accuracy``, qualities are the
    published ones.
    """
    # The deployment itself, its latencies, memory and quality.
    rows = analytic_times(candidates, timers)
    latencies = _latencies(rows, measured or MeasuredLatencies())
    table = pd.DataFrame([_candidate_columns(c) for c in candidates]).join(latencies)
    table["memory_gib"] = _memory_gib(candidates)
    table["accuracy"] = _qualities(candidates, accuracy)

    # Throughput of all replicas.
    per_s = tokens_per_s(rows["concurrency"].to_numpy(), rows["osl"].to_numpy(), latencies)
    all_per_s = per_s * table["replicas"].to_numpy(dtype=float)
    table["requests_per_s"] = all_per_s / rows["osl"]
    table["tokens_per_s_per_gpu"] = all_per_s / table["gpus"]

    # Where the time goes, and how much of it was not measured.
    shares = [f"share_{part}" for part in PARTS]
    copied_columns = [
        "guessed",
        "energy_guessed",
        "decode_compute_bound",
        "prefill_compute_bound",
        "share_host",
        *shares,
    ]
    table[copied_columns] = rows[copied_columns]
    # A format that no engine supports was never measured.
    is_unsupported = [bool(unsupported_formats(d, d.backend)) for d in candidates]
    table.loc[is_unsupported, "guessed"] = 1.0
    bound_ms = rows["decode_bound"] + prompts_per_token(rows) * rows["prefill_bound"]
    table["bound_share"] = bound_ms / latencies["tpot_ms"]

    # Power, and what limits a step.
    table = table.join(deployment_power(rows, latencies)).assign(awake_w=rows["awake_w"])
    largest_part = np.argmax(np.nan_to_num(rows[shares].to_numpy()), axis=1)
    waits_for_cpu = rows["cpu"] >= latencies["tpot_ms"]
    table["limited_by"] = np.where(waits_for_cpu, "engine", np.array(PARTS)[largest_part])

    # Cost.
    hourly = np.array([d.price_per_hour for d in candidates], dtype=float)
    usd_per_million = hourly * 1e6 / SECONDS_PER_HOUR / table["tokens_per_s_per_gpu"]
    return table.assign(usd_per_million_tokens=usd_per_million)


def _latencies(rows: pd.DataFrame, measured: MeasuredLatencies) -> pd.DataFrame:
    """Return latencies that respect the rate of prefill, with the wait for a prefix."""
    latencies = apply_prefill_limit(rows, measured.predict(rows))
    ttft_columns = [name for name in latencies if name.startswith("ttft_ms")]
    return latencies.assign(**{name: latencies[name] + rows["fetch"] for name in ttft_columns})


def _qualities(
    candidates: Sequence[Deployment], accuracy: Sequence[AccuracyResult] | None
) -> np.ndarray:
    """Return the share of quality that formats keep, NaN if unknown."""
    share_kept = cache(lambda formats, model: recovery(formats, model, accuracy))
    return np.array([share_kept(d.formats, d.model) for d in candidates], dtype=float)


def _candidate_columns(deployment: Deployment) -> dict[str, object]:
    layout = deployment.layout
    pools = deployment.pools
    formats = deployment.formats
    published = checkpoint_formats(deployment.model)
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
        "prefill_system": deployment.prefill_system.name if pools else "",
        "workers": pools.decode_workers if pools else 1,
        "offload_gib": deployment.offloaded_weight_bytes / GIB,
    }


def _memory_gib(candidates: Sequence[Deployment]) -> np.ndarray:
    """Return the memory of each candidate; those that differ only in load are computed at once."""
    same_except_load: dict[tuple[object, ...], list[int]] = {}
    for i, d in enumerate(candidates):
        key = (d.model, d.layout, d.formats, d.workload, d.offload, d.system.name)
        same_except_load.setdefault(key, []).append(i)

    memory_gib = np.empty(len(candidates))
    for index in same_except_load.values():
        requests = np.array([candidates[i].requests_per_worker for i in index])
        memory_gib[index] = candidates[index[0]].memory(requests).gib
    return memory_gib
