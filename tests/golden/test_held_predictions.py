"""Predictors keep their accuracy on rows that they did not learn from, and so do their intervals.

Every task trains on some rows of a small run table and predicts the others. The limits have slack:
a change that predicts as well passes, and a part that no longer works (the roofline, the weights of
experts, the rules for few problems, the level of intervals) exceeds one. Ten lines of XGBoost,
`plain_error`, are two to ten times as far off. Intervals of few problems are wide by design: there
the width is limited, and coverage only from below.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import xgboost

import foretune
from foretune.datasets import load

pytestmark = pytest.mark.usefixtures("all_trees")

ROWS_PER_PROBLEM = 40
HELD_OUT_SHARE = 0.25


@dataclass(frozen=True)
class SplitRuns:
    """Runs to learn from, and runs to predict."""

    training: pd.DataFrame
    held_out: pd.DataFrame

    @classmethod
    def by_mask(cls, runs: pd.DataFrame, is_held_out: np.ndarray) -> "SplitRuns":
        training = runs[~is_held_out].reset_index(drop=True)
        held_out = runs[is_held_out].reset_index(drop=True)
        return cls(training, held_out)


@dataclass(frozen=True)
class Task:
    """What a predictor must reach on a table.

    Attributes:
        make_runs: returns the table.
        error: largest mean error of the logarithm of times.
        share_of_plain_error: largest share of `plain_error`.
        coverage: smallest and largest share of rows within their 90 % intervals.
        half_width: largest median half-width of the intervals, of the logarithm.
    """

    make_runs: Callable[[], SplitRuns]
    error: float
    share_of_plain_error: float
    coverage: tuple[float, float]
    half_width: float


def shipped(kernel: str) -> SplitRuns:
    """Return some rows of each problem of a shipped table; every third problem is held out."""
    runs = load("amd-epyc-2-cores")
    is_usable = (runs["kernel"] == kernel) & (runs["status"] == "ok")
    usable = runs[is_usable].dropna(axis=1, how="all")
    problem = problem_numbers(usable)
    few_each = usable.groupby(problem, sort=False).head(ROWS_PER_PROBLEM)
    is_held_out = (problem[few_each.index] % 3 == 1).to_numpy()
    return SplitRuns.by_mask(few_each, is_held_out)


def problem_numbers(runs: pd.DataFrame) -> pd.Series:
    columns = [column for column in runs if column.startswith("problem.")]
    return runs.groupby(columns, sort=True, observed=True).ngroup()


def layers() -> SplitRuns:
    """Return layers at several batch sizes; only its runs tell how good a layer's kernel is."""
    rng = np.random.default_rng(3)
    n_layers = 24
    batch_sizes = np.round(2.0 ** np.arange(1, 8, 0.5))

    shapes = 64 * rng.integers(8, 129, (n_layers, 2)).repeat(len(batch_sizes), axis=0)
    N, K = shapes.astype(float).T
    M = np.tile(batch_sizes, n_layers).astype(float)

    base_quality = rng.uniform(0.4, 0.9, n_layers).repeat(len(batch_sizes))
    exponent = rng.uniform(-0.1, 0.1, n_layers).repeat(len(batch_sizes))
    compute_ms = M * N * K / 4e11
    memory_ms = (M * N + K * (M + N)) / 1.2e9
    time_ms = 0.004 + (compute_ms + memory_ms) / (base_quality * M**exponent)

    runs = gemm_runs({"problem.M": M, "problem.N": N, "problem.K": K}, time_ms)
    return SplitRuns.by_mask(runs, rng.random(len(runs)) < HELD_OUT_SHARE)


def scattered() -> SplitRuns:
    """Return tiled products of random sizes and configurations: no row has a neighbor."""
    rng = np.random.default_rng(2)
    n_problems = 60
    rows_per_problem = 12
    sizes = 64 * rng.integers(2, 65, (n_problems, 3)).repeat(rows_per_problem, axis=0)
    M, N, K = sizes.astype(float).T
    tile = 2.0 ** rng.integers(5, 9, len(sizes))
    stages = rng.integers(1, 5, len(sizes))

    waves = np.ceil(np.ceil(M / tile) * np.ceil(N / tile) / 132)
    step_ms = tile * tile / 4e7 + tile / 3e5
    time_ms = 0.004 + waves * (K / 32) * step_ms * (1 + 1.2 / stages)

    runs = gemm_runs({"problem.M": M, "problem.N": N, "problem.K": K}, time_ms)
    runs = runs.assign(**{"config.tile": tile, "config.stages": stages})
    n_training = 40 * rows_per_problem
    return SplitRuns(runs.iloc[:n_training], runs.iloc[n_training:].reset_index(drop=True))


