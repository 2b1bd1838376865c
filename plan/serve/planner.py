"""Predicts every deployment of a model on the given GPUs and ranks them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.plan.cost.memory import GIB, USABLE_SHARE, layer_bytes
from foretune.plan.describe.accuracy import AccuracyResult
from foretune.plan.describe.catalog import System
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Offload, Speculation, Workload
from foretune.plan.serve.candidates import (
    candidate_deployments,
    one_pool_candidates,
    predict,
    two_pool_candidates,
)
from foretune.plan.serve.deployments.analytic import StepTimers, analytic_times
from foretune.plan.serve.deployments.correction import (
    MIN_PROBABILITY,
    Calibration,
    LatencyPredictor,
    Metric,
    log_metric,
    pairwise_better,
    probability_within,
)
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.launching import unsupported_offload, unsupported_system
from foretune.plan.serve.requirements import (
    GOALS,
    IDENTITY,
    MIN_GOODPUT_SHARE,
    Goal,
    LoadCurve,
    Requirements,
    at_rate,
    fewest_replicas,
)
from foretune.result import Result
from foretune.search.pareto import pareto_front

MAX_EXTRAPOLATED_SHARE = 0.5
"""Share of step time outside the measured range above which a candidate counts as extrapolated."""
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
MIN_QUANTIZATION_GAIN = 0.05
"""Minimum gain that justifies requantizing a published checkpoint."""
UNKNOWN_GOAL_MESSAGES = {
    "cost": "these systems have no known price: add one with --prices FILE",
    "energy": "the power limit of these systems is unknown: choose another goal with --for",
}
"""Goal -> message when no system has the data to compute it."""


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
        requirements: limits and goal.
        excluded_systems: systems without a candidate -> the reason.
        probability_best: probability that the best beats the runner-up; None without a correction.
    """

    candidates: pd.DataFrame
    deployments: Sequence[Deployment]
    requirements: Requirements
    excluded_systems: dict[str, str]
    probability_best: float | None = None

    @property
    def headline(self) -> str:
        """The best candidate."""
        if not self.candidates["keeps"].any():
            return f"none of {len(self.candidates)} candidates is feasible"
        best = self.best
        speed = (
            f"{best['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU, {best['tpot_ms']:.1f} ms each"
        )
        return f"{best['system']} {best['formats']} {describe_layout(best)}: {speed}"

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
        feasible = self.candidates[self.candidates["keeps"]]
        if feasible.empty:
            raise UsageError(_infeasible_message(self.candidates, self.requirements))
        if np.isneginf(self.requirements.score(feasible)).all():
            raise UsageError(UNKNOWN_GOAL_MESSAGES[self.requirements.goal])
        best, native = _best_row(feasible, self.requirements), feasible[feasible["native"]]
        if best["native"] or native.empty:
            return best
        # Prefer the published checkpoint unless requantizing gains enough.
        published = _best_row(native, self.requirements)
        column, sign = GOALS[self.requirements.goal]
        gain = float(best[column] / published[column]) ** sign - 1.0
        return published if gain <= MIN_QUANTIZATION_GAIN else best

    @cached_property
    def runner_up(self) -> pd.Series | None:
        """The best candidate that differs from `best` in formats, layout or system."""
        best = self.best
        others = (self.candidates[IDENTITY] != best[IDENTITY]).any(axis=1)
        rivals = self.candidates[self.candidates["keeps"] & others]
        return None if rivals.empty else _best_row(rivals, self.requirements)

    @cached_property
    def pareto(self) -> pd.DataFrame:
        """Candidates on the Pareto front of goal and time per token, fastest first."""
        return self.candidates[self.candidates["pareto"]].sort_values("tpot_ms")

    @cached_property
    def next_faster(self) -> pd.Series | None:
        """The next candidate of the front at least 5 % faster per token than `best`."""
        faster = self.pareto[self.pareto["tpot_ms"] <= 0.95 * self.best["tpot_ms"]]
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
        loads = self.candidates[(self.candidates[IDENTITY] == best[IDENTITY]).all(axis=1)]
        osl = self.deployment(best).workload.osl
        return float(best["replicas"] * LoadCurve(loads, osl, self.requirements).goodput())

    @cached_property
    def best_measured(self) -> pd.Series | None:
        """The best feasible candidate not extrapolated; None if all are, or if `best` is not."""
        measured = self.candidates["guessed"] <= MAX_EXTRAPOLATED_SHARE
        feasible = self.candidates[self.candidates["keeps"] & measured]
        if feasible.empty or self.best["guessed"] <= MAX_EXTRAPOLATED_SHARE:
            return None
        return _best_row(feasible, self.requirements)

    @cached_property
    def best_one_pool(self) -> pd.Series | None:
        """The best feasible candidate without a prefill pool; None if there is none."""
        feasible = self.candidates[self.candidates["keeps"] & (self.candidates["prefill"] == "")]
        return None if feasible.empty else _best_row(feasible, self.requirements)

    def deployment(self, row: pd.Series) -> Deployment:
        """Return the deployment of a row of `candidates`."""
        return self.deployments[int(row["number"])]


