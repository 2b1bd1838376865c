"""The work of a step in five numbers, which simulators ask for; and steps drawn around a log."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.plan.steps.learned_steps import (
    ANSWERS_ALONE,
    BOTH,
    PROMPTS_ALONE,
    LearnedSteps,
    kinds_of,
)

WORK = ("prompts", "prompt_tokens", "prompt_context", "answers", "answer_context")
"""Prompts in the step, their new tokens, what is cached of them; answers, their cached tokens."""
DRAWN_STEPS = 2000
"""Steps of a kind to ask the predictor for; half of them are those of the log, if it has any."""
REACH = 2.0
"""Drawn steps are up to so many times as large as the largest of the log."""


def work_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the work of logged steps; what a log does not tell counts as nothing cached.

    vLLM tells the cached tokens of all requests after the step, its own included. Those that are
    left are counted as the answers', or as the prompts' if there are no answers.
    """
    columns = {name: f"problem.{name}" for name in WORK}
    work = pd.DataFrame(
        {
            name: runs[column].to_numpy(dtype=float) if column in runs else np.zeros(len(runs))
            for name, column in columns.items()
        }
    )
    if "problem.context" in runs:
        after = runs["problem.context"].to_numpy(dtype=float)
        before = np.maximum(after - work["prompt_tokens"] - work["answers"], 0.0)
        has_answers = work["answers"] > 0
        work["answer_context"] = np.where(has_answers, before, 0.0)
        work["prompt_context"] = np.where(has_answers, 0.0, before)
    return work


def columns_of_work(work: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return work in the columns of a log: the inverse of `work_of`."""
    tokens_per_answer = 1.0
    if "problem.answer_tokens" in runs:
        tokens_per_answer = runs["problem.answer_tokens"].sum() / runs["problem.answers"].sum()
    computed = work["prompt_tokens"] + work["answers"]
    derived = {
        "answer_tokens": work["answers"] * tokens_per_answer,
        "context": work["prompt_context"] + work["answer_context"] + computed,
    }
    if "problem.ranks" in runs:
        derived["ranks"] = np.full(len(work), float(runs["problem.ranks"].max()))
    names = [column.removeprefix("problem.") for column in columns_of(runs, "problem")]
    return pd.DataFrame({f"problem.{name}": derived.get(name, work.get(name)) for name in names})


def drawn_steps(learned: LearnedSteps, kind: str, seed: int = 0) -> pd.DataFrame:
    """Return work of a kind: steps of the log, and steps up to `REACH` times as large."""
    rng = np.random.default_rng(seed)
    logged = work_of(learned.runs)
    own = logged[kinds_of(learned.runs) == kind]
    repeated = own.iloc[rng.integers(0, len(own), DRAWN_STEPS // 2)] if len(own) else own
    drawn = _random_work(logged, kind, DRAWN_STEPS - len(repeated), rng)
    joined: pd.DataFrame = pd.concat([repeated, drawn], ignore_index=True)
    return joined


def _random_work(
    logged: pd.DataFrame, kind: str, count: int, rng: np.random.Generator
) -> pd.DataFrame:
    """Return random steps: numbers between those of the log and a little beyond."""
    with_prompts = logged[logged["prompts"] > 0]
    with_answers = logged[logged["answers"] > 0]
    work = pd.DataFrame(0.0, index=range(count), columns=list(WORK))
    if kind in (PROMPTS_ALONE, BOTH):
        prompts = _spread(with_prompts["prompts"], count, rng).round()
        work["prompts"] = prompts
        # A step has a limit of tokens, so many prompts in it are short.
        tokens = _spread(with_prompts["prompt_tokens"], count, rng).round()
        work["prompt_tokens"] = np.maximum(tokens, prompts)
        cached = _spread(with_prompts["prompt_context"] / with_prompts["prompts"], count, rng)
        has_cached = rng.random(count) < (with_prompts["prompt_context"] > 0).mean()
        work["prompt_context"] = np.where(has_cached, cached * prompts, 0.0).round()
    if kind in (ANSWERS_ALONE, BOTH):
        answers = _spread(with_answers["answers"], count, rng).round()
        work["answers"] = answers
        cached = _spread(with_answers["answer_context"] / with_answers["answers"], count, rng)
        work["answer_context"] = (cached * answers).round()
    return work


def _spread(values: "pd.Series[float]", count: int, rng: np.random.Generator) -> np.ndarray:
    """Return logarithmic numbers from the smallest positive value to `REACH` times the largest."""
    positive = values[values > 0]
    if positive.empty:
        return np.zeros(count)
    low = float(positive.min())
    high = REACH * float(positive.max())
    spread: np.ndarray = np.exp(rng.uniform(np.log(low), np.log(high), count))
    return spread


def missing_kinds(learned: LearnedSteps, kinds: Sequence[str]) -> list[str]:
    """Return the kinds of which the log has no step."""
    logged = set(kinds_of(learned.runs))
    return [kind for kind in kinds if kind not in logged]
