"""What a plan says in sentences: the best, what it waits for, what is next, what to beware of."""

import numpy as np
import pandas as pd

from foretune.plan.cost.host_link import LINK_EFFICIENCY
from foretune.plan.cost.memory import GIB, request_bytes
from foretune.plan.describe.cache_formats import DEFAULT_CACHE_FORMATS
from foretune.plan.serve.at_rate import IDENTITY
from foretune.plan.serve.candidates import CONCURRENCIES
from foretune.plan.serve.deployments.arrivals import MIN_GOODPUT_SHARE
from foretune.plan.serve.engine_support import engines_with, unsupported_formats
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.requirements import GOALS

PART_PHRASES = {
    "projections": "are projections",
    "attention": "is attention, which reads the cache of keys and values, or states",
    "experts": "are experts",
    "communication": "is communication",
    "rest": "are small operators",
}
"""Parts of a decode step, as sentences call them."""
COMPARED_COLUMNS = {
    "tokens_per_s_per_gpu": "tokens/s per GPU",
    "tpot_ms": "time per token",
    "ttft_ms": "time to the first",
    "usd_per_million_tokens": "cost",
}
"""Columns of a candidate that decide -> what sentences call them."""
MIN_CHANGE_PERCENT = 0.5
"""Percent below which a change is not said."""
WARN_EXTRAPOLATED_SHARE = 0.2
"""Share of a step's time outside what was measured, from which it is said."""


def sentences(plan: Plan) -> list[str]:
    """Return the lines below a plan's table, most important first."""
    best = plan.best
    lines = [
        f"best: {describe_candidate(plan, best)}",
        _latency_text(best),
        _throughput_text(best),
        _bottleneck(plan, best),
    ]
    if drafts := plan.deployment(best).speculation:
        lines.append(str(drafts))
    lines += (
        _arrival_lines(plan, best)
        + _pool_lines(plan, best)
        + _alternative_lines(plan, best)
        + _extrapolated_lines(plan, best)
    )
    return lines


def notes(plan: Plan, tables: bool, corrected: bool) -> list[str]:
    """Return what to know when reading a plan.

    Args:
        plan: what was found.
        tables: whether operators' times come from measured tables.
        corrected: whether measured deployments corrected the formulas.
    """
    lines = [*plan.excluded_systems.values(), *_exclusion_notes(plan)]
    if not tables:
        lines.append("operators are rooflines: no measured tables (pip install '.[llm]')")
    elif plan.best["guessed"] > WARN_EXTRAPOLATED_SHARE:
        lines.append(
            f"{100 * plan.best['guessed']:.0f} % of a step lies outside what was measured on "
            f"{plan.best['system']}"
        )
    if not corrected:
        lines.append("no intervals: --measured FILE learns them from measured deployments")
    unknown = plan.candidates["accuracy"].isna()
    if unknown.any():
        names = "; ".join(sorted(set(plan.candidates["formats"][unknown])))
        what = "left out" if plan.requirements.accuracy > 0 else "they may lose any"
        lines.append(f"no quality is published of {names}: {what}")
    priced = plan.candidates["usd_per_million_tokens"].notna()
    if not priced.all():
        names = ", ".join(plan.candidates["system"][~priced].unique())
        lines.append(f"nobody knows a price of {names}: --prices FILE says one")
    emulated = {
        str(d.formats)
        for d in {(d.formats, d.system.name): d for d in plan.deployments}.values()
        if d.formats.support(d.system.device.architecture) != "native"
        and engines_with(d.formats.kv)
    }
    if emulated:
        names = "; ".join(sorted(emulated))
        lines.append(f"converted while computing, as the GPU has no such units: {names}")
    return lines + _cache_notes(plan) + _offload_notes(plan)


def _cache_notes(plan: Plan) -> list[str]:
    """Return what is not known of the caches that were asked for, and what the engine lacks."""
    kinds = dict.fromkeys(
        d.formats.kv for d in plan.deployments if d.formats.kv not in DEFAULT_CACHE_FORMATS
    )
    lines = [
        f"no table has attention on {kind} caches: it is taken to be as efficient as on the "
        "nearest that was measured, for fewer bytes; what converting them costs is left out"
        for kind in kinds
    ]
    formats = {(d.formats, d.system.name): d for d in plan.deployments}
    unsupported = dict.fromkeys(unsupported_formats(d, d.backend) for d in formats.values())
    lines += [reason for reason in unsupported if reason]
    return lines


