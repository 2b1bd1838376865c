"""A plan as plain values: what ``--json`` prints, ``plan.json`` keeps and MLflow gets."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from foretune.plan.serve.deployments.correction_cache import package_versions
from foretune.plan.serve.explanation import describe_candidate, notes, sentences
from foretune.plan.serve.layer_formats import find_layer_formats
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.requirements import UPPER_LIMITS


def plan_to_json(plan: Plan, commands: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a plan as plain values, as ``foretune plan serve --json`` prints them."""
    answer: dict[str, Any] = {
        "question": question_to_json(plan),
        "best": _candidate_to_json(plan, plan.best),
        "runner_up": _candidate_to_json(plan, plan.runner_up),
        "step_up": _candidate_to_json(plan, plan.next_faster),
        "pareto": [_candidate_to_json(plan, row) for _, row in plan.pareto.iterrows()],
        "candidates": len(plan.candidates),
        "sentences": sentences(plan),
        "notes": notes(plan),
    }
    best = plan.deployment(plan.best)
    mixed = find_layer_formats(plan.request.layer_formats, best.formats)
    if mixed is not None:
        answer["layer_formats"] = mixed.to_json()
    if commands:
        answer["commands"] = dict(commands)
    return answer


def question_to_json(plan: Plan) -> dict[str, Any]:
    """Return the question and package versions, without unset limits."""
    request = plan.request
    requirements = request.requirements
    values: dict[str, Any] = {
        "model": request.model.name,
        "systems": ", ".join(system.name for system in request.systems),
        "gpus": request.gpus,
        "isl": request.workload.isl,
        "osl": request.workload.osl,
        "prefix": request.workload.prefix,
        "lengths": str(request.workload.mix or "") or None,
        "backend": request.engine,
        "rate": request.rate,
        "pools": request.pools,
        "speculative": str(request.speculation or "") or None,
        "offload_gib": request.offload.weights_gib or None,
        "offload_cache_gib": request.offload.cache_gib or None,
        "offload_disk_gib": request.offload.disk_gib or None,
        "link_host_gbps": request.systems[0].host_copy_gbps or None,
        "link_disk_gbps": request.systems[0].disk_gbps or None,
        "goal": requirements.goal,
    }

    limits = {name: getattr(requirements, name) for name in UPPER_LIMITS}
    if requirements.accuracy > 0:
        limits["accuracy"] = requirements.accuracy
    for name, limit in limits.items():
        if math.isfinite(limit):
            values[f"limit.{name}"] = limit

    values["tables"] = plan.has_tables
    values["corrected"] = plan.corrected
    for name, number in package_versions().items():
        values[f"version.{name}"] = number
    return {name: value for name, value in values.items() if value is not None}


def row_to_json(row: "pd.Series[Any]") -> dict[str, Any]:
    """Return a row as JSON values; unknown is None."""
    values = {str(name): _plain(value) for name, value in row.items()}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _candidate_to_json(plan: Plan, row: "pd.Series[Any] | None") -> dict[str, Any] | None:
    if row is None:
        return None
    return {"deployment": describe_candidate(plan, row), **row_to_json(row)}


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as Python's; other values as they are."""
    return value.item() if hasattr(value, "item") else value
