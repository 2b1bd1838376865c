"""Searching candidates that are too many to be predicted all, with Optuna's NSGA-II."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from foretune.tune.plan.candidates import Candidate

ALL = 60_000
"""Candidates up to which predicting all of them takes a few seconds."""
GENERATION = 200
GENERATIONS = 15
SEED = 0

Evaluate = Callable[[Sequence[Candidate]], pd.DataFrame]


def searched(
    candidates: Sequence[Candidate], evaluate: Evaluate
) -> tuple[list[Candidate], pd.DataFrame]:
    """Return the candidates that a search looked at, and what was predicted of them.

    Sought are tokens per GPU and milliseconds per token at once. Formats, layout and load are drawn
    separately, the load among those that memory holds; whole generations are predicted in one go.

    Args:
        candidates: to choose from.
        evaluate: predicts some of them.
    """
    import optuna

    by_service: dict[tuple[str, str], list[int]] = {}
    for i, candidate in enumerate(candidates):
        by_service.setdefault(_service(candidate), []).append(i)
    formats = sorted({key[0] for key in by_service})
    layouts = sorted({key[1] for key in by_service})
    most = max(len(loads) for loads in by_service.values())
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.NSGAIISampler(population_size=GENERATION, seed=SEED)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    seen: dict[int, int] = {}
    tables: list[pd.DataFrame] = []
    for _ in range(GENERATIONS):
        asked = []
        for _ in range(GENERATION):
            trial = study.ask()
            key = (
                trial.suggest_categorical("formats", formats),
                trial.suggest_categorical("layout", layouts),
            )
            load = trial.suggest_int("load", 0, most - 1)
            loads = by_service.get(key)
            if loads is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                asked.append((trial, loads[min(load, len(loads) - 1)]))
        new = [i for i in dict.fromkeys(i for _, i in asked) if i not in seen]
        if new:
            tables.append(evaluate([candidates[i] for i in new]))
            seen |= {i: len(seen) + n for n, i in enumerate(new)}
        table = pd.concat(tables, ignore_index=True)
        values = table[["tokens_per_s_per_gpu", "tpot_ms"]].to_numpy()
        for trial, i in asked:
            study.tell(trial, np.nan_to_num(values[seen[i]]).tolist())
    return [candidates[i] for i in seen], table


def _service(candidate: Candidate) -> tuple[str, str]:
    """Return what is drawn of a candidate beside its load: formats, and everything else."""
    deployment, pools = candidate.deployment, candidate.deployment.pools
    layout = f"{deployment.system.name} {deployment.layout} {pools.prefill if pools else ''}"
    return str(deployment.formats), layout
