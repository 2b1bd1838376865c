"""Charts of a campaign's report, rates of contenders, and the command to tune a problem again.

``"@name"`` is a color of the page's style.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
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
from foretune.tune.results import SearchStep, TuneResult

MAX_POINTS = 1000
"""Maximum number of points in a scatter plot; more are indistinguishable and slow."""
MAX_WIDE_STEPS = 20
"""Searches with more steps get narrower intervals."""

COMPARISON_MARKS = {"default": ("@quiet", "circle"), "tuned": ("@measured", "circle")}
"""Color and symbol in the roofline chart; other contenders use the library's."""
LIBRARY_MARK = ("@library", "diamond")
QUANTITY = {Objective.TIME: "time", Objective.ENERGY: "energy", Objective.EDP: "energy × time"}


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
    contenders = {"default": result.baseline}
    if result.winner is not result.baseline:
        contenders["tuned"] = result.winner
    if result.library:
        contenders[result.library.name] = result.library

    for name, contender in contenders.items():
        # A library call has no configuration; its work is counted as the default's.
        config = contender.config or result.baseline.config
        assert config is not None
        cost = kernel.cost(result.problem, config)
        limit_ms = float(np.asarray(device.roofline_ms(cost)))
        time_ms = contender.value
        if 0 < time_ms < math.inf and math.isfinite(cost.flops):
            yield Rate(
                name=name,
                gflops=float(cost.flops / time_ms / 1e6),
                gbps=float(cost.bytes_moved / time_ms / 1e6),
                roofline=limit_ms / time_ms,
                dtype=str(cost.dtype),
            )


def reproduce(result: TuneResult, kernel: str) -> str:
    """Return the command that tunes the problem again without stored measurements."""
    problem = ",".join(f"{name}={value}" for name, value in result.problem.items())
    return (
        f"foretune tune {kernel} --problem {problem} --budget {max(1, len(result.trace))} "
        f"--objective {result.objective.value} --searcher {result.searcher} --store none"
    )


def trace_figure(result: TuneResult) -> Chart:
    """Return a search's measurements in order, its predictions, and the best so far."""
    steps = dict(enumerate(result.trace, start=1))  # number of a measurement -> step
    end = len(steps) + 0.6

    # Horizontal lines: what the search has to beat.
    lines = [Line([0.4, end], [result.searched_default] * 2, "@text", 1.5, "5 3")]
    if result.library is not None:
        lines.append(Line([0.4, end], [result.library.value] * 2, "@library", 1.5, "2 2"))

    # Predictions are times.
    predicted: dict[int, SearchStep] = {}
    if result.objective is Objective.TIME:
        predicted = {n: step for n, step in steps.items() if math.isfinite(step.predicted_ms)}
    intervals = Spans(
        [*predicted],
        [step.low_ms for step in predicted.values()],
        [step.high_ms for step in predicted.values()],
        "@interval",
        9 if len(steps) <= MAX_WIDE_STEPS else 4,
    )
    predicted_ms = [step.predicted_ms for step in predicted.values()]

    measured = {n: step for n, step in steps.items() if math.isfinite(step.objective)}
    values = [step.objective for step in measured.values()]
    failed = {n: step for n, step in steps.items() if n not in measured}
    # A failure has no value of its own: it is drawn where it was expected.
    expected_of_failed = [
        step.predicted_ms if n in predicted else result.baseline.value for n, step in failed.items()
    ]
    layers: list[ChartLayer] = [
        intervals,
        Points([*predicted], predicted_ms, "@predicted", "level"),
        *lines,
        _best_so_far([*measured], values, end),
        Points([*measured], values, "@measured", texts=_measured_texts(result, measured)),
        Points([*failed], expected_of_failed, "@outside", "x", texts=_failure_texts(failed)),
    ]
    heights = [*values, *(line.y[0] for line in lines), *intervals.low, *intervals.high]
    return Chart(
        x=count_axis(len(steps), "measurement"),
        y=value_axis(heights, f"{QUANTITY[result.objective]}, {result.objective.unit}"),
        layers=layers,
    )


def _best_so_far(numbers: list[float], values: Sequence[float], end: float) -> Line:
    """Return the stairs of the best of all measurements so far, up to the end of the chart."""
    best = list(accumulate(values, min))
    if best:
        numbers = [*numbers, end]
        best = [*best, best[-1]]
    return Line(numbers, best, "@measured", steps=True)


def _measured_texts(result: TuneResult, steps: Mapping[int, SearchStep]) -> list[str]:
    unit = result.objective.unit
    return [f"{n}: {number(s.objective, unit)}\n{spaced(s.config)}" for n, s in steps.items()]


def _failure_texts(steps: Mapping[int, SearchStep]) -> list[str]:
    return [f"{n}: {step.status}\n{spaced(step.config)}" for n, step in steps.items()]


