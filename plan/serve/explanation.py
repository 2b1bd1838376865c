"""Explains a plan in sentences: best deployment, bottleneck, alternatives, caveats."""

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB
from foretune.plan.describe.catalog import LINK_EFFICIENCY
from foretune.plan.describe.formats import DEFAULT_CACHE_FORMATS, describe_formats
from foretune.plan.serve.candidates import CONCURRENCIES
from foretune.plan.serve.launching import unsupported_formats
from foretune.plan.serve.planner import Plan, describe_layout
from foretune.plan.serve.requirements import GOALS, IDENTITY, MIN_GOODPUT_SHARE

PART_PHRASES = {
    "projections": "are projections",
    "attention": "is attention, which reads the KV cache or states",
    "experts": "are experts",
    "communication": "is communication",
    "rest": "are small operators",
}
"""Part of a decode step -> predicate of a sentence about its share."""
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


def sentences(plan: Plan) -> list[str]:
    """Return the lines below a plan's table, most important first."""
    best = plan.best
    drafts = plan.deployment(best).speculation
    return [
        f"best: {describe_candidate(plan, best)}",
        _latency_text(best),
        _throughput_text(best),
        _bottleneck(plan, best),
        *([str(drafts)] if drafts else []),
        *_arrival_lines(plan, best),
        *_pool_lines(plan, best),
        *_alternative_lines(plan, best),
    ]


def notes(plan: Plan, tables: bool, corrected: bool) -> list[str]:
    """Return the caveats of a plan.

    ``tables``: whether operator times come from measured tables; ``corrected``: whether latencies
    were corrected with measured deployments.
    """
    lines = [*plan.excluded_systems.values(), *_exclusion_notes(plan)]
    if not tables:
        lines.append("operator times are rooflines: no measured tables (pip install '.[llm]')")
    elif plan.best["guessed"] > WARN_EXTRAPOLATED_SHARE:
        lines.append(
            f"{100 * plan.best['guessed']:.0f} % of a step was not measured on "
            f"{plan.best['system']}: extrapolated from other sizes, formats, engines or GPUs"
        )
    if not corrected:
        lines.append("no intervals: add --measured FILE to fit them to measured deployments")
    unknown = plan.candidates["accuracy"].isna()
    if unknown.any():
        names = "; ".join(sorted(set(plan.candidates["formats"][unknown])))
        what = "left out" if plan.requirements.accuracy > 0 else "their loss is unknown"
        lines.append(f"no published quality for {names}: {what}")
    priced = plan.candidates["usd_per_million_tokens"].notna()
    if not priced.all():
        names = ", ".join(plan.candidates["system"][~priced].unique())
        lines.append(f"no known price for {names}: add --prices FILE")
    kinds = list({(d.formats, d.system.name): d for d in plan.deployments}.values())
    emulated = {
        describe_formats(d.formats, d.model)
        for d in kinds
        if d.formats.support(d.system.device.architecture) != "native"
    }
    if emulated:
        names = "; ".join(sorted(emulated))
        lines.append(f"emulated, because the GPU has no units for this format: {names}")
    caches = dict.fromkeys(d.formats.kv for d in kinds if d.formats.kv not in DEFAULT_CACHE_FORMATS)
    lines += [
        f"attention on {cache} caches was not measured: its efficiency is assumed to be that of "
        "the nearest measured format, for fewer bytes; conversion costs are left out"
        for cache in caches
    ]
    lines += filter(None, dict.fromkeys(unsupported_formats(d, d.backend) for d in kinds))
    return lines + _offload_notes(plan)


def _offload_notes(plan: Plan) -> list[str]:
    offloads = [d.offload for d in plan.deployments if d.offload]
    if not offloads:
        return []
    rates = {d.system.name: d.system.host_gbps for d in plan.deployments}
    links = ", ".join(f"{name} {rate:g} GB/s" for name, rate in rates.items())
    rate = f"{100 * LINK_EFFICIENCY:.0f} % of the host links' data-sheet rate ({links})"
    lines = [
        f"offloading was not measured: assumed {rate}, all GPUs at once, and enough host memory"
    ]
    if any(offload.weights_gib for offload in offloads):
        lines.append(
            "compute waits while weights load from host memory; the time to first token "
            "was fitted without offloading, so the simulated one is more reliable"
        )
    best = plan.deployment(plan.best)
    if size := best.offload.cache_gib * GIB:
        what = f"{size / best.prefix_bytes:.0f} prefixes of {best.workload.prefix:,} tokens"
        lines.append(f"host memory holds {what} per tensor-parallel group")
    return lines


def _exclusion_notes(plan: Plan) -> list[str]:
    """Return what is excluded for this model, these lengths and this many GPUs."""
    first, most_gpus = plan.deployments[0], plan.candidates["gpus"].max()
    longest, tokens = first.model.longest, first.longest_context
    fast = {d.system.name: d.system.fast_domain_gpus for d in plan.deployments}
    fast_domains = [f"{n} GPUs of {name}" for name, n in fast.items() if most_gpus > n]
    stay_inside = f"ranks of a layer stay within {', '.join(fast_domains)}"
    lines = {
        "pipelines (pp > 1) were validated at maximum load only, on TensorRT-LLM's figures": (
            plan.candidates["pp"] > 1
        ).any(),
        f"{tokens:,} tokens exceed the model's context of {longest:,}": 0 < longest < tokens,
        "images are not planned: count their tokens in --isl; the encoder's weights and time are "
        "not included": first.model.images,
        "plans of models with mixed layers were not validated on a deployment; check that your "
        "engine version supports this model": first.model.has_mixed_layers,
        f"{stay_inside}: network exchanges were not measured": bool(fast_domains),
    }
    return [line for line, applies in lines.items() if applies]


