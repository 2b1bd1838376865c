"""Predicts every deployment of a model on the given GPUs and ranks them.

`plan` is the only entry: a `PlanRequest` goes in, a `Plan` comes out. `candidates` enumerates and
predicts, `ranking` applies limits and goal, `refusals` says what to change if nothing is feasible.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.serve.arrivals import IDENTITY, LoadCurve
from foretune.plan.serve.candidates import (
    candidate_deployments,
    one_pool_candidates,
    predict,
    two_pool_candidates,
)
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.calibration import MeasuredLatencies
from foretune.plan.serve.deployments.correction import LatencyPredictor, Metric, log_metric
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.deployment_steps import StepTimers
from foretune.plan.serve.deployments.probability import pairwise_better
from foretune.plan.serve.engine_support import unsupported_system
from foretune.plan.serve.ranking import best_row, rank
from foretune.plan.serve.refusals import (
    UNKNOWN_GOAL_MESSAGES,
    infeasible_message,
    too_large_message,
)
from foretune.plan.serve.request import PlanRequest
from foretune.plan.serve.requirements import GOALS, Goal, Requirements
from foretune.result import Result

MAX_EXTRAPOLATED_SHARE = 0.5
"""Share of step time outside the measured range above which a candidate counts as extrapolated."""
MIN_QUANTIZATION_GAIN = 0.05
"""Minimum gain that justifies requantizing a published checkpoint."""
MAX_STEP_UP_TIME = 0.95
"""Maximum time per token, relative to the best, of a candidate that is named as faster."""
GOAL_METRICS: dict[Goal, Metric] = {"throughput": "tokens_per_s", "latency": "tpot_ms"}
"""Goals that depend on latency alone -> the metric whose errors are known."""
SHOWN = [
    "system",
    "formats",
    "layout",
    "replicas",
    "batch",
    "tokens_per_s_per_gpu",
    "ttft_ms",
    "tpot_ms",
    "usd_per_million_tokens",
    "memory_gib",
    "limited_by",
]
"""Columns of a plan as a table; ``layout`` combines tp, pp, dp and ep."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Result):
    """All candidates of a plan, and the best.

    Attributes:
        candidates: one row each. Deployment: ``system, gpus, formats, tp, pp, dp, ep, replicas,
            batch`` (requests in flight per replica), ``native`` (whether weights are as published),
            ``prefill`` (the prefill pool; empty with one pool), ``workers`` (decode workers),
            ``offload_gib`` (weights per GPU in host memory). Predictions: ``ttft_ms`` and
            ``tpot_ms`` (with ``_low`` and ``_high`` if a correction was given),
            ``tokens_per_s_per_gpu``, ``requests_per_s`` of all replicas, ``memory_gib`` and
            ``power_w`` per GPU, ``energy_mj_per_token`` of all GPUs, ``usd_per_million_tokens``,
            ``accuracy``, ``good`` (share of requests within the latency limits at the given rate).
            Reasons: ``share_…`` of each part of a step, ``limited_by`` (the largest part, or
            ``engine``: GPUs wait for its CPU),
            ``decode_compute_bound`` and ``prefill_compute_bound`` (compute-bound shares),
            ``decode_power_w``, ``prefill_power_w``, ``prefill_share`` (share of busy time),
            ``guessed`` and ``energy_guessed`` (extrapolated shares), ``bound_share`` (roofline time
            over ``tpot_ms``). Ranking: ``sure`` (probability of meeting the latency limits),
            ``keeps`` (whether it is feasible), ``pareto`` (on the front of goal and time per token;
            of throughput if the goal is latency).
        deployments: indexed by the rows' column ``number``.
        request: what was asked.
        excluded_systems: systems without a candidate -> the reason.
        probability_best: probability that the best beats the runner-up; None without a correction.
        has_tables: whether operator times come from measured tables, not from rooflines.
        corrected: whether latencies were corrected with measured deployments.
        seconds: planning time; NaN if unknown.
    """

    candidates: pd.DataFrame
    deployments: Sequence[Deployment]
    request: PlanRequest
    excluded_systems: dict[str, str]
    probability_best: float | None = None
    has_tables: bool = True
    corrected: bool = False
    seconds: float = field(default=nan, compare=False)

    @property
    def requirements(self) -> Requirements:
        """Limits and goal."""
        return self.request.requirements

    @property
    def feasible(self) -> pd.DataFrame:
        """Candidates that meet all limits."""
        return self.candidates[self.candidates["keeps"]]

    @property
    def headline(self) -> str:
        """The best candidate."""
        if self.feasible.empty:
            return f"none of {len(self.candidates)} candidates is feasible"

        best = self.best
        throughput = f"{best['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU"
        return (
            f"{best['system']} {best['formats']} {describe_layout(best)}: {throughput}, "
            f"{best['tpot_ms']:.1f} ms each"
        )

    def to_dict(self) -> dict[str, object]:
        """Return the Pareto front's rows as plain values."""
        return {"front": self.to_frame().to_dict("records")}

    def to_frame(self) -> pd.DataFrame:
        """Return the Pareto front, highest throughput first."""
        front = self.pareto[::-1]
        layouts = [describe_layout(row) for _, row in front.iterrows()]
        return front.assign(layout=layouts)[SHOWN].reset_index(drop=True)

    @cached_property
    def best(self) -> pd.Series:
        """The feasible candidate that is best for the goal; raises UsageError without one."""
        feasible = self.feasible
        if feasible.empty:
            raise UsageError(infeasible_message(self.candidates, self.requirements))
        if np.isneginf(self.requirements.score(feasible)).all():
            raise UsageError(UNKNOWN_GOAL_MESSAGES[self.requirements.goal])

        best = best_row(feasible, self.requirements)
        native = feasible[feasible["native"]]
        if best["native"] or native.empty:
            return best

        # Prefer the published checkpoint unless requantizing gains enough.
        published = best_row(native, self.requirements)
        column, sign = GOALS[self.requirements.goal]
        gain = float(best[column] / published[column]) ** sign - 1.0
        return published if gain <= MIN_QUANTIZATION_GAIN else best

    @cached_property
    def runner_up(self) -> pd.Series | None:
        """The best candidate that differs from `best` in formats, layout or system."""
        is_other = (self.candidates[IDENTITY] != self.best[IDENTITY]).any(axis=1)
        rivals = self.candidates[self.candidates["keeps"] & is_other]
        return None if rivals.empty else best_row(rivals, self.requirements)

    @cached_property
    def pareto(self) -> pd.DataFrame:
        """Candidates on the Pareto front of goal and time per token, fastest first."""
        return self.candidates[self.candidates["pareto"]].sort_values("tpot_ms")

    @cached_property
    def next_faster(self) -> pd.Series | None:
        """The next candidate of the front at least 5 % faster per token than `best`."""
        max_tpot_ms = MAX_STEP_UP_TIME * self.best["tpot_ms"]
        faster = self.pareto[self.pareto["tpot_ms"] <= max_tpot_ms]
        return None if faster.empty else faster.iloc[-1]

    @cached_property
    def goodput(self) -> float:
        """Random requests per second that the best deployment serves within the limits.

        The share `MIN_GOODPUT_SHARE` of them meets the latency limits. NaN for separate pools,
        which are sized for one load.
        """
        best = self.best
        if best["prefill"]:
            return np.nan

        same_deployment = (self.candidates[IDENTITY] == best[IDENTITY]).all(axis=1)
        curve = LoadCurve(
            self.candidates[same_deployment],
            osl=self.request.workload.osl,
            requirements=self.requirements,
        )
        return float(best["replicas"] * curve.goodput())

    @cached_property
    def best_measured(self) -> pd.Series | None:
        """The best feasible candidate not extrapolated; None if all are, or if `best` is not."""
        if self.best["guessed"] <= MAX_EXTRAPOLATED_SHARE:
            return None
        measured = self.candidates["guessed"] <= MAX_EXTRAPOLATED_SHARE
        feasible = self.candidates[self.candidates["keeps"] & measured]
        return None if feasible.empty else best_row(feasible, self.requirements)

    @cached_property
    def best_one_pool(self) -> pd.Series | None:
        """The best feasible candidate without a prefill pool; None if there is none."""
        one_pool = self.candidates["prefill"] == ""
        feasible = self.candidates[self.candidates["keeps"] & one_pool]
        return None if feasible.empty else best_row(feasible, self.requirements)

    def deployment(self, row: pd.Series) -> Deployment:
        """Return the deployment of a row of `candidates`."""
        return self.deployments[int(row["number"])]


