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
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from as_strangers import print_strangers
from machine import heading
from plain_models import (
    default_xgboost,
    depth_6_forest,
    on_our_features,
    on_raw_columns,
    plain_features,
    shallow_forest,
)
from predictor_tasks import GROUPS, SHARE, Task, thinned

from foretune.collect import local_device
from foretune.models import Predictor
from foretune.models.splits import task_numbers
from foretune.models.target_names import Target
from foretune.models.validation.baselines import predict_baselines
from foretune.models.validation.metrics import score

Scores = dict[str, float]

LABELS = ("config.implementation", "config.backend")
"""Columns that say which library measured, not what."""
BASELINES = ("calibrated roofline", "grid interpolation", "nearest neighbor")
COLUMNS = (
    "held out",
    "train / test rows",
    "Foretune",
    "90 % interval holds; width",
    "calibrated roofline",
    "interpolation",
    "nearest",
    "6-deep forest",
    "XGBoost, raw columns",
    "XGBoost, our features; fit, s",
    "fit, s",
    "over plain",
)
N_COMPARED = 6
"""Columns of baselines and plain models."""
WORSE = 1.03
"""Ratio to the plain models' error from which a line counts as worse."""
MAX_FEW_SHOT_ROWS = 20_000
"""Rows on which a calibrated predictor is tested."""
CLIP_PERCENTILES = [1, 99]
"""Percentiles to which GPPerf's protocol clips."""
N_FORMATS = 3
"""Formats among which the fastest is chosen."""


@dataclass(frozen=True)
class HeldOutRows:
    """Rows to test on, and a predictor that was trained without them.

    Attributes:
        target: the predicted quantity.
        predictor: trained on ``known`` and the failed rows beside them.
        known: the successful training rows.
        test: the successful held-out rows.
        fit_s: processor seconds of the fit.
    """

    target: Target
    predictor: Predictor
    known: pd.DataFrame
    test: pd.DataFrame
    fit_s: float


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

    print(f"model: {arguments.model}; figures in %: mean / median / 95th percentile of |error|")
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    chosen_groups = set(names) or set(GROUPS)
    ratios: list[float] = []
    for group, tasks in GROUPS.items():
        if group in chosen_groups:
            thinned_tasks = (thinned(task, arguments.rows) for task in tasks(arguments.data, 0))
            ratios += [run_task(task, arguments.model) for task in thinned_tasks]
    mean_ratio = np.exp(np.mean(np.log(ratios)))
    n_worse = np.sum(np.array(ratios) > WORSE)
    print(
        f"\n{len(ratios)} lines: {mean_ratio:.2f} of plain boosting's error (geometric mean), "
        f"above {WORSE} on {n_worse}"
    )


def run_task(task: Task, model: str) -> float:
    """Train, test, print one line; more for few-shot transfer and for choices.

    Returns our mean error over that of the better plain XGBoost.
    """
    held_out = train_without(task, model)
    ratio = print_comparison(task.name, held_out)
    if task.few:
        print_copies(held_out)
        print_few_shots(task, held_out)
    if task.name.startswith("GEMM (n, k)"):
        print_format_choices(held_out)
    if task.name == "GEMM, H100, random rows":
        print_gpperf_protocol(held_out.predictor, task.runs)
    return ratio


def train_without(task: Task, model: str) -> HeldOutRows:
    """Train a predictor on the rows of a task that are not held out."""
    runs = task.runs.reset_index(drop=True)
    train = runs[~task.test].reset_index(drop=True)
    start_s = time.process_time()
    predictor = Predictor(model, targets=(task.target,)).fit(train)
    return HeldOutRows(
        target=task.target,
        predictor=predictor,
        known=_successful(train, task.target),
        test=_successful(runs[task.test], task.target),
        fit_s=time.process_time() - start_s,
    )


def _successful(runs: pd.DataFrame, target: str) -> pd.DataFrame:
    is_ok = (runs["status"] == "ok") & runs[target].notna()
    return runs[is_ok].reset_index(drop=True)


