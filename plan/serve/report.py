"""HTML report of a plan: one self-contained file."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB
from foretune.plan.cost.steps import PARTS
from foretune.plan.describe.catalog import System
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.engines import ENGINES
from foretune.plan.describe.layout import Offload, Workload
from foretune.plan.serve.deployments.analytic import StepTimers, decode_step, prefill_step
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.explanation import PART_PHRASES, describe_candidate, notes, sentences
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.requirements import UPPER_LIMITS, Requirements
from foretune.search.pareto import pareto_front
from foretune.tune.report import chart
from foretune.tune.report.figures import MAX_POINTS
from foretune.tune.report.page import duration, interval, number, percent, render, write_page
from foretune.values import counted


@dataclass(frozen=True)
class Column:
    """A column in a table of candidates; ``show`` formats a value."""

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
"""A title with more systems than this counts them."""


@dataclass(frozen=True)
class Question:
    """The inputs of `foretune.plan.plan`, and its data."""

    model: ModelDescription
    systems: tuple[System, ...]
    gpus: int
    workload: Workload
    backend: str
    rate: float | None = None  # requests per second; None plans each number in flight
    pools: bool = False
    tables: bool = True  # whether operator times come from measured tables
    corrected: bool = False  # whether latencies were corrected with measured deployments
    seconds: float = math.nan  # planning time; NaN if unknown
    offload: Offload = Offload()  # noqa: RUF009  # immutable

    def __str__(self) -> str:
        names = " or ".join(system.name for system in self.systems)
        if len(self.systems) > MAX_LISTED_SYSTEMS:
            names = f"one of {len(self.systems)} systems"
        return f"{self.model.name} on {self.gpus} × {names}, {self.backend}"


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
    """A chart of stacked bars, one per deployment; ``summary`` describes it in words."""

    title: str
    caption: str
    bars: chart.Bars
    summary: str

    @property
    def sums(self) -> list[float]:
        """The lengths of the bars."""
        return [sum(values) for values in zip(*(s.values for s in self.bars.segments), strict=True)]


def chosen_candidates(plan: Plan) -> dict[str, pd.Series]:
    """Return the candidates shown in detail: best, next, step up."""
    found = {"best": plan.best, "next": plan.runner_up, "step up": plan.next_faster}
    return {role: row for role, row in found.items() if row is not None}


def time_bars(
    plan: Plan,
    candidates: Mapping[str, pd.Series],
    timers: StepTimers,
    phase: Literal["prefill", "decode"],
) -> Stack:
    """Return the operators of a step, and the time outside of them."""
    rows = list(candidates.values())
    steps = [operator_breakdown(plan.deployment(row), timers, phase) for row in rows]
    total, title = {
        "decode": ("tpot_ms", "A decode step of all requests"),
        "prefill": ("ttft_ms", "The first token: one prompt"),
    }[phase]
    values = [float(row[total]) for row in rows]
    ends = [
        [row[f"{total}_{end}"] for row in rows]
        for end in ("low", "high")
        if f"{total}_{end}" in rows[0]
    ]
    beyond = [max(v - step["ms"].sum(), 0.0) for v, step in zip(values, steps, strict=True)]
    tables = [step.set_index(["part", "operator"])["ms"] for step in steps]
    segments = [
        chart.Segment(str(name).replace("_", " "), PART_COLORS[part], values.tolist())
        for part in PARTS
        for (row_part, name), values in pd.concat(tables, axis=1).fillna(0.0).iterrows()
        if row_part == part
    ]
    segments.append(chart.Segment(BEYOND_OPERATORS, "@cloud", beyond, labeled=False))
    bars = stacked_bars(
        list(candidates), segments, "time, ms", chart.Mark("expected", values, *ends)
    )
    longest = steps[0].iloc[0]
    summary = (
        f"Stacked bars of operators. The best takes {number(steps[0]['ms'].sum())} ms, of which "
        f"{longest['operator']} takes {number(longest['ms'])} ms; the expected latency is "
        f"{number(values[0])} ms. The table below has the numbers."
    )
    return Stack(title, f"{title}: operators, ms", bars, summary)


def memory_bars(plan: Plan, candidates: Mapping[str, pd.Series]) -> Stack:
    """Return the memory of a GPU by use."""
    deployments = [plan.deployment(row) for row in candidates.values()]
    held = [memory_breakdown(d) for d in deployments]
    segments = [
        chart.Segment(name, color, [parts[name] for parts in held])
        for name, color in zip(held[0], MEMORY_COLORS, strict=True)
    ]
    capacity = chart.Mark("memory of the GPU", [d.system.memory_gib for d in deployments])
    bars = stacked_bars(list(candidates), segments, "memory, GiB", capacity)
    names = ", ".join(segment.name for segment in segments)
    summary = f"Stacked bars of {names}; the table below has the numbers."
    title = "The fullest GPU, all requests at full length"
    return Stack(title, "Memory of a GPU, GiB", bars, summary)


def best_of_systems(plan: Plan, question: Question) -> pd.DataFrame:
    """Return the best feasible candidate of each system, best first."""
    feasible = plan.candidates[plan.candidates["keeps"]].sort_values("tpot_ms", kind="stable")
    scored = feasible.assign(score=plan.requirements.score(feasible))
    ranked = scored.sort_values("score", ascending=False, kind="stable")
    best = ranked.drop_duplicates("system").drop(columns="score")
    hourly = {s.name: s.price_per_hour for s in question.systems}
    return best.assign(usd_per_gpu_hour=best["system"].map(hourly).astype(float))


_TILES = (
    "tokens_per_s_per_gpu",
    "tpot_ms",
    "ttft_ms",
    "usd_per_million_tokens",
    "power_w",
    "memory_gib",
)


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
        links=_links(question, commands),
        headline=format_candidate(plan, plan.best),
        lead=_lead(plan, question),
        tiles=_tiles(plan.best),
        plan=plan,
        question=question,
        commands=commands or {},
        engines=ENGINES,
        known=lambda rows: [c for c in COLUMNS if c.name in rows and rows[c.name].notna().any()],
        format_candidate=format_candidate,
        interval_of=interval_of,
        sentences=sentences(plan),
        chosen=candidates,
        chosen_lines=pd.DataFrame(list(candidates.values())),
        best_of_systems=best,
        without=[
            plan.excluded_systems.get(name, f"{name}: no deployment meets the limits")
            for name in (system.name for system in question.systems)
            if name not in set(best["system"])
        ],
        limits=limits(plan.requirements),
        groups=[(symbol, color, name) for name, (color, symbol) in group_marks(plan).items()],
        front=front_figure(plan),
        front_summary=_summarize_front(plan),
        part_colors=[("bar", PART_COLORS[p], PART_PHRASES[p].partition(",")[0]) for p in parts],
        beyond=BEYOND_OPERATORS,
        times=[time_bars(plan, candidates, timers, phase) for phase in ("decode", "prefill")],
        memory=memory,
        memory_colors=[("bar", s.color, s.name) for s in memory.bars.segments]
        + [("line", "@text", "memory of the GPU")],
        notes=notes(plan, question.tables, question.corrected),
        asked=_asked(plan, question),
    )
    return write_page(path, text)


def _links(question: Question, commands: Mapping[str, str] | None) -> dict[str, str]:
    """Return the sections of the page: anchor -> name."""
    links = {
        "choice": "Choice",
        "systems": "GPUs",
        "front": "Throughput",
        "times": "Time",
        "memory": "Memory",
        "launch": "Start",
        "notes": "Caveats",
        "question": "Question",
    }
    unused = {"systems": len(question.systems) == 1, "launch": not commands}
    return {anchor: name for anchor, name in links.items() if not unused.get(anchor)}


def _summarize_front(plan: Plan) -> str:
    """Describe the chart of the front in words."""
    best = plan.best
    throughput, speed = number(best["tokens_per_s_per_gpu"]), number(1e3 / best["tpot_ms"])
    return (
        f"Scatter of {counted(len(plan.candidates), 'candidate')}, {len(plan.pareto)} of them on "
        f"the front. The best has {throughput} tokens per second per GPU at {speed} tokens per "
        "second per user. The table has the numbers."
    )


def _asked(plan: Plan, question: Question) -> list[tuple[str, str]]:
    """Return the question as names and texts."""
    model, load = question.model, question.workload
    weights, active = (number(n / 1e9) for n in (model.parameters(), model.active_parameters()))
    described = f"{model.name}: {model.layers} layers, {weights} billion parameters"
    described += f", {active} billion of them per token" if model.is_moe else ""
    cached = f", {load.prefix:,} of them cached" if load.prefix else ""
    rate = f"{question.rate:g} requests per second, arriving at random" if question.rate else ""
    took = f" in {duration(question.seconds)}" if math.isfinite(question.seconds) else ""
    return [
        ("Model", described),
        ("GPUs", " or ".join(f"{question.gpus} × {s.name}" for s in question.systems)),
        ("Engine", ENGINES[question.backend]["name"]),
        ("Requests", f"prompts of {load.isl:,} tokens{cached}, answers of {load.osl:,}"),
        ("Load", rate or "the best number of requests in flight"),
        ("Limits", "; ".join(limits(plan.requirements)) or "none"),
        ("Goal", plan.requirements.goal),
        ("Drafting", str(plan.deployments[0].speculation or "none")),
        ("Pools", "prefill may have separate workers" if question.pools else "one"),
        ("Host memory", f"up to {question.offload}" if question.offload else "nothing"),
        ("Planned", f"{counted(len(plan.candidates), 'deployment')}{took}"),
    ]


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


def operator_breakdown(
    deployment: Deployment, timers: StepTimers, phase: Literal["prefill", "decode"] = "decode"
) -> pd.DataFrame:
    """Return the operators of one step, longest first.

    Columns: ``operator``, ``part`` (one of `foretune.plan.cost.steps.PARTS`) and ``ms`` of all its
    runs. The milliseconds add up to the step's time. ``decode`` computes a token for every running
    request, ``prefill`` a single prompt.
    """
    step = decode_step if phase == "decode" else prefill_step
    timer = timers(deployment.system, deployment.backend)
    operators = timer.operators(step(deployment))
    times = timer.times([[operator] for operator in operators])
    table = pd.DataFrame(
        {
            "operator": [operator.name for operator in operators],
            "part": times[list(PARTS)].idxmax(axis=1),
            "ms": times["total"],
        }
    )
    summed = table.groupby(["operator", "part"], as_index=False, sort=False)["ms"].sum()
    return summed.sort_values("ms", ascending=False, kind="stable", ignore_index=True)


def memory_breakdown(deployment: Deployment) -> dict[str, float]:
    """Return the GiB of the fullest GPU by use; with pools, of the fullest decode worker."""
    held = deployment.memory(deployment.requests_per_worker)
    parts = {
        "weights": held.weights,
        "KV cache": held.kv_cache,
        "activations": held.activations,
        "outside of PyTorch": held.engine,
    }
    return {name: float(np.asarray(size) / GIB) for name, size in parts.items()}


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


def candidate_groups(table: pd.DataFrame) -> "pd.Series[str]":
    """Return the groups of candidates: systems if there are several, else weight formats."""
    if table["system"].nunique() > 1:
        return table["system"].astype(str)
    return table["formats"].str.partition(",")[0].rename("formats")


def group_marks(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return the color and symbol of each feasible group, best first."""
    feasible = plan.candidates[plan.candidates["keeps"]]
    max_throughput = (
        feasible["tokens_per_s_per_gpu"].groupby(candidate_groups(plan.candidates)).max()
    )
    names = max_throughput.sort_values(ascending=False).index
    return {str(name): MARKS[i % len(MARKS)] for i, name in enumerate(names)}


