"""Learned steps as AISimulate loads them: ``RustForwardPassPerfModel.from_learned(FILE)``.

Its schema ``aic_fpm_learned_forward_perf``, version 1, has one set of trees for each kind of step.
Its names of features are sums over the ranks of a step, and ratios of these.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import GradientBoostingRegressor

from foretune.plan.steps.learned_steps import (
    ANSWERS_ALONE,
    BOTH,
    PROMPTS_ALONE,
    LearnedSteps,
    kinds_of,
)
from foretune.plan.steps.step_trees import trees_of_log
from foretune.plan.steps.work import columns_of_work, drawn_steps
from foretune.version import __version__

SCHEMA = "aic_fpm_learned_forward_perf"
SCHEMA_VERSION = 1
STORES = {
    ANSWERS_ALONE: "pure_decode",
    PROMPTS_ALONE: "pure_prefill",
    BOTH: "contains_locally_mixed",
}
"""Kind of step -> AISimulate's name."""
WORKERS = {frozenset([ANSWERS_ALONE]): "decode", frozenset([PROMPTS_ALONE]): "prefill"}
"""Kinds in a log -> kind of worker; one with others is aggregated, and may have all kinds."""
AGGREGATED = "aggregated"


def features(work: pd.DataFrame) -> pd.DataFrame:
    """Return AISimulate's features of steps: those that the five numbers of the work determine."""
    prompts = work["prompts"]
    tokens = work["prompt_tokens"]
    cached = work["prompt_context"]
    answers = work["answers"]
    divisor = np.maximum(prompts, 1.0)
    # Pairs of a new token and one that it attends to, if all prompts are alike.
    pairs = cached * tokens / divisor + tokens**2 / (2.0 * divisor) + tokens / 2.0
    return pd.DataFrame(
        {
            "num_prefill_requests": prompts,
            "sum_prefill_tokens": tokens,
            "sum_prefill_kv_tokens": cached,
            "num_decode_requests": answers,
            "sum_decode_kv_tokens": work["answer_context"],
            "mean_prefill_chunk": tokens / divisor,
            "mean_prefill_kv": cached / divisor,
            "mean_decode_kv": work["answer_context"] / np.maximum(answers, 1.0),
            "prefill_attention_pairs": pairs,
        }
    )


def artifact(learned: LearnedSteps, seed: int = 0) -> dict[str, Any]:
    """Return AISimulate's model as a JSON object."""
    logged = frozenset(map(str, np.unique(kinds_of(learned.runs))))
    worker = WORKERS.get(logged, AGGREGATED)
    kinds = list(STORES) if worker == AGGREGATED else sorted(logged)
    stores = {}
    names: list[str] = []
    for kind in kinds:
        work = drawn_steps(learned, kind, seed)
        ms = learned.predict_ms(columns_of_work(work, learned.runs))
        X = features(work)
        names = list(X.columns)
        stores[STORES[kind]] = _store(trees_of_log(X.to_numpy(dtype=float), ms, seed))
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "worker_type": worker,
        "target": "log_ms",
        "features": names,
        "stores": stores,
        "metadata": _metadata(learned),
    }


def _metadata(learned: LearnedSteps) -> dict[str, Any]:
    errors: Mapping[str, float] = {kind: each.median for kind, each in learned.errors.items()}
    return {
        "trainer": f"foretune {__version__}",
        "device": str(learned.runs["device"].iloc[0]),
        "train_rows": len(learned.runs),
        "median_error_of_held_out_steps": dict(errors),
    }


def _store(trees: GradientBoostingRegressor) -> dict[str, Any]:
    """Return trees as arrays of nodes; children stand after their parent."""
    return {
        "baseline": float(np.ravel(trees.init_.constant_)[0]),
        "trees": [_nodes(tree.tree_, trees.learning_rate) for tree in trees.estimators_[:, 0]],
    }


def _nodes(tree: Any, learning_rate: float) -> dict[str, list[Any]]:
    is_leaf = tree.children_left < 0
    return {
        "left": tree.children_left.tolist(),
        "right": tree.children_right.tolist(),
        "feature": np.where(is_leaf, -1, tree.feature).tolist(),
        "threshold": np.where(is_leaf, 0.0, tree.threshold).tolist(),
        "value": (learning_rate * tree.value[:, 0, 0]).tolist(),
        "missing_left": [True] * len(is_leaf),
    }
