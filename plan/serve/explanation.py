"""Explains a plan in sentences: best deployment, bottleneck, alternatives, caveats."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB
from foretune.plan.cost.operator import BF16_BYTES
from foretune.plan.describe.formats import (
    DEFAULT_CACHE_FORMATS,
    checkpoint_formats,
    describe_formats,
)
from foretune.plan.describe.system import LINK_EFFICIENCY, System
from foretune.plan.serve.arrivals import IDENTITY, MIN_GOODPUT_SHARE
from foretune.plan.serve.candidates import CONCURRENCIES
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.engine_support import unsupported_formats
from foretune.plan.serve.planner import Plan, describe_layout
from foretune.plan.serve.request import MAX_MIXED_SYSTEMS
from foretune.plan.serve.requirements import GOALS

PART_PHRASES = {
    "projections": "are projections",
    "attention": "is attention, which reads the KV cache or states",
    "experts": "are experts",
    "communication": "is communication",
    "rest": "are small operators",
}
"""Part of a decode step -> predicate of a sentence about its share."""
LATENCY_PHRASES = {"ttft_ms": "to the first token", "tpot_ms": "per further token"}
"""Latency -> its name in a sentence."""
RATE_UNITS = {
    "tokens_per_s_per_gpu": "tokens/s per GPU",
    "usd_per_million_tokens": "USD per million tokens",
    "power_w": "W per GPU",
    "energy_mj_per_token": "mJ per token",
}
"""Columns of the line about throughput -> their units."""
COMPARED_COLUMNS = {
    "tokens_per_s_per_gpu": "tokens/s per GPU",
    "tpot_ms": "time per token",
    "ttft_ms": "time to first token",
    "usd_per_million_tokens": "cost",
}
"""Columns compared with the best candidate -> their names in sentences."""
MIN_CHANGE_PERCENT = 0.5
"""Smaller changes are not reported."""
WARN_EXTRAPOLATED_SHARE = 0.2
"""Extrapolated share of step time above which a warning is printed."""

WIDE_CACHE_FORMAT = "fp32"
"""A cache that is wider than the measured ones converts nothing."""


def sentences(plan: Plan) -> list[str]:
    """Return the lines below a plan's table, most important first."""
    best = plan.best
    drafts = plan.deployment(best).speculation
    draft_lines = [str(drafts)] if drafts else []
    return [
        f"best: {describe_candidate(plan, best)}",
        _latency_text(best),
        _throughput_text(best),
        _bottleneck(plan, best),
        *draft_lines,
        *_arrival_lines(plan, best),
        *_pool_lines(plan, best),
        *_alternative_lines(plan, best),
    ]


def notes(plan: Plan) -> list[str]:
    """Return the caveats of a plan."""
    return [
        *plan.excluded_systems.values(),
        *_exclusion_notes(plan),
        *filter(None, dict.fromkeys(d.system.assumptions for d in plan.deployments)),
        *_measurement_notes(plan),
        *_unknown_value_notes(plan),
        *_format_notes(plan),
        *_offload_notes(plan),
    ]


def describe_candidate(plan: Plan, row: pd.Series) -> str:
    """Return a candidate in words: formats, layout, GPUs if they vary, load."""
    words = [str(row["formats"]), describe_layout(row)]
    if row["offload_gib"] > 0:
        size = format_number(row["offload_gib"])
        words.append(f"{size} GiB of each GPU's weights in host memory")
    gpus_vary = plan.candidates[["gpus", "system"]].nunique().max() > 1
    is_mixed = row["prefill"] and row["prefill_system"] != row["system"]
    if is_mixed:
        words.append(f"{row['gpus']} GPUs")
    elif gpus_vary:
        words.append(f"{row['gpus']} × {row['system']}")

    if row["prefill"]:
        workers = "1 worker" if row["workers"] == 1 else f"{row['workers']} workers"
        readers = str(row["prefill"])
        if is_mixed:
            readers += f" of {row['prefill_system']}"
            workers += f" of {row['system']}"
        words.append(f"prefill on {readers}, decode on {workers}")
        words.append(f"{row['batch']} requests")
    else:
        words.append(f"{row['replicas']} × {row['batch']} requests")
    return ", ".join(words)


