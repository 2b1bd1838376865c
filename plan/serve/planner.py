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
from foretune.plan.describe.layout import Offload
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
"""Share of step time outside the measured range above which a candidate counts as extrapolated;
other candidates count as covered by measurements."""
MIN_QUANTIZATION_GAIN = 0.05
"""Minimum gain that justifies requantizing a published checkpoint."""
MAX_FASTER_TIME = 0.95
"""Maximum time per token, relative to the best, of a candidate that is named as faster."""
GOAL_METRICS: dict[Goal, Metric] = {"throughput": "tokens_per_s", "latency": "tpot_ms"}
"""Goals whose value follows from a deployment's latencies -> this value, as the correction predicts
it with its error. Throughput follows from the latencies and the requests in flight; here
``tokens_per_s`` is per GPU. Cost and energy also need prices and power."""
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
        candidates: one row each; the columns are listed below.
        deployments: of the candidates; a row's is at its ``number`` (see `deployment`).
        request: what was asked.
        excluded_systems: systems without a candidate -> the reason.
        probability_best: probability that the best beats the runner-up; None if unknown, e.g.
            without a correction.
        has_tables: whether operator times come from measured tables, not from rooflines.
        corrected: whether latencies were corrected with measured deployments.
        prefix_compute_ms: what the best deployment takes to compute a prefix; NaN unless prefixes
            are on disk.
        seconds: planning time; NaN if unknown.

    The columns of ``candidates``, which are written to JSON under these names. The deployment:

    - ``system``, ``gpus``, ``formats``, ``tp``, ``pp``, ``dp``, ``ep``, ``replicas``
    - ``batch``: requests in flight per replica
    - ``native``: whether weights are as published, whatever the GPU computes natively
    - ``prefill``, ``prefill_system``: the prefill pool and its kind of GPU; empty with one pool
    - ``workers``: decode workers
    - ``offload_gib``: weights per GPU in host memory
    - ``number``: the index in ``deployments``

    Predictions:

    - ``ttft_ms``, ``tpot_ms``; with ``_low`` and ``_high`` if a correction was given
    - ``tokens_per_s_per_gpu``; ``requests_per_s`` of all replicas
    - ``memory_gib``, ``power_w``: per GPU
    - ``energy_mj_per_token``: of all GPUs
    - ``usd_per_million_tokens``
    - ``accuracy``: the share of quality that the formats keep

    Explanation:

    - ``share_…``: of each part of a step
    - ``limited_by``: the largest part, or ``engine`` if GPUs wait for its CPU
    - ``decode_compute_bound``, ``prefill_compute_bound``: compute-bound shares
    - ``decode_power_w``, ``prefill_power_w``; ``prefill_share``: of busy time
    - ``bound_share``: roofline time over ``tpot_ms``
    - ``guessed``, ``energy_guessed``: the shares of step time and of energy that are extrapolated,
      because they are outside the measured range

    Ranking:

    - ``good``: share of requests within the latency limits; NaN without a given rate
    - ``sure``: probability that the latencies are within the limits; NaN without a correction
    - ``keeps``: whether the candidate is feasible: it meets all limits, and ``good`` and ``sure``
      are large enough
    - ``pareto``: whether it is on the front of goal and time per token (of throughput and time per
      token if the goal is latency)
    """

    candidates: pd.DataFrame
    deployments: Sequence[Deployment]
    request: PlanRequest
    excluded_systems: dict[str, str]
    probability_best: float | None = None
    has_tables: bool = True
    corrected: bool = False
    prefix_compute_ms: float = nan
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
        """The best candidate, or why there is none."""
        if self.feasible.empty:
            return f"none of {len(self.candidates)} candidates is feasible"
        if self._is_goal_unknown:
            unknown = UNKNOWN_GOAL_MESSAGES[self.requirements.goal]
            return f"{len(self.feasible)} candidates are feasible, none is best: {unknown}"

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
        """Return the Pareto front, best for the goal first (highest throughput for latency)."""
        # Along the front, what takes longer per token is better for the goal.
        front = self.pareto[::-1]
        layouts = [describe_layout(row) for _, row in front.iterrows()]
        return front.assign(layout=layouts)[SHOWN].reset_index(drop=True)

    @cached_property
    def best(self) -> pd.Series:
        """The feasible candidate that is best for the goal; raises UsageError without one.

        A candidate with published weights is preferred if requantizing gains at most
        `MIN_QUANTIZATION_GAIN`. So `runner_up` may be slightly better for the goal, and
        `probability_best` less than one half.
        """
        feasible = self.feasible
        if feasible.empty:
            raise UsageError(infeasible_message(self.candidates, self.requirements))
        if self._is_goal_unknown:
            raise UsageError(UNKNOWN_GOAL_MESSAGES[self.requirements.goal])

        best = best_row(feasible, self.requirements)
        published = feasible[feasible["native"]]
        if best["native"] or published.empty:
            return best

        # Prefer the published checkpoint unless requantizing gains enough.
        best_published = best_row(published, self.requirements)
        column, sign = GOALS[self.requirements.goal]
        gain = float(best[column] / best_published[column]) ** sign - 1.0
        return best_published if gain <= MIN_QUANTIZATION_GAIN else best

    @property
    def _is_goal_unknown(self) -> bool:
        """Whether no feasible candidate has a value of the goal, such as a price."""
        return bool(np.isneginf(self.requirements.score(self.feasible)).all())

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
        max_tpot_ms = MAX_FASTER_TIME * self.best["tpot_ms"]
        faster = self.pareto[self.pareto["tpot_ms"] <= max_tpot_ms]
        return None if faster.empty else faster.loc[faster["tpot_ms"].idxmax()]

    @cached_property
    def goodput(self) -> float:
        """Random requests per second that the best deployment serves within the limits.

        The share `MIN_GOODPUT_SHARE` of them meets the latency limits. NaN for separate pools,
        which are sized for one load, and if a rate was given: then there is no row for each load.
        """
        best = self.best
        if best["prefill"] or self.request.rate is not None:
            return nan

        same_deployment = (self.candidates[IDENTITY] == best[IDENTITY]).all(axis=1)
        curve = LoadCurve(
            self.candidates[same_deployment],
            osl=self.request.workload.osl,
            requirements=self.requirements,
        )
        return float(best["replicas"] * curve.goodput())

    @cached_property
    def best_measured(self) -> pd.Series | None:
        """The best feasible candidate covered by measurements, to show beside an extrapolated best.

        None if `best` itself is covered by measurements, and None if no feasible candidate is.
        """
        if self.best["guessed"] <= MAX_EXTRAPOLATED_SHARE:
            return None
        is_covered = self.feasible["guessed"] <= MAX_EXTRAPOLATED_SHARE
        covered = self.feasible[is_covered]
        return None if covered.empty else best_row(covered, self.requirements)

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
        timers: predicts the time of an engine's steps on each system, from tables of measured
            operators or from rooflines.
        measured: what measured deployments say about the errors of the latency formulas; None takes
            the formulas alone.

    Raises:
        UsageError: the model does not fit, and the message gives its memory; or no deployment
            sustains the request rate.
    """
    start = time.perf_counter()
    measured_errors = measured or MeasuredLatencies()

    # 1. Every format, layout and number of requests that fits in memory.
    enumerated = _enumerate_deployments(request, timers)
    if not enumerated.deployments:
        raise UsageError("; ".join(enumerated.excluded_systems.values()))

    # 2. Latency, power, memory, cost and quality of each.
    predicted = predict(
        enumerated.deployments, timers, measured=measured_errors, accuracy=request.accuracy
    )

    # 3. Which of them meet the limits, and which are on the Pareto front.
    corrected = measured_errors.correction is not None
    ranked = Plan(
        candidates=rank(predicted, request, corrected=corrected),
        deployments=enumerated.deployments,
        request=request,
        excluded_systems=enumerated.excluded_systems,
        has_tables=timers.has_tables,
        corrected=corrected,
    )

    # 4. A correction knows its errors, and thus how likely the best beats the runner-up.
    if measured_errors.correction is not None:
        probability = _probability_best(ranked, timers, measured_errors.correction)
        ranked = replace(ranked, probability_best=probability)

    # 5. Reading a prefix from disk pays only if computing it takes longer.
    has_best = not ranked.feasible.empty and not ranked._is_goal_unknown
    if request.offload.disk_gib and has_best:
        compute_ms = _prefix_compute_ms(ranked.deployment(ranked.best), timers)
        ranked = replace(ranked, prefix_compute_ms=compute_ms)
    return replace(ranked, seconds=time.perf_counter() - start)


