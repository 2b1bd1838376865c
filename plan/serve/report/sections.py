"""The sections of a plan's report, from what is best to what to beware of."""

import math
from collections.abc import Mapping

import pandas as pd

from foretune.plan.cost.steps import PARTS
from foretune.plan.serve.deployments.physics import Clocks
from foretune.plan.serve.explaining import LIMITS, notes, sentences
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.report.breakdown import memory_breakdown, operator_breakdown
from foretune.plan.serve.report.figures import (
    Mark,
    Segment,
    front_figure,
    group_marks,
    stacked_figure,
)
from foretune.plan.serve.report.question import Question, limits
from foretune.plan.serve.report.rows import candidates_table, spoken
from foretune.tune.report.page import (
    Html,
    chart,
    count,
    duration,
    element,
    number,
    ratio,
    row,
    section,
    table,
)

PART_COLOURS = dict(
    zip(PARTS, ("@measured", "@library", "@predicted", "@outside", "@quiet"), strict=True)
)
BEYOND = "beyond operators"
MEMORY_COLOURS = ("@measured", "@library", "@predicted", "@outside")
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
_SHAPES = {
    "circle": '<circle cx="12" cy="7" r="4.5" fill="{0}"/>',
    "diamond": '<path d="M12 1l6 6l-6 6l-6-6z" fill="{0}"/>',
    "square": '<path d="M7.5 2.5h9v9h-9z" fill="{0}"/>',
    "triangle-up": '<path d="M12 2l6 10h-12z" fill="{0}"/>',
    "cross": '<path d="M10 2h4v3h3v4h-3v3h-4v-3h-3v-4h3z" fill="{0}"/>',
    "x": '<path d="M8 3l8 8M16 3l-8 8" stroke="{0}" stroke-width="3"/>',
    "star": '<path d="M12 1l2 4h4l-3 3l1 5l-4-3l-4 3l1-5l-3-3h4z" fill="{0}"/>',
    "bar": '<path d="M5 2h14v10h-14z" fill="{0}"/>',
    "line": '<path d="M12 0v14" stroke="{0}" stroke-width="2.5"/>',
    "band": '<path d="M1 7h22" stroke="{0}" stroke-width="9"/>',
}


def chosen(plan: Plan) -> dict[str, pd.Series]:
    """Return the candidates that are looked at closely: the best, the next, the step up."""
    found = {"best": plan.best, "next": plan.runner_up, "step up": plan.step_up}
    return {role: line for role, line in found.items() if line is not None}


def choice_section(plan: Plan) -> Html:
    """Return the best in sentences, and beside what comes next."""
    lines = [element("li", line) for line in sentences(plan)[1:]]
    several = chosen(plan)
    rows = pd.DataFrame(list(several.values()))
    roles = dict(zip(rows.index, several, strict=True))
    return section(
        "choice", "What to deploy", element("ul", *lines),
        candidates_table("The best, the next and the step up", plan, rows, roles),
    )  # fmt: skip


def front_section(plan: Plan) -> Html:
    """Return the trade between throughput and the speed of an answer, drawn and as a table."""
    front, several = plan.pareto, plan.candidates["system"].nunique() > 1
    what = "system" if several else "format of weights"
    text = (
        "Few requests at a time are answered fast, many use the GPUs well. Each line is the best "
        f"that one {what} can do; points on the band are beaten by no other in both."
    )
    if limits(plan.requirements):
        text += " Only what keeps to the limits is coloured."
    entries = [(symbol, colour, name) for name, (colour, symbol) in group_marks(plan).items()]
    entries += [("band", "@interval", "front of all"), ("circle", "@cloud", "all candidates")]
    best = plan.best
    summary = (
        f"Scatter of {count(len(plan.candidates), 'candidate')}, of which {len(front)} are on the "
        f"front. The best: {number(best['tokens_per_s_per_gpu'])} tokens per second of a GPU at "
        f"{number(1e3 / best['tpot_ms'])} tokens per second of a user. The table has the numbers."
    )
    title = f"Tokens of a GPU over those of a user, {count(len(plan.candidates), 'candidate')}"
    drawn = chart(title, front_figure(plan), summary)
    rows = (
        candidates_table("Candidates that no other beats, the fastest first", plan, front)
        if len(front)
        else element("p", "What no other beats breaks a limit; the best is named above.")
    )
    heading = element("h3", f"The front: {count(len(front), 'deployment')}")
    return section(
        "front", "Throughput against speed", element("p", text), _legend(entries), drawn,
        heading, rows,
    )  # fmt: skip


