"""Charts of a campaign's report, rates of contenders, and the command to tune a problem again.

``"@name"`` is a color of the page's style.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pandas as pd

from foretune.device import Device, peak_rate
from foretune.kernel import Kernel
from foretune.objective import Objective
from foretune.tune.report.chart import (
    Bars,
    Chart,
    ChartLayer,
    Line,
    Points,
    Segment,
    Spans,
    count_axis,
    linear_axis,
    value_axis,
)
from foretune.tune.report.page import number, spaced
from foretune.tune.results import TuneResult

MAX_POINTS = 1000  # maximum number of points in a scatter plot; more are indistinguishable and slow

COMPARISON_MARKS = {"default": ("@quiet", "circle"), "tuned": ("@measured", "circle")}
"""Color and symbol in the roofline chart; other contenders use the library's."""
LIBRARY_MARK = ("@library", "diamond")


@dataclass(frozen=True)
class Rate:
    """A contender's rates (GFLOP/s, GB/s) and its share of the roofline; NaN if unknown."""

    name: str
    gflops: float
    gbps: float
    roofline: float
    dtype: str


def rates(kernel: Kernel, result: TuneResult, device: Device) -> Iterator[Rate]:
    """Yield the rates of default, winner and library call, if there is a cost and time counts."""
    if result.objective is not Objective.TIME:
        return
    baseline, winner = result.baseline, result.winner
    named = {"default": baseline} | ({"tuned": winner} if winner is not baseline else {})
    named |= {result.library.name: result.library} if result.library else {}
    for name, contender in named.items():
        config = contender.config or baseline.config
        assert config is not None
        cost = kernel.cost(result.problem, config)
        limit_ms = float(np.asarray(device.roofline_ms(cost)))
        time_ms = contender.value
        if 0 < time_ms < math.inf and math.isfinite(cost.flops):
            gflops, gbps = cost.flops / time_ms / 1e6, cost.bytes_moved / time_ms / 1e6
            yield Rate(name, float(gflops), float(gbps), limit_ms / time_ms, str(cost.dtype))


def reproduce(result: TuneResult, kernel: str) -> str:
    """Return the command that tunes the problem again without stored measurements."""
    problem = ",".join(f"{name}={value}" for name, value in result.problem.items())
    return (
        f"foretune tune {kernel} --problem {problem} --budget {max(1, len(result.trace))} "
        f"--objective {result.objective.value} --searcher {result.searcher} --store none"
    )


def trace_figure(result: TuneResult) -> Chart:
    """Return a search's measurements in order, its predictions, and the best so far."""
    unit, steps = result.objective.unit, dict(enumerate(result.trace, start=1))
    value = {i: s.objective for i, s in steps.items() if math.isfinite(s.objective)}
    predicted = {i: s.predicted_ms for i, s in steps.items() if math.isfinite(s.predicted_ms)}
    if result.objective is not Objective.TIME:
        predicted = {}  # predictions are times
    low, high = [steps[i].low_ms for i in predicted], [steps[i].high_ms for i in predicted]
    lines = [(result.searched_default, "@text", "5 3")]
    if result.library is not None:
        lines.append((result.library.value, "@library", "2 2"))
    end, best = len(steps) + 0.6, list(accumulate(value.values(), min))
    failed = {i: predicted.get(i, result.baseline.value) for i in steps if i not in value}
    texts = [f"{i}: {number(v, unit)}\n{spaced(steps[i].config)}" for i, v in value.items()]
    reasons = [f"{i}: {steps[i].status}\n{spaced(steps[i].config)}" for i in failed]
    layers: list[ChartLayer] = [
        Spans([*predicted], low, high, "@interval", 9 if len(steps) <= 20 else 4),
        Points([*predicted], [*predicted.values()], "@predicted", "level"),
        *(Line([0.4, end], [at, at], color, 1.5, dash) for at, color, dash in lines),
        Line([*value, *[end][: len(value)]], best + best[-1:], "@measured", steps=True),
        Points([*value], [*value.values()], "@measured", texts=texts),
        Points([*failed], [*failed.values()], "@outside", "x", texts=reasons),
    ]
    seen = [*value.values(), *(at for at, *_ in lines), *low, *high]
    quantity = f"{_QUANTITY[result.objective]}, {unit}"
    return Chart(count_axis(len(steps), "measurement"), value_axis(seen, quantity), layers)


