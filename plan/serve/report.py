"""HTML report of a plan: one self-contained file."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from foretune.plan.cost.steps import PARTS
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.system import System
from foretune.plan.describe.workload import Offload, Workload
from foretune.plan.serve.deployments.analytic import StepTimers
from foretune.plan.serve.deployments.deployment import ENGINE_NAMES
from foretune.plan.serve.explanation import PART_PHRASES, describe_candidate, notes, sentences
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.report_charts import (
    front_figure,
    group_marks,
    memory_breakdown,
    operator_breakdown,
    stacked_bars,
)
from foretune.plan.serve.requirements import UPPER_LIMITS, Requirements
from foretune.tune.report.chart import Bars, Mark, Segment
from foretune.tune.report.page import (
    counted,
    duration,
    interval,
    number,
    percent,
    ratio,
    render,
    write_page,
)


@dataclass(frozen=True)
class Column:
    """A column of a table of candidates.

    ``show`` formats a value.
    """

    name: str
    title: str
    show: Callable[[float], str] = number


COLUMNS = (
    Column("ttft_ms", "First token, ms"),
    Column("tpot_ms", "Further token, ms"),
    Column("tokens_per_s_per_gpu", "Tokens/s per GPU"),
    Column("requests_per_s", "Requests/s"),
    Column("good", "Within limits", percent),
    Column("usd_per_million_tokens", "USD per million tokens"),
    Column("usd_per_gpu_hour", "USD per GPU and hour"),
    Column("power_w", "W per GPU"),
    Column("energy_mj_per_token", "mJ per token"),
    Column("memory_gib", "GiB per GPU"),
    Column("accuracy", "Quality kept", percent),
)


def known_columns(rows: pd.DataFrame) -> list[Column]:
    """Return the columns with a known value."""
    return [c for c in COLUMNS if c.name in rows and rows[c.name].notna().any()]


def interval_of(row: pd.Series, name: str) -> str:
    """Return the interval of a predicted value; empty without one."""
    low, high = (float(row.get(f"{name}_{end}", math.nan)) for end in ("low", "high"))
    return interval(low, high) if math.isfinite(low) else ""


def format_candidate(plan: Plan, row: pd.Series) -> str:
    """Return a candidate in words, with no-break spaces between numbers and units."""
    words = describe_candidate(plan, row)
    for glued in (" × ", " requests"):
        words = words.replace(glued, glued.replace(" ", "\N{NO-BREAK SPACE}"))
    return words


MAX_LISTED_SYSTEMS = 3
"""A title counts systems if there are more."""


@dataclass(frozen=True)
class Question:
    """Inputs of `foretune.plan.plan`, and its data.

    Attributes:
        rate: requests per second; None plans each number in flight.
        pools: whether separate prefill workers were allowed.
        tables: whether operator times come from measured tables.
        corrected: whether latencies were corrected with measured deployments.
        seconds: planning time; NaN if unknown.
        offload: upper limits of data in host memory.
    """

    model: ModelDescription
    systems: tuple[System, ...]
    gpus: int
    workload: Workload
    backend: str
    rate: float | None = None
    pools: bool = False
    tables: bool = True
    corrected: bool = False
    seconds: float = math.nan
    offload: Offload = Offload()  # noqa: RUF009  # immutable

    def __str__(self) -> str:
        names = " or ".join(system.name for system in self.systems)
        if len(self.systems) > MAX_LISTED_SYSTEMS:
            names = f"one of {len(self.systems)} systems"
        return f"{self.model.name} on {self.gpus} × {names}, {self.backend}"

    @property
    def short_model(self) -> str:
        """The model's name without its publisher."""
        return self.model.name.rsplit("/", 1)[-1]

    def facts(self, plan: Plan) -> dict[str, str]:
        """Return the question in words, and how many deployments were planned."""
        model, workload = self.model, self.workload
        billions = f"{number(model.parameters() / 1e9)} billion parameters"
        if model.is_moe:
            active = number(model.active_parameters() / 1e9)
            billions += f", {active} billion of them per token"
        cached = f", {workload.prefix:,} of them cached" if workload.prefix else ""
        looked_at = counted(len(plan.candidates), "deployment")
        if math.isfinite(self.seconds):
            looked_at += f" in {duration(self.seconds)}"
        return {
            "Model": f"{model.name}: {model.layers} layers, {billions}",
            "GPUs": " or ".join(f"{self.gpus} × {s.name}" for s in self.systems),
            "Engine": ENGINE_NAMES.get(self.backend, self.backend),
            "Requests": f"prompts of {workload.isl:,} tokens{cached}, answers of {workload.osl:,}",
            "Load": (
                "the best number of requests in flight"
                if self.rate is None
                else f"{self.rate:g} requests per second, arriving at random"
            ),
            "Limits": "; ".join(limits(plan.requirements)) or "none",
            "Goal": plan.requirements.goal,
            "Drafting": str(plan.deployments[0].speculation or "none"),
            "Pools": "prefill may have separate workers" if self.pools else "one",
            "Host memory": f"up to {self.offload}" if self.offload else "nothing",
            "Planned": looked_at,
        }


