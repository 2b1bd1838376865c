"""Charts of a plan's report; ``"@name"`` is a color of the page's style."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import GIB
from foretune.plan.cost.steps import PARTS, OperatorList
from foretune.plan.serve.deployments.analytic import StepTimers, decode_step, prompt_step
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.explanation import describe_candidate
from foretune.plan.serve.planner import Plan
from foretune.search.pareto import pareto_front
from foretune.tune.report.chart import (
    Bars,
    Chart,
    ChartLayer,
    Line,
    Mark,
    Note,
    Points,
    Segment,
    linear_axis,
)
from foretune.tune.report.figures import MAX_POINTS


def operator_breakdown(
    deployment: Deployment, timers: StepTimers, phase: Literal["prefill", "decode"] = "decode"
) -> pd.DataFrame:
    """Return the operators of one step, longest first.

    Columns: ``operator``, ``part`` (one of `foretune.plan.cost.steps.PARTS`) and ``ms`` of all its
    runs. The milliseconds add up to the step's. ``decode`` is a token for every running request,
    ``prefill`` a single prompt.
    """
    step = decode_step if phase == "decode" else prompt_step
    timer = timers(deployment.system, deployment.backend)
    operators = timer.operators(step(deployment))
    times = timer.times([OperatorList([operator]) for operator in operators])
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


def front_figure(plan: Plan) -> Chart:
    """Return throughput per GPU over tokens per second of a user, with each group's front."""
    table = plan.candidates.assign(user=1e3 / plan.candidates["tpot_ms"])
    group = candidate_groups(table)
    sample = table.sample(min(len(table), MAX_POINTS), random_state=0)
    layers: list[ChartLayer] = [
        Points(*_coordinates(sample), "@cloud", size_px=4),
        Line(*_coordinates(table.loc[plan.pareto.index]), "@interval", 11),
    ]
    for name, (color, symbol) in group_marks(plan).items():
        front = _front(table[table["keeps"] & (group == name)])
        layers.append(Line(*_coordinates(front), color, 1))
        layers.append(Points(*_coordinates(front), color, symbol, texts=_tooltips(plan, front)))
    best = _coordinates(table.loc[[plan.best.name]])
    layers += [Points(*best, "@text", "ring", 13), Note(best[0][0], best[1][0], "best")]
    drawn = table[table["keeps"]]
    x_end, y_end = (1.15 * float(drawn[c].max()) for c in ("user", "tokens_per_s_per_gpu"))
    limit = 1e3 / plan.requirements.tpot_ms
    if limit > 0:
        x_end = max(x_end, 1.15 * limit)
        layers.append(Line([limit, limit], [0, 0.97 * y_end], "@text", 1.5, "5 3"))
        layers.append(Note(limit, 0.97 * y_end, f"{plan.requirements.tpot_ms:g} ms per token"))
    return Chart(
        linear_axis(0, x_end, "tokens per second of a user"),
        linear_axis(0, y_end, "tokens per second of a GPU"),
        layers,
        height_px=400,
    )


def stacked_bars(
    labels: Sequence[str], segments: Sequence[Segment], quantity: str, mark: Mark
) -> Bars:
    """Return horizontal stacked bars with a mark beside each, first bar on top."""
    ends = [*np.sum([s.values for s in segments], axis=0), *mark.values, *mark.high]
    longest = 1.04 * max(e for e in ends if math.isfinite(e))
    return Bars(labels, segments, linear_axis(0, longest, quantity), mark)


def _coordinates(rows: pd.DataFrame) -> tuple[list[float], list[float]]:
    return rows["user"].tolist(), rows["tokens_per_s_per_gpu"].tolist()


def _front(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the Pareto-optimal rows, slowest user first."""
    values = np.column_stack([-rows["tokens_per_s_per_gpu"], rows["tpot_ms"]])
    return rows[pareto_front(values)].sort_values("user")


def _tooltips(plan: Plan, rows: pd.DataFrame) -> list[str]:
    return [
        f"{describe_candidate(plan, row)}\n"
        f"{row['tpot_ms']:.3g} ms per token, {row['ttft_ms']:.3g} ms to the first token\n"
        f"{row['tokens_per_s_per_gpu']:.4g} tokens/s per GPU"
        for _, row in rows.iterrows()
    ]
