"""How far off are steps that an engine logged, and how long does a prediction take?

Run: ``python benchmarks/plan_steps.py LOG --device NAME``.

LOG is what ``foretune plan steps`` reads; ``--first`` and ``--last`` take a part of its steps. The
first table has errors on held-out minutes of the log: Foretune's predictor, a linear law of
requests and tokens, and plain boosted trees of scikit-learn with the constants of AISimulate's
trainer. ``neighbors`` is how far two steps with the same number of requests and tokens differ that
follow each other: no predictor of these sizes gets below. Intervals hold with the width that the
predictor learned from steps of its own minutes, and with that from held-out minutes. The second
table has the models that are written for simulators: how far they are off the predictor, and the
CPU time of one prediction.
"""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from machine import markdown
from sklearn.ensemble import HistGradientBoostingRegressor

from foretune.datasets import import_runs
from foretune.datasets.schema import columns_of
from foretune.plan.steps import aisimulate, sglang_simulator
from foretune.plan.steps.learned_steps import (
    BOTH,
    KINDS,
    LearnedSteps,
    kinds_of,
    learn_steps,
    predict_held_out,
)
from foretune.plan.steps.minutes import held_out_sets
from foretune.plan.steps.work import columns_of_work, work_of

SINGLE_PREDICTIONS = 200
"""Predictions of one step that are timed."""


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--first", type=int, default=0, help="number of the first step")
    parser.add_argument("--last", type=int, help="number after the last step")
    arguments = parser.parse_args()
    logged = import_runs(arguments.log, "engine-steps", device=arguments.device).runs
    runs = logged.iloc[arguments.first : arguments.last].reset_index(drop=True)
    learned = learn_steps(runs)

    own_width = _coverage_of_own_width(runs)
    trees = _errors_of_trees(runs)
    neighbors = _differences_of_neighbors(runs)
    rows = [
        [
            kind,
            f"{errors.steps:,}",
            f"{100 * errors.median:.1f} / {100 * errors.mean:.1f}",
            f"{100 * errors.law_median:.1f}",
            f"{100 * trees[kind]:.1f}",
            f"{100 * neighbors[kind]:.1f}" if kind in neighbors else "–",
            f"{100 * own_width[kind]:.0f} %",
            f"{100 * errors.coverage:.0f} %",
        ]
        for kind, errors in learned.errors.items()
    ]
    headings = ["held-out steps", "number", "median / mean, %", "linear law, %"]
    headings += [
        "boosted trees, %",
        "neighbors, %",
        "90 % interval, own width",
        "of held-out minutes",
    ]
    print(markdown(headings, rows))

    asked = learned.runs[kinds_of(learned.runs) != BOTH].head(SINGLE_PREDICTIONS)
    print(
        markdown(["model", "off the predictor, %", "CPU ms a prediction"], _models(learned, asked))
    )


def _coverage_of_own_width(runs: pd.DataFrame) -> dict[str, float]:
    """Return how often intervals of the predictor's own width hold, by kind of step."""
    held_out = predict_held_out(runs)
    is_inside = np.abs(held_out.error) <= held_out.half_width
    kinds = kinds_of(runs)
    return {kind: float(np.mean(is_inside[kinds == kind])) for kind in set(kinds)}


def _errors_of_trees(runs: pd.DataFrame) -> dict[str, float]:
    """Return the median error of plain boosted trees, by kind of step."""
    sizes = columns_of(runs, "problem")
    measured_ms = runs["time_ms"].to_numpy(dtype=float)
    X = runs[sizes].to_numpy(dtype=float)
    predicted_ms = np.empty(len(runs))
    for is_held_out in held_out_sets(runs):
        trees = HistGradientBoostingRegressor(
            max_iter=400,
            learning_rate=0.05,
            max_leaf_nodes=31,
            min_samples_leaf=5,
            early_stopping=False,
            random_state=0,
        )
        trees.fit(X[~is_held_out], np.log(measured_ms[~is_held_out]))
        predicted_ms[is_held_out] = np.exp(trees.predict(X[is_held_out]))
    error = np.abs(predicted_ms / measured_ms - 1.0)
    kinds = kinds_of(runs)
    return {kind: float(np.median(error[kinds == kind])) for kind in KINDS if (kinds == kind).any()}


def _differences_of_neighbors(runs: pd.DataFrame) -> dict[str, float]:
    """Return the median difference of steps that follow each other, by kind of step."""
    # Which steps have as many requests and tokens as the one before?
    sizes = ["problem.prompts", "problem.prompt_tokens", "problem.answers"]
    changes = runs[sizes].diff().iloc[1:]
    is_same = (changes == 0).all(axis=1).to_numpy()

    # How far are their times apart?
    measured_ms = runs["time_ms"].to_numpy(dtype=float)
    difference = np.abs(measured_ms[1:] / measured_ms[:-1] - 1.0)
    kinds = kinds_of(runs)[1:]
    medians = {}
    for kind in KINDS:
        of_kind = difference[is_same & (kinds == kind)]
        if len(of_kind):
            medians[kind] = float(np.median(of_kind))
    return medians


def _models(learned: LearnedSteps, asked: pd.DataFrame) -> list[list[str]]:
    """Return a row per model written for a simulator."""
    work = work_of(asked)
    expected_ms = learned.predict_ms(columns_of_work(work, learned.runs))

    # One step at a time, as simulators ask.
    model = sglang_simulator.bundle(learned)["model"]
    batches = sglang_simulator.features(work).to_numpy(dtype=float)
    begun = time.process_time()
    seconds = [float(model.predict([batch])[0]) for batch in batches.tolist()]
    bundle_ms = 1e3 * (time.process_time() - begun) / len(batches)

    # AISimulate walks its trees in Rust; Python shows that they say the same, not how fast.
    artifact = aisimulate.artifact(learned)
    inputs = aisimulate.features(work).to_numpy(dtype=float)
    stores = [artifact["stores"][aisimulate.STORES[kind]] for kind in kinds_of(asked)]
    answered_ms = [_walked_ms(store, x) for store, x in zip(stores, inputs, strict=True)]
    return [
        ["SGLang's simulator", _off(1e3 * np.array(seconds), expected_ms), f"{bundle_ms:.2f}"],
        ["AISimulate", _off(np.array(answered_ms), expected_ms), "–"],
    ]


def _walked_ms(store: Mapping[str, Any], x: np.ndarray) -> float:
    """Return what a store of AISimulate's model says for the features of a step."""
    log_ms = store["baseline"]
    for tree in store["trees"]:
        node = 0
        while tree["left"][node] >= 0:
            goes_left = x[tree["feature"][node]] <= tree["threshold"][node]
            node = tree["left"][node] if goes_left else tree["right"][node]
        log_ms += tree["value"][node]
    return float(np.exp(log_ms))


def _off(answered_ms: np.ndarray, expected_ms: np.ndarray) -> str:
    """Return the median distance of answers from the predictor's, in percent."""
    return f"{100 * np.median(np.abs(answered_ms / expected_ms - 1.0)):.1f}"


if __name__ == "__main__":
    main()
