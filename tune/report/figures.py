"""The report's charts, as plain Plotly figures; ``"@name"`` is a color of the page's style."""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from foretune.objective import Objective
from foretune.space import Configuration
from foretune.tune.results import TuneResult

Figure = dict[str, Any]

MOST_POINTS = 1500
"""Drawn of a scatter: more cannot be told apart and make the page slow."""


def trace_figure(result: TuneResult) -> Figure:
    """Return every measurement of a search in order, what was predicted, and the best so far."""
    unit = result.objective.unit
    steps = list(enumerate(result.trace, start=1))
    worked = [(i, s) for i, s in steps if math.isfinite(s.objective)]
    failed = [(i, s) for i, s in steps if not math.isfinite(s.objective)]
    predicted = [(i, s) for i, s in steps if math.isfinite(s.predicted_ms)]
    if result.objective is not Objective.TIME:
        predicted = []  # predictions are times
    lines = [(result.baseline.value, "default", "@text", "dash")]
    if result.library is not None:
        lines.append((result.library.value, result.library.name, "@library", "dot"))
    seen = [s.objective for _, s in worked] + [value for value, *_ in lines]
    seen += [bound for _, s in predicted for bound in (s.low_ms, s.high_ms)]
    axis = value_axis(seen, f"{_QUANTITY[result.objective]}, {unit}")
    n = len(steps)
    data: list[Figure] = [
        {
            "x": [i for i, _ in predicted],
            "y": [s.predicted_ms for _, s in predicted],
            "error_y": {
                "array": [s.high_ms - s.predicted_ms for _, s in predicted],
                "arrayminus": [s.predicted_ms - s.low_ms for _, s in predicted],
                "color": "@interval", "thickness": 9 if n <= 20 else 4, "width": 0,
            },
            "mode": "markers",
            "marker": {"color": "@predicted", "symbol": "line-ew-open", "size": 9,
                       "line": {"width": 2}},
            "hovertemplate": f"predicted %{{y:.3g}} {unit}<extra></extra>",
        },
        *(
            {
                "x": [0.4, n + 0.6], "y": [value, value], "mode": "lines",
                "line": {"color": color, "width": 1.5, "dash": dash},
                "hovertemplate": f"{label_text(name)} %{{y:.3g}} {unit}<extra></extra>",
            }
            for value, name, color, dash in lines
        ),
        {
            "x": [i for i, _ in worked] + [n + 0.6] * bool(worked),
            "y": _best_so_far([s.objective for _, s in worked]),
            "mode": "lines",
            "line": {"color": "@measured", "width": 2, "shape": "hv"},
            "hoverinfo": "skip",
        },
        {
            "x": [i for i, _ in worked],
            "y": [s.objective for _, s in worked],
            "text": [_lines(s.config) for _, s in worked],
            "mode": "markers",
            "marker": {"color": "@measured", "size": 9, "line": {"color": "@page", "width": 1.5}},
            "hovertemplate": f"measured %{{y:.3g}} {unit}<br>%{{text}}<extra></extra>",
        },
        {
            "x": [i for i, _ in failed],
            "y": [s.predicted_ms if (i, s) in predicted else result.baseline.value
                  for i, s in failed],
            "text": [f"{label_text(s.status)}<br>{_lines(s.config)}" for _, s in failed],
            "mode": "markers",
            "marker": {"color": "@outside", "size": 10, "symbol": "x-thin-open",
                       "line": {"width": 2.5}},
            "hovertemplate": "%{text}<extra></extra>",
        },
    ]  # fmt: skip
    x_axis = {
        "title": {"text": "measurement"}, "range": [0.4, n + 0.6], "showgrid": False,
        "tick0": 1, "dtick": max(1, round(n / 10)), "tickformat": "d",
    }  # fmt: skip
    return make_figure(data, x_axis, axis, 290)


def prediction_figure(held_out: pd.DataFrame, quantity: str) -> Figure:
    """Return predicted over measured, of rows of one target whose problem was held out.

    ``quantity`` names the target with its unit.
    """
    rows = held_out.sample(min(len(held_out), MOST_POINTS), random_state=0)
    inside = rows["truth"].between(rows["low"], rows["high"])
    both = [*held_out["truth"], *held_out["prediction"]]
    low, high = min(both), max(both)
    x_axis = value_axis(both, f"measured {quantity}", force_log=True)
    y_axis = value_axis(both, f"predicted {quantity}", force_log=True)
    y_axis |= {"scaleanchor": "x", "constrain": "domain", "constraintoward": "top"}
    x_axis |= {"constrain": "domain", "constraintoward": "left"}
    diagonal = {
        "x": [low, high], "y": [low, high], "mode": "lines", "hoverinfo": "skip",
        "line": {"color": "@text", "width": 1},
    }  # fmt: skip
    clouds = [
        {
            "x": part["truth"].tolist(),
            "y": part["prediction"].tolist(),
            "text": [label_text(p) for p in part["problem"]],
            "mode": "markers",
            "marker": {"color": color, "symbol": symbol, "size": 6, "opacity": 0.6},
            "hovertemplate": "%{text}<br>measured %{x:.3g}, predicted %{y:.3g}<extra></extra>",
        }
        for part, color, symbol in (
            (rows[inside], "@measured", "circle"),
            (rows[~inside], "@outside", "diamond"),
        )
    ]
    return make_figure([diagonal, *clouds], x_axis, y_axis, 430)


