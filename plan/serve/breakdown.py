"""Where the time of a step and the memory of a GPU go: numbers, and stacked bars of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB
from foretune.plan.cost.steps import PARTS
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.deployment_steps import StepTimers, decode_step, prefill_step
from foretune.plan.serve.planner import Plan
from foretune.tune.report import chart
from foretune.tune.report.page import number

Phase = Literal["prefill", "decode"]
"""``decode`` computes a token for every running request, ``prefill`` a single prompt."""
PHASE_LATENCIES: dict[Phase, str] = {"decode": "tpot_ms", "prefill": "ttft_ms"}
"""Phase -> the latency that it belongs to."""
PHASE_TITLES: dict[Phase, str] = {
    "decode": "A decode step of all requests",
    "prefill": "The first token: one prompt",
}
PART_COLORS = dict(
    zip(PARTS, ("@measured", "@library", "@predicted", "@outside", "@quiet"), strict=True)
)
BEYOND_OPERATORS = "beyond operators"
"""Name of the time that no operator explains."""
MEMORY_COLORS = ("@measured", "@library", "@predicted", "@outside")
AXIS_MARGIN = 1.04
"""Length of the axis, relative to the longest bar or mark."""


@dataclass(frozen=True)
class Stack:
    """A chart of stacked bars, one per deployment; ``summary`` describes it in words."""

    title: str
    caption: str
    bars: chart.Bars
    summary: str

    @property
    def sums(self) -> list[float]:
        """The lengths of the bars."""
        return [sum(values) for values in zip(*(s.values for s in self.bars.segments), strict=True)]


def time_bars(
    plan: Plan, candidates: Mapping[str, pd.Series], timers: StepTimers, phase: Phase
) -> Stack:
    """Return the operators of a step, and the time outside of them."""
    rows = list(candidates.values())
    latency = PHASE_LATENCIES[phase]
    expected_ms = [float(row[latency]) for row in rows]

    # A segment for each operator, parts in their usual order.
    steps = [operator_breakdown(plan.deployment(row), timers, phase) for row in rows]
    by_operator = [step.set_index(["part", "operator"])["ms"] for step in steps]
    operator_ms = pd.concat(by_operator, axis=1).fillna(0.0)
    segments = [
        chart.Segment(str(operator).replace("_", " "), PART_COLORS[part], ms.tolist())
        for part in PARTS
        for (operator_part, operator), ms in operator_ms.iterrows()
        if operator_part == part
    ]

    # The rest of the expected latency is outside of operators.
    beyond_ms = [
        max(ms - step["ms"].sum(), 0.0) for ms, step in zip(expected_ms, steps, strict=True)
    ]
    segments.append(chart.Segment(BEYOND_OPERATORS, "@cloud", beyond_ms, labeled=False))

    interval_ends = [
        [row[f"{latency}_{end}"] for row in rows]
        for end in ("low", "high")
        if f"{latency}_{end}" in rows[0]
    ]
    mark = chart.Mark("expected", expected_ms, *interval_ends)
    bars = stacked_bars(list(candidates), segments, quantity="time, ms", mark=mark)

    longest = steps[0].iloc[0]
    summary = (
        f"Stacked bars of operators. The best takes {number(steps[0]['ms'].sum())} ms, of which "
        f"{longest['operator']} takes {number(longest['ms'])} ms; the expected latency is "
        f"{number(expected_ms[0])} ms. The table below has the numbers."
    )
    title = PHASE_TITLES[phase]
    return Stack(title, caption=f"{title}: operators, ms", bars=bars, summary=summary)


def memory_bars(plan: Plan, candidates: Mapping[str, pd.Series]) -> Stack:
    """Return the memory of a GPU by use."""
    deployments = [plan.deployment(row) for row in candidates.values()]
    uses_gib = [memory_breakdown(deployment) for deployment in deployments]
    segments = [
        chart.Segment(use, color, [gib[use] for gib in uses_gib])
        for use, color in zip(uses_gib[0], MEMORY_COLORS, strict=True)
    ]
    capacity = chart.Mark("memory of the GPU", [d.system.memory_gib for d in deployments])
    bars = stacked_bars(list(candidates), segments, quantity="memory, GiB", mark=capacity)

    names = ", ".join(segment.name for segment in segments)
    return Stack(
        title="The fullest GPU, all requests at full length",
        caption="Memory of a GPU, GiB",
        bars=bars,
        summary=f"Stacked bars of {names}; the table below has the numbers.",
    )


def operator_breakdown(
    deployment: Deployment, timers: StepTimers, phase: Phase = "decode"
) -> pd.DataFrame:
    """Return the operators of one step, longest first.

    Columns: ``operator``, ``part`` (one of `foretune.plan.cost.steps.PARTS`) and ``ms`` of all its
    runs. The milliseconds add up to the step's time.
    """
    make_step = decode_step if phase == "decode" else prefill_step
    timer = timers(deployment.system, deployment.backend)
    operators = timer.operators(make_step(deployment))
    times = timer.times([[operator] for operator in operators])
    table = pd.DataFrame(
        {
            "operator": [operator.name for operator in operators],
            "part": times[list(PARTS)].idxmax(axis=1),
            "ms": times["total"],
        }
    )

    # Runs of one operator are added up.
    summed = table.groupby(["operator", "part"], as_index=False, sort=False)["ms"].sum()
    return summed.sort_values("ms", ascending=False, kind="stable", ignore_index=True)


def memory_breakdown(deployment: Deployment) -> dict[str, float]:
    """Return the GiB of the fullest GPU by use; with pools, of the fullest decode worker."""
    held = deployment.memory(deployment.requests_per_worker)
    uses = {
        "weights": held.weights,
        "KV cache": held.kv_cache,
        "activations": held.activations,
        "outside of PyTorch": held.engine,
    }
    return {use: float(np.asarray(size) / GIB) for use, size in uses.items()}


def stacked_bars(
    labels: Sequence[str], segments: Sequence[chart.Segment], quantity: str, mark: chart.Mark
) -> chart.Bars:
    """Return horizontal stacked bars with a mark beside each, first bar on top."""
    lengths = np.sum([segment.values for segment in segments], axis=0)
    ends = [*lengths, *mark.values, *mark.high]
    longest = AXIS_MARGIN * max(end for end in ends if math.isfinite(end))
    return chart.Bars(labels, segments, chart.linear_axis(0, longest, quantity), mark)
