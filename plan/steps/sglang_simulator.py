"""Learned steps as SGLang's simulator loads them: ``"predictor": {"name": "ml", …}``.

A bundle is a file of joblib with a model of scikit-learn that predicts seconds, and the names of
its 18 features in the simulator's order. Most features are sums over requests that logs do not
have. They are 0 in all rows to learn from, so no tree compares them.
"""

from typing import Any

import pandas as pd

from foretune.errors import UsageError
from foretune.plan.steps.learned_steps import ANSWERS_ALONE, PROMPTS_ALONE, LearnedSteps
from foretune.plan.steps.step_trees import trees_of_seconds
from foretune.plan.steps.work import columns_of_work, drawn_steps

FEATURES = (
    "batch_size",
    "sum_extend",
    "max_extend",
    "min_extend",
    "sum_past",
    "max_past",
    "min_past",
    "sum_extend_x_past",
    "sum_extend_squared",
    "sum_past_squared",
    "sum_attn_flops",
    "sum_extend_x_max_past",
    "log1p_sum_past",
    "log1p_sum_attn_flops",
    "batch_size_x_sum_extend",
    "max_past_minus_min_past",
    "is_decode",
    "is_prefill",
)
"""The simulator's features, in its order."""
KINDS = (ANSWERS_ALONE, PROMPTS_ALONE)
"""Kinds of steps; SGLang does not put prompts and answers into one step unless told."""
MS_PER_SECOND = 1e3


def features(work: pd.DataFrame) -> pd.DataFrame:
    """Return the features that the work of a step determines; 0 for all others."""
    known = {
        "batch_size": work["prompts"] + work["answers"],
        "sum_extend": work["prompt_tokens"] + work["answers"],
        "sum_past": work["prompt_context"] + work["answer_context"],
        "is_decode": (work["prompts"] == 0).astype(float),
        "is_prefill": (work["prompts"] > 0).astype(float),
    }
    return pd.DataFrame({name: known.get(name, 0.0) for name in FEATURES}, index=work.index)


def bundle(learned: LearnedSteps, seed: int = 0) -> dict[str, Any]:
    """Return the simulator's bundle; UsageError if steps are of several ranks."""
    if "problem.ranks" in learned.runs:
        raise UsageError(
            "SGLang's simulator runs one rank, and the steps are of several: log one rank"
        )
    work = pd.concat([drawn_steps(learned, kind, seed) for kind in KINDS], ignore_index=True)
    ms = learned.predict_ms(columns_of_work(work, learned.runs))
    X = features(work).to_numpy(dtype=float)
    # A class of scikit-learn alone: the simulator loads it without Foretune.
    model = trees_of_seconds(X, ms / MS_PER_SECOND, seed)
    return {"model": model, "features": list(FEATURES)}
