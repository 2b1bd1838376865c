"""Ranks the candidates of a plan: which meet the limits, which are on the front, which is best."""

from dataclasses import replace

import numpy as np
import pandas as pd

from foretune.plan.serve.arrivals import MIN_GOODPUT_SHARE, at_rate, fewest_replicas
from foretune.plan.serve.deployments.probability import MIN_PROBABILITY, probability_within
from foretune.plan.serve.request import PlanRequest
from foretune.plan.serve.requirements import Goal, Requirements
from foretune.search.pareto_front import pareto_front


def rank(predicted: pd.DataFrame, request: PlanRequest, corrected: bool) -> pd.DataFrame:
    """Return predictions with the columns ``number``, ``good``, ``sure``, ``keeps``, ``pareto``.

    `foretune.plan.Plan` explains them. ``corrected`` says whether latencies were corrected with
    measured deployments. With a request rate, there is a row per deployment, with the fewest
    replicas that meet the requirements. Raises UsageError if no deployment sustains the rate.
    """
    requirements = request.requirements
    table = predicted.assign(number=np.arange(len(predicted)), good=np.nan)

    # At a given rate: a row for each number of replicas that sustains it.
    if request.rate is not None:
        table = at_rate(
            table, rate=request.rate, osl=request.workload.osl, requirements=requirements
        )

    # A candidate is kept if it meets every limit, if enough of its requests do at the given rate,
    # and if this is likely.
    table["sure"] = _probability_within_limits(table, requirements)
    too_slow_for_most = table["good"] < MIN_GOODPUT_SHARE
    table["keeps"] = requirements.feasible(table) & ~too_slow_for_most
    if corrected:
        table["keeps"] &= table["sure"] >= MIN_PROBABILITY

    # Of the numbers of replicas, only the fewest remain.
    if request.rate is not None:
        table = fewest_replicas(table).reset_index(drop=True)

    table["pareto"] = _is_on_front(table, requirements)
    return table


def best_row(rows: pd.DataFrame, requirements: Requirements) -> pd.Series:
    """Return the best row for the goal; ties go to the shortest time per token."""
    order = pd.DataFrame({"score": -requirements.score(rows), "tpot": rows["tpot_ms"]})
    ranked = order.sort_values(["score", "tpot"], kind="stable")
    return rows.loc[ranked.index[0]]


def _probability_within_limits(table: pd.DataFrame, requirements: Requirements) -> np.ndarray:
    """Return the probability of meeting the latency limit that is less likely met.

    It is NaN without intervals.
    """
    if "tpot_ms_high" not in table:
        return np.full(len(table), np.nan)
    ttft = probability_within(table, "ttft_ms", requirements.ttft_ms)
    tpot = probability_within(table, "tpot_ms", requirements.tpot_ms)
    return np.min([ttft, tpot], axis=0)


def _is_on_front(table: pd.DataFrame, requirements: Requirements) -> np.ndarray:
    """Return which feasible candidates are on the front of the goal and the time per token.

    If the goal is the time per token itself, the other axis is throughput.
    """
    goal: Goal = "throughput" if requirements.goal == "latency" else requirements.goal
    score = replace(requirements, goal=goal).score(table)
    losses = np.column_stack([-score, table["tpot_ms"]])
    feasible = table["keeps"].to_numpy()
    return pareto_front(np.where(feasible[:, None], losses, np.inf))
