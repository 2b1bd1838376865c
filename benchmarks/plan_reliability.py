"""Are probabilities calibrated? Of events with a probability of 80 %, four in five must happen."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from plan_choices import LIMITS_MS

from foretune.plan.serve.deployments.correction import LatencyPredictor, log_metric
from foretune.plan.serve.deployments.latency_formulas import tokens_per_s
from foretune.plan.serve.deployments.probability import pairwise_better, probability_within

EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Bounds of ranges of probabilities."""
LOAD = ["model", "system", "backend", "isl", "osl", "concurrency"]
KINDS = {
    "parallelism": [*LOAD, "formats"],
    "formats": [*LOAD, "layout"],
    "everything": ["model", "system", "isl", "osl"],
}
"""Choices -> what the deployments of one share."""


def sure_pairs(model: LatencyPredictor, rows: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return pairs of rows with equal use, and the probability of the better one.

    Args:
        model: A correction that saw none of the rows.
        rows: Predictions of the physics.
        measured: Measured latencies.

    Returns:
        Columns ``choice``, ``said`` (probability that the favorite wins) and ``won``.
    """
    in_one_pool = rows[rows["apart"] == 0]
    tables = []
    for choice, shared in KINDS.items():
        for _, group in in_one_pool.groupby(shared):
            if len(group) > 1:
                probability, won = _pairs(model, group, measured.loc[group.index])
                tables.append(_events(choice, probability, won))
    return pd.concat(tables) if tables else _events("", np.empty(0), np.empty(0))


def _pairs(
    model: LatencyPredictor, group: pd.DataFrame, measured: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Return, for every pair, how probable it is that one row is faster, and whether it is."""
    rate = tokens_per_s(group["concurrency"].to_numpy(), group["osl"].to_numpy(), measured)
    speed = rate / group["gpus"].to_numpy()
    log_values, covariance = log_metric(model, group, "tokens_per_s")
    probability = pairwise_better(log_values, covariance)
    left, right = np.triu_indices(len(group), 1)
    return probability[left, right], speed[left] > speed[right]


def sure_limits(predicted: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return how probable it was that each row keeps, or breaks, each limit of time per token."""
    tables = []
    for limit_ms in LIMITS_MS:
        probability = probability_within(predicted, "tpot_ms", limit_ms)
        is_kept = measured["tpot_ms"].to_numpy() <= limit_ms
        tables.append(_events("keeps to a limit", probability, is_kept))
    return pd.concat(tables)


def _events(choice: str, probability: np.ndarray, happened: np.ndarray) -> pd.DataFrame:
    """Return the more probable of each event and its opposite, and whether it happened."""
    is_favorite = probability >= 0.5
    return pd.DataFrame(
        {
            "choice": choice,
            "said": np.maximum(probability, 1.0 - probability),
            "won": np.where(is_favorite, happened, ~happened.astype(bool)),
        }
    )


def reliability(said: pd.DataFrame) -> dict[str, list[dict[str, float]]]:
    """Return per choice and range of probabilities how many there were and how many came true."""
    return {str(choice): list(_ranges(events)) for choice, events in said.groupby("choice")}


def _ranges(events: pd.DataFrame) -> Iterator[dict[str, float]]:
    for low, high in pairwise(EDGES):
        is_below = (events["said"] < high) | (high == EDGES[-1])
        inside = events[(events["said"] >= low) & is_below]
        if len(inside):
            yield {
                "from": low,
                "pairs": len(inside),
                "said": float(inside["said"].mean()),
                "came_true": float(inside["won"].mean()),
            }


def reliability_lines(found: dict[str, list[dict[str, float]]]) -> Sequence[str]:
    """Return the table as text."""
    lines = ["| choice | said, % | number | mean said, % | came true, % |", "|---|---|---|---|---|"]
    for choice, ranges in found.items():
        for line in ranges:
            cells = [
                choice,
                f"from {100 * line['from']:.0f}",
                str(line["pairs"]),
                f"{100 * line['said']:.0f}",
                f"{100 * line['came_true']:.0f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines
