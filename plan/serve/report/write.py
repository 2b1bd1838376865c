"""The report of a plan: one HTML file that says what to deploy, why, and what to beware of.

It holds everything it needs, so it opens offline and can be mailed.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from foretune.plan.serve.deployments.physics import Clocks
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.report.question import Question, limits
from foretune.plan.serve.report.rows import COLUMNS, interval_of, spoken
from foretune.plan.serve.report.sections import (
    checks_section,
    choice_section,
    front_section,
    launch_section,
    memory_section,
    notes_section,
    question_section,
    systems_section,
    times_section,
)
from foretune.tune.report.page import Html, element, join, page, write_page

_TILES = ("tokens_per_s_per_gpu", "tpot_ms", "ttft_ms", "usd_per_million_tokens", "power_w",
          "memory_gib")  # fmt: skip


def write_plan_report(
    plan: Plan,
    path: str | os.PathLike[str],
    question: Question,
    clocks: Clocks,
    commands: Mapping[str, str] | None = None,
    checks: pd.DataFrame | None = None,
) -> Path:
    """Write the report of a plan to ``path`` in one step, all or nothing, and return it.

    Args:
        plan: what was found.
        path: of the HTML file; folders above it are made.
        question: what was asked.
        clocks: those the plan was made with; say what single operators take.
        commands: what starts the best deployment, by engine.
        checks: what was measured to check the plan, a row each; columns are shown as they are.

    Raises:
        UsageError: no candidate keeps to the limits.
        OutputError: the file cannot be written.
    """
    return write_page(path, _document(plan, question, clocks, commands or {}, checks))


def _document(
    plan: Plan,
    question: Question,
    clocks: Clocks,
    commands: Mapping[str, str],
    checks: pd.DataFrame | None,
) -> str:
    sections = {"Choice": ("choice", choice_section(plan))}
    if len(question.systems) > 1:
        sections["GPUs"] = ("systems", systems_section(plan, question))
    sections["Throughput"] = ("front", front_section(plan))
    sections["Time"] = ("times", times_section(plan, clocks))
    sections["Memory"] = ("memory", memory_section(plan))
    if commands:
        sections["Start"] = ("launch", launch_section(commands))
    if checks is not None:
        sections["Checks"] = ("checks", checks_section(checks))
    sections["Beware"] = ("notes", notes_section(plan, question))
    sections["Question"] = ("question", question_section(plan, question))
    links = [(anchor, title) for title, (anchor, _) in sections.items()]
    title = f"{question} – Foretune"
    return page(title, _top(plan, question), [s for _, s in sections.values()], links)


def _top(plan: Plan, question: Question) -> Html:
    best, load = plan.best, question.workload
    asked = f"For prompts of {load.isl:,} tokens and answers of {load.osl:,}"
    if question.rate is not None:
        asked += f", {question.rate:g} requests per second"
    kept = limits(plan.requirements)
    asked += f"; at most {', '.join(kept)}." if kept else ", without limits."
    tiles = []
    for column in (c for name in _TILES for c in COLUMNS if c.name == name):
        value = float(best.get(column.name, math.nan))
        if math.isfinite(value):
            interval = interval_of(best, column.name)
            name = f"{column.title} (90 %: {interval})" if interval else column.title
            tiles.append(element("div", element("dt", name), element("dd", column.show(value))))
    return join(
        [
            element("h1", str(question)),
            element("p", spoken(plan, best), class_="headline"),
            element("p", asked, class_="lead"),
            element("dl", *tiles, class_="tiles"),
        ]
    )
