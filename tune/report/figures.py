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

MAX_POINTS = 1000
"""Maximum number of points in a scatter plot; more are indistinguishable and slow."""

COMPARISON_MARKS = {"default": ("@quiet", "circle"), "tuned": ("@measured", "circle")}
"""Color and symbol in the roofline chart; other contenders use the library's."""
LIBRARY_MARK = ("@library", "diamond")


@dataclass(frozen=True)
class Rate:
    """A contender's 1e9 operations and bytes per second, and share of the roofline; or NaN."""

    name: str
    gflops: float
    gbps: float
    roofline: float
    dtype: str


def rates(kernel: Kernel, result: TuneResult, device: Device) -> Iterator[Rate]:
    """Yield the rates of default, winner and library call, if the objective is time."""
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
        if math.isfinite(time_ms) and time_ms > 0:
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
    unit = result.objective.unit
    steps = list(enumerate(result.trace, start=1))
    successful = [(i, s) for i, s in steps if math.isfinite(s.objective)]
    failed = [(i, s) for i, s in steps if not math.isfinite(s.objective)]
    predicted = [(i, s) for i, s in steps if math.isfinite(s.predicted_ms)]
    if result.objective is not Objective.TIME:
        predicted = []  # predictions are times
    lines = [(result.searched_default, "@text", "5 3")]
    if result.library is not None:
        lines.append((result.library.value, "@library", "2 2"))
    seen = [s.objective for _, s in successful] + [value for value, *_ in lines]
    seen += [bound for _, s in predicted for bound in (s.low_ms, s.high_ms)]
    end = len(steps) + 0.6
    best = list(accumulate((s.objective for _, s in successful), min))
    layers: list[ChartLayer] = [
        Spans(
            [i for i, _ in predicted],
            [s.low_ms for _, s in predicted],
            [s.high_ms for _, s in predicted],
            "@interval",
            9 if len(steps) <= 20 else 4,
        ),
        Points(
            [i for i, _ in predicted], [s.predicted_ms for _, s in predicted], "@predicted", "level"
        ),
        *(Line([0.4, end], [value, value], color, 1.5, dash) for value, color, dash in lines),
        Line(
            [i for i, _ in successful] + [end] * bool(successful),
            best + best[-1:],
            "@measured",
            steps=True,
        ),
        Points(
            [i for i, _ in successful],
            [s.objective for _, s in successful],
            "@measured",
            texts=[f"{i}: {number(s.objective, unit)}\n{spaced(s.config)}" for i, s in successful],
        ),
        Points(
            [i for i, _ in failed],
            [s.predicted_ms if (i, s) in predicted else result.baseline.value for i, s in failed],
            "@outside",
            "x",
            texts=[f"{i}: {s.status}\n{spaced(s.config)}" for i, s in failed],
        ),
    ]
    quantity = f"{_QUANTITY[result.objective]}, {unit}"
    return Chart(count_axis(len(steps), "measurement"), value_axis(seen, quantity), layers)


def prediction_figure(held_out: pd.DataFrame, quantity: str) -> Chart:
    """Return predicted against measured values of one target on held-out problems."""
    rows = held_out.sample(min(len(held_out), MAX_POINTS), random_state=0)
    inside = rows["truth"].between(rows["low"], rows["high"])
    both = [*held_out["truth"], *held_out["prediction"]]
    clouds: list[ChartLayer] = [
        Points(
            part["truth"].tolist(), part["prediction"].tolist(), color, symbol, 6,
            [f"{problem}: {number(truth)}, predicted {number(prediction)}" for
             problem, truth, prediction in part[["problem", "truth", "prediction"]].to_numpy()],
        )
        for part, color, symbol in (
            (rows[inside], "@measured", "circle"), (rows[~inside], "@outside", "diamond"),
        )
    ]  # fmt: skip
    ends = [min(both), max(both)]
    return Chart(
        value_axis(both, f"measured {quantity}", force_log=True),
        value_axis(both, f"predicted {quantity}", force_log=True),
        [Line(ends, ends, "@text", 1), *clouds],
        height_px=400,
        square=True,
    )


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
    known = [
        (n, r)
        for n, problem_rates in zip(names, rates, strict=True)
        for r in problem_rates
        if r.gbps > 0
    ]
    bandwidth = float(device.specs.get("memory_gbps", math.nan))
    peaks = sorted({float(peak_rate(r.dtype, device.specs)) for _, r in known})
    peaks = [p for p in peaks if math.isfinite(p)]
    intensities = [r.gflops / r.gbps for _, r in known]
    ridges = [p / bandwidth for p in peaks if math.isfinite(bandwidth)]
    x = value_axis(
        [*intensities, *(f * r for r in ridges for f in (0.5, 2))],
        "operations per byte",
        force_log=True,
    )
    y = value_axis([*(r.gflops for _, r in known), *peaks], "GFLOP/s", force_log=True)
    layers: list[ChartLayer] = []
    for peak, ridge in zip(peaks, ridges, strict=False):
        layers.append(Line([x.low, ridge, x.high], [x.low * bandwidth, peak, peak], "@text", 1.5))
    marks = {r.name: COMPARISON_MARKS.get(r.name, LIBRARY_MARK) for _, r in known}
    for name, (color, symbol) in marks.items():
        of_name = [(n, r) for n, r in known if r.name == name]
        layers.append(
            Points(
                [r.gflops / r.gbps for _, r in of_name], [r.gflops for _, r in of_name],
                color, symbol, texts=[f"{r.name}, {n}: {number(r.gflops)} GFLOP/s"
                                      for n, r in of_name],
            )
        )  # fmt: skip
    return Chart(x, y, layers, height_px=330)


_QUANTITY = {Objective.TIME: "time", Objective.ENERGY: "energy", Objective.EDP: "energy × time"}
