"""Searching candidates that are too many to be predicted all, with Optuna's NSGA-II."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from foretune.plan.serve.candidates import Candidate
from foretune.plan.serve.requirements import Requirements

MAX_EXHAUSTIVE = 200_000
"""Candidates up to which predicting all is quicker than a search, which takes time of its own."""
POPULATION_SIZE = 100
GENERATIONS = 20
SEED = 0

Evaluate = Callable[[Sequence[Candidate]], pd.DataFrame]


def search_candidates(
    candidates: Sequence[Candidate], requirements: Requirements, evaluate: Evaluate
) -> tuple[list[Candidate], pd.DataFrame]:
    """Return the candidates that a search looked at, and what was predicted of them.

    Formats and layout are drawn; every load of what is drawn is predicted, whole generations in one
    go. Sought are the goal within its limits, and few milliseconds per token.

    Args:
        candidates: to choose from.
        requirements: limits and goal.
        evaluate: predicts some of them.
    """
    import optuna

    loads: dict[tuple[str, str], list[int]] = {}
    for i, candidate in enumerate(candidates):
        loads.setdefault(_search_key(candidate), []).append(i)
    formats, layouts = (sorted({key[i] for key in loads}) for i in (0, 1))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.NSGAIISampler(population_size=POPULATION_SIZE, seed=SEED)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    seen: dict[tuple[str, str], list[float]] = {}
    order: list[int] = []
    tables: list[pd.DataFrame] = []
    for _ in range(GENERATIONS):
        drawn = []
        for _ in range(POPULATION_SIZE):
            trial = study.ask()
            key = (
                trial.suggest_categorical("formats", formats),
                trial.suggest_categorical("layout", layouts),
            )
            if key in loads:
                drawn.append((trial, key))
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
        new = [key for key in dict.fromkeys(key for _, key in drawn) if key not in seen]
        if new:
            numbers = [i for key in new for i in loads[key]]
            table = evaluate([candidates[i] for i in numbers])
            ends = np.cumsum([len(loads[key]) for key in new])
            parts = np.split(np.arange(len(table)), ends[:-1])
            seen |= {
                k: _objective_values(table.iloc[p], requirements)
                for k, p in zip(new, parts, strict=True)
            }
            order += numbers
            tables.append(table)
        for trial, key in drawn:
            study.tell(trial, seen[key])
    return [candidates[i] for i in order], pd.concat(tables, ignore_index=True)


def _objective_values(table: pd.DataFrame, requirements: Requirements) -> list[float]:
    """Return the best that a deployment does for the goal, and the least time per token."""
    feasible = table[requirements.feasible(table)]
    score = requirements.front_score(feasible).max() if len(feasible) else -np.inf
    return [float(np.clip(score, -1e12, 1e12)), float(table["tpot_ms"].min())]


def _search_key(candidate: Candidate) -> tuple[str, str]:
    """Return what is drawn of a candidate: formats, and everything else but its load."""
    deployment, pools = candidate.deployment, candidate.deployment.pools
    layout = f"{deployment.system.name} {deployment.layout} {pools.prefill if pools else ''}"
    if deployment.offload:
        layout += f" {deployment.offload.weights_gib}"
    return str(deployment.formats), layout
