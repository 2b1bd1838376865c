"""Enumerates the deployments that fit memory, and predicts latency, power, cost and quality."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB, USABLE_SHARE, layer_bytes
from foretune.plan.cost.steps import PARTS
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import (
    DEFAULT_CACHE_FORMATS,
    AccuracyResult,
    Formats,
    checkpoint_formats,
    find_format,
    recovery,
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
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.analytic import (
    StepTimers,
    analytic_times,
    apply_prefill_limit,
    decode_ms,
    deployment_power,
    formula_latencies,
    prompt_ms,
    prompts_per_token,
    tokens_per_s,
)
from foretune.plan.serve.deployments.correction import Calibration, LatencyPredictor
from foretune.plan.serve.deployments.deployment import Deployment, Pools
from foretune.plan.serve.launching import unsupported_formats, unsupported_layout

CONCURRENCIES = (1, *(m for i in range(1, 10) for m in (2**i, 3 * 2 ** (i - 1))), 1024)
"""Requests in flight per attention-DP group to plan, within what memory holds. The largest number
that fits is planned too."""
WEIGHT_FORMATS = ("bf16", "fp8", "fp8_block", "int8", "int4_wo", "nvfp4")


@dataclass(frozen=True)
class Candidate:
    """A deployment and its number of replicas."""

    deployment: Deployment
    replicas: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.deployment.gpus

    def concurrencies(self) -> list[int]:
        """Return the requests in flight per replica to plan."""
        d = self.deployment
        max_requests = d.max_requests
        concurrencies = {d.layout.dp * n for n in CONCURRENCIES} | {
            min(max_requests, d.layout.dp * CONCURRENCIES[-1])
        }
        return sorted(n for n in concurrencies if d.layout.dp <= n <= max_requests)

    def with_concurrency(self, in_flight: int, pools: Pools | None = None) -> "Candidate":
        """Return the candidate with this many requests in flight per replica."""
        deployment = replace(self.deployment, concurrency=in_flight, pools=pools)
        return Candidate(deployment, self.replicas)


def supported_formats(
    model: ModelDescription, system: System, caches: Sequence[str] = ()
) -> list[Formats]:
    """Return the formats to plan: the checkpoint's, then those native to the GPU.

    The checkpoint's formats come first, then the same with other usual caches. Weights wider than
    the checkpoint's are left out: they take more memory and gain nothing. So are others as narrow
    as those of a quantized checkpoint, and int8 on GPUs with
    fp8, which is as fast and loses less. ``caches`` restricts the cache formats; empty takes the
    usual ones of the GPU.
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
    ]  # fmt: skip
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
) -> Iterator[Candidate]:
    """Yield every format and layout that the engine supports, replicated to use all GPUs.

    Each has one request in flight; see `Candidate.concurrencies`. Tensor- and expert-parallel ranks
    stay within the fast links: exchanges over a network were not measured.
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
                        model, system, backend, layout, candidate_formats, workload, 1,
                        speculation=speculation,
                    )  # fmt: skip
                    for weights in _offload_sizes(replica, offload.weights_gib):
                        placed = replace(offload, weights_gib=weights)
                        yield Candidate(replace(replica, offload=placed), gpus // size)


def _offload_sizes(replica: Deployment, max_gib: float) -> list[float]:
    """Return the GiB of weights per GPU to try in host memory, none first.

    Engines take whole GiB: the least with which a request fits, and a quarter, half and all of the
    allowed size.
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


