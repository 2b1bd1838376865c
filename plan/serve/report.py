"""HTML report of a plan: one self-contained file.

This page says what was asked and found, in words and tables. `candidate_table` has the columns of
its tables, `front_figure` and `breakdown` its charts; `plan.html` lays them out.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from foretune.plan.describe.engines import ENGINES
from foretune.plan.serve.breakdown import (
    BEYOND_OPERATORS,
    PART_COLORS,
    memory_bars,
    time_bars,
)
from foretune.plan.serve.candidate_table import (
    COLUMNS,
    best_of_systems,
    chosen_candidates,
    format_candidate,
    interval_of,
    known_columns,
)
from foretune.plan.serve.deployments.deployment_steps import StepTimers
from foretune.plan.serve.explanation import PART_PHRASES, notes, sentences
from foretune.plan.serve.front_figure import front_figure, group_marks, summarize_front
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.request import PlanRequest
from foretune.plan.serve.requirements import UPPER_LIMITS, Requirements
from foretune.tune.report.page import duration, number, render, write_page
from foretune.values import counted

TILES = (
    "tokens_per_s_per_gpu",
    "tpot_ms",
    "ttft_ms",
    "usd_per_million_tokens",
    "power_w",
    "memory_gib",
)
"""Columns of the best candidate that are shown in large print."""
SECTIONS = {
    "choice": "Choice",
    "systems": "GPUs",
    "front": "Throughput",
    "times": "Time",
    "memory": "Memory",
    "launch": "Start",
    "notes": "Caveats",
    "question": "Question",
}
"""Anchor of a section -> its name."""


def write_plan_report(
    plan: Plan,
    path: str | os.PathLike[str],
    timers: StepTimers,
    commands: Mapping[str, str] | None = None,
) -> Path:
    """Write the report of a plan to ``path`` atomically, and return it.

    ``commands`` start the best deployment, by engine. Raises UsageError if none is feasible.
    """
    candidates = chosen_candidates(plan)
    best = best_of_systems(plan)
    memory = memory_bars(plan, candidates)
    memory_legend = [("bar", segment.color, segment.name) for segment in memory.bars.segments]
    groups = group_marks(plan).items()
    text = render(
        Path(__file__).with_name("plan.html"),
        title=str(plan.request),
        links=_links(plan.request, commands),
        headline=format_candidate(plan, plan.best),
        lead=_lead(plan.request),
        tiles=_tiles(plan.best),
        plan=plan,
        commands=commands or {},
        engines=ENGINES,
        known=known_columns,
        format_candidate=format_candidate,
        interval_of=interval_of,
        sentences=sentences(plan),
        chosen=candidates,
        chosen_lines=pd.DataFrame(list(candidates.values())),
        best_of_systems=best,
        without=_systems_without_answer(plan, answered=set(best["system"])),
        limits=limits(plan.requirements),
        groups=[(symbol, color, name) for name, (color, symbol) in groups],
        front=front_figure(plan),
        front_summary=summarize_front(plan),
        part_colors=_part_legend(plan),
        beyond=BEYOND_OPERATORS,
        times=[time_bars(plan, candidates, timers, phase) for phase in ("decode", "prefill")],
        memory=memory,
        memory_colors=[*memory_legend, ("line", "@text", "memory of the GPU")],
        notes=notes(plan),
        asked=_asked(plan),
    )
    return write_page(path, text)


def limits(requirements: Requirements) -> list[str]:
    """Return the limits in words; empty without limits."""
    values = {unit: getattr(requirements, name) for name, unit in UPPER_LIMITS.items()}
    texts = [f"{value:,.4g} {unit}" for unit, value in values.items() if math.isfinite(value)]
    if requirements.accuracy > 0:
        texts.append(f"quality of at least {100 * requirements.accuracy:.4g} %")
    return texts


def _links(request: PlanRequest, commands: Mapping[str, str] | None) -> dict[str, str]:
    """Return the sections of the page: anchor -> name."""
    links = dict(SECTIONS)
    if len(request.systems) == 1:
        del links["systems"]
    if not commands:
        del links["launch"]
    return links


def _lead(request: PlanRequest) -> str:
    """Return the load and the limits in one sentence."""
    load = request.workload
    lead = f"For {load}"
    if request.rate is not None:
        lead += f", {request.rate:g} requests per second"

    limit_texts = limits(request.requirements)
    if limit_texts:
        return f"{lead}; at most {', '.join(limit_texts)}."
    return f"{lead}, without limits."


def _tiles(best: pd.Series) -> dict[str, str]:
    """Return the titles and values of `TILES`, without unknown values."""
    columns = {column.name: column for column in COLUMNS}
    tiles = {}
    for name in TILES:
        column = columns[name]
        value = float(best.get(name, math.nan))
        if not math.isfinite(value):
            continue
        interval = interval_of(best, name)
        title = f"{column.title} (90 %: {interval})" if interval else column.title
        tiles[title] = column.show(value)
    return tiles


def _systems_without_answer(plan: Plan, answered: set[str]) -> list[str]:
    """Return why systems have no feasible deployment."""
    names = [system.name for system in plan.request.systems]
    return [
        plan.excluded_systems.get(name, f"{name}: no deployment meets the limits")
        for name in names
        if name not in answered
    ]


def _part_legend(plan: Plan) -> list[tuple[str, str, str]]:
    """Return the legend of a step's parts; dense models have no experts."""
    is_moe = plan.request.model.is_moe
    return [
        ("bar", color, PART_PHRASES[part].partition(",")[0])
        for part, color in PART_COLORS.items()
        if part != "experts" or is_moe
    ]


def _asked(plan: Plan) -> list[tuple[str, str]]:
    """Return the question as names and texts."""
    request = plan.request
    load = request.workload
    cached = f", {load.prefix:,} of them cached" if load.prefix else ""

    rate = "the best number of requests in flight"
    if request.rate:
        rate = f"{request.rate:g} requests per second, arriving at random"

    planned = counted(len(plan.candidates), "deployment")
    if math.isfinite(plan.seconds):
        planned += f" in {duration(plan.seconds)}"

    return [
        ("Model", _describe_model(request)),
        ("GPUs", " or ".join(f"{request.gpus} × {system.name}" for system in request.systems)),
        ("Engine", ENGINES[request.engine]["name"]),
        ("Requests", f"{load}{cached}"),
        ("Load", rate),
        ("Limits", "; ".join(limits(plan.requirements)) or "none"),
        ("Goal", plan.requirements.goal),
        ("Drafting", str(request.speculation or "none")),
        ("Pools", "prefill may have separate workers" if request.pools else "one"),
        ("Outside of GPUs", f"up to {request.offload}" if request.offload else "nothing"),
        ("Planned", planned),
    ]


def _describe_model(request: PlanRequest) -> str:
    """Return the model's name and size."""
    model = request.model
    parameters = number(model.parameters() / 1e9)
    text = f"{model.name}: {model.layers} layers, {parameters} billion parameters"
    if model.is_moe:
        text += f", {number(model.active_parameters() / 1e9)} billion of them per token"
    if model.encoder_weights:
        text += f"; an encoder with {number(model.encoder_weights / 1e9)} billion"
    return text