def describe_layout(row: pd.Series) -> str:
    """Return the layout of a candidate in words."""
    parts = [f"{name}{row[name]}" for name in ("tp", "pp", "dp", "ep") if row[name] > 1]
    return " ".join(parts) or "one GPU"


def plan(
    model: ModelDescription,
    system: System | Sequence[System],
    gpus: int,
    workload: Workload,
    timers: StepTimers,
    requirements: Requirements | None = None,
    backend: str = "vllm",
    formats: Sequence[Formats] | None = None,
    correction: LatencyPredictor | None = None,
    rate: float | None = None,
    pools: bool = False,
    accuracy: Sequence[AccuracyResult] | None = None,
    speculation: Speculation | None = None,
    caches: Sequence[str] = (),
    offload: Offload = Offload(),  # noqa: B008  # immutable
    calibration: Calibration | None = None,
) -> Plan:
    """Predict every deployment of ``model`` on ``gpus`` GPUs.

    Raises UsageError if the model does not fit; the message gives its memory.

    Args:
        model: the model to serve.
        system: the GPU system, or several to choose from.
        gpus: number of GPUs; smaller layouts are replicated.
        workload: request lengths.
        timers: operator times.
        requirements: limits and goal; None maximizes throughput without limits.
        backend: the engine.
        formats: choices of formats; None takes those the GPU supports.
        correction: trained on measured deployments; None predicts without intervals.
        rate: requests per second, arriving at random; plans the fewest replicas that meet the
            requirements. None plans every number of requests in flight.
        pools: also try separate prefill workers; not possible with a ``rate``.
        accuracy: measured quality of formats; None takes the published values.
        speculation: how tokens are drafted; None drafts none.
        caches: KV-cache formats to combine with every weight format; empty takes the usual ones.
        offload: upper limits on weights and prefixes in host memory.
        calibration: measurements of the model on the user's own stack.
    """
    _check_options(pools, rate, speculation, offload, backend, workload)
    requirements = requirements or Requirements()
    systems = [system] if isinstance(system, System) else list(system)
    if speculation is not None:
        speculation.drafter(model)  # raises if the model has none
    candidates: list[Deployment] = []
    excluded: dict[str, str] = {}
    for one in systems:
        if reason := unsupported_system(one, backend):
            excluded[one.name] = reason
            continue
        found = list(
            candidate_deployments(
                model, one, gpus, workload, backend, formats, speculation, caches, offload
            )
        )
        fitting = one_pool_candidates(found)
        if not fitting:
            excluded[one.name] = _too_large_message(model, one, gpus, found, backend)
        candidates += fitting
        if pools:
            candidates += two_pool_candidates(found, gpus, timers)
    if not candidates:
        raise UsageError("; ".join(excluded.values()))
    table = predict(candidates, timers, correction, accuracy, calibration)
    table = _with_ranking(table, rate, workload.osl, requirements, correction)
    result = Plan(table, candidates, requirements, excluded)
    if correction is None:
        return result
    return replace(result, probability_best=_probability_best(result, timers, correction))


def _with_ranking(
    table: pd.DataFrame,
    rate: float | None,
    osl: int,
    requirements: Requirements,
    correction: LatencyPredictor | None,
) -> pd.DataFrame:
    """Return predictions with the columns ``number``, ``good``, ``sure``, ``keeps``, ``pareto``."""
    table["number"], table["good"] = np.arange(len(table)), np.nan
    if rate is not None:
        table = at_rate(table, rate, osl, requirements)
    table["sure"] = np.nan
    if "tpot_ms_high" in table:  # probability of meeting the latency limits
        limits = {"ttft_ms": requirements.ttft_ms, "tpot_ms": requirements.tpot_ms}
        within = [probability_within(table, name, limit) for name, limit in limits.items()]
        table["sure"] = np.min(within, axis=0)
    table["keeps"] = requirements.feasible(table) & ~(table["good"] < MIN_GOODPUT_SHARE)
    if correction is not None:
        table["keeps"] &= table["sure"] >= MIN_PROBABILITY
    if rate is not None:
        table = fewest_replicas(table).reset_index(drop=True)
    front_goal: Goal = "throughput" if requirements.goal == "latency" else requirements.goal
    score = replace(requirements, goal=front_goal).score(table)
    values = np.column_stack([-score, table["tpot_ms"]])
    table["pareto"] = pareto_front(np.where(table["keeps"].to_numpy()[:, None], values, np.inf))
    return table


