"""How far off predictors are on what they never saw, beside baselines: prints a table.

Run: ``python benchmarks/predictors.py DATA [--only gemm,moe] [--rows 20000]`` where DATA holds
``llm/``, ``spaces/``, ``triton/``, ``amd/``, ``neusight/`` and ``gpperf/`` (tables of other tools'
measurements, see their manifests for source and licence). Every line trains on rows of DATA and
tests on rows that were held out as the line says; the group ``installed`` takes both from the
tables of the package aiconfigurator-core. The last column is our mean error over the least of the
plain models beside it.

With ``--as-strangers``, tables have raw columns, and their kernels unknown names (`as_strangers`);
``--quick`` takes minutes.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from as_strangers import print_strangers
from machine import heading
from predictor_tasks import GROUPS, SHARE, Task, thinned
from sklearn.ensemble import RandomForestRegressor

from foretune.collect import local_device
from foretune.features.arrays import Rows
from foretune.features.roofline import row_roofline_ms
from foretune.models import Predictor
from foretune.models.splits import task_numbers
from foretune.models.validation.baselines import predict_baselines
from foretune.models.validation.metrics import score

LABELS = ("config.implementation", "config.backend")
"""Columns that say which library measured, not what."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--only", default="", help="groups (strangers: tables), separated by commas"
    )
    parser.add_argument("--model", default="xgboost")
    parser.add_argument("--rows", type=int, default=20_000, help="most rows to learn from")
    parser.add_argument("--as-strangers", action="store_true", help="unknown names, raw columns")
    parser.add_argument("--quick", action="store_true", help="strangers: fewer rows and splits")
    parser.add_argument("--splits", default="", help="strangers: only these, e.g. '8 problems'")
    parser.add_argument("--draws", type=int, default=1, help="strangers: draws of each split")
    parser.add_argument("--out", type=Path, help="strangers: write every line as JSON, too")
    parser.add_argument("--beside", type=Path, help="strangers: such a file to compare with")
    arguments = parser.parse_args()
    print(heading("Predictors on what they never saw", local_device("cpu")))
    names = list(filter(None, arguments.only.split(",")))
    if arguments.as_strangers:
        print_strangers(
            arguments.data,
            quick=arguments.quick,
            splits=list(filter(None, arguments.splits.split(","))),
            names=names,
            draws=arguments.draws,
            out=arguments.out,
            beside=arguments.beside,
        )
        return
    wanted = set(names) or set(GROUPS)
    print(f"model: {arguments.model}; figures in %: mean / median / 95th percentile of |error|")
    print(
        "| held out | train / test rows | Foretune | 90 % interval holds; width | "
        "calibrated roofline | interpolation | nearest | 6-deep forest | "
        "XGBoost, raw columns | XGBoost, our features; fit, s | fit, s | "
        "over plain |"
    )
    print("|---" * 12 + "|")
    ratios = [
        run_task(thinned(task, arguments.rows), arguments.model)
        for group, tasks in GROUPS.items()
        if group in wanted
        for task in tasks(arguments.data, 0)
    ]
    print(
        f"\n{len(ratios)} lines: {np.exp(np.mean(np.log(ratios))):.2f} of plain boosting's error "
        f"(geometric mean), above 1.03 on {np.sum(np.array(ratios) > 1.03)}"
    )


def run_task(task: Task, model: str) -> float:
    """Train, test, print one line; more for few-shot transfer and for choices.

    Returns our mean error over that of the better plain XGBoost.
    """
    runs = task.runs.reset_index(drop=True)
    train, test = runs[~task.test].reset_index(drop=True), runs[task.test].reset_index(drop=True)
    ok = (train["status"] == "ok") & train[task.target].notna()
    known = train[ok].reset_index(drop=True)
    test = test[(test["status"] == "ok") & test[task.target].notna()].reset_index(drop=True)
    started = time.process_time()
    predictor = Predictor(model, (task.target,)).fit(train)
    seconds = time.process_time() - started
    truth, groups = test[task.target].to_numpy(), task_numbers(test)
    family = predictor.features_.family
    names = ("calibrated roofline", "grid interpolation", "nearest neighbor")
    found = predict_baselines(task.target, family, known, test, names)
    cells = [errors(score(truth, value, groups)) for value in found.values()]
    cells.append(errors(score(truth, shallow_forest(predictor, known, test, task.target), groups)))
    raw = score(truth, on_raw_columns(known, test, task.target), groups)
    begun = time.process_time()
    value = on_roofline(xgboost_beside, predictor, known, test, task.target)
    own, plain = time.process_time() - begun, score(truth, value, groups)
    cells += [errors(raw), f"{errors(plain)}; {own:.1f}"]
    scores = score_of(predictor, test, task.target)
    ratio = scores["mape"] / min(raw["mape"], plain["mape"])
    line(task.name, len(known), len(test), scores, cells, seconds, ratio)
    if task.few:
        copy_known(known, test, task.target)
    for n, draws in task.few.items():
        for how, draw in (("chosen", choose), ("at random", draw_at_random)):
            several = [
                few_shot(predictor, test, draw(predictor, test, n, seed), task.target, seed)
                for seed in range(draws)
            ]
            mean = {key: float(np.mean([s[key] for s in several])) for key in several[0]}
            name = f"… with {n} runs there, {how} ({draws} draws)"
            line(name, len(known), len(test), mean, [""] * 6, 0.0)
    if task.name.startswith("GEMM (n, k)"):
        choose_format(predictor, test)
    if task.name == "GEMM, H100, random rows":
        gpperf_protocol(predictor, task.runs)
    return float(ratio)


