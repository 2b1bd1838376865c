"""The chart of a plan: throughput of a GPU over speed for a user, with the Pareto front."""

import numpy as np
import pandas as pd

from foretune.plan.serve.explanation import describe_candidate
from foretune.plan.serve.planner import Plan
from foretune.search.pareto_front import pareto_front
from foretune.tune.report import chart
from foretune.tune.report.figures import MAX_POINTS
from foretune.tune.report.page import number
from foretune.values import counted

MARKS = (
    ("@measured", "circle"),
    ("@outside", "diamond"),
    ("@library", "square"),
    ("@predicted", "triangle-up"),
    ("#b3589a", "cross"),
    ("@quiet", "x"),
    ("#7a6fd0", "star"),
)
"""Colors and symbols of groups of candidates, reused cyclically."""
AXIS_MARGIN = 1.15
"""Length of an axis, relative to the largest value on it."""
LIMIT_HEIGHT = 0.97
"""Height of the line of a limit, relative to the axis."""
HEIGHT_PX = 400


def front_figure(plan: Plan) -> chart.Chart:
    """Return throughput per GPU over tokens per second of a user, with each group's front."""
    table = plan.candidates.assign(user=1e3 / plan.candidates["tpot_ms"])
    group = candidate_groups(table)

    # Behind everything: all candidates, and the overall front.
    sample = table.sample(min(len(table), MAX_POINTS), random_state=0)
    layers: list[chart.ChartLayer] = [
        chart.Points(*_coordinates(sample), "@cloud", size_px=4),
        chart.Line(*_coordinates(table.loc[plan.pareto.index]), "@interval", 11),
    ]

    # The front of each group's feasible candidates.
    for name, (color, symbol) in group_marks(plan).items():
        rows = table[table["keeps"] & (group == name)]
        losses = np.column_stack([-rows["tokens_per_s_per_gpu"], rows["tpot_ms"]])
        front = rows[pareto_front(losses)].sort_values("user")
        texts = _tooltips(plan, front)
        layers.append(chart.Line(*_coordinates(front), color, 1))
        layers.append(chart.Points(*_coordinates(front), color, symbol, texts=texts))

    best_x, best_y = _coordinates(table.loc[[plan.best.name]])
    layers.append(chart.Points(best_x, best_y, "@text", "ring", 13))
    layers.append(chart.Note(best_x[0], best_y[0], "best"))

    # The axes show all feasible candidates, and the limit of the time per token if there is one.
    feasible = table[table["keeps"]]
    x_end = AXIS_MARGIN * float(feasible["user"].max())
    y_end = AXIS_MARGIN * float(feasible["tokens_per_s_per_gpu"].max())
    limit = 1e3 / plan.requirements.tpot_ms
    if limit > 0:
        x_end = max(x_end, AXIS_MARGIN * limit)
        top = LIMIT_HEIGHT * y_end
        layers.append(chart.Line([limit, limit], [0, top], "@text", 1.5, "5 3"))
        layers.append(chart.Note(limit, top, f"{plan.requirements.tpot_ms:g} ms per token"))

    return chart.Chart(
        chart.linear_axis(0, x_end, "tokens per second of a user"),
        chart.linear_axis(0, y_end, "tokens per second of a GPU"),
        layers,
        height_px=HEIGHT_PX,
    )


def summarize_front(plan: Plan) -> str:
    """Describe the chart in words."""
    best = plan.best
    throughput = number(best["tokens_per_s_per_gpu"])
    speed = number(1e3 / best["tpot_ms"])
    return (
        f"Scatter of {counted(len(plan.candidates), 'candidate')}, {len(plan.pareto)} of them on "
        f"the front. The best has {throughput} tokens per second per GPU at {speed} tokens per "
        "second per user. The table has the numbers."
    )


def group_marks(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return the color and symbol of each feasible group, best first."""
    throughput = plan.feasible["tokens_per_s_per_gpu"]
    max_throughput = throughput.groupby(candidate_groups(plan.candidates)).max()
    names = max_throughput.sort_values(ascending=False).index
    return {str(name): MARKS[i % len(MARKS)] for i, name in enumerate(names)}


def candidate_groups(table: pd.DataFrame) -> "pd.Series[str]":
    """Return the groups of candidates: systems if there are several, else weight formats."""
    if table["system"].nunique() > 1:
        return table["system"].astype(str)
    return table["formats"].str.partition(",")[0].rename("formats")


def _coordinates(rows: pd.DataFrame) -> tuple[list[float], list[float]]:
    return rows["user"].tolist(), rows["tokens_per_s_per_gpu"].tolist()


def _tooltips(plan: Plan, rows: pd.DataFrame) -> list[str]:
    return [
        f"{describe_candidate(plan, row)}\n"
        f"{row['tpot_ms']:.3g} ms per token, {row['ttft_ms']:.3g} ms to the first token\n"
        f"{row['tokens_per_s_per_gpu']:.4g} tokens/s per GPU"
        for _, row in rows.iterrows()
    ]