def _check_options(
    pools: bool,
    rate: float | None,
    speculation: Speculation | None,
    offload: Offload,
    backend: str,
    workload: Workload,
) -> None:
    """Check that the options are compatible, and that the engine supports offloading."""
    if pools and rate is not None:
        raise UsageError("pools are sized for one load: leave out --pools or --rate")
    if pools and speculation is not None:
        raise UsageError("pools cannot draft tokens: leave out --pools or --speculative")
    if pools and offload:
        raise UsageError("pools cannot be planned with offloading: leave out --pools or --offload")
    if reason := unsupported_offload(offload, backend):
        raise UsageError(reason)
    if offload.cache_gib and not workload.prefix:
        raise UsageError("--offload cache=GIB keeps prefixes in host memory: add --prefix TOKENS")


def _probability_best(plan: Plan, timers: StepTimers, correction: LatencyPredictor) -> float | None:
    """Return the probability that the best beats the runner-up, if the goal depends on latency."""
    metrics: dict[str, Metric] = {"throughput": "tokens_per_s", "latency": "tpot_ms"}
    metric = metrics.get(plan.requirements.goal)
    if metric is None or not plan.candidates["keeps"].any():
        return None
    runner_up = plan.runner_up
    if runner_up is None or plan.best["good"] == plan.best["good"]:
        return None
    rows = analytic_times([plan.deployment(row) for row in (plan.best, runner_up)], timers)
    return float(pairwise_better(*log_metric(correction, rows, metric))[0, 1])


def _best_row(rows: pd.DataFrame, requirements: Requirements) -> pd.Series:
    """Return the best row; ties go to the shortest time per token."""
    order = pd.DataFrame({"score": -requirements.score(rows), "tpot": rows["tpot_ms"]})
    return rows.loc[order.sort_values(["score", "tpot"], kind="stable").index[0]]


def _infeasible_message(table: pd.DataFrame, requirements: Requirements) -> str:
    violations = requirements.violations(table)
    if violations:
        return f"no deployment meets the limits: at best {', '.join(violations)}"
    fastest = table.loc[table["tpot_ms"].idxmin()]
    within = table[requirements.feasible(table)]
    if len(within) and (within["good"] < MIN_GOODPUT_SHARE).all():
        return (
            f"at this rate, at most {100 * within['good'].max():.0f} % of the requests meet the "
            f"limits, not {100 * MIN_GOODPUT_SHARE:.0f}: use a lower --rate, more --gpus, or relax "
            "the limits"
        )
    if len(within):
        return (
            "no deployment is likely enough to meet the limits: the best has a probability "
            f"of {100 * within['sure'].max():.0f} %; relax them, or plan without --measured"
        )
    return (
        "no deployment meets all limits at once: relax a limit; the fastest deployment takes "
        f"{fastest['tpot_ms']:.1f} ms per token and {fastest['ttft_ms']:.0f} ms to the first token"
    )


def _too_large_message(
    model: ModelDescription, system: System, gpus: int, found: Sequence[Deployment], backend: str
) -> str:
    if not found:
        return f"{model.name} cannot be split over {gpus} GPUs in these formats: try another --gpus"
    on_gpu = [d for d in found if not d.offload.weights_gib]
    needed = [d.memory(d.layout.dp).gib for d in on_gpu]
    smallest = on_gpu[int(np.argmin(needed))]
    layers = layer_bytes(model, smallest.layout, smallest.formats)
    usable_gib = USABLE_SHARE * system.memory_gib
    missing = ceil(min(needed) - usable_gib)
    offload_hint = f", or offload weights to host memory: --offload {missing}"
    if missing > sum(layers) / GIB or unsupported_offload(Offload(1.0), backend):
        offload_hint = ""
    return (
        f"{model.name} does not fit on {gpus} × {system.name} ({system.memory_gib:.0f} GiB each, "
        f"{usable_gib:.0f} of them usable): it needs at least {min(needed):.0f} GiB per GPU; "
        f"use more --gpus or smaller --formats{offload_hint}"
    )