def print_comparison(name: str, held_out: HeldOutRows) -> float:
    """Print the line of a task; return our mean error over that of the better plain XGBoost."""
    target = held_out.target
    predictor = held_out.predictor
    known = held_out.known
    test = held_out.test
    truth = test[target].to_numpy()
    groups = task_numbers(test)

    baselines = predict_baselines(target, predictor.features_.family, known, test, BASELINES)
    cells = [errors(score(truth, predicted, groups)) for predicted in baselines.values()]
    forest = shallow_forest(predictor, known, test, target)
    cells.append(errors(score(truth, forest, groups)))

    raw = score(truth, on_raw_columns(known, test, target), groups)
    start_s = time.process_time()
    predicted = on_our_features(default_xgboost, predictor, known, test, target)
    plain_s = time.process_time() - start_s
    plain = score(truth, predicted, groups)
    cells += [errors(raw), f"{errors(plain)}; {plain_s:.1f}"]

    scores = score_of(predictor, test, target)
    ratio = float(scores["mape"] / min(raw["mape"], plain["mape"]))
    print_line(
        name,
        n_known=len(known),
        n_test=len(test),
        scores=scores,
        compared=cells,
        fit_s=f"{held_out.fit_s:.1f}",
        ratio=f"{ratio:.2f}" if math.isfinite(ratio) else "",
    )
    return ratio


def print_few_shots(task: Task, held_out: HeldOutRows) -> None:
    """Print the errors of predictors that were calibrated with a few held-out rows."""
    test = held_out.test
    for n_rows, n_draws in task.few.items():
        for how, draw in (("chosen", choose), ("at random", draw_at_random)):
            scores_of_draws = [
                few_shot(held_out, draw(held_out, n_rows, seed), seed) for seed in range(n_draws)
            ]
            mean_scores = {
                name: float(np.mean([scores[name] for scores in scores_of_draws]))
                for name in scores_of_draws[0]
            }
            print_line(
                f"… with {n_rows} runs there, {how} ({n_draws} draws)",
                n_known=len(held_out.known),
                n_test=len(test),
                scores=mean_scores,
                compared=[""] * N_COMPARED,
            )


def choose(held_out: HeldOutRows, n_rows: int, seed: int) -> np.ndarray:
    """Return the held-out rows that ``foretune calibrate --choose`` would have measured."""
    test = held_out.test
    columns = [name for name in test if name.startswith(("problem.", "config."))]
    chosen = held_out.predictor.choose(n_rows, test, seed=seed)[columns].drop_duplicates()

    # The first held-out row with each of the chosen settings.
    marked = test[columns].merge(chosen, how="left", indicator=True)
    is_chosen = marked["_merge"] == "both"
    return np.flatnonzero(is_chosen & ~test[columns].duplicated())


def draw_at_random(held_out: HeldOutRows, n_rows: int, seed: int) -> np.ndarray:
    """Return random held-out rows."""
    return np.random.default_rng(seed).choice(len(held_out.test), n_rows, replace=False)


def few_shot(held_out: HeldOutRows, chosen: np.ndarray, seed: int) -> Scores:
    """Return the scores, on other held-out rows, of a predictor calibrated with the chosen rows."""
    test = held_out.test
    other_rows = np.setdiff1d(np.arange(len(test)), chosen)
    n_tested = min(MAX_FEW_SHOT_ROWS, len(other_rows))
    tested = np.random.default_rng(seed).choice(other_rows, n_tested, replace=False)
    calibrated = held_out.predictor.calibrate(test.iloc[chosen])
    return score_of(calibrated, test.iloc[tested], held_out.target)


def print_copies(held_out: HeldOutRows) -> None:
    """Print the error of copying each known device's measurement of the same run, if it has one."""
    known = held_out.known
    test = held_out.test
    target = held_out.target
    keys = [
        name
        for name in test
        if name.startswith(("problem.", "config."))
        and name not in LABELS
        and test[name].notna().any()
    ]
    as_text = dict.fromkeys(keys, str)
    wanted = test[[*keys, target]].astype(as_text)
    for device in known["device"].unique():
        of_device = known[known["device"] == device].drop_duplicates(keys)
        copied = of_device[[*keys, target]].astype(as_text)
        both = wanted.merge(copied, on=keys, suffixes=("", "_there"))
        cell = "–"
        if len(both):
            groups = np.zeros(len(both), dtype=int)
            scores = score(both[target].to_numpy(), both[f"{target}_there"].to_numpy(), groups)
            cell = errors(scores)
        empty = "| " * (len(COLUMNS) - 3)
        print(f"| … copying {device} | {len(both):,} | {cell} {empty}|", flush=True)


