"""Which correction ranks deployments best? Prints errors and regrets side by side.

Run: ``python benchmarks/plan_ranking.py e2e_silicon.parquet [--operators DIR]``, the table of
`plan.py`; four minutes. Configurations are held out in folds. Formulas alone are beside three
corrections of them: the process that plans use, XGBoost on the same columns, and the mean of both
in logs. Regret is the throughput that a choice of layout loses, see `plan_choices`. Models are in
two halves, so that what is chosen on one can be reported on the other.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from plan_choices import choices
from plan_table import SOME, Table, folds

from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.serve.deployments.correction import TARGETS, LatencyPredictor
from foretune.plan.serve.deployments.latency_formulas import formula_latencies

KINDS = ("parallelism, equal GPUs", "parallelism, equal GPUs and version", "formats")


def main() -> None:
    """Print a row per half and rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--operators", type=Path, help="folder of measured operators")
    arguments = parser.parse_args()
    table = Table.read(arguments.table, StepTimerFactory(find_tables(arguments.operators)), None)
    predicted = held_out_latencies(table)

    columns = ["models", "correction", "TPOT, %", "TTFT, %", *(f"regret: {kind}" for kind in KINDS)]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    names = sorted(set(table.data.models))
    is_first = np.isin(table.data.models, names[::2])
    halves = {"all": is_first | ~is_first, "first half": is_first, "second half": ~is_first}
    for half, some in halves.items():
        for rule, latencies in predicted.items():
            print(f"| {half} | {rule} | {' | '.join(scores(table, latencies, some))} |")


def held_out_latencies(table: Table) -> dict[str, pd.DataFrame]:
    """Return the latencies of every row by each rule, learned from the other folds."""
    rows = table.rows
    measured = table.data.measured
    formulas = formula_latencies(rows)
    process = formulas.copy()
    boosting = formulas.copy()
    fold = folds(table.data.groups, SOME)
    for number in range(fold.max() + 1):
        print(f"fold {number + 1} of {fold.max() + 1}", file=sys.stderr)
        out = fold == number
        model = LatencyPredictor().fit_processes(rows[~out], measured[~out])
        process.loc[out] = model.predict_mean(rows[out])[0]
        for target in TARGETS:
            log_ratio = np.log(measured[target] / formulas[target])
            corrected = boost(rows, log_ratio, ~out)
            boosting.loc[out, target] = formulas.loc[out, target] * np.exp(corrected[out])
    both = np.exp(0.5 * (np.log(process) + np.log(boosting)))
    return {"none": formulas, "process": process, "XGBoost": boosting, "mean of both": both}


def boost(rows: pd.DataFrame, log_ratio: "pd.Series[float]", known: np.ndarray) -> np.ndarray:
    """Return XGBoost's log ratio of all rows, learned from those ``known``."""
    from xgboost import XGBRegressor

    X = pd.get_dummies(rows, dtype=float).to_numpy(dtype=float)
    model: Any = XGBRegressor(
        n_estimators=400, max_depth=6, learning_rate=0.05, subsample=0.8, colsample_bytree=0.8
    )
    model.fit(X[known], log_ratio.to_numpy()[known])
    return np.asarray(model.predict(X))


def scores(table: Table, latencies: pd.DataFrame, some: np.ndarray) -> list[str]:
    """Return median errors and mean regrets of some rows in percent, as cells."""
    measured = table.data.measured[some]
    chosen = latencies[some]
    errors = [
        f"{100 * (chosen[target] / measured[target] - 1.0).abs().median():.1f}"
        for target in TARGETS
    ]
    deployments = [d for d, used in zip(table.data.deployments, some, strict=True) if used]
    with_limits = chosen.assign(tpot_ms_high=chosen["tpot_ms"])
    of_kind = choices(
        deployments, measured.reset_index(drop=True), with_limits.reset_index(drop=True)
    )
    regrets = [
        f"{100 * of_kind[kind]['mean_regret']:.1f} ({of_kind[kind]['groups']})" for kind in KINDS
    ]
    return [*errors, *regrets]


if __name__ == "__main__":
    main()