def times_section(plan: Plan, clocks: Clocks) -> Html:
    """Return which operators the times go to."""
    several = chosen(plan)
    text = (
        "The operators of a step by themselves, and what an engine takes beyond them: prompts that "
        "are read in the same steps, waiting, and what measured deployments taught. The upright "
        "line is what is expected altogether."
    )
    parts = (part for part in PARTS if part != "experts" or plan.deployments[0].model.is_moe)
    entries = [("bar", PART_COLOURS[part], LIMITS[part].partition(",")[0]) for part in parts]
    entries += [("bar", "@cloud", BEYOND), ("line", "@text", "expected")]
    drawn = [
        _times_chart(plan, several, clocks, "decode", "tpot_ms", "A further token of all requests"),
        _times_chart(plan, several, clocks, "prefill", "ttft_ms", "The first token: one prompt"),
    ]
    grid = element("div", *drawn, class_="charts", style="--least:100%")
    return section("times", "Where the time goes", element("p", text), _legend(entries), grid)


def memory_section(plan: Plan) -> Html:
    """Return what fills a GPU."""
    several = chosen(plan)
    deployments = [plan.deployment(line) for line in several.values()]
    held = [memory_breakdown(d) for d in deployments]
    segments = [
        Segment(name, colour, [parts[name] for parts in held])
        for name, colour in zip(held[0], MEMORY_COLOURS, strict=True)
    ]
    most = Mark("memory of the GPU", [d.system.memory_gib for d in deployments])
    title = "The fullest GPU, all requests at full length"
    figure = stacked_figure(list(several), segments, "memory, GiB", most)
    entries = [("bar", s.colour, s.name) for s in segments] + [("line", "@text", most.name)]
    numbers = _segments_table("Memory of a GPU, GiB", list(several), segments)
    summary = f"Stacked bars of {', '.join(held[0])}; the table below has the numbers."
    return section(
        "memory", "Memory", _legend(entries), chart(title, figure, summary, numbers)
    )  # fmt: skip


def systems_section(plan: Plan, question: Question) -> Html:
    """Return which system is best, and what tokens cost on each."""
    best = _best_of_systems(plan)
    text = [element("p", line) for line in _winner(plan, best)]
    hourly = {s.name: s.price_per_hour for s in question.systems}
    rows = best.assign(usd_per_gpu_hour=best["system"].map(hourly).astype(float))
    listed = candidates_table("The best deployment of each system", plan, rows)
    others = [
        element("li", reason)
        for name, reason in _without(plan, question, set(best["system"])).items()
    ]
    return section("systems", "Which GPUs", *text, listed, element("ul", *others) if others else "")


def launch_section(commands: Mapping[str, str]) -> Html:
    """Return the command that starts the best deployment, for each engine."""
    style = "overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;padding:.8rem 1rem;"
    style += "background:var(--card);border-radius:.6rem"
    parts = []
    for engine, command in commands.items():
        parts += [
            element("h3", ENGINES.get(engine, engine)),
            element("pre", element("code", command), style=style, tabindex=0),
        ]
    return section("launch", "How to start it", *parts)


def checks_section(checks: pd.DataFrame) -> Html:
    """Return what was measured to check the plan, as the table it came in."""
    lines = [row([_plain(v) for v in values]) for values in checks.itertuples(index=False)]
    listed = table("Measured against predicted", list(checks.columns), [lines], class_="scores")
    return section("checks", "Checked on this machine", listed)


def notes_section(plan: Plan, question: Question) -> Html:
    """Return what to know when reading the plan."""
    lines = notes(plan, question.tables, question.corrected)
    found = element("ul", *(element("li", line) for line in lines))
    return section(
        "notes",
        "What to beware of",
        found if lines else element("p", "Nothing beyond the intervals."),
    )


def question_section(plan: Plan, question: Question) -> Html:
    """Return what was asked."""
    model, workload = question.model, question.workload
    billions = f"{number(model.parameters() / 1e9)} billion parameters"
    if model.is_moe:
        billions += f", {number(model.active_parameters() / 1e9)} billion of them per token"
    cached = f", {workload.prefix:,} of them in the cache already" if workload.prefix else ""
    looked_at = count(len(plan.candidates), "deployment")
    if math.isfinite(question.seconds):
        looked_at += f" in {duration(question.seconds)}"
    facts = {
        "Model": f"{model.name}: {model.layers} layers, {billions}",
        "GPUs": " or ".join(f"{question.gpus} × {s.name}" for s in question.systems),
        "Engine": ENGINES.get(question.backend, question.backend),
        "Requests": f"prompts of {workload.isl:,} tokens{cached}, answers of {workload.osl:,}",
        "At a time": (
            "as many as is best"
            if question.rate is None
            else f"as they arrive: {question.rate:g} per second"
        ),
        "Limits": "; ".join(limits(plan.requirements)) or "none",
        "Best in": plan.requirements.goal,
        "Pools": "prompts may have workers of their own" if question.pools else "one",
        "Looked at": looked_at,
    }
    rows = [row([name, value]) for name, value in facts.items()]
    listed = table("What was asked", (), [rows], class_="plain")
    return section("question", "What was asked", listed)