def _offload_notes(plan: Plan) -> list[str]:
    """Return what is taken for granted of what lies in the host's memory."""
    offloads = [d.offload for d in plan.deployments if d.offload]
    if not offloads:
        return []
    rates = {d.system.name: d.system.host_gbps for d in plan.deployments}
    links = ", ".join(f"{name} {rate:g} GB/s" for name, rate in rates.items())
    rate = f"{100 * LINK_EFFICIENCY:.0f} % of what links to the host promise ({links})"
    lines = [f"offload was not measured: {rate}, all GPUs at once; the host has memory enough"]
    if any(offload.weights_gib for offload in offloads):
        lines.append(
            "nothing computes while weights come from the host's memory; the formula of the first "
            "token was learned without: where requests are replayed, that is nearer"
        )
    best = plan.deployment(plan.best)
    if size := best.offload.cache_gib * GIB:
        prefix = best.workload.prefix
        prefix_bytes = request_bytes(best.model, best.layout, best.formats, prefix)
        what = f"{size / prefix_bytes:.0f} prefixes of {prefix:,} tokens"
        lines.append(f"the host keeps {what} for each tensor-parallel group")
    return lines


def _exclusion_notes(plan: Plan) -> list[str]:
    """Return what plans of this model, these lengths and this many GPUs leave out."""
    lines = []
    if (plan.candidates["pp"] > 1).any():
        lines.append(
            "pipelines (pp > 1) were checked at maximum load alone, with TensorRT-LLM's figures"
        )
    first, tokens = plan.deployments[0].system, plan.deployments[0].longest_context
    if 0 < (longest := plan.deployments[0].model.longest) < tokens:
        lines.append(f"{tokens:,} tokens are more than the {longest:,} that the model was made for")
    if plan.deployments[0].model.images:
        lines.append(
            "images are not planned for: count their tokens in --isl; their encoder's weights and "
            "time come on top"
        )
    if plan.deployments[0].model.has_mixed_layers:
        lines.append(
            "no plan of a model with such layers was checked against a deployment: see also that "
            "your version of the engine serves it"
        )
    if plan.candidates["gpus"].max() > first.fast_domain_gpus:
        lines.append(
            f"ranks of a layer stay among {first.fast_domain_gpus} GPUs: exchanges over a network were "
            "not measured"
        )
    return lines


def format_number(value: float) -> str:
    """Return a number of four digits, or all before the point; a dash where unknown."""
    if not np.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def describe_layout(row: pd.Series) -> str:
    """Return the layout of a candidate."""
    parts = [f"{name}{row[name]}" for name in ("tp", "pp", "dp", "ep") if row[name] > 1]
    return " ".join(parts) or "one GPU"


def describe_candidate(plan: Plan, row: pd.Series) -> str:
    """Return a candidate in words: formats, layout, GPUs where that is not said already, load."""
    words = [str(row["formats"]), describe_layout(row)]
    if row["offload_gib"] > 0:
        words.append(
            f"{format_number(row['offload_gib'])} GiB of each GPU's weights in the host's memory"
        )
    for column in ("gpus", "system"):
        if plan.candidates[column].nunique() > 1:
            words.append(f"{row['gpus']} × {row['system']}")
            break
    if row["prefill"]:
        words.append(f"prompts on {row['prefill']}, answers on {_worker_count(row)}")
        return ", ".join([*words, f"{row['batch']} requests"])
    return ", ".join([*words, f"{row['replicas']} × {row['batch']} requests"])


def _worker_count(row: pd.Series) -> str:
    return "1 worker" if row["workers"] == 1 else f"{row['workers']} workers"


def _latency_text(best: pd.Series) -> str:
    """Return both times, with their 90 % intervals where there are any."""
    words = []
    for name, what in (("ttft_ms", "to the first token"), ("tpot_ms", "per further one")):
        low, high = (best.get(f"{name}_{end}", np.nan) for end in ("low", "high"))
        interval = f" ({format_number(low)} … {format_number(high)})" if np.isfinite(low) else ""
        words.append(f"{format_number(best[name])} ms{interval} {what}")
    return ", ".join(words)


