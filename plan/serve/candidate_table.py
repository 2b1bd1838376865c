"""Candidates in the tables of a report: their columns, and which rows are shown."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from foretune.plan.serve.explanation import describe_candidate
from foretune.plan.serve.planner import Plan
from foretune.tune.report.page import interval, number, percent


@dataclass(frozen=True)
class Column:
    """A column in a table of candidates; ``show`` formats a value."""

    name: str
    title: str
    show: Callable[[float], str] = number


COLUMNS = (
    Column("ttft_ms", "First token, ms"),
    Column("tpot_ms", "Further token, ms"),
    Column("tokens_per_s_per_gpu", "Tokens/s per GPU"),
    Column("requests_per_s", "Requests/s"),
    Column("good", "Within limits", percent),
    Column("usd_per_million_tokens", "USD per million tokens"),
    Column("usd_per_gpu_hour", "USD per GPU and hour"),
    Column("power_w", "W per GPU"),
    Column("energy_mj_per_token", "mJ per token"),
    Column("memory_gib", "GiB per GPU"),
    Column("accuracy", "Quality kept", percent),
)


def known_columns(rows: pd.DataFrame) -> list[Column]:
    """Return the columns of which at least one value is known."""
    return [c for c in COLUMNS if c.name in rows and rows[c.name].notna().any()]


def interval_of(row: pd.Series, name: str) -> str:
    """Return the interval of a predicted value; empty without one."""
    low = float(row.get(f"{name}_low", math.nan))
    high = float(row.get(f"{name}_high", math.nan))
    return interval(low, high) if math.isfinite(low) else ""


def format_candidate(plan: Plan, row: pd.Series) -> str:
    """Return a candidate in words, with no-break spaces between numbers and units."""
    words = describe_candidate(plan, row)
    for glued in (" × ", " requests"):
        words = words.replace(glued, glued.replace(" ", "\N{NO-BREAK SPACE}"))
    return words


def chosen_candidates(plan: Plan) -> dict[str, pd.Series]:
    """Return the candidates shown in detail: best, next, step up."""
    by_role = {"best": plan.best, "next": plan.runner_up, "step up": plan.next_faster}
    return {role: row for role, row in by_role.items() if row is not None}


def best_of_systems(plan: Plan) -> pd.DataFrame:
    """Return the best feasible candidate of each system, best first."""
    # Of equal scores, the shortest time per token comes first.
    feasible = plan.feasible.sort_values("tpot_ms", kind="stable")
    scored = feasible.assign(score=plan.requirements.score(feasible))
    ranked = scored.sort_values("score", ascending=False, kind="stable")
    best = ranked.drop_duplicates("system").drop(columns="score")

    hourly = {system.name: system.price_per_hour for system in plan.request.systems}
    return best.assign(usd_per_gpu_hour=best["system"].map(hourly).astype(float))
