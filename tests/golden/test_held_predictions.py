"""Predictors keep their accuracy on what they never saw, and their intervals keep theirs.

Every task trains on some rows of a small run table and predicts the others. The limits have slack
of a tenth to a half: a change that predicts as well passes, and a part that no longer works (the
roofline, the weights of experts, the rules for few problems, the level of intervals) exceeds one.
Ten lines of XGBoost, `plain_error`, are two to ten times as far off. Intervals of few problems are
wide by design: there the width is limited, and coverage only from below.
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
Table = Callable[[], tuple[pd.DataFrame, pd.DataFrame]]


def shipped(kernel: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return 40 rows of each problem of a shipped table; every third problem is held out."""
    runs = load("amd-epyc-2-cores")
    runs = runs[(runs["kernel"] == kernel) & (runs["status"] == "ok")].dropna(axis=1, how="all")
    problem = problems_of(runs)
    runs = runs.groupby(problem, sort=False).head(40)
    out = problem[runs.index] % 3 == 1
    return runs[~out].reset_index(drop=True), runs[out].reset_index(drop=True)


def problems_of(runs: pd.DataFrame) -> pd.Series:
    columns = [c for c in runs if c.startswith("problem.")]
    return runs.groupby(columns, sort=True, observed=True).ngroup()


def layers() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return layers at several batch sizes; how good a layer's kernel is, only its runs tell."""
    rng = np.random.default_rng(3)
    shapes = 64 * rng.integers(8, 129, (24, 2)).repeat(14, axis=0).astype(float)
    N, K = shapes.T
    M = np.tile(np.round(2.0 ** np.arange(1, 8, 0.5)), 24).astype(float)
    quality = rng.uniform(0.4, 0.9, 24).repeat(14) * M ** rng.uniform(-0.1, 0.1, 24).repeat(14)
    time = 0.004 + (M * N * K / 4e11 + (M * N + K * (M + N)) / 1.2e9) / quality
    runs = gemm_runs({"problem.M": M, "problem.N": N, "problem.K": K}, time)
    out = rng.random(len(runs)) < 0.25
    return runs[~out].reset_index(drop=True), runs[out].reset_index(drop=True)


def scattered() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return tiled products of random sizes and configurations: no row has a neighbour."""
    rng = np.random.default_rng(2)
    problems = 64 * rng.integers(2, 65, (60, 3)).repeat(12, axis=0).astype(float)
    tile, stages = 2.0 ** rng.integers(5, 9, len(problems)), rng.integers(1, 5, len(problems))
    M, N, K = problems.T
    waves = np.ceil(np.ceil(M / tile) * np.ceil(N / tile) / 132)
    time = 0.004 + waves * (K / 32) * (tile * tile / 4e7 + tile / 3e5) * (1 + 1.2 / stages)
    runs = gemm_runs({"problem.M": M, "problem.N": N, "problem.K": K}, time)
    runs = runs.assign(**{"config.tile": tile, "config.stages": stages})
    return runs.iloc[:480], runs.iloc[480:].reset_index(drop=True)


def gemm_runs(sizes: dict[str, np.ndarray], time_ms: np.ndarray) -> pd.DataFrame:
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


def plain_error(known: pd.DataFrame, wanted: pd.DataFrame) -> float:
    """Return the error of XGBoost on logarithms of the numbers and indicators of the texts."""

    def features(runs: pd.DataFrame) -> np.ndarray:
        both = pd.concat([known, runs])
        both = both[[c for c in both if c.startswith(("problem.", "config."))]]
        numbers = np.log2(both.select_dtypes("number").astype(float) + 1)
        texts = pd.get_dummies(both.select_dtypes(exclude="number").astype(str), dtype=float)
        return np.hstack([numbers, texts])[len(known) :]

    model = xgboost.XGBRegressor(n_estimators=300, max_depth=6, learning_rate=0.1, nthread=1)
    model.fit(features(known), np.log(known["time_ms"]))
    return error_of(np.exp(model.predict(features(wanted))), wanted)


def error_of(predicted: np.ndarray, wanted: pd.DataFrame) -> float:
    return float(np.abs(np.log(predicted / wanted["time_ms"].to_numpy())).mean())


@dataclass(frozen=True)
class Task:
    """Runs to learn from and to predict, and what has to come of it.

    Attributes:
        table: returns both.
        error: the largest mean error of the logarithm of times.
        beside_plain: the same as a share of `plain_error`.
        coverage: the smallest and the largest share of rows within their 90 % intervals.
        half_width: the largest median half-width of these, of the logarithm.
    """

    table: Table
    error: float
    beside_plain: float
    coverage: tuple[float, float]
    half_width: float


TASKS = {
    "few problems of matmul": Task(lambda: shipped("matmul"), 0.275, 0.4, (0.85, 1.0), 1.5),
    "few problems of softmax": Task(lambda: shipped("softmax"), 0.24, 0.45, (0.85, 1.0), 1.1),
    "layers at batch sizes": Task(layers, 0.0043, 0.17, (0.8, 0.99), 0.012),
    "scattered tiles": Task(scattered, 0.105, 0.3, (0.77, 0.97), 0.2),
}


@pytest.mark.parametrize("name", TASKS)
def test_problems_held_out_are_predicted_well(name):
    task = TASKS[name]
    known, wanted = task.table()
    predicted = foretune.train_predictor(known, validate="none").predictor.predict(wanted)
    error = error_of(predicted["time_ms"].to_numpy(), wanted)
    assert error <= task.error
    assert error <= task.beside_plain * plain_error(known, wanted)
    low, high = predicted["time_ms_low"], predicted["time_ms_high"]
    least, most = task.coverage
    assert least <= wanted["time_ms"].between(low, high).mean() <= most
    assert np.log(high / low).median() / 2 <= task.half_width