def worth_figure(importance: pd.DataFrame) -> Figure:
    """Return one bar per tunable parameter: its worst over its best effect, from 1 on."""
    rows = importance.sort_values("factor")
    highest = max([1.1, *rows["factor"]])
    bars = {
        "type": "bar", "orientation": "h", "base": 1,
        "x": [factor - 1 for factor in rows["factor"]],
        "y": [label_text(name) for name in rows["parameter"]],
        "text": [f"{factor:.2f}×" for factor in rows["factor"]], "textposition": "outside",
        "textfont": {"color": "@text"}, "cliponaxis": False, "hoverinfo": "skip",
        "marker": {"color": "@measured"},
    }  # fmt: skip
    x_axis = {
        "title": {"text": "slowest over fastest value, predicted time"},
        "range": [1, 1 + (highest - 1) * 1.15], "ticksuffix": "×", "nticks": 6,
    }  # fmt: skip
    y_axis = {"type": "category", "showgrid": False, "ticksuffix": "  "}
    return make_figure([bars], x_axis, y_axis, 28 * len(rows) + 80)


def pareto_figure(time_ms: np.ndarray, energy_mj: np.ndarray) -> Figure:
    """Return energy over time of one problem's configurations, those none beats in both marked."""
    front = pareto_front(time_ms, energy_mj)
    rest = np.setdiff1d(np.arange(len(time_ms)), front)
    if len(rest) > MOST_POINTS:
        rest = np.random.default_rng(0).choice(rest, MOST_POINTS, replace=False)
    shown = "%{x:.3g} ms, %{y:.3g} mJ<extra></extra>"
    data = [
        {
            "x": time_ms[rest].tolist(), "y": energy_mj[rest].tolist(), "mode": "markers",
            "marker": {"color": "@cloud", "size": 6}, "hovertemplate": shown,
        },
        {
            "x": time_ms[front].tolist(), "y": energy_mj[front].tolist(), "mode": "lines+markers",
            "marker": {"color": "@measured", "size": 9, "line": {"color": "@page", "width": 1.5}},
            "line": {"color": "@measured", "width": 1.5, "shape": "hv"}, "hovertemplate": shown,
        },
    ]  # fmt: skip
    return make_figure(
        data, value_axis(time_ms, "time, ms"), value_axis(energy_mj, "energy per launch, mJ"), 290
    )


def pareto_front(time_ms: np.ndarray, energy_mj: np.ndarray) -> np.ndarray:
    """Return the rows that no other row beats in both, fastest first."""
    order = np.lexsort((energy_mj, time_ms))
    least_before = np.minimum.accumulate(np.r_[np.inf, energy_mj[order][:-1]])
    front: np.ndarray = order[energy_mj[order] < least_before]
    return front


def value_axis(values: Iterable[float], title: str, force_log: bool = False) -> Figure:
    """Return an axis for positive ``values``: logarithmic, ticks at 1, 2, 5, if they span much."""
    finite = [v for v in values if math.isfinite(v) and v > 0]
    axis: Figure = {"title": {"text": title}}
    if not finite:
        return axis
    low, high = min(finite), max(finite)
    if high / low < 4 and not force_log:
        margin = 0.08 * (high - low) or 0.1 * high
        return axis | {"range": [max(low - margin, 0), high + margin], "nticks": 6}
    margin = max((high / low) ** 0.06, 1.05)
    low, high = low / margin, high * margin
    ticks = _ticks(low, high)
    return axis | {
        "type": "log", "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks, "ticktext": [f"{t:,.0f}" if t >= 1 else f"{t:.9f}".rstrip("0")
                                        for t in ticks],
    }  # fmt: skip


def _ticks(low: float, high: float) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1,)):
        ticks = [d * 10.0**e for e in exponents for d in digits if low <= d * 10.0**e <= high]
        if len(ticks) <= 8:
            break
    return ticks


def _best_so_far(values: Sequence[float]) -> list[float]:
    best = np.minimum.accumulate(np.array(values, dtype=float)).tolist()
    return best + best[-1:]


def make_figure(data: list[Figure], x_axis: Figure, y_axis: Figure, height_px: int) -> Figure:
    """Return a chart of ``data`` in the page's style."""

    def styled(axis: Figure) -> Figure:
        return {
            "automargin": True, "fixedrange": True, "gridcolor": "@grid", "linecolor": "@grid",
            "zeroline": False, "tickfont": {"color": "@quiet"}, **axis,
            "title": {"standoff": 10, "font": {"size": 13}, **axis.get("title", {})},
        }  # fmt: skip

    layout = {
        "height": height_px, "autosize": True, "showlegend": False,
        "dragmode": False,  # a finger that scrolls the page must not get caught in a chart
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, sans-serif",
                 "size": 13, "color": "@text"},
        "hoverlabel": {"bgcolor": "@card", "bordercolor": "@grid", "font": {"color": "@text"},
                       "align": "left"},
        "xaxis": styled(x_axis), "yaxis": styled(y_axis),
    }  # fmt: skip
    return {"data": [{"type": "scatter", **trace} for trace in data], "layout": layout}


def _lines(config: Configuration) -> str:
    """Return the configuration over a few lines, for a label."""
    items = [label_text(f"{name}={value}") for name, value in config.items()]
    return "<br>".join(", ".join(items[i : i + 4]) for i in range(0, len(items), 4))


def label_text(value: object) -> str:
    """Return text that Plotly, which knows some HTML of its own, shows as it is."""
    return html.escape(str(value), quote=False)


_QUANTITY = {Objective.TIME: "time", Objective.ENERGY: "energy", Objective.EDP: "energy × time"}
