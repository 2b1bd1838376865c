"""Predicted and measured times of a plan's operators on this machine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np
import pandas as pd

from foretune.collect.torch_operators import cannot_run
from foretune.collect.torch_operators.measuring import OperatorBenchmarker
from foretune.device import Device
from foretune.plan.cost.decoder import step_operators
from foretune.plan.cost.operator import Operator
from foretune.plan.cost.steps import operator_table
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.cost.times import OperatorTimer
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.deployment import Deployment

MIN_RUNS = 5
"""Minimum launches per measured operator: the first, the warm-up, and three samples."""


@dataclass(frozen=True)
class OperatorCheck:
    """Predicted and measured times of operators.

    Attributes:
        table: one row per operator, largest share of a request's time first: ``name``, ``kernel``,
            ``problem``, ``format``, ``share`` (of the time predicted for this machine),
            ``predicted_ms``, ``low_ms``, ``high_ms``, ``measured_ms``, ``ratio`` (measured over
            predicted), ``source`` of the prediction, and ``note``, why it was not measured.
        description: a sentence that names the machine of the predictions.
    """

    table: pd.DataFrame
    description: str

    @property
    def measured(self) -> pd.DataFrame:
        """The rows that were measured."""
        return self.table[self.table["measured_ms"].notna()]

    @property
    def measured_share(self) -> float:
        """Share of the predicted time in measured operators."""
        return float(self.measured["share"].sum())

    @property
    def coverage(self) -> float:
        """Share of the measured operators inside their interval; NaN without any."""
        rows = self.measured
        hits = (rows["low_ms"] <= rows["measured_ms"]) & (rows["measured_ms"] <= rows["high_ms"])
        return float(hits.mean())

    @property
    def step_ratio(self) -> float:
        """Measured over predicted time, weighted as in a request; NaN without measurements."""
        rows = self.measured
        predicted = float(rows["share"].sum())
        return float((rows["share"] * rows["ratio"]).sum() / predicted) if predicted else nan

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "about": self.description,
            "covered": self.measured_share,
            "inside": self.coverage,
            "step_ratio": self.step_ratio,
            "operators": self.table.to_dict("records"),
        }


def verify_operators(
    operators: Sequence[Operator],
    timer: OperatorTimer,
    planned: System | None = None,
    box_s: float = 30.0,
    bench: OperatorBenchmarker | None = None,
) -> OperatorCheck:
    """Measure operators on this machine, largest share of the time first.

    Raises MissingExtra if torch is not installed. ``operators`` have the shapes of a rank
    (`request_operators`), ``timer`` predicts them for this machine (`local_timer`), and ``planned``
    is the system of the plan. None is started after ``box_s`` seconds. ``bench`` runs them.
    """
    bench = bench or OperatorBenchmarker(timer.device)
    unique = _merge_duplicates(operators)
    times = timer.times(operator_table(unique))
    total_ms = times.ms * np.array([operator.count for operator in unique])
    deadline = time.perf_counter() + box_s
    rows = []
    for i in np.argsort(-total_ms, kind="stable"):
        measured_ms, note = _measure(bench, unique[i], times.ms[i], deadline)
        rows.append(
            {
                "name": unique[i].name,
                "kernel": unique[i].kernel,
                "problem": str(unique[i].problem),
                "format": str(unique[i].config.get("format", "")),
                "share": total_ms[i] / total_ms.sum(),
                "predicted_ms": times.ms[i],
                "low_ms": times.low[i],
                "high_ms": times.high[i],
                "measured_ms": measured_ms,
                "ratio": measured_ms / times.ms[i],
                "source": times.source[i],
                "note": note,
            }
        )
    return OperatorCheck(pd.DataFrame(rows), _describe_check(timer.device, planned))


def request_operators(deployments: Sequence[Deployment]) -> list[Operator]:
    """Return the operators of deployments with their counts per request.

    A request has one prefill, and shares every decode step with the requests of its batch.
    """
    found = []
    for d in deployments:
        running = max(int(d.running), 1)
        prompt = step_operators(
            d.model, d.pools.prefill if d.pools else d.layout, d.formats, 1,
            d.workload.new_tokens, d.workload.prefix, "prefill",
        )  # fmt: skip
        context = int(d.workload.mean_context)
        decode = step_operators(d.model, d.layout, d.formats, running, 1, context, "decode")
        steps = d.workload.osl / running
        found += [*prompt, *(replace(o, count=o.count * steps) for o in decode)]
    return found


def local_timer(
    device: Device, tables: OperatorTables | None = None, backend: str = ""
) -> OperatorTimer:
    """Return the predictor of operators on a device of this machine.

    Without ``tables``, times are rooflines.
    """
    return OperatorTimer(device, tables, device.name, backend)


def _merge_duplicates(operators: Sequence[Operator]) -> list[Operator]:
    """Return each operator once, with the sum of its counts."""
    found: dict[tuple[object, ...], Operator] = {}
    for o in operators:
        key = (o.kernel, o.problem, o.config)
        found[key] = replace(o, count=o.count + found[key].count) if key in found else o
    return list(found.values())


def _measure(
    bench: OperatorBenchmarker, operator: Operator, expected_ms: float, deadline: float
) -> tuple[float, str]:
    """Return the measured time in ms, or NaN and the reason."""
    if reason := cannot_run(operator):
        return nan, reason
    left_ms = 1e3 * (deadline - time.perf_counter())
    if left_ms < MIN_RUNS * expected_ms:
        return nan, "no time was left"
    found = bench.measure(operator)
    return (found.time_ms, "") if found.ok else (nan, found.error)


def _describe_check(device: Device, planned: System | None) -> str:
    if planned is None or planned.device.name == device.name:
        return f"predicted for {device.name}, and measured on it"
    return (
        f"this machine has no {planned.device.name}: the same predictor is checked on its "
        f"{device.name} instead"
    )
