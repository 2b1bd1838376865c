"""How good are choices among measured deployments by their predictions?

Throughput per GPU follows from the latencies. The regret of a choice is the share of the best
throughput that it loses; a choice that misses the limit loses all of it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.latency_formulas import tokens_per_s
from foretune.plan.serve.deployments.probability import MIN_PROBABILITY, probability_within

LIMITS_MS = (20, 40, 80)
NEAR = 0.03
REFERENCES = {
    "parallelism": "2.4 / 2.2",
    "formats": "4.9 / 4.1",
    "TPOT <= 20 ms": "40 / 43, 19 missed",
    "TPOT <= 40 ms": "58 / 58, 6 missed",
    "TPOT <= 80 ms": "66 / 69, 3 missed",
}
"""AIConfigurator 0.12.0 and a first boosted model, on other rows: mean regret, or % right."""


def choices(
    deployments: Sequence[Deployment],
    measured: pd.DataFrame,
    predicted: pd.DataFrame,
) -> dict[str, dict[str, float]]:
    """Return the regret and other scores of each kind of choice.

    Args:
        deployments: The deployments to choose from.
        measured: their ``tpot_ms`` and ``ttft_ms``.
        predicted: the same, by a predictor that saw none of their configurations; with
            ``tpot_ms_high``.
    """
    table = table_of(deployments, measured, predicted)
    result = {}
    load = ["model", "system", "backend", "isl", "osl", "concurrency"]
    for name, same, varied in (
        ("parallelism", [*load, "formats"], "layout"),
        ("parallelism, equal GPUs", [*load, "formats", "gpus"], "layout"),
        (
            "parallelism, equal GPUs and version",
            [*load, "formats", "gpus", "version", "speculative"],
            "layout",
        ),
        ("formats", [*load, "layout"], "formats"),
    ):
        regrets = [regret_of(group) for group in groups_of(table, same, varied)]
        result[name] = {
            "groups": len(regrets),
            "mean_regret": _mean(regrets),
            "right": _mean([regret <= NEAR for regret in regrets]),
        }
    for limit in LIMITS_MS:
        result[f"TPOT <= {limit} ms"] = _under_limit(table, limit, sure=False)
        result[f"TPOT <= {limit} ms, surely"] = _under_limit(table, limit, sure=True)
    return result


def _under_limit(table: pd.DataFrame, limit: float, sure: bool) -> dict[str, float]:
    """Return how often the fastest deployment within a limit is found, and the limit missed.

    Args:
        table: the deployments.
        limit: milliseconds per token.
        sure: ask for the probability of keeping to it that plans ask for; else for a half.
    """
    right = []
    missed = []
    kept = []
    chance = probability_within(table, "tpot_ms", limit)
    for group in groups_of(table, ["model", "system", "isl", "osl"], "row"):
        allowed = group[group["tpot"] <= limit]
        if allowed.empty:
            continue
        likely = chance[group.index] >= (MIN_PROBABILITY if sure else 0.5)
        speed = np.where(likely, group["predicted"], -np.inf)
        pick = int(np.argmax(speed if likely.any() else chance[group.index]))
        chosen = group.iloc[pick]
        missed.append(chosen["tpot"] > limit)
        kept.append(0.0 if missed[-1] else chosen["throughput"] / allowed["throughput"].max())
        right.append(kept[-1] >= 1.0 - NEAR)
    return {
        "groups": len(right),
        "mean_regret": 1.0 - _mean(kept),
        "right": _mean(right),
        "missed": _mean(missed),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def groups_of(table: pd.DataFrame, same: list[str], varied: str) -> Iterator[pd.DataFrame]:
    """Yield the deployments that agree in some columns, if they differ in ``varied``."""
    for _, group in table.groupby(same):
        if group[varied].nunique() > 1:
            yield group


def regret_of(group: pd.DataFrame, allowed: pd.DataFrame | None = None) -> float:
    """Return what the choice among ``allowed``, or all, falls short of the group's best."""
    among = group if allowed is None else allowed
    chosen = among.loc[among["predicted"].idxmax(), "throughput"]
    return float(1.0 - chosen / group["throughput"].max())


def table_of(
    deployments: Sequence[Deployment], measured: pd.DataFrame, predicted: pd.DataFrame
) -> pd.DataFrame:
    """Return one row per deployment without separate pools."""
    table = pd.DataFrame(
        {
            "row": range(len(deployments)),
            "model": [d.architecture for d in deployments],
            "system": [d.system.name for d in deployments],
            "backend": [d.backend for d in deployments],
            "formats": [str(d.formats) for d in deployments],
            "layout": [str(d.layout) for d in deployments],
            "isl": [d.workload.isl for d in deployments],
            "osl": [float(d.workload.osl) for d in deployments],
            "concurrency": [d.concurrency for d in deployments],
            "gpus": [d.layout.gpus for d in deployments],
            "version": [d.version for d in deployments],
            "speculative": [d.speculative for d in deployments],
            "pools": [d.pools is not None for d in deployments],
            "tpot": measured["tpot_ms"].to_numpy(),
        }
    )
    for name in ("tpot_ms", "tpot_ms_high"):
        if name in predicted:
            table[name] = predicted[name].to_numpy()
    for name, latencies in (("throughput", measured), ("predicted", predicted)):
        rate = tokens_per_s(table["concurrency"].to_numpy(), table["osl"].to_numpy(), latencies)
        table[name] = rate / table["gpus"]
    return table[~table["pools"]].reset_index(drop=True)
