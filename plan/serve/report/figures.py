"""The charts of a plan's report; ``"@name"`` is a color of the page's style."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from foretune.plan.serve.explaining import named
from foretune.plan.serve.planner import Plan
from foretune.search.optuna.pareto import pareto_front
from foretune.tune.report.figures import MOST_POINTS, Figure, label_text, make_figure

MARKS = (
    ("@measured", "circle"),
    ("@outside", "diamond"),
    ("@library", "square"),
    ("@predicted", "triangle-up"),
    ("#b3589a", "cross"),
    ("@quiet", "x"),
    ("#7a6fd0", "star"),
)
"""Colours and symbols of groups of candidates; further groups start again."""
ROW_PX, FRAME_PX = 62, 90
"""Heights of a bar and of what is around bars."""


@dataclass(frozen=True)
class Segment:
    """A part of stacked bars.

    Attributes:
        name: what it is.
        color: of it.
        values: one per bar; 0 where a bar has none of it.
        labelled: whether its name stands in it, where there is room.
    """

    name: str
    color: str
    values: Sequence[float]
    labelled: bool = True


@dataclass(frozen=True)
class Mark:
    """A line beside a bar.

    Attributes:
        name: what it is.
        values: where, one per bar; NaN where a bar has none.
        low, high: its interval, if known.
    """

    name: str
    values: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def groups(table: pd.DataFrame) -> "pd.Series[str]":
    """Return what candidates are told apart by: systems if there are several, else weights."""
    if table["system"].nunique() > 1:
        return table["system"].astype(str)
    return table["formats"].str.partition(",")[0].rename("formats")


def group_marks(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return the color and symbol of each group that keeps to the limits, the best first."""
    keeping = plan.candidates[plan.candidates["keeps"]]
    most = keeping["tokens_per_s_per_gpu"].groupby(groups(plan.candidates)).max()
    names = most.sort_values(ascending=False).index
    return {str(name): MARKS[i % len(MARKS)] for i, name in enumerate(names)}


def front_figure(plan: Plan) -> Figure:
    """Return tokens per second of a GPU over those of a user, and the front of every group."""
    table = plan.candidates.assign(user=1e3 / plan.candidates["tpot_ms"])
    group = groups(table)
    rest = table.sample(min(len(table), MOST_POINTS), random_state=0)
    front = table.loc[plan.pareto.index]
    data: list[Figure] = [
        {
            **_points(rest), "mode": "markers", "hoverinfo": "skip",
            "marker": {"color": "@cloud", "size": 4},
        },
        {
            **_points(front), "mode": "lines", "hoverinfo": "skip",
            "line": {"color": "@interval", "width": 11},
        },
    ]  # fmt: skip
    for name, (color, symbol) in group_marks(plan).items():
        own = _front(table[table["keeps"] & (group == name)])
        data.append(
            {
                **_points(own), "mode": "lines+markers", "text": _hover(plan, own),
                "line": {"color": color, "width": 1},
                "marker": {"color": color, "symbol": symbol, "size": 8,
                           "line": {"color": "@page", "width": 1}},
                "hovertemplate": "%{text}<extra></extra>",
            }
        )  # fmt: skip
    best = table.loc[[plan.best.name]]
    data.append(
        {
            **_points(best), "mode": "markers+text", "hoverinfo": "skip",
            "text": ["   <b>best</b>"], "textposition": "middle right",
            "marker": {"color": "rgba(0,0,0,0)", "size": 17,
                       "line": {"color": "@text", "width": 2}},
        }
    )  # fmt: skip
    drawn = table[table["keeps"]]
    x_end, y_end = (1.15 * float(drawn[c].max()) for c in ("user", "tokens_per_s_per_gpu"))
    limit = 1e3 / plan.requirements.tpot_ms
    if limit > 0:
        x_end = max(x_end, 1.15 * limit)
        data.append(_limit(limit, plan.requirements.tpot_ms, y_end))
    return make_figure(
        data,
        {"title": {"text": "tokens per second of a user"}, "range": [0, x_end]},
        {"title": {"text": "tokens per second of a GPU"}, "range": [0, y_end]},
        430,
    )