def front_figure(plan: Plan) -> chart.Chart:
    """Return throughput per GPU over tokens per second of a user, with each group's front."""
    table = plan.candidates.assign(user=1e3 / plan.candidates["tpot_ms"])
    group = candidate_groups(table)
    sample = table.sample(min(len(table), MAX_POINTS), random_state=0)
    layers: list[chart.ChartLayer] = [
        chart.Points(*_coordinates(sample), "@cloud", size_px=4),
        chart.Line(*_coordinates(table.loc[plan.pareto.index]), "@interval", 11),
    ]
    for name, (color, symbol) in group_marks(plan).items():
        rows = table[table["keeps"] & (group == name)]
        values = np.column_stack([-rows["tokens_per_s_per_gpu"], rows["tpot_ms"]])
        front = rows[pareto_front(values)].sort_values("user")
        layers.append(chart.Line(*_coordinates(front), color, 1))
        layers.append(
            chart.Points(*_coordinates(front), color, symbol, texts=_tooltips(plan, front))
        )
    best = _coordinates(table.loc[[plan.best.name]])
    layers += [chart.Points(*best, "@text", "ring", 13), chart.Note(best[0][0], best[1][0], "best")]
    drawn = table[table["keeps"]]
    x_end, y_end = (1.15 * float(drawn[c].max()) for c in ("user", "tokens_per_s_per_gpu"))
    limit = 1e3 / plan.requirements.tpot_ms
    if limit > 0:
        x_end = max(x_end, 1.15 * limit)
        layers.append(chart.Line([limit, limit], [0, 0.97 * y_end], "@text", 1.5, "5 3"))
        layers.append(
            chart.Note(limit, 0.97 * y_end, f"{plan.requirements.tpot_ms:g} ms per token")
        )
    return chart.Chart(
        chart.linear_axis(0, x_end, "tokens per second of a user"),
        chart.linear_axis(0, y_end, "tokens per second of a GPU"),
        layers,
        height_px=400,
    )


def stacked_bars(
    labels: Sequence[str], segments: Sequence[chart.Segment], quantity: str, mark: chart.Mark
) -> chart.Bars:
    """Return horizontal stacked bars with a mark beside each, first bar on top."""
    ends = [*np.sum([s.values for s in segments], axis=0), *mark.values, *mark.high]
    longest = 1.04 * max(e for e in ends if math.isfinite(e))
    return chart.Bars(labels, segments, chart.linear_axis(0, longest, quantity), mark)


def _coordinates(rows: pd.DataFrame) -> tuple[list[float], list[float]]:
    return rows["user"].tolist(), rows["tokens_per_s_per_gpu"].tolist()


def _tooltips(plan: Plan, rows: pd.DataFrame) -> list[str]:
    return [
        f"{describe_candidate(plan, row)}\n"
        f"{row['tpot_ms']:.3g} ms per token, {row['ttft_ms']:.3g} ms to the first token\n"
        f"{row['tokens_per_s_per_gpu']:.4g} tokens/s per GPU"
        for _, row in rows.iterrows()
    ]