def describe_layout(row: pd.Series) -> str:
    """Return the layout of a candidate in words."""
    parts = [f"{name}{row[name]}" for name in ("tp", "pp", "dp", "ep") if row[name] > 1]
    return " ".join(parts) or "one GPU"


def plan(
    request: PlanRequest, timers: StepTimers, measured: MeasuredLatencies | None = None
) -> Plan:
    """Predict every deployment of a model on the given GPUs, and rank them.

    Args:
        request: what to plan.
        timers: operator times.
        measured: corrections of latencies by measurements; None takes the formulas alone.

    Raises:
        UsageError: the model does not fit, and the message gives its memory; or no deployment
            sustains the request rate.
    """
    start = time.perf_counter()
    measured = measured or MeasuredLatencies()

    # 1. Every format, layout and number of requests that fits in memory.
    enumerated = _enumerate_deployments(request, timers)
    if not enumerated.deployments:
        raise UsageError("; ".join(enumerated.excluded_systems.values()))

    # 2. Latency, power, memory, cost and quality of each.
    predicted = predict(
        enumerated.deployments, timers, measured=measured, accuracy=request.accuracy
    )

    # 3. Which of them meet the limits, and which are on the Pareto front.
    corrected = measured.correction is not None
    result = Plan(
        candidates=rank(predicted, request, corrected=corrected),
        deployments=enumerated.deployments,
        request=request,
        excluded_systems=enumerated.excluded_systems,
        has_tables=timers.has_tables,
        corrected=corrected,
    )

    # 4. With a correction, how likely the best beats the runner-up.
    if measured.correction is not None:
        probability = _probability_best(result, timers, measured.correction)
        result = replace(result, probability_best=probability)
    return replace(result, seconds=time.perf_counter() - start)