def trade_offs(best: pd.Series, other: pd.Series) -> str:
    """Return how another candidate differs from the best."""
    changes = []
    for column, name in COMPARED_COLUMNS.items():
        percent = 100 * (other[column] / best[column] - 1.0)
        if np.isfinite(percent) and abs(percent) >= MIN_CHANGE_PERCENT:
            changes.append(f"{percent:+.0f} % {name}")
    if other["native"] != best["native"]:
        changes.append("published weights" if other["native"] else "requantized weights")
    return ", ".join(changes) or "no difference"


def format_number(value: float) -> str:
    """Return a number with four digits, or all digits before the point; a dash if unknown."""
    if not np.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# The lines of `sentences`.


def _latency_text(best: pd.Series) -> str:
    """Return both latencies, with their 90 % intervals if known."""
    texts = []
    for name, phrase in LATENCY_PHRASES.items():
        low = best.get(f"{name}_low", np.nan)
        high = best.get(f"{name}_high", np.nan)
        interval = f" ({format_number(low)} … {format_number(high)})" if np.isfinite(low) else ""
        texts.append(f"{format_number(best[name])} ms{interval} {phrase}")
    return ", ".join(texts)


def _throughput_text(best: pd.Series) -> str:
    texts = [
        f"{format_number(best[column])} {unit}"
        for column, unit in RATE_UNITS.items()
        if column in best and np.isfinite(best[column])
    ]
    if _is_for_rate(best):
        texts.append(f"{100 * best['good']:.0f} % of requests within the limits")
    return ", ".join(texts)


def _bottleneck(plan: Plan, best: pd.Series) -> str:
    """Return the limit of a decode step, its largest part, and whether memory is full."""
    largest = best["limited_by"]
    roofline = f"{100 * best['bound_share']:.0f} % of the roofline"
    if largest == "engine":
        return f"limited by the engine's CPU time per step, which GPUs wait for; {roofline}"

    largest_share = best[f"share_{largest}"]
    if best["share_host"] > largest_share:
        return (
            f"limited by the link to host memory: {100 * best['share_host']:.0f} % of a step "
            "waits for weights"
        )

    if largest == "communication":
        limit = "links between GPUs"
    elif best["decode_compute_bound"] > 0.5:
        limit = "compute"
    else:
        limit = "memory bandwidth"
    share = f"{100 * largest_share:.0f} % of a step {PART_PHRASES[largest]}"
    line = f"limited by {limit}: {share}; {roofline}"
    if not _is_for_rate(best) and _memory_is_full(plan, best):
        line += "; memory is full"
    return line


def _memory_is_full(plan: Plan, best: pd.Series) -> bool:
    """Return whether memory, not the largest planned load, limits the number of requests."""
    same_deployment = (plan.candidates[IDENTITY] == best[IDENTITY]).all(axis=1)
    max_batch = plan.candidates[same_deployment]["batch"].max()
    max_planned = CONCURRENCIES[-1] * best["dp"] * best["workers"]
    return bool(best["batch"] == max_batch and max_batch < max_planned)


def _arrival_lines(plan: Plan, best: pd.Series) -> list[str]:
    """Return the rate that the best deployment sustains within the limits, if no rate was given."""
    limits_ms = [plan.requirements.ttft_ms, plan.requirements.tpot_ms]
    has_limits = np.isfinite(limits_ms).any()
    if _is_for_rate(best) or not has_limits or best["prefill"]:
        return []
    share = f"{100 * MIN_GOODPUT_SHARE:.0f} %"
    return [f"at {plan.goodput:.3g} randomly arriving requests/s, {share} meet the limits"]


def _pool_lines(plan: Plan, best: pd.Series) -> list[str]:
    """Return what separate pools gain over one pool, if the best has them."""
    single = plan.best_one_pool
    if not best["prefill"] or single is None:
        return []
    column, sign = GOALS[plan.requirements.goal]
    gain_percent = 100 * sign * (best[column] / single[column] - 1.0)
    direction = "better" if gain_percent >= 0 else "worse"
    gain = f"{abs(gain_percent):.0f} % {direction}"
    return [f"separate pools are {gain} than one pool: {describe_candidate(plan, single)}"]