def choose(predictor: Predictor, test: pd.DataFrame, n: int, seed: int) -> np.ndarray:
    """Return the rows of ``test`` that ``foretune calibrate --choose`` would have measured."""
    columns = [c for c in test if c.startswith(("problem.", "config."))]
    chosen = predictor.choose(n, test, seed=seed)[columns].drop_duplicates()
    marked = test[columns].merge(chosen, how="left", indicator=True)
    return np.flatnonzero((marked["_merge"] == "both") & ~test[columns].duplicated())


def draw_at_random(predictor: Predictor, test: pd.DataFrame, n: int, seed: int) -> np.ndarray:
    """Return ``n`` rows of ``test``."""
    return np.random.default_rng(seed).choice(len(test), n, replace=False)


def copy_known(known: pd.DataFrame, test: pd.DataFrame, target: str) -> None:
    """Print the error of copying each known device's measurement of the same run, if it has one."""
    keys = [c for c in test if c.startswith(("problem.", "config.")) and c not in LABELS]
    keys = [c for c in keys if test[c].notna().any()]
    for device in known["device"].unique():
        there = known[known["device"] == device].drop_duplicates(keys)[[*keys, target]]
        both = (
            test[[*keys, target]]
            .astype(dict.fromkeys(keys, str))
            .merge(there.astype(dict.fromkeys(keys, str)), on=keys, suffixes=("", "_there"))
        )
        value, truth = both[f"{target}_there"].to_numpy(), both[target].to_numpy()
        cell = errors(score(truth, value, np.zeros(len(both), dtype=int))) if len(both) else "–"
        print(f"| … copying {device} | {len(both):,} | {cell} | | | | | | | | | |", flush=True)


def few_shot(
    predictor: Predictor, test: pd.DataFrame, chosen: np.ndarray, target: str, seed: int
) -> dict[str, float]:
    """Return the scores on others of ``test`` of a predictor calibrated with the chosen rows."""
    rest = np.setdiff1d(np.arange(len(test)), chosen)
    rest = np.random.default_rng(seed).choice(rest, min(20_000, len(rest)), replace=False)
    return score_of(predictor.calibrate(test.iloc[chosen]), test.iloc[rest], target)


def score_of(predictor: Predictor, test: pd.DataFrame, target: str) -> dict[str, float]:
    """Return the scores of ``predictor`` on ``test``."""
    predicted = predictor.predict(test)
    value = predicted[target].to_numpy()
    ends = predicted[f"{target}_low"].to_numpy(), predicted[f"{target}_high"].to_numpy()
    return score(test[target].to_numpy(), value, task_numbers(test), ends)


def line(
    name: str,
    train: int,
    test: int,
    s: dict[str, float],
    cells: list[str],
    seconds: float,
    ratio: float = float("nan"),
) -> None:
    """Print one line of the table."""
    interval = f"{100 * s['coverage90']:.0f} %; ±{100 * s['width90']:.0f} %"
    regret = ""
    if np.isfinite(s["top5_regret"]) and "space" in name:
        regret = f" (regret of the top 5: {100 * s['top5_regret']:.1f})"
    if "MIOpen" in name:
        regret = f" (regret of the first: {100 * s['top1_regret']:.1f})"
    if "GPPerf" in name:
        regret = f", R² {s['r2']:.3f}"
    fit = f"{seconds:.1f}" if seconds else ""
    text = [
        name,
        f"{train:,} / {test:,}",
        errors(s) + regret,
        interval,
        *cells,
        fit,
        f"{ratio:.2f}" if ratio == ratio else "",
    ]
    print("| " + " | ".join(text) + " |", flush=True)


def errors(s: dict[str, float]) -> str:
    """Return mean, median and 95th percentile of the absolute percentage error."""
    if not np.isfinite(s["mape"]):
        return "–"
    return f"{100 * s['mape']:.2f} / {100 * s['median_ape']:.2f} / {100 * s['p95_ape']:.1f}"