def gemm_runs(sizes: dict[str, np.ndarray], time_ms: np.ndarray) -> pd.DataFrame:
    """Return runs with 0.2 % of noise."""
    device = foretune.find_device("NVIDIA H100 80GB HBM3")
    noise = np.exp(0.002 * np.random.default_rng(0).standard_normal(len(time_ms)))
    specs = {f"device.{name}": value for name, value in device.specs.items()}
    return pd.DataFrame(sizes).assign(
        kernel="gemm",
        device=device.name,
        status="ok",
        time_ms=time_ms * noise,
        **specs,
        **{"config.format": "fp16"},
    )


def plain_error(runs: SplitRuns) -> float:
    """Return the error of XGBoost on logarithms of the numbers and indicators of the texts."""
    both = pd.concat([runs.training, runs.held_out])
    inputs = both[[c for c in both if c.startswith(("problem.", "config."))]]
    numbers = np.log2(inputs.select_dtypes("number").astype(float) + 1)
    texts = pd.get_dummies(inputs.select_dtypes(exclude="number").astype(str), dtype=float)
    features = np.hstack([numbers, texts])
    n_training = len(runs.training)

    model = xgboost.XGBRegressor(n_estimators=300, max_depth=6, learning_rate=0.1, nthread=1)
    model.fit(features[:n_training], np.log(runs.training["time_ms"]))
    return error_of(np.exp(model.predict(features[n_training:])), runs.held_out)


def error_of(predicted_ms: np.ndarray, runs: pd.DataFrame) -> float:
    return float(np.abs(np.log(predicted_ms / runs["time_ms"].to_numpy())).mean())


TASKS = {
    "few problems of matmul": Task(
        lambda: shipped("matmul"),
        error=0.275,
        share_of_plain_error=0.4,
        coverage=(0.85, 1.0),
        half_width=1.5,
    ),
    "few problems of softmax": Task(
        lambda: shipped("softmax"),
        error=0.24,
        share_of_plain_error=0.45,
        coverage=(0.85, 1.0),
        half_width=1.1,
    ),
    # Rounding decides here. NumPy computes logarithms with other instructions on CPUs with AVX-512
    # than on others, and OpenBLAS has code for each CPU: errors of 0.0040 and 0.0045, coverages of
    # 0.82 and 0.89. With times changed by one rounding error, 40 times at random, errors are
    # 0.0035 to 0.0048, shares of the plain error 0.14 to 0.19 and coverages 0.78 to 0.94. Versions
    # of XGBoost, scikit-learn and SciPy change nothing. Equal weights of the experts, a part that
    # does not work, give 0.045.
    "layers at batch sizes": Task(
        layers,
        error=0.0055,
        share_of_plain_error=0.22,
        coverage=(0.75, 0.99),
        half_width=0.012,
    ),
    "scattered tiles": Task(
        scattered,
        error=0.105,
        share_of_plain_error=0.3,
        coverage=(0.77, 0.97),
        half_width=0.2,
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_predictor_keeps_accuracy_on_held_out_rows(name):
    task = TASKS[name]
    runs = task.make_runs()

    predictor = foretune.train_predictor(runs.training, validate="none").predictor
    predicted = predictor.predict(runs.held_out)

    error = error_of(predicted["time_ms"].to_numpy(), runs.held_out)
    assert error <= task.error
    assert error <= task.share_of_plain_error * plain_error(runs)

    low = predicted["time_ms_low"]
    high = predicted["time_ms_high"]
    coverage = runs.held_out["time_ms"].between(low, high).mean()
    assert task.coverage[0] <= coverage <= task.coverage[1]
    assert np.log(high / low).median() / 2 <= task.half_width