def prediction_figure(held_out: pd.DataFrame, quantity: str) -> Chart:
    """Return predicted against measured values of one target on held-out problems."""
    all_values = [*held_out["truth"], *held_out["prediction"]]
    ends = [min(all_values), max(all_values)]
    layers: list[ChartLayer] = [Line(ends, ends, "@text", 1)]  # where predictions are right

    rows = held_out.sample(min(len(held_out), MAX_POINTS), random_state=0)
    is_inside = rows["truth"].between(rows["low"], rows["high"])
    for drawn, color, symbol in (
        (rows[is_inside], "@measured", "circle"),
        (rows[~is_inside], "@outside", "diamond"),
    ):
        texts = [
            f"{row.problem}: {number(row.truth)}, predicted {number(row.prediction)}"
            for row in drawn.itertuples()
        ]
        layers.append(
            Points(
                drawn["truth"].tolist(),
                drawn["prediction"].tolist(),
                color,
                symbol,
                size_px=6,
                texts=texts,
            )
        )
    return Chart(
        x=value_axis(all_values, f"measured {quantity}", force_log=True),
        y=value_axis(all_values, f"predicted {quantity}", force_log=True),
        layers=layers,
        height_px=400,
        square=True,
    )


def worth_figure(importance: pd.DataFrame) -> Bars:
    """Return one bar per tunable parameter: the ratio of its worst to its best effect, from 1."""
    rows = importance.sort_values("factor", ascending=False)
    factors = rows["factor"].tolist()
    longest_bar = max([1.1, *factors]) - 1
    return Bars(
        labels=rows["parameter"].astype(str).tolist(),
        segments=[Segment("worth", "@measured", [f - 1 for f in factors], labeled=False)],
        axis=linear_axis(
            1,
            1 + longest_bar * 1.15,  # room for a text beside the longest bar
            "slowest over fastest value, predicted time",
            suffix="×",
        ),
        ends=[f"{factor:.2f}×" for factor in factors],
        start=1.0,
    )


def pareto_figure(time_ms: np.ndarray, energy_mj: np.ndarray) -> Chart:
    """Return energy over time of one problem's configurations, with the Pareto front marked."""
    # Of two objectives, sorting is enough: along growing times, the front are those with less
    # energy than all before.
    by_time = np.lexsort((energy_mj, time_ms))
    least_before = np.minimum.accumulate(np.r_[np.inf, energy_mj[by_time][:-1]])
    front = by_time[energy_mj[by_time] < least_before]
    others = np.setdiff1d(np.arange(len(time_ms)), front)
    if len(others) > MAX_POINTS:
        others = np.random.default_rng(0).choice(others, MAX_POINTS, replace=False)

    front_ms = time_ms[front].tolist()
    front_mj = energy_mj[front].tolist()
    texts = [
        f"{number(ms, 'ms')}, {number(mj, 'mJ')}" for ms, mj in zip(front_ms, front_mj, strict=True)
    ]
    layers: list[ChartLayer] = [
        Points(time_ms[others].tolist(), energy_mj[others].tolist(), "@cloud", size_px=6),
        Line(front_ms, front_mj, "@measured", 1.5, steps=True),
        Points(front_ms, front_mj, "@measured", texts=texts),
    ]
    return Chart(
        x=value_axis(time_ms, "time, ms"),
        y=value_axis(energy_mj, "energy per launch, mJ"),
        layers=layers,
    )


def roofline_figure(names: Sequence[str], rates: Sequence[Sequence[Rate]], device: Device) -> Chart:
    """Return the roofline chart of problems: rates over operations per byte, a roof per data type.

    ``names`` are those of the problems, each with its ``rates``.
    After Williams, Waterman and Patterson (CACM 52(4), 2009).
    """
    marks: list[_RooflineMark] = []
    for problem, rates_of_problem in zip(names, rates, strict=True):
        marks += [_RooflineMark(problem, rate) for rate in rates_of_problem if rate.gbps > 0]

    # A roof rises with the memory's bandwidth up to the ridge, then stays at the peak rate.
    bandwidth_gbps = float(device.specs.get("memory_gbps", math.nan))
    peaks = {float(peak_rate(mark.rate.dtype, device.specs)) for mark in marks}
    peak_gflops = sorted(peak for peak in peaks if math.isfinite(peak))
    ridges = []
    if math.isfinite(bandwidth_gbps):
        ridges = [peak / bandwidth_gbps for peak in peak_gflops]

    intensities = [mark.intensity for mark in marks]
    around_ridges = [ridge * factor for ridge in ridges for factor in (0.5, 2)]
    x = value_axis([*intensities, *around_ridges], "operations per byte", force_log=True)
    reached_gflops = [mark.rate.gflops for mark in marks]
    y = value_axis([*reached_gflops, *peak_gflops], "GFLOP/s", force_log=True)

    layers: list[ChartLayer] = []
    for peak, ridge in zip(peak_gflops, ridges, strict=False):
        roof_x = [x.low, ridge, x.high]
        layers.append(Line(roof_x, [x.low * bandwidth_gbps, peak, peak], "@text", 1.5))
    for contender in dict.fromkeys(mark.rate.name for mark in marks):
        of_contender = [mark for mark in marks if mark.rate.name == contender]
        color, symbol = COMPARISON_MARKS.get(contender, LIBRARY_MARK)
        layers.append(
            Points(
                [mark.intensity for mark in of_contender],
                [mark.rate.gflops for mark in of_contender],
                color,
                symbol,
                texts=[
                    f"{contender}, {mark.problem}: {number(mark.rate.gflops)} GFLOP/s"
                    for mark in of_contender
                ],
            )
        )
    return Chart(x=x, y=y, layers=layers, height_px=330)


@dataclass(frozen=True)
class _RooflineMark:
    """A contender's rates on one problem."""

    problem: str
    rate: Rate

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.rate.gflops / self.rate.gbps