def score_of(predictor: Predictor, test: pd.DataFrame, target: str) -> Scores:
    """Return the scores of ``predictor`` on ``test``."""
    predicted = predictor.predict(test)
    low = predicted[f"{target}_low"].to_numpy()
    high = predicted[f"{target}_high"].to_numpy()
    truth = test[target].to_numpy()
    return score(truth, predicted[target].to_numpy(), task_numbers(test), (low, high))


def print_line(
    name: str,
    *,
    n_known: int,
    n_test: int,
    scores: Scores,
    compared: list[str],
    fit_s: str = "",
    ratio: str = "",
) -> None:
    """Print one line of the table; ``compared`` are the cells of baselines and plain models."""
    figures = errors(scores)
    if np.isfinite(scores["top5_regret"]) and "space" in name:
        figures += f" (regret of the top 5: {100 * scores['top5_regret']:.1f})"
    elif "MIOpen" in name:
        figures += f" (regret of the first: {100 * scores['top1_regret']:.1f})"
    elif "GPPerf" in name:
        figures += f", R² {scores['r2']:.3f}"
    interval = f"{100 * scores['coverage90']:.0f} %; ±{100 * scores['width90']:.0f} %"
    cells = [name, f"{n_known:,} / {n_test:,}", figures, interval, *compared, fit_s, ratio]
    print("| " + " | ".join(cells) + " |", flush=True)


def errors(scores: Scores) -> str:
    """Return mean, median and 95th percentile of the absolute percentage error."""
    mean = 100 * scores["mape"]
    if not np.isfinite(mean):
        return "–"
    return f"{mean:.2f} / {100 * scores['median_ape']:.2f} / {100 * scores['p95_ape']:.1f}"


def print_gpperf_protocol(predictor: Predictor, runs: pd.DataFrame) -> None:
    """Print the errors of GPPerf's model by its own protocol.

    Features and truth are clipped to their 1st and 99th percentile, then rows are split at random.
    """
    X = _clipped(plain_features(predictor, runs))
    truth = _clipped(runs["time_ms"].to_numpy())
    is_test = np.random.default_rng(0).random(len(runs)) < SHARE
    forest = depth_6_forest().fit(X[~is_test], truth[~is_test])
    predicted = np.asarray(forest.predict(X[is_test]))
    scores = score(truth[is_test], predicted, task_numbers(runs[is_test]))
    n_known = (~is_test).sum()
    n_test = is_test.sum()
    print(
        f"| GPPerf's protocol: random rows, all clipped | {n_known:,} / {n_test:,} | "
        f"| | | | | {errors(scores)}, R² {scores['r2']:.3f} | | | | |",
        flush=True,
    )


def _clipped(values: np.ndarray) -> np.ndarray:
    low, high = np.percentile(values, CLIP_PERCENTILES, axis=0)
    return np.clip(values, low, high)


def print_format_choices(held_out: HeldOutRows) -> None:
    """Print how often the fastest format of an unseen shape is chosen, and what a miss costs."""
    shape = ["problem.M", "problem.N", "problem.K"]
    test = held_out.test
    predicted = held_out.predictor.predict(test)["time_ms"]
    table: Any = test[shape].assign(truth=test["time_ms"], predicted=predicted)
    is_right = []
    regret = []
    for _, formats in table.groupby(shape):
        if len(formats) != N_FORMATS:
            continue
        chosen_ms = formats.loc[formats["predicted"].idxmin(), "truth"]
        best_ms = formats["truth"].min()
        is_right.append(chosen_ms == best_ms)
        regret.append(chosen_ms / best_ms - 1)
    print(
        f"| choosing bf16, fp8 or fp8_block there | {len(is_right):,} shapes | right "
        f"{100 * np.mean(is_right):.1f} %, regret {100 * np.mean(regret):.2f} % "
        "| | | | | | | | | |",
        flush=True,
    )


if __name__ == "__main__":
    main()