def _prefix_compute_ms(deployment: Deployment, timers: StepTimers) -> float:
    """Return how much longer a prompt takes if its prefix is computed."""
    without_cache = replace(
        deployment,
        workload=replace(deployment.workload, prefix=0),
        offload=Offload(deployment.offload.weights_gib),
    )
    cached_ms, computed_ms = analytic_times([deployment, without_cache], timers)["prompt"]
    return float(computed_ms - cached_ms)


@dataclass(frozen=True)
class _Enumerated:
    """What `_enumerate_deployments` returns.

    Attributes:
        deployments: those that fit in memory.
        excluded_systems: systems without a deployment that fits -> the reason.
    """

    deployments: list[Deployment]
    excluded_systems: dict[str, str]


def _enumerate_deployments(request: PlanRequest, timers: StepTimers) -> _Enumerated:
    """Return the deployments of all systems at every load that fits in memory."""
    deployments: list[Deployment] = []
    excluded: dict[str, str] = {}
    of_system: dict[str, list[Deployment]] = {}
    for system in request.systems:
        if reason := unsupported_system(system, request.engine):
            excluded[system.name] = reason
            continue

        # Every format and layout, with one request in flight.
        single_request = list(candidate_deployments(request, system))

        # Those that fit in memory, at each load that fits.
        one_pool = one_pool_candidates(single_request)
        if not one_pool:  # then no decode worker fits either
            excluded[system.name] = too_large_message(request, system, single_request)
            continue
        deployments += one_pool

        # The same with separate pools, if asked for.
        if request.pools:
            deployments += two_pool_candidates(single_request, request.gpus, timers)
        of_system[system.name] = single_request

    # And with prompts on one kind of GPU, answers on another.
    for reading, decoding in request.mixed_systems:
        if reading.name in of_system and decoding.name in of_system:
            deployments += two_pool_candidates(
                of_system[decoding.name], request.gpus, timers, prefill=of_system[reading.name]
            )
    return _Enumerated(deployments, excluded)


def _probability_best(
    ranked: Plan, timers: StepTimers, correction: LatencyPredictor
) -> float | None:
    """Return the probability that the best beats the runner-up; None if it is unknown.

    It is known for the goals in `GOAL_METRICS`.
    """
    metric = GOAL_METRICS.get(ranked.requirements.goal)
    if metric is None:
        return None
    if ranked.feasible.empty or ranked.runner_up is None:
        return None

    # At a given rate, a row has the mean latencies of random arrivals, but its deployment is the
    # one at the largest load (`foretune.plan.serve.arrivals.at_rate`). The correction would compare
    # the latencies at that load.
    if ranked.request.rate is not None:
        return None

    contenders = [ranked.deployment(ranked.best), ranked.deployment(ranked.runner_up)]
    rows = analytic_times(contenders, timers)
    value, covariance = log_metric(correction, rows, metric)
    return float(pairwise_better(value, covariance)[0, 1])