def _times_chart(
    plan: Plan, several: Mapping[str, pd.Series], clocks: Clocks, phase: str, total: str, title: str
) -> Html:
    """Return bars of a step's operators beside the latency that engines reach."""
    steps = [
        operator_breakdown(
            plan.deployment(line), clocks, "decode" if phase == "decode" else "prefill"
        )
        for line in several.values()
    ]
    ends = {
        end: [line.get(f"{total}_{end}") for line in several.values()] for end in ("low", "high")
    }
    known = all(v is not None for v in ends["low"])
    values = [float(line[total]) for line in several.values()]
    mark = Mark("expected", values, *(ends.values() if known else ()))
    beyond = [max(v - step["ms"].sum(), 0.0) for v, step in zip(values, steps, strict=True)]
    segments = [*_operator_segments(steps), Segment(BEYOND, "@cloud", beyond, labelled=False)]
    figure = stacked_figure(list(several), segments, "time, ms", mark)
    longest = steps[0].iloc[0]
    summary = (
        f"Stacked bars of operators. Those of the best take {number(steps[0]['ms'].sum())} ms, "
        f"{longest['operator']} alone {number(longest['ms'])}; expected are {number(values[0])} ms "
        "altogether. The table below has the numbers."
    )
    numbers = _segments_table(f"{title}: operators, ms", list(several), segments)
    return chart(title, figure, summary, numbers)


def _operator_segments(steps: list[pd.DataFrame]) -> list[Segment]:
    """Return a segment per operator, those of a part together, in the order of `PARTS`."""
    tables = [step.set_index(["part", "operator"])["ms"] for step in steps]
    joined = pd.concat(tables, axis=1).fillna(0.0)
    found = []
    for part in PARTS:
        own = joined[joined.index.get_level_values("part") == part]
        for (_, name), values in own.iterrows():
            found.append(Segment(str(name).replace("_", " "), PART_COLOURS[part], values.tolist()))
    return found


def _segments_table(caption: str, labels: list[str], segments: list[Segment]) -> Html:
    lines = [row([s.name, *map(number, s.values)]) for s in segments]
    sums = [sum(s.values[i] for s in segments) for i in range(len(labels))]
    lines.append(row([element("b", "together"), *map(number, sums)]))
    listed = table(caption, ["", *labels], [lines], class_="scores")
    return element("details", element("summary", "As a table"), listed)


def _best_of_systems(plan: Plan) -> pd.DataFrame:
    """Return the best candidate of every system that keeps to the limits, the best first."""
    keeping = plan.candidates[plan.candidates["keeps"]].sort_values("tpot_ms", kind="stable")
    scored = keeping.assign(score=plan.requirements.score(keeping))
    ranked = scored.sort_values("score", ascending=False, kind="stable")
    return ranked.drop_duplicates("system").drop(columns="score")


def _winner(plan: Plan, best: pd.DataFrame) -> list[str]:
    """Return which system is best for the goal, and which has the cheapest tokens."""
    first = best.iloc[0]
    lines = [f"Best in {plan.requirements.goal}: {spoken(plan, first)}."]
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


def _without(plan: Plan, question: Question, kept: set[str]) -> dict[str, str]:
    """Return the systems that have nothing to offer, and why."""
    return {
        s.name: plan.refused.get(s.name, f"{s.name}: nothing keeps to the limits")
        for s in question.systems
        if s.name not in kept
    }


def _legend(entries: list[tuple[str, str, str]]) -> Html:
    """Return (shape, colour, name) as a legend."""
    items = []
    for shape, colour, name in entries:
        css = f"var(--{colour[1:]})" if colour.startswith("@") else colour
        mark = _SHAPES[shape].format(css)
        svg = Html(f'<svg viewBox="0 0 24 14" aria-hidden="true">{mark}</svg>')
        items.append(element("li", svg, name))
    return element("ul", *items, class_="legend")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)
