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
    alone = rows["apart"] == 0
    found = []
    for choice, same in KINDS.items():
        for _, group in rows[alone].groupby(same):
            if len(group) > 1:
                said, won = _pairs(model, group, measured.loc[group.index])
                found.append(pd.DataFrame({"choice": choice, "said": said, "won": won}))
    return pd.concat(found) if found else pd.DataFrame({"choice": [], "said": [], "won": []})


def _pairs(
    model: LatencyPredictor, group: pd.DataFrame, measured: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    rate = tokens_per_s(group["concurrency"].to_numpy(), group["osl"].to_numpy(), measured)
    speed = rate / group["gpus"].to_numpy()
    chance = pairwise_better(*log_metric(model, group, "tokens_per_s"))
    left, right = np.triu_indices(len(group), 1)
    said, won = chance[left, right], speed[left] > speed[right]
    return np.maximum(said, 1.0 - said), np.where(said >= 0.5, won, ~won)


def sure_limits(predicted: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return how probable it was that each row keeps, or breaks, each limit of time per token."""
    parts = []
    for limit in LIMITS_MS:
        chance = probability_within(predicted, "tpot_ms", limit)
        kept = measured["tpot_ms"].to_numpy() <= limit
        said, won = np.maximum(chance, 1.0 - chance), np.where(chance >= 0.5, kept, ~kept)
        parts.append(pd.DataFrame({"choice": "keeps to a limit", "said": said, "won": won}))
    return pd.concat(parts)


def reliability(said: pd.DataFrame) -> dict[str, list[dict[str, float]]]:
    """Return per choice and range of probabilities how many there were and how many came true."""
    return {str(choice): list(_ranges(some)) for choice, some in said.groupby("choice")}


def _ranges(some: pd.DataFrame) -> Iterator[dict[str, float]]:
    for low, high in pairwise(EDGES):
        inside = some[(some["said"] >= low) & ((some["said"] < high) | (high == EDGES[-1]))]
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
            cells = (f"{100 * line[k]:.0f}" for k in ("said", "came_true"))
            lines.append(
                f"| {choice} | from {100 * line['from']:.0f} | {line['pairs']} | "
                f"{' | '.join(cells)} |"
            )
    return lines