def shallow_forest(
    predictor: Predictor, train: pd.DataFrame, test: pd.DataFrame, target: str
) -> np.ndarray:
    """Return what GPPerf's model says: 100 trees of depth 6 on plain features and plain targets."""
    few = np.random.default_rng(0).permutation(len(train))[:100_000]
    forest = depth_6_forest()
    forest.fit(plain_features(predictor, train.iloc[few]), train[target].to_numpy()[few])
    return np.asarray(forest.predict(plain_features(predictor, test)))


def on_roofline(
    model: Callable[[], Any],
    predictor: Predictor,
    train: pd.DataFrame,
    test: pd.DataFrame,
    target: str,
) -> np.ndarray:
    """Return the prediction of plain boosting of log(target / (roofline + 4 µs)), on our features.

    For power it predicts log(target / the board's limit); without a roofline, log(target).
    """
    few = np.random.default_rng(0).permutation(len(train))[:100_000]
    train, features = train.iloc[few], predictor.features_
    units = [np.zeros(len(rows)) for rows in (train, test)]
    if target == "time_ms" and features.roofline_known_:
        described = [features.described(Rows(rows)) for rows in (train, test)]
        units = [np.log(row_roofline_ms(features.family, rows) + 0.004) for rows in described]
    if target == "power_w":
        units = [np.log(rows["device.power_limit_w"].to_numpy(float)) for rows in (train, test)]
    learner = model()
    learner.fit(features.matrix(train), np.log(train[target].to_numpy(float)) - units[0])
    return np.asarray(np.exp(learner.predict(features.matrix(test)) + units[1]))


def on_raw_columns(train: pd.DataFrame, test: pd.DataFrame, target: str) -> np.ndarray:
    """Return the prediction of plain boosting of log(target), from the table's own columns."""
    names = [c for c in train if c.startswith(("problem.", "config.", "device.")) or c == "device"]
    both = pd.concat([train[names], test[names]], ignore_index=True)
    X = pd.get_dummies(both, dtype=float).to_numpy()
    learner = xgboost_beside().fit(X[: len(train)], np.log(train[target].to_numpy(float)))
    return np.asarray(np.exp(learner.predict(X[len(train) :])))


def xgboost_beside() -> Any:
    """Return XGBoost as its users take it."""
    from xgboost import XGBRegressor

    return XGBRegressor(n_estimators=400, max_depth=7, learning_rate=0.06, subsample=0.8, n_jobs=1)


def gpperf_protocol(predictor: Predictor, runs: pd.DataFrame) -> None:
    """Print the errors of GPPerf's model by its own protocol.

    Features and truth are clipped to their 1st and 99th percentile, then rows are split at random.
    """
    X, truth = plain_features(predictor, runs), runs["time_ms"].to_numpy()
    X = np.clip(X, *np.percentile(X, [1, 99], axis=0))
    truth = np.clip(truth, *np.percentile(truth, [1, 99]))
    out = np.random.default_rng(0).random(len(runs)) < SHARE
    guess = np.asarray(depth_6_forest().fit(X[~out], truth[~out]).predict(X[out]))
    scores = score(truth[out], guess, task_numbers(runs[out]))
    print(
        f"| GPPerf's protocol: random rows, all clipped | {(~out).sum():,} / {out.sum():,} | "
        f"| | | | | {errors(scores)}, R² {scores['r2']:.3f} | | | | |",
        flush=True,
    )


def plain_features(predictor: Predictor, rows: pd.DataFrame) -> np.ndarray:
    """Return sizes, configuration, work and intensity of ``rows``; unknown is 0."""
    names = ("problem.", "config.", "log2_flops", "log2_bytes", "log2_intensity")
    table = predictor.features_.transform(rows)
    return np.nan_to_num(table[[name for name in table if name.startswith(names)]].to_numpy())


def depth_6_forest() -> RandomForestRegressor:
    """Return GPPerf's model, unfitted."""
    return RandomForestRegressor(100, max_depth=6, n_jobs=2, random_state=0)


def choose_format(predictor: Predictor, test: pd.DataFrame) -> None:
    """Print how often the fastest format of an unseen shape is chosen, and what a miss costs."""
    table = test[["problem.M", "problem.N", "problem.K"]].assign(
        truth=test["time_ms"], guess=predictor.predict(test)["time_ms"]
    )
    right, regret = [], []
    for _, rows in table.groupby(["problem.M", "problem.N", "problem.K"]):
        if len(rows) == 3:
            chosen = rows.loc[rows["guess"].idxmin(), "truth"]
            right.append(chosen == rows["truth"].min())
            regret.append(chosen / rows["truth"].min() - 1)
    print(
        f"| choosing bf16, fp8 or fp8_block there | {len(right):,} shapes | right "
        f"{100 * np.mean(right):.1f} %, regret {100 * np.mean(regret):.2f} % | | | | | | | | | |",
        flush=True,
    )


if __name__ == "__main__":
    main()