def _throughput_text(best: pd.Series) -> str:
    parts = [f"{best['tokens_per_s_per_gpu']:.0f} tokens/s per GPU"]
    parts += [
        f"{best[column]:.{digits}f} {unit}"
        for column, digits, unit in (
            ("usd_per_million_tokens", 2, "USD per million tokens"),
            ("power_w", 0, "W per GPU"),
            ("energy_mj_per_token", 0, "mJ per token"),
        )
        if column in best and np.isfinite(best[column])
    ]
    if best["good"] == best["good"]:
        parts.append(f"{100 * best['good']:.0f} % of requests in time")
    return ", ".join(parts)


def _arrival_lines(plan: Plan, best: pd.Series) -> list[str]:
    """Return what rate of requests the best bears, where that was not asked for."""
    limited = np.isfinite([plan.requirements.ttft_ms, plan.requirements.tpot_ms]).any()
    if best["good"] == best["good"] or not limited or best["prefill"]:
        return []
    return [
        f"{plan.goodput:.3g} requests/s that arrive at random leave {100 * MIN_GOODPUT_SHARE:.0f} % in time"
    ]


def _pool_lines(plan: Plan, best: pd.Series) -> list[str]:
    """Return what a pool of their own for prompts gains."""
    single = plan.best_one_pool
    if not best["prefill"] or single is None:
        return []
    column, _ = GOALS[plan.requirements.goal]
    gain = 100 * abs(best[column] / single[column] - 1.0)
    return [
        f"pools of their own are {gain:.0f} % better than one: {describe_candidate(plan, single)}"
    ]


def _extrapolated_lines(plan: Plan, best: pd.Series) -> list[str]:
    """Return what might be better, for all that nobody measured."""
    extrapolated = plan.best_extrapolated
    if extrapolated is None:
        return []
    column, _ = GOALS[plan.requirements.goal]
    better = 100 * abs(extrapolated[column] / best[column] - 1.0)
    if better < MIN_CHANGE_PERCENT:
        return []
    unmeasured = f"{100 * extrapolated['guessed']:.0f} % of it unmeasured"
    return [
        f"{better:.0f} % better, but a guess ({unmeasured}): {describe_candidate(plan, extrapolated)}"
    ]


def _bottleneck(plan: Plan, best: pd.Series) -> str:
    """Return what limits a decode step, what most of it goes to, and whether memory ends it."""
    largest = best["limited_by"]
    limit = "computing" if best["decode_compute_bound"] > 0.5 else "memory bandwidth"
    if largest == "communication":
        limit = "links between GPUs"
    if best["share_host"] > best[f"share_{largest}"]:
        return (
            f"limited by the link to the host's memory: {100 * best['share_host']:.0f} % of a step "
            "waits for weights"
        )
    line = f"limited by {limit}: {100 * best[f'share_{largest}']:.0f} % of a step {PART_PHRASES[largest]}"
    line += f"; {100 * best['bound_share']:.0f} % of what peak rates allow"
    same = (plan.candidates[IDENTITY] == best[IDENTITY]).all(axis=1)
    max_batch = plan.candidates[same]["batch"].max()
    full = best["batch"] == max_batch < CONCURRENCIES[-1] * best["dp"] * best["workers"]
    if best["good"] != best["good"] and full:
        line += "; memory holds no more requests"
    return line


def _alternative_lines(plan: Plan, best: pd.Series) -> list[str]:
    lines = []
    second, faster = plan.runner_up, plan.next_faster
    if second is not None:
        probability = (
            ""
            if plan.probability_best is None
            else f" ({100 * plan.probability_best:.0f} % likely behind)"
        )
        lines.append(
            f"next{probability}: {describe_candidate(plan, second)}: {trade_offs(best, second)}"
        )
    if faster is not None and (second is None or faster.name != second.name):
        lines.append(
            f"faster per token: {describe_candidate(plan, faster)}: {trade_offs(best, faster)}"
        )
    return lines


def trade_offs(best: pd.Series, other: pd.Series) -> str:
    """Return what changes for whoever takes another candidate than the best."""
    changes = []
    for column, what in COMPARED_COLUMNS.items():
        change = 100 * (other[column] / best[column] - 1.0)
        if np.isfinite(change) and abs(change) >= MIN_CHANGE_PERCENT:
            changes.append(f"{change:+.0f} % {what}")
    if other["native"] != best["native"]:
        changes.append("weights as published" if other["native"] else "weights made anew")
    return ", ".join(changes) or "no difference"