def prediction_figure(held_out: pd.DataFrame, quantity: str) -> Chart:
    """Return predicted against measured values of one target on held-out problems."""
    rows = held_out.sample(min(len(held_out), MAX_POINTS), random_state=0)
    inside = rows["truth"].between(rows["low"], rows["high"])
    both = [*held_out["truth"], *held_out["prediction"]]
    ends = [min(both), max(both)]
    layers: list[ChartLayer] = [Line(ends, ends, "@text", 1)]
    marks = (rows[inside], "@measured", "circle"), (rows[~inside], "@outside", "diamond")
    for part, color, symbol in marks:
        names, x, y = (part[name].tolist() for name in ("problem", "truth", "prediction"))
        texts = [
            f"{name}: {number(truth)}, predicted {number(prediction)}"
            for name, truth, prediction in zip(names, x, y, strict=True)
        ]
        layers.append(Points(x, y, color, symbol, 6, texts))
    across, up = (value_axis(both, f"{how} {quantity}", True) for how in ("measured", "predicted"))
    return Chart(across, up, layers, height_px=400, square=True)


def worth_figure(importance: pd.DataFrame) -> Bars:
    """Return one bar per tunable parameter: the ratio of its worst to its best effect, from 1."""
    rows = importance.sort_values("factor", ascending=False)
    highest = max([1.1, *rows["factor"]])
    return Bars(
        rows["parameter"].astype(str).tolist(),
        [Segment("worth", "@measured", (rows["factor"] - 1).tolist(), labeled=False)],
        linear_axis(
            1, 1 + (highest - 1) * 1.15, "slowest over fastest value, predicted time", suffix="×"
        ),
        ends=[f"{factor:.2f}×" for factor in rows["factor"]],
        start=1.0,
    )


def pareto_figure(time_ms: np.ndarray, energy_mj: np.ndarray) -> Chart:
    """Return energy over time of one problem's configurations, with the Pareto front marked."""
    order = np.lexsort((energy_mj, time_ms))  # of two objectives, sorting is enough
    least_before = np.minimum.accumulate(np.r_[np.inf, energy_mj[order][:-1]])
    front = order[energy_mj[order] < least_before]
    rest = np.setdiff1d(np.arange(len(time_ms)), front)
    if len(rest) > MAX_POINTS:
        rest = np.random.default_rng(0).choice(rest, MAX_POINTS, replace=False)
    best = time_ms[front].tolist(), energy_mj[front].tolist()
    texts = [f"{number(t, 'ms')}, {number(e, 'mJ')}" for t, e in zip(*best, strict=True)]
    layers: list[ChartLayer] = [
        Points(time_ms[rest].tolist(), energy_mj[rest].tolist(), "@cloud", size_px=6),
        Line(*best, "@measured", 1.5, steps=True),
        Points(*best, "@measured", texts=texts),
    ]
    return Chart(
        value_axis(time_ms, "time, ms"), value_axis(energy_mj, "energy per launch, mJ"), layers
    )


def roofline_figure(names: Sequence[str], rates: Sequence[Sequence[Rate]], device: Device) -> Chart:
    """Return the roofline chart of problems: rates over operations per byte, a roof per data type.

    After Williams, Waterman and Patterson (CACM 52(4), 2009).
    """
    pairs = zip(names, rates, strict=True)
    known = [(name, rate) for name, of in pairs for rate in of if rate.gbps > 0]
    bandwidth = float(device.specs.get("memory_gbps", math.nan))
    peaks = sorted({float(peak_rate(r.dtype, device.specs)) for _, r in known})
    peaks = [p for p in peaks if math.isfinite(p)]
    intensities = [r.gflops / r.gbps for _, r in known]
    ridges = [p / bandwidth for p in peaks if math.isfinite(bandwidth)]
    around = [factor * ridge for ridge in ridges for factor in (0.5, 2)]
    x = value_axis([*intensities, *around], "operations per byte", force_log=True)
    y = value_axis([*(r.gflops for _, r in known), *peaks], "GFLOP/s", force_log=True)
    layers: list[ChartLayer] = []
    for peak, ridge in zip(peaks, ridges, strict=False):
        layers.append(Line([x.low, ridge, x.high], [x.low * bandwidth, peak, peak], "@text", 1.5))
    marks = {r.name: COMPARISON_MARKS.get(r.name, LIBRARY_MARK) for _, r in known}
    for name, (color, symbol) in marks.items():
        of_name = [(n, r) for n, r in known if r.name == name]
        texts = [f"{name}, {n}: {number(r.gflops)} GFLOP/s" for n, r in of_name]
        xs, ys = [r.gflops / r.gbps for _, r in of_name], [r.gflops for _, r in of_name]
        layers.append(Points(xs, ys, color, symbol, texts=texts))
    return Chart(x, y, layers, height_px=330)


_QUANTITY = {Objective.TIME: "time", Objective.ENERGY: "energy", Objective.EDP: "energy × time"}