def format_number(value: float) -> str:
    """Return a number with four digits, or all digits before the point; a dash if unknown."""
    if not np.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def describe_candidate(plan: Plan, row: pd.Series) -> str:
    """Return a candidate in words: formats, layout, GPUs if they vary, load."""
    words = [str(row["formats"]), describe_layout(row)]
    if row["offload_gib"] > 0:
        size = format_number(row["offload_gib"])
        words.append(f"{size} GiB of each GPU's weights in host memory")
    if plan.candidates[["gpus", "system"]].nunique().max() > 1:
        words.append(f"{row['gpus']} × {row['system']}")
    if row["prefill"]:
        workers = "1 worker" if row["workers"] == 1 else f"{row['workers']} workers"
        words.append(f"prefill on {row['prefill']}, decode on {workers}")
        return ", ".join([*words, f"{row['batch']} requests"])
    return ", ".join([*words, f"{row['replicas']} × {row['batch']} requests"])


def _latency_text(best: pd.Series) -> str:
    """Return both latencies, with their 90 % intervals if known."""
    words = []
    for name, what in (("ttft_ms", "to the first token"), ("tpot_ms", "per further token")):
        low, high = (best.get(f"{name}_{end}", np.nan) for end in ("low", "high"))
        interval = f" ({format_number(low)} … {format_number(high)})" if np.isfinite(low) else ""
        words.append(f"{format_number(best[name])} ms{interval} {what}")
    return ", ".join(words)


def _throughput_text(best: pd.Series) -> str:
    parts = [
        f"{format_number(best[column])} {unit}"
        for column, unit in (
            ("tokens_per_s_per_gpu", "tokens/s per GPU"),
            ("usd_per_million_tokens", "USD per million tokens"),
            ("power_w", "W per GPU"),
            ("energy_mj_per_token", "mJ per token"),
        )
        if column in best and np.isfinite(best[column])
    ]
    if best["good"] == best["good"]:
        parts.append(f"{100 * best['good']:.0f} % of requests within the limits")
    return ", ".join(parts)


def _arrival_lines(plan: Plan, best: pd.Series) -> list[str]:
    """Return the rate that the best deployment sustains within the limits, if no rate was given."""
    limited = np.isfinite([plan.requirements.ttft_ms, plan.requirements.tpot_ms]).any()
    if best["good"] == best["good"] or not limited or best["prefill"]:
        return []
    share = f"{100 * MIN_GOODPUT_SHARE:.0f} %"
    return [f"at {plan.goodput:.3g} randomly arriving requests/s, {share} meet the limits"]


def _pool_lines(plan: Plan, best: pd.Series) -> list[str]:
    single = plan.best_one_pool
    if not best["prefill"] or single is None:
        return []
    column, sign = GOALS[plan.requirements.goal]
    gain = 100 * sign * (best[column] / single[column] - 1.0)
    change = f"{abs(gain):.0f} % {'better' if gain >= 0 else 'worse'}"
    return [f"separate pools are {change} than one pool: {describe_candidate(plan, single)}"]


def _bottleneck(plan: Plan, best: pd.Series) -> str:
    """Return the limit of a decode step, its largest part, and whether memory is full."""
    largest, roofline = best["limited_by"], f"{100 * best['bound_share']:.0f} % of the roofline"
    if largest == "engine":
        return f"limited by the engine's CPU time per step, which GPUs wait for; {roofline}"
    limit = "compute" if best["decode_compute_bound"] > 0.5 else "memory bandwidth"
    if largest == "communication":
        limit = "links between GPUs"
    if best["share_host"] > best[f"share_{largest}"]:
        return (
            f"limited by the link to host memory: {100 * best['share_host']:.0f} % of a step "
            "waits for weights"
        )
    share = f"{100 * best[f'share_{largest}']:.0f} % of a step {PART_PHRASES[largest]}"
    line = f"limited by {limit}: {share}; {roofline}"
    same = (plan.candidates[IDENTITY] == best[IDENTITY]).all(axis=1)
    max_batch = plan.candidates[same]["batch"].max()
    full = best["batch"] == max_batch < CONCURRENCIES[-1] * best["dp"] * best["workers"]
    if best["good"] != best["good"] and full:
        line += "; memory is full"
    return line


def _alternative_lines(plan: Plan, best: pd.Series) -> list[str]:
    likely = plan.probability_best
    second = "next" if likely is None else f"next ({100 * likely:.0f} % likely worse)"
    named: dict[object, tuple[list[str], pd.Series]] = {}
    for what, other in (
        (second, plan.runner_up),
        ("faster per token", plan.next_faster),
        ("covered by measurements", plan.best_measured),
    ):
        if other is not None:
            named.setdefault(other.name, ([], other))[0].append(what)
    return [
        f"{', '.join(names)}: {describe_candidate(plan, other)}: {trade_offs(best, other)}"
        for names, other in named.values()
    ]


def trade_offs(best: pd.Series, other: pd.Series) -> str:
    """Return how another candidate differs from the best."""
    changes = []
    for column, what in COMPARED_COLUMNS.items():
        change = 100 * (other[column] / best[column] - 1.0)
        if np.isfinite(change) and abs(change) >= MIN_CHANGE_PERCENT:
            changes.append(f"{change:+.0f} % {what}")
    if other["native"] != best["native"]:
        changes.append("published weights" if other["native"] else "requantized weights")
    return ", ".join(changes) or "no difference"