def stacked_figure(
    labels: Sequence[str], segments: Sequence[Segment], quantity: str, mark: Mark | None = None
) -> Figure:
    """Return horizontal bars of segments, the first bar on top.

    Args:
        labels: of the bars.
        segments: what they are made of, from the left.
        quantity: what the axis shows, with its unit.
        mark: a line beside each bar.
    """
    unit = quantity.rpartition(", ")[2]
    names = [label_text(label) for label in labels]
    data: list[Figure] = [
        {
            "type": "bar", "orientation": "h", "y": names, "x": list(segment.values),
            "text": [label_text(segment.name) if segment.labelled else ""] * len(names),
            "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
            "insidetextfont": {"color": "@page"},
            "marker": {"color": segment.color, "line": {"color": "@page", "width": 1}},
            "hovertemplate": f"{label_text(segment.name)}: %{{x:.3g}} {unit}<extra></extra>",
        }
        for segment in segments
    ]  # fmt: skip
    ends = [*np.sum([s.values for s in segments], axis=0)]
    if mark is not None:
        data.append(_mark(names, mark, unit))
        ends += [v for v in (*mark.values, *mark.high) if math.isfinite(v)]
    figure = make_figure(
        data,
        {"title": {"text": quantity}, "range": [0, 1.04 * max(ends)], "nticks": 8},
        {"type": "category", "autorange": "reversed", "showgrid": False, "ticksuffix": "  "},
        FRAME_PX + ROW_PX * len(names),
    )
    figure["layout"] |= {
        "barmode": "stack", "bargap": 0.35, "uniformtext": {"minsize": 11, "mode": "hide"},
    }  # fmt: skip
    return figure


def _points(rows: pd.DataFrame) -> Figure:
    return {"x": rows["user"].tolist(), "y": rows["tokens_per_s_per_gpu"].tolist()}


def _front(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that none of the others beats, from the slowest user's on."""
    values = np.column_stack([-rows["tokens_per_s_per_gpu"], rows["tpot_ms"]])
    return rows[pareto_front(values)].sort_values("user")


def _hover(plan: Plan, rows: pd.DataFrame) -> list[str]:
    return [
        f"{label_text(named(plan, row)).replace(', ', '<br>')}<br>{row['tpot_ms']:.3g} ms per "
        f"token, {row['ttft_ms']:.3g} ms to the first<br>"
        f"{row['tokens_per_s_per_gpu']:.4g} tokens/s per GPU"
        for _, row in rows.iterrows()
    ]


def _limit(at: float, tpot_ms: float, y_end: float) -> Figure:
    return {
        "x": [at, at], "y": [0, 0.97 * y_end], "mode": "lines+text", "hoverinfo": "skip",
        "text": ["", f" {tpot_ms:g} ms per token"], "textposition": "middle right",
        "line": {"color": "@text", "width": 1.5, "dash": "dash"},
    }  # fmt: skip


def _mark(names: Sequence[str], mark: Mark, unit: str) -> Figure:
    trace: Figure = {
        "x": list(mark.values), "y": list(names), "mode": "markers",
        "marker": {"symbol": "line-ns-open", "size": 34, "color": "@text", "line": {"width": 2.5}},
        "hovertemplate": f"{label_text(mark.name)}: %{{x:.4g}} {unit}<extra></extra>",
    }  # fmt: skip
    if len(mark.low):
        ends: Mapping[str, Any] = {
            "array": (np.array(mark.high) - mark.values).tolist(),
            "arrayminus": (np.array(mark.values) - mark.low).tolist(),
        }
        trace["error_x"] = {**ends, "color": "@text", "thickness": 1.5, "width": 5}
    return trace