def one_pool_candidates(found: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates at every load, with prefill and decode on the same workers."""
    return [candidate.with_concurrency(n) for candidate in found for n in candidate.concurrencies()]


def two_pool_candidates(
    found: Sequence[Candidate], gpus: int, timers: StepTimers
) -> list[Candidate]:
    """Return candidates with separate prefill and decode pools.

    Decode layouts have no pipeline, and experts either whole or fully sliced. Prefill uses the same
    formats, and the layouts with the highest throughput per GPU and the lowest latency. The numbers
    of workers maximize requests per second.
    """
    by_formats: dict[tuple[str, Formats], list[Candidate]] = {}
    for candidate in found:
        replica = candidate.deployment
        simple = replica.layout.pp == 1 and min(replica.layout.moe_tp, replica.layout.moe_ep) == 1
        if simple and replica.gpus < gpus and candidate.concurrencies():
            by_formats.setdefault((replica.system.name, replica.formats), []).append(candidate)
    candidates = []
    for group in by_formats.values():
        loaded = [(s, n) for s in group for n in s.concurrencies()]
        steps = decode_ms([s.with_concurrency(n).deployment for s, n in loaded], timers)
        for prefill_layout, prompt_time_ms in _prefill_layouts(group, timers):
            for (candidate, n), step in zip(loaded, steps, strict=True):
                replica = candidate.deployment
                busy_workers = n * prompt_time_ms / (replica.workload.osl * step)
                candidates += _matched_pools(replica, n, prefill_layout, busy_workers, gpus)
    return candidates


def _prefill_layouts(group: Sequence[Candidate], timers: StepTimers) -> list[tuple[Layout, float]]:
    """Return the best prefill layouts with the milliseconds per prompt of a worker."""
    deployments = [s.with_concurrency(s.deployment.layout.dp).deployment for s in group]
    first_ms, per_prompt_ms = prompt_ms(deployments, timers)
    sizes = np.array([d.gpus for d in deployments])
    best = sorted({int(np.argmin(per_prompt_ms * sizes)), int(np.argmin(first_ms))})
    return [(deployments[i].layout, float(per_prompt_ms[i])) for i in best]


def _matched_pools(
    decoder: Deployment, in_flight: int, prefill_layout: Layout, busy_workers: float, gpus: int
) -> list[Candidate]:
    """Return the best pools, if any, for prefill workers that a decode worker keeps busy."""
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
    return [Candidate(decoder).with_concurrency(in_flight * pools.decode_workers, pools)]


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
    table["accuracy"] = _once(
        candidates, lambda d: d.formats, lambda d: recovery(d.formats, d.model, accuracy)
    )
    per_s = tokens_per_s(rows["concurrency"].to_numpy(), rows["osl"].to_numpy(), latencies)
    all_per_s = per_s * table["replicas"].to_numpy(dtype=float)
    table["requests_per_s"] = all_per_s / rows["osl"]
    table["tokens_per_s_per_gpu"] = all_per_s / table["gpus"]
    shares = [f"share_{part}" for part in PARTS]
    bound = ("decode_compute_bound", "prefill_compute_bound")
    copied_columns = ["guessed", "energy_guessed", *bound, "share_host", *shares]
    table[copied_columns] = rows[copied_columns]
    # A format that no engine supports was never measured.
    unsupported = _once(
        candidates,
        lambda d: (d.model.name, d.formats, d.system.name, d.backend),
        lambda d: bool(unsupported_formats(d, d.backend)),
    )
    table.loc[unsupported > 0, "guessed"] = 1.0
    bound_ms = rows["decode_bound"] + prompts_per_token(rows) * rows["prefill_bound"]
    table["bound_share"] = bound_ms / latencies["tpot_ms"]
    table = table.join(deployment_power(rows, latencies)).assign(awake_w=rows["awake_w"])
    largest_part = np.argmax(np.nan_to_num(rows[shares].to_numpy()), axis=1)
    table["limited_by"] = np.array(PARTS)[largest_part]
    hourly = np.array([c.deployment.system.price_per_hour for c in candidates], dtype=float)
    return table.assign(usd_per_million_tokens=hourly * 1e6 / 3600 / table["tokens_per_s_per_gpu"])


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


def _once(
    candidates: Sequence[Candidate],
    key: Callable[[Deployment], object],
    value: Callable[[Deployment], float | None],
) -> np.ndarray:
    """Return a value of each candidate, computed once for equal keys; NaN if there is none."""
    known: dict[object, float | None] = {}
    keys = [key(candidate.deployment) for candidate in candidates]
    for each, candidate in zip(keys, candidates, strict=True):
        if each not in known:
            known[each] = value(candidate.deployment)
    return np.array([known[each] for each in keys], dtype=float)
