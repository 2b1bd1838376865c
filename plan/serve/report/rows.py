"""Candidates as rows of tables: what stands in each column, and which columns are known."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from foretune.plan.serve.explanation import describe_candidate
from foretune.plan.serve.planner import Plan
from foretune.tune.report.page import interval, number, percent


@dataclass(frozen=True)
class Column:
    """A column of a table of candidates.

    Attributes:
        name: of the plan's table.
        title: above the column.
        show: writes a value.
    """

    name: str
    title: str
    show: Callable[[float], str] = number


COLUMNS = (
    Column("ttft_ms", "First token, ms"),
    Column("tpot_ms", "Further token, ms"),
    Column("tokens_per_s_per_gpu", "Tokens/s per GPU"),
    Column("requests_per_s", "Requests/s"),
    Column("good", "In time", percent),
    Column("usd_per_million_tokens", "USD per million tokens"),
    Column("usd_per_gpu_hour", "USD per GPU and hour"),
    Column("power_w", "W per GPU"),
    Column("energy_mj_per_token", "mJ per token"),
    Column("memory_gib", "GiB per GPU"),
    Column("accuracy", "Quality kept", percent),
)


def known_columns(rows: pd.DataFrame) -> list[Column]:
    """Return the columns of what is known of some of the candidates."""
    return [c for c in COLUMNS if c.name in rows and rows[c.name].notna().any()]


def interval_of(row: pd.Series, name: str) -> str:
    """Return the interval of a predicted value; nothing where it has none."""
    low, high = (float(row.get(f"{name}_{end}", math.nan)) for end in ("low", "high"))
    return interval(low, high) if math.isfinite(low) else ""


def format_candidate(plan: Plan, row: pd.Series) -> str:
    """Return a candidate in words that break well: numbers stay with what they count."""
    words = describe_candidate(plan, row)
    for glued in (" × ", " requests"):
        words = words.replace(glued, glued.replace(" ", "\N{NO-BREAK SPACE}"))
    return words
