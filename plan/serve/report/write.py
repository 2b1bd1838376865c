"""The report of a plan: one HTML file that says what to deploy, why, and what to beware of.

It holds everything it needs, so it opens offline and can be mailed.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from foretune.plan.serve.deployments.analytic import StepTimers
from foretune.plan.serve.deployments.deployment import ENGINE_NAMES
from foretune.plan.serve.explanation import PART_PHRASES, notes, sentences
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.report.figures import front_figure, group_marks
from foretune.plan.serve.report.question import Question, limits
from foretune.plan.serve.report.rows import COLUMNS, format_candidate, interval_of, known_columns
from foretune.plan.serve.report.sections import (
    BEYOND_OPERATORS,
    PART_COLORS,
    best_of_systems,
    chosen_candidates,
    excluded_reasons,
    memory_bars,
    time_bars,
    winner_sentences,
)
from foretune.tune.report.page import number, render, write_page

_TILES = ("tokens_per_s_per_gpu", "tpot_ms", "ttft_ms", "usd_per_million_tokens", "power_w",
          "memory_gib")  # fmt: skip


def write_plan_report(
    plan: Plan,
    path: str | os.PathLike[str],
    question: Question,
    timers: StepTimers,
    commands: Mapping[str, str] | None = None,
    checks: pd.DataFrame | None = None,
) -> Path:
    """Write the report of a plan to ``path`` in one step, all or nothing, and return it.

    Args:
        plan: what was found.
        path: of the HTML file; folders above it are made.
        question: what was asked.
        timers: those the plan was made with; say what single operators take.
        commands: what starts the best deployment, by engine.
        checks: what was measured to check the plan, a row each; columns are shown as they are.

    Raises:
        UsageError: no candidate keeps to the limits.
        OutputError: the file cannot be written.
    """
    candidates, best = chosen_candidates(plan), best_of_systems(plan, question)
    memory = memory_bars(plan, candidates)
    parts = [p for p in PART_COLORS if p != "experts" or plan.deployments[0].model.is_moe]
    text = render(
        Path(__file__).with_name("plan.html"),
        title=str(question),
        headline=format_candidate(plan, plan.best),
        lead=_lead(plan, question),
        tiles=_tiles(plan.best),
        plan=plan,
        question=question,
        commands=commands or {},
        checks=None if checks is None else checks.map(_plain),
        engines=ENGINE_NAMES,
        known=known_columns,
        format_candidate=format_candidate,
        interval_of=interval_of,
        sentences=sentences(plan),
        chosen=candidates,
        chosen_lines=pd.DataFrame(list(candidates.values())),
        best_of_systems=best,
        winner=winner_sentences(plan, best),
        without=excluded_reasons(plan, question, best),
        limits=limits(plan.requirements),
        groups=[(symbol, color, name) for name, (color, symbol) in group_marks(plan).items()],
        front=front_figure(plan),
        part_colors=[("bar", PART_COLORS[p], PART_PHRASES[p].partition(",")[0]) for p in parts],
        beyond=BEYOND_OPERATORS,
        times=[time_bars(plan, candidates, timers, phase) for phase in ("decode", "prefill")],
        memory=memory,
        memory_colors=[("bar", s.color, s.name) for s in memory.segments]
        + [("line", "@text", "memory of the GPU")],
        notes=notes(plan, question.tables, question.corrected),
    )
    return write_page(path, text)


def _lead(plan: Plan, question: Question) -> str:
    load, limit_texts = question.workload, limits(plan.requirements)
    lead = f"For prompts of {load.isl:,} tokens and answers of {load.osl:,}"
    if question.rate is not None:
        lead += f", {question.rate:g} requests per second"
    return lead + (f"; at most {', '.join(limit_texts)}." if limit_texts else ", without limits.")


def _tiles(best: pd.Series) -> dict[str, str]:
    tiles = {}
    for column in (c for name in _TILES for c in COLUMNS if c.name == name):
        value = float(best.get(column.name, math.nan))
        if math.isfinite(value):
            interval = interval_of(best, column.name)
            name = f"{column.title} (90 %: {interval})" if interval else column.title
            tiles[name] = column.show(value)
    return tiles


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)
