"""What the sections of a plan's report show: the chosen deployments, and what they are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from foretune.plan.cost.steps import PARTS
from foretune.plan.serve.deployments.analytic import StepTimers
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.report.breakdown import memory_breakdown, operator_breakdown
from foretune.plan.serve.report.figures import stacked_bars
from foretune.plan.serve.report.question import Question
from foretune.plan.serve.report.rows import format_candidate
from foretune.tune.report.chart import Bars, Mark, Segment
from foretune.tune.report.page import number, ratio

PART_COLORS = dict(
    zip(PARTS, ("@measured", "@library", "@predicted", "@outside", "@quiet"), strict=True)
)
BEYOND_OPERATORS = "beyond operators"
MEMORY_COLORS = ("@measured", "@library", "@predicted", "@outside")


@dataclass(frozen=True)
class Stack:
    """A chart of stacked bars, one per deployment.

    Attributes:
        title: of it.
        bars: the chart.
    """

    title: str
    bars: Bars

    @property
    def segments(self) -> Sequence[Segment]:
        """What the bars are made of."""
        return self.bars.segments

    @property
    def sums(self) -> list[float]:
        """The lengths of the bars."""
        return [sum(values) for values in zip(*(s.values for s in self.segments), strict=True)]


@dataclass(frozen=True)
class TimeStack(Stack):
    """Bars of a step's operators beside the latency that engines reach.

    Attributes:
        longest: the operator of the best that takes longest, a row of `operator_breakdown`.
        operators_ms: what the best's operators take.
        expected: of the best altogether.
    """

    longest: pd.Series
    operators_ms: float
    expected: float


def chosen_candidates(plan: Plan) -> dict[str, pd.Series]:
    """Return the candidates that are looked at closely: the best, the next, the step up."""
    found = {"best": plan.best, "next": plan.runner_up, "step up": plan.next_faster}
    return {role: row for role, row in found.items() if row is not None}


def time_bars(
    plan: Plan,
    candidates: Mapping[str, pd.Series],
    timers: StepTimers,
    phase: Literal["prefill", "decode"],
) -> TimeStack:
    """Return which operators the time of a step goes to, and what is beyond them."""
    rows = list(candidates.values())
    steps = [operator_breakdown(plan.deployment(row), timers, phase) for row in rows]
    total, title = {
        "decode": ("tpot_ms", "A further token of all requests"),
        "prefill": ("ttft_ms", "The first token: one prompt"),
    }[phase]
    values = [float(row[total]) for row in rows]
    ends = [[row[f"{total}_{end}"] for row in rows]
            for end in ("low", "high") if f"{total}_{end}" in rows[0]]  # fmt: skip
    beyond = [max(v - step["ms"].sum(), 0.0) for v, step in zip(values, steps, strict=True)]
    segments = [
        *_operator_segments(steps),
        Segment(BEYOND_OPERATORS, "@cloud", beyond, labeled=False),
    ]
    bars = stacked_bars(list(candidates), segments, "time, ms", Mark("expected", values, *ends))
    first = steps[0]
    return TimeStack(title, bars, first.iloc[0], first["ms"].sum(), values[0])


def memory_bars(plan: Plan, candidates: Mapping[str, pd.Series]) -> Stack:
    """Return what fills a GPU."""
    deployments = [plan.deployment(row) for row in candidates.values()]
    held = [memory_breakdown(d) for d in deployments]
    segments = [
        Segment(name, color, [parts[name] for parts in held])
        for name, color in zip(held[0], MEMORY_COLORS, strict=True)
    ]
    capacity = Mark("memory of the GPU", [d.system.memory_gib for d in deployments])
    bars = stacked_bars(list(candidates), segments, "memory, GiB", capacity)
    return Stack("The fullest GPU, all requests at full length", bars)


def best_of_systems(plan: Plan, question: Question) -> pd.DataFrame:
    """Return the best candidate of every system that keeps to the limits, the best first."""
    feasible = plan.candidates[plan.candidates["keeps"]].sort_values("tpot_ms", kind="stable")
    scored = feasible.assign(score=plan.requirements.score(feasible))
    ranked = scored.sort_values("score", ascending=False, kind="stable")
    best = ranked.drop_duplicates("system").drop(columns="score")
    hourly = {s.name: s.price_per_hour for s in question.systems}
    return best.assign(usd_per_gpu_hour=best["system"].map(hourly).astype(float))


def winner_sentences(plan: Plan, best: pd.DataFrame) -> list[str]:
    """Return which system is best for the goal, and which has the cheapest tokens."""
    first = best.iloc[0]
    lines = [f"Best in {plan.requirements.goal}: {format_candidate(plan, first)}."]
    factors = [
        f"{ratio(first['tokens_per_s_per_gpu'] / other['tokens_per_s_per_gpu'])} "
        f"{'the tokens of' if i == 0 else 'of'} {other['system']}"
        for i, (_, other) in enumerate(best.iloc[1:].iterrows())
    ]
    if factors:
        lines[0] += f" Each GPU gives {', '.join(factors)}."
    prices = best["usd_per_million_tokens"].dropna()
    if len(prices) > 1:
        cheapest = best.loc[prices.idxmin()]
        lines.append(
            f"Cheapest: {cheapest['system']}, {number(prices.min(), 'USD')} per million tokens; "
            f"the dearest of them takes {number(prices.max(), 'USD')}."
        )
    return lines


def excluded_reasons(plan: Plan, question: Question, best: pd.DataFrame) -> list[str]:
    """Return why some systems have nothing to offer."""
    return [
        plan.excluded_systems.get(s.name, f"{s.name}: nothing keeps to the limits")
        for s in question.systems
        if s.name not in set(best["system"])
    ]


def _operator_segments(steps: list[pd.DataFrame]) -> list[Segment]:
    """Return a segment per operator, those of a part together, in the order of `PARTS`."""
    tables = [step.set_index(["part", "operator"])["ms"] for step in steps]
    joined = pd.concat(tables, axis=1).fillna(0.0)
    return [
        Segment(str(name).replace("_", " "), PART_COLORS[part], values.tolist())
        for part in PARTS
        for (row_part, name), values in joined.iterrows()
        if row_part == part
    ]
