"""Prepares the proof of a plan: its command, loads, promises and settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, isfinite, log, nan

from foretune.errors import UsageError
from foretune.plan.prove.load import Load
from foretune.plan.prove.prediction import PROMISE_WIDTH, Promise, ServerPredictor
from foretune.plan.prove.setting import Setting, describe_deployment
from foretune.plan.serve.arrivals import IDENTITY
from foretune.plan.serve.candidates import predict
from foretune.plan.serve.deployments.calibration import MeasuredLatencies
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.deployment_steps import StepTimers
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.ranking import best_row

MAX_DEPLOYMENTS = 2
"""Formats and layouts that are tried: flags come before them."""


def plan_loads(plan: Plan, best: Deployment, given: Sequence[int]) -> list[Load]:
    """Return the loads of a proof, the plan's own last.

    Beside the plan's number of requests in flight, one request alone and a number between: they
    cost no start, and tell what limits the server.
    """
    workload = plan.request.workload
    if plan.request.rate is not None:
        if given:
            raise UsageError("requests arrive at --rate: leave --loads out")
        servers = max(int(plan.best["replicas"]), 1)
        return [Load(workload, rate=plan.request.rate / servers)]

    planned = max(ceil(best.concurrency), 1)
    between = max(round(planned**0.5), 1)
    counts = {*given, planned} if given else {1, between, planned}
    lower = sorted(count for count in counts if count != planned)
    return [Load(workload, concurrency=count) for count in (*lower, planned)]


def proven_deployments(
    plan: Plan, best: Deployment, can_start: Callable[[Deployment], bool] = lambda _: True
) -> list[Deployment]:
    """Return the plan's best deployment, then the best of other formats and layouts.

    All have the load and the tokens per step of the best. Others are left out if they cannot be
    started, for example because their checkpoint must be made first.
    """
    found = {describe_deployment(best): best}
    rest = plan.feasible
    while len(rest) and len(found) < MAX_DEPLOYMENTS:
        row = best_row(rest, plan.requirements)
        deployment = plan.deployment(row)
        is_comparable = (deployment.system.name, deployment.gpus) == (best.system.name, best.gpus)
        if is_comparable and can_start(deployment):
            found.setdefault(describe_deployment(deployment), _at_load_of(deployment, best))
        # The other rows of this deployment differ in their load alone.
        is_same = (rest[IDENTITY] == row[IDENTITY]).all(axis=1)
        rest = rest[~is_same]
    return list(found.values())


def plan_promises(
    best: Deployment,
    loads: Sequence[Load],
    timers: StepTimers,
    measured: MeasuredLatencies,
    row: Mapping[str, float],
) -> dict[Load, Promise]:
    """Return what the plan promises of one server of its best deployment, per load.

    ``row`` has the plan's latencies at its own rate, if requests arrive at one.
    """
    promises = {}
    for load in loads:
        if load.rate:
            tokens_per_s = load.rate * load.workload.osl
            promises[load] = Promise(float(row["ttft_ms"]), float(row["tpot_ms"]), tokens_per_s)
            continue
        deployment = replace(best, concurrency=load.concurrency, replicas=1)
        predicted = predict([deployment], timers, measured).iloc[0]
        spread = nan
        if "tpot_ms_low" in predicted and isfinite(predicted["tpot_ms_low"]):
            spread = log(predicted["tpot_ms_high"] / predicted["tpot_ms_low"]) / 2 / PROMISE_WIDTH
        promises[load] = Promise(
            ttft_ms=float(predicted["ttft_ms"]),
            tpot_ms=float(predicted["tpot_ms"]),
            tokens_per_s=float(predicted["tokens_per_s_per_gpu"] * predicted["gpus"]),
            spread=spread,
        )
    return promises


def simulated_promises(
    predictor: ServerPredictor, planned: Setting, loads: Sequence[Load]
) -> dict[Load, Promise]:
    """Return what the simulated engine promises of the plan's own setting, per load.

    The closed formulas were fitted to GPU engines under steady loads. A CPU's engine is simulated
    instead, with the requests that the load generator will send.
    """
    return {load: replace(predictor.promise(planned, load), spread=nan) for load in loads}


def _at_load_of(deployment: Deployment, best: Deployment) -> Deployment:
    """Return a deployment with the load and tokens per step of another."""
    return replace(
        deployment,
        concurrency=best.concurrency,
        step_tokens=best.step_tokens,
        replicas=best.replicas,
        max_request_tokens=best.max_request_tokens,
    )