@dataclass(frozen=True)
class _Enumerated:
    """Deployments that fit in memory, and the systems without one -> the reason."""

    deployments: list[Deployment]
    excluded_systems: dict[str, str]


def _enumerate_deployments(request: PlanRequest, timers: StepTimers) -> _Enumerated:
    """Return the deployments of all systems at every load that fits in memory."""
    deployments: list[Deployment] = []
    excluded: dict[str, str] = {}
    for system in request.systems:
        if reason := unsupported_system(system, request.engine):
            excluded[system.name] = reason
            continue

        layouts = list(candidate_deployments(request, system))
        fitting = one_pool_candidates(layouts)
        if not fitting:
            excluded[system.name] = too_large_message(request, system, layouts)

        deployments += fitting
        if request.pools:
            deployments += two_pool_candidates(layouts, request.gpus, timers)
    return _Enumerated(deployments, excluded)


def _probability_best(plan: Plan, timers: StepTimers, correction: LatencyPredictor) -> float | None:
    """Return the probability that the best beats the runner-up, if the goal depends on latency."""
    metric = GOAL_METRICS.get(plan.requirements.goal)
    if metric is None or plan.feasible.empty:
        return None
    planned_for_rate = plan.request.rate is not None
    if plan.runner_up is None or planned_for_rate:
        return None

    contenders = [plan.deployment(plan.best), plan.deployment(plan.runner_up)]
    rows = analytic_times(contenders, timers)
    value, covariance = log_metric(correction, rows, metric)
    return float(pairwise_better(value, covariance)[0, 1])
