"""Choosing among measured deployments by their predictions: how good is what was chosen?

Throughput per GPU follows from the latencies; a choice's regret is what it falls short of the best,
all of it where the limit is missed.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.analytic import tokens_per_s
from foretune.plan.serve.deployments.correction import MIN_PROBABILITY, probability_within
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.planner import MAX_EXTRAPOLATED_SHARE

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
    extrapolated: "pd.Series[float]",
) -> dict[str, dict[str, float]]:
    """Return how well each kind of choice comes out.

    Args:
        deployments: what is chosen among.
        measured: their ``tpot_ms`` and ``ttft_ms``.
        predicted: the same, by a predictor that saw none of their configurations; with
            ``tpot_ms_high``.
        extrapolated: the share of each one's step that no table covers.
    """
    table = _table(deployments, measured, predicted, extrapolated)
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
        regrets = [_regret(group) for group in _groups(table, same, varied)]
        result[name] = {
            "groups": len(regrets),
            "mean_regret": _mean(regrets),
            "right": _mean([regret <= NEAR for regret in regrets]),
        }
    for last in (False, True):
        name = f"any, extrapolated {'last' if last else 'like others'}"
        result[name] = _some_extrapolated(table, [n for n in load if n != "backend"], last)
    for limit in LIMITS_MS:
        result[f"TPOT <= {limit} ms"] = _under_limit(table, limit, sure=False)
        result[f"TPOT <= {limit} ms, surely"] = _under_limit(table, limit, sure=True)
    return result


def _some_extrapolated(table: pd.DataFrame, same: list[str], last: bool) -> dict[str, float]:
    """Return how choices come out where some deployments, but not all, are extrapolated.

    Args:
        table: the deployments.
        same: columns that are the same in a group.
        last: choose an extrapolated one only where there is no other, as plans do.
    """
    regrets = []
    for group in _groups(table, same, "extrapolated"):
        allowed = group[~group["extrapolated"]] if last else group
        chosen = allowed.loc[allowed["predicted"].idxmax(), "throughput"]
        regrets.append(float(1.0 - chosen / group["throughput"].max()))
    right = _mean([regret <= NEAR for regret in regrets])
    return {"groups": len(regrets), "mean_regret": _mean(regrets), "right": right}


def _under_limit(table: pd.DataFrame, limit: float, sure: bool) -> dict[str, float]:
    """Return how often the fastest deployment within a limit is found, and the limit missed.

    Args:
        table: the deployments.
        limit: milliseconds per token.
        sure: ask for the probability of keeping to it that plans ask for; else for a half.
    """
    right, missed, kept = [], [], []
    chance = probability_within(table, "tpot_ms", limit)
    for group in _groups(table, ["model", "system", "isl", "osl"], "row"):
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


def _groups(table: pd.DataFrame, same: list[str], varied: str) -> Iterator[pd.DataFrame]:
    for _, group in table.groupby(same):
        if group[varied].nunique() > 1:
            yield group


def _regret(group: pd.DataFrame) -> float:
    chosen = group.loc[group["predicted"].idxmax(), "throughput"]
    return float(1.0 - chosen / group["throughput"].max())


def _table(
    deployments: Sequence[Deployment],
    measured: pd.DataFrame,
    predicted: pd.DataFrame,
    extrapolated: "pd.Series[float]",
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
            "extrapolated": extrapolated.to_numpy() > MAX_EXTRAPOLATED_SHARE,
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
