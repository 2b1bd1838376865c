"""Candidates as rows of tables: what stands in each column, and which columns are known."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from foretune.plan.serve.explaining import named
from foretune.plan.serve.planner import Plan
from foretune.tune.report.page import Html, element, join, number, percent, row, table


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


def candidates_table(
    caption: str, plan: Plan, rows: pd.DataFrame, roles: dict[object, str] | None = None
) -> Html:
    """Return a table of candidates; what is known of none of them has no column.

    Args:
        caption: what it shows.
        plan: whose candidates they are.
        rows: of its table.
        roles: words before the candidates of some rows, by their index.
    """
    columns = [c for c in COLUMNS if c.name in rows and rows[c.name].notna().any()]
    headings = ["Deployment", *(_heading(c.title) for c in columns)]
    lines = [
        row([_name(plan, line, (roles or {}).get(index)), *(cell(line, c) for c in columns)])
        for index, line in rows.iterrows()
    ]
    return table(caption, headings, [lines], class_="scores")


def cell(line: pd.Series, column: Column) -> Html | str:
    """Return a value, with its interval below where there is one."""
    value = column.show(float(line[column.name]))
    interval = interval_of(line, column.name)
    return join([value, element("small", interval)]) if interval else value


def interval_of(line: pd.Series, name: str) -> str:
    """Return the interval of a predicted value; nothing where it has none."""
    low, high = (float(line.get(f"{name}_{end}", math.nan)) for end in ("low", "high"))
    return f"{number(low)} – {number(high)}" if math.isfinite(low) else ""


def _name(plan: Plan, line: pd.Series, role: str | None) -> Html:
    style = "display:inline-block;min-width:15rem"
    text = [element("b", f"{role}: ")] if role else []
    return element("span", *text, spoken(plan, line), style=style)


def spoken(plan: Plan, line: pd.Series) -> str:
    """Return a candidate in words that break well: numbers stay with what they count."""
    words = named(plan, line)
    for glued in (" × ", " requests"):
        words = words.replace(glued, glued.replace(" ", "\N{NO-BREAK SPACE}"))
    return words


def _heading(title: str) -> Html:
    style = "display:inline-block;white-space:normal;max-width:7rem"
    return element("span", title, style=style)
