"""The table of ``foretune plan serve``: the Pareto front, in lines of 80 characters."""

from typing import TYPE_CHECKING, Any

import numpy as np

from foretune.cli.output import Output

if TYPE_CHECKING:
    import pandas as pd

    from foretune.plan import Plan

COLUMNS = {
    "system": "system",
    "formats": "formats",
    "layout": "layout",
    "replicas": "×",
    "prefill": "prompts on",
    "workers": "workers",
    "batch": "batch",
    "tokens_per_s_per_gpu": "tok/s/GPU",
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "usd_per_million_tokens": "USD/M",
    "offload_gib": "in host",
    "memory_gib": "GiB",
}
"""Column of candidates -> its heading; a column with one value only is left out."""
REQUIRED_COLUMNS = (
    "formats",
    "layout",
    "batch",
    "tokens_per_s_per_gpu",
    "ttft_ms",
    "tpot_ms",
    "usd_per_million_tokens",
)
"""Columns that are always shown."""
DROPPABLE_COLUMNS = ("memory_gib", "workers", "replicas", "prefill", "system")
"""Columns left out, in this order, until lines fit `MAX_WIDTH`."""
MAX_WIDTH = 80
SEPARATOR_WIDTH = 2  # characters between columns


def show_front(output: Output, plan: "Plan", top: int) -> None:
    """Print ``top`` candidates of the front, with the best one."""
    from foretune.plan.serve.planner import MAX_EXTRAPOLATED_SHARE, describe_layout

    rows = _select_rows(plan, top)
    rows = rows.assign(layout=[describe_layout(row) for _, row in rows.iterrows()])
    cells = {
        name: [COLUMNS[name], *(_cell(name, row) for _, row in rows.iterrows())]
        for name in COLUMNS
        if _is_shown(name, rows)
    }
    _fit_to_width(cells)

    headings, *lines = zip(*cells.values(), strict=True)
    output.table(str(plan.request), headings, lines)
    if (rows["guessed"] > MAX_EXTRAPOLATED_SHARE).any():
        output.say("? more than half of its time is extrapolated")


def _select_rows(plan: "Plan", top: int) -> "pd.DataFrame":
    """Return ``top`` rows spread over the front, fastest first; the best one is included."""
    best = plan.best
    others = plan.pareto.drop(index=best.name, errors="ignore")
    count = min(top - 1, len(others))
    positions = np.linspace(0, len(others) - 1, count).round().astype(int)
    names = {*others.index[positions], best.name}
    return plan.candidates.loc[list(names)].sort_values("tpot_ms")


def _is_shown(name: str, rows: "pd.DataFrame") -> bool:
    """Return whether a column is required, or has several values; at least one must be known."""
    if rows[name].isna().all():
        return False
    return name in REQUIRED_COLUMNS or bool(rows[name].nunique() > 1)


def _fit_to_width(cells: dict[str, list[str]]) -> None:
    """Drop columns until lines fit `MAX_WIDTH`."""
    for name in DROPPABLE_COLUMNS:
        widths = [max(map(len, column)) for column in cells.values()]
        separators = SEPARATOR_WIDTH * (len(widths) - 1)
        if sum(widths) + separators > MAX_WIDTH:
            cells.pop(name, None)


def _cell(name: str, row: "pd.Series[Any]") -> str:
    from foretune.plan.serve.explanation import format_number
    from foretune.plan.serve.planner import MAX_EXTRAPOLATED_SHARE

    value = row[name]
    if name in ("formats", "prefill"):
        text = str(value).replace(", ", "/").removesuffix(" cache").replace(" × ", "×")
        if name == "formats" and row["guessed"] > MAX_EXTRAPOLATED_SHARE:
            return f"{text} ?"
        return text
    return format_number(value) if isinstance(value, float) else str(value)