@dataclass(frozen=True)
class _Alternative:
    """A candidate beside the best, with everything that it is named for."""

    row: pd.Series
    names: list[str]


def _alternative_lines(plan: Plan, best: pd.Series) -> list[str]:
    """Return a line for each other candidate of interest; one row may have several names."""
    likely = plan.probability_best
    next_name = "next" if likely is None else f"next ({100 * likely:.0f} % likely worse)"
    by_name = {
        next_name: plan.runner_up,
        "faster per token": plan.next_faster,
        "covered by measurements": plan.best_measured,
    }

    alternatives: dict[object, _Alternative] = {}
    for name, row in by_name.items():
        if row is not None:
            alternative = alternatives.setdefault(row.name, _Alternative(row, names=[]))
            alternative.names.append(name)
    return [
        f"{', '.join(other.names)}: {describe_candidate(plan, other.row)}: "
        f"{trade_offs(best, other.row)}"
        for other in alternatives.values()
    ]


def _is_for_rate(row: pd.Series) -> bool:
    """Return whether a candidate was planned for a request rate."""
    return not np.isnan(row["good"])


# The lines of `notes`.


def _exclusion_notes(plan: Plan) -> list[str]:
    """Return what is excluded for this model, these lengths and this many GPUs."""
    lines = []
    if plan.request.pools and len(plan.request.systems) > MAX_MIXED_SYSTEMS:
        lines.append(
            "prompts and answers are planned on one kind of GPU: give at most "
            f"{MAX_MIXED_SYSTEMS} systems to mix them"
        )
    has_pools = plan.candidates["prefill"] != ""
    differs = plan.candidates["prefill_system"] != plan.candidates["system"]
    if (has_pools & differs).any():
        lines.append(
            "prompts on another kind of GPU: engines may ask for equal formats and layouts of "
            "both caches; no such deployment was compared with a measured one"
        )
    if (plan.candidates["pp"] > 1).any():
        lines.append(
            "pipelines (pp > 1) were validated at maximum load only, on TensorRT-LLM's figures"
        )

    model = plan.deployments[0].model
    tokens = plan.deployments[0].longest_context
    if 0 < model.longest < tokens:
        lines.append(f"{tokens:,} tokens exceed the model's context of {model.longest:,}")
    if model.images:
        encoder = "the encoder's weights and time are not included"
        if model.encoder_weights:
            gib = BF16_BYTES * model.encoder_weights / GIB
            encoder = f"the encoder's {format_number(gib)} GiB are included, its time is not"
        lines.append(f"images and sound are not planned: count their tokens in --isl; {encoder}")
    if model.has_mixed_layers:
        lines.append(
            "plans of models with mixed layers were not validated on a deployment; check that "
            "your engine version supports this model"
        )

    most_gpus = plan.candidates["gpus"].max()
    fast_domains = {d.system.name: d.system.fast_domain_gpus for d in plan.deployments}
    exceeded = [f"{n} GPUs of {name}" for name, n in fast_domains.items() if most_gpus > n]
    if exceeded:
        lines.append(
            f"layouts beyond {', '.join(exceeded)} exchange over the network: their times are of "
            "a model, not measured"
        )
    return lines


def _measurement_notes(plan: Plan) -> list[str]:
    """Return how far times are measured, and whether they have intervals."""
    lines = []
    if not plan.has_tables:
        lines.append("operator times are rooflines: no measured tables (pip install '.[llm]')")
    elif plan.best["guessed"] > WARN_EXTRAPOLATED_SHARE:
        lines.append(
            f"{100 * plan.best['guessed']:.0f} % of a step was not measured on "
            f"{plan.best['system']}: extrapolated from other sizes, formats, engines or GPUs"
        )
    if not plan.corrected:
        lines.append("no intervals: add --measured FILE to fit them to measured deployments")
    return lines


def _unknown_value_notes(plan: Plan) -> list[str]:
    """Return the formats without a published quality, and the systems without a price."""
    lines = []
    unknown = plan.candidates["accuracy"].isna()
    if unknown.any():
        names = "; ".join(sorted(set(plan.candidates["formats"][unknown])))
        consequence = "left out" if plan.requirements.accuracy > 0 else "their loss is unknown"
        lines.append(f"no published quality for {names}: {consequence}")

    priced = plan.candidates["usd_per_million_tokens"].notna()
    if not priced.all():
        names = ", ".join(plan.candidates["system"][~priced].unique())
        lines.append(f"no known price for {names}: add --prices FILE")
    return lines