def limits(requirements: Requirements) -> list[str]:
    """Return the limits in words; empty without limits."""
    values = {unit: getattr(requirements, name) for name, unit in UPPER_LIMITS.items()}
    found = [f"{value:,.4g} {unit}" for unit, value in values.items() if math.isfinite(value)]
    if requirements.accuracy > 0:
        found.append(f"quality of at least {100 * requirements.accuracy:.4g} %")
    return found


PART_COLORS = dict(
    zip(PARTS, ("@measured", "@library", "@predicted", "@outside", "@quiet"), strict=True)
)
BEYOND_OPERATORS = "beyond operators"
MEMORY_COLORS = ("@measured", "@library", "@predicted", "@outside")


@dataclass(frozen=True)
class Stack:
    """A chart of stacked bars, one per deployment."""

    title: str
    bars: Bars

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments of the bars."""
        return self.bars.segments

    @property
    def sums(self) -> list[float]:
        """The lengths of the bars."""
        return [sum(values) for values in zip(*(s.values for s in self.segments), strict=True)]


@dataclass(frozen=True)
class TimeStack(Stack):
    """Operators of a step as bars, with the expected latency.

    ``longest`` is the best's longest operator, a row of `operator_breakdown`, ``operators_ms`` the
    total of its operators, ``expected`` its latency.
    """

    longest: pd.Series
    operators_ms: float
    expected: float


def chosen_candidates(plan: Plan) -> dict[str, pd.Series]:
    """Return the candidates shown in detail: best, next, step up."""
    found = {"best": plan.best, "next": plan.runner_up, "step up": plan.next_faster}
    return {role: row for role, row in found.items() if row is not None}


def time_bars(
    plan: Plan,
    candidates: Mapping[str, pd.Series],
    timers: StepTimers,
    phase: Literal["prefill", "decode"],
) -> TimeStack:
    """Return the operators of a step, and the time beyond them."""
    rows = list(candidates.values())
    steps = [operator_breakdown(plan.deployment(row), timers, phase) for row in rows]
    total, title = {
        "decode": ("tpot_ms", "A decode step of all requests"),
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
    """Return the memory of a GPU by use."""
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
    """Return the best feasible candidate of each system, best first."""
    feasible = plan.candidates[plan.candidates["keeps"]].sort_values("tpot_ms", kind="stable")
    scored = feasible.assign(score=plan.requirements.score(feasible))
    ranked = scored.sort_values("score", ascending=False, kind="stable")
    best = ranked.drop_duplicates("system").drop(columns="score")
    hourly = {s.name: s.price_per_hour for s in question.systems}
    return best.assign(usd_per_gpu_hour=best["system"].map(hourly).astype(float))


def winner_sentences(plan: Plan, best: pd.DataFrame) -> list[str]:
    """Return the best system for the goal, and the system with the cheapest tokens."""
    first = best.iloc[0]
    lines = [f"Best in {plan.requirements.goal}: {format_candidate(plan, first)}."]
    factors = [
        f"{ratio(first['tokens_per_s_per_gpu'] / other['tokens_per_s_per_gpu'])} "
        f"{'the throughput of' if i == 0 else 'that of'} {other['system']}"
        for i, (_, other) in enumerate(best.iloc[1:].iterrows())
    ]
    if factors:
        lines[0] += f" Each GPU has {', '.join(factors)}."
    prices = best["usd_per_million_tokens"].dropna()
    if len(prices) > 1:
        cheapest = best.loc[prices.idxmin()]
        lines.append(
            f"Cheapest: {cheapest['system']}, {number(prices.min(), 'USD')} per million tokens; "
            f"the most expensive costs {number(prices.max(), 'USD')}."
        )
    return lines


def excluded_reasons(plan: Plan, question: Question, best: pd.DataFrame) -> list[str]:
    """Return why some systems have no candidate."""
    return [
        plan.excluded_systems.get(s.name, f"{s.name}: no deployment meets the limits")
        for s in question.systems
        if s.name not in set(best["system"])
    ]


def _operator_segments(steps: list[pd.DataFrame]) -> list[Segment]:
    """Return a segment per operator, grouped in the order of `PARTS`."""
    tables = [step.set_index(["part", "operator"])["ms"] for step in steps]
    joined = pd.concat(tables, axis=1).fillna(0.0)
    return [
        Segment(str(name).replace("_", " "), PART_COLORS[part], values.tolist())
        for part in PARTS
        for (row_part, name), values in joined.iterrows()
        if row_part == part
    ]


_TILES = ("tokens_per_s_per_gpu", "tpot_ms", "ttft_ms", "usd_per_million_tokens", "power_w",
          "memory_gib")  # fmt: skip


def write_plan_report(
    plan: Plan,
    path: str | os.PathLike[str],
    question: Question,
    timers: StepTimers,
    commands: Mapping[str, str] | None = None,
) -> Path:
    """Write the report of a plan to ``path`` atomically, and return it.

    ``commands`` start the best deployment, by engine. Raises UsageError if none is feasible.
    """
    candidates, best = chosen_candidates(plan), best_of_systems(plan, question)
    memory = memory_bars(plan, candidates)
    parts = [p for p in PART_COLORS if p != "experts" or plan.deployments[0].model.is_moe]
    text = render(
        Path(__file__).with_name("plan.html"),
        title=str(question),
        headline=format_candidate(plan, plan.best),
        lead=_lead(plan, question),
        tiles=_tiles(plan.best),
        plan=plan,
        question=question,
        commands=commands or {},
        engines=ENGINE_NAMES,
        known=known_columns,
        format_candidate=format_candidate,
        interval_of=interval_of,
        sentences=sentences(plan),
        chosen=candidates,
        chosen_lines=pd.DataFrame(list(candidates.values())),
        best_of_systems=best,
        winner=winner_sentences(plan, best),
        without=excluded_reasons(plan, question, best),
        limits=limits(plan.requirements),
        groups=[(symbol, color, name) for name, (color, symbol) in group_marks(plan).items()],
        front=front_figure(plan),
        part_colors=[("bar", PART_COLORS[p], PART_PHRASES[p].partition(",")[0]) for p in parts],
        beyond=BEYOND_OPERATORS,
        times=[time_bars(plan, candidates, timers, phase) for phase in ("decode", "prefill")],
        memory=memory,
        memory_colors=[("bar", s.color, s.name) for s in memory.segments]
        + [("line", "@text", "memory of the GPU")],
        notes=notes(plan, question.tables, question.corrected),
    )
    return write_page(path, text)


def _lead(plan: Plan, question: Question) -> str:
    load, limit_texts = question.workload, limits(plan.requirements)
    lead = f"For prompts of {load.isl:,} tokens and answers of {load.osl:,}"
    if question.rate is not None:
        lead += f", {question.rate:g} requests per second"
    return lead + (f"; at most {', '.join(limit_texts)}." if limit_texts else ", without limits.")


def _tiles(best: pd.Series) -> dict[str, str]:
    tiles = {}
    for column in (c for name in _TILES for c in COLUMNS if c.name == name):
        value = float(best.get(column.name, math.nan))
        if math.isfinite(value):
            interval = interval_of(best, column.name)
            name = f"{column.title} (90 %: {interval})" if interval else column.title
            tiles[name] = column.show(value)
    return tiles