def _format_notes(plan: Plan) -> list[str]:
    """Return the formats that are guessed, were not measured, or that the GPU or engine lacks."""
    # One deployment of each format and system.
    by_format = {(d.formats, d.system.name): d for d in plan.deployments}
    deployments = list(by_format.values())
    return [
        *_guess_notes(deployments),
        *_emulation_notes(deployments),
        *_cache_notes(deployments),
        *filter(None, dict.fromkeys(unsupported_formats(d, d.backend) for d in deployments)),
    ]


def _guess_notes(deployments: list[Deployment]) -> list[str]:
    """Return that a checkpoint's formats come from its name alone, if they do."""
    model = deployments[0].model
    if not model.format_guessed:
        return []
    formats = describe_formats(checkpoint_formats(model), model)
    line = (
        f"{formats}: guessed from the name {model.name}; its files may exclude modules or have "
        "other groups: give the folder with its config.json"
    )
    return [line]


def _emulation_notes(deployments: list[Deployment]) -> list[str]:
    emulated = {
        describe_formats(d.formats, d.model)
        for d in deployments
        if d.formats.support(d.system.device.architecture) == "emulated"
    }
    if not emulated:
        return []
    names = "; ".join(sorted(emulated))
    return [f"emulated, because the GPU has no units for this format: {names}"]


def _cache_notes(deployments: list[Deployment]) -> list[str]:
    caches = dict.fromkeys(d.formats.kv for d in deployments)
    return [
        f"attention on {cache} caches was not measured: its efficiency is assumed to be that of "
        "the nearest measured format, for fewer bytes; conversion costs are left out"
        for cache in caches
        if cache not in DEFAULT_CACHE_FORMATS and cache != WIDE_CACHE_FORMAT
    ]


def _offload_notes(plan: Plan) -> list[str]:
    offloads = [d.offload for d in plan.deployments if d.offload]
    if not offloads:
        return []

    systems = {d.system.name: d.system for d in plan.deployments}
    rates = _link_rates(systems.values())
    lines = [
        f"offloading was not measured: assumed {rates}, all GPUs at once, and enough host memory"
    ]
    if any(offload.weights_gib for offload in offloads):
        lines.append(
            "compute waits while weights load from host memory; the time to first token "
            "was fitted without offloading, so the simulated one is more reliable"
        )

    best = plan.deployment(plan.best)
    if best.offload.cache_gib:
        prefixes = best.offload.cache_gib * GIB / best.prefix_bytes
        lines.append(
            f"host memory holds {prefixes:.0f} prefixes of {best.workload.prefix:,} tokens "
            "per tensor-parallel group"
        )
    if best.offload.disk_gib:
        lines.append(_disk_note(plan, best))
    return lines


def _link_rates(systems: Iterable[System]) -> str:
    """Return the rates of the systems' host links, and where they are from."""
    measured = [f"{s.name} {s.host_copy_gbps:g} GB/s" for s in systems if s.host_copy_gbps]
    stated = [f"{s.name} {s.host_gbps:g} GB/s" for s in systems if not s.host_copy_gbps]
    rates = []
    if measured:
        rates.append(f"the measured rate of host links ({', '.join(measured)})")
    if stated:
        share = f"{100 * LINK_EFFICIENCY:.0f} %"
        rates.append(f"{share} of the host links' data-sheet rate ({', '.join(stated)})")
    return " and ".join(rates)


def _disk_note(plan: Plan, best: Deployment) -> str:
    """Return how long a prefix takes from disk, and whether computing it is faster."""
    read_ms = best.disk_read_ms
    compute_ms = plan.prefix_compute_ms
    if read_ms < compute_ms:
        advice = f"computing it would take {compute_ms:.3g} ms"
    else:
        advice = f"computing it takes {compute_ms:.3g} ms: leave the disk out"
    return (
        f"each request's prefix is read from disk in {read_ms:.3g} ms, and all GPUs of a node "
        f"share the disk; {advice}; nothing is simulated, as the simulator has no queue at a disk"
    )
