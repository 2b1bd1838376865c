"""How should a correction of latencies treat outliers? Prints a table.

Run: ``python benchmarks/plan_outliers.py e2e_silicon.parquet [--operators DIR]``, the table of
`plan.py`; ten minutes. Configurations, or whole models, are held out in five folds. A rule that is
chosen on one half of the models can be checked on the other.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from plan_table import SOME, Table, folds

from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import find_tables
from foretune.plan.serve.deployments.correction import TARGETS, fit_error_processes
from foretune.plan.serve.deployments.group_process import Outliers, deployment_points
from foretune.plan.serve.deployments.latency_formulas import formula_latencies

RULES = {
    "3 degrees": Outliers(),
    "1 degree": Outliers(degrees_of_freedom=1.0),
    "3 degrees, of the formulas first": Outliers(of_the_mean=True),
    "1 degree, of the formulas first": Outliers(degrees_of_freedom=1.0, of_the_mean=True),
}
"""Name -> rule; degrees of freedom are those of the noise."""


def main() -> None:
    """Print a row per latency, rule, and what is held out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--operators", type=Path, help="folder of measured operators")
    arguments = parser.parse_args()
    table = Table.read(arguments.table, StepTimerFactory(find_tables(arguments.operators)), None)
    names = sorted(set(table.data.models))
    is_first = np.isin(table.data.models, names[::2])
    halves = (is_first, ~is_first)
    formulas = formula_latencies(table.rows)
    splits = {"configurations": table.data.groups, "models": table.data.models}

    print("| latency | held out | outliers | first half | second half |")
    print("|---|---|---|---|---|")
    for target in TARGETS:
        print(row([target, "", "formulas alone"], errors(table, formulas[target], target), halves))
        for held_out, groups in splits.items():
            for name, rule in RULES.items():
                print(f"{target}, {held_out}: {name}", file=sys.stderr)
                predicted = held_out_latency(table, target, folds(groups, SOME), rule)
                log_errors = errors(table, predicted, target)
                print(row([target, held_out, name], log_errors, halves), flush=True)


def held_out_latency(
    table: Table, target: str, fold: np.ndarray, rule: Outliers
) -> "pd.Series[float]":
    """Return the latency of every row, corrected by what was learned from the other folds."""
    rows = table.rows
    measured = table.data.measured
    latency = formula_latencies(rows)
    predicted = latency[target].copy()
    for number in range(fold.max() + 1):
        out = fold == number
        processes = fit_error_processes(
            rows[~out], measured[~out], latency[~out], [target], {target: rule}
        )
        log_error, _ = processes[target].predict(deployment_points(rows[out]))
        predicted[out] *= np.exp(log_error)
    return predicted


def errors(table: Table, predicted: "pd.Series[float]", target: str) -> np.ndarray:
    """Return log(predicted / measured)."""
    return np.log(predicted.to_numpy() / table.data.measured[target].to_numpy())


def row(cells: list[str], log_errors: np.ndarray, halves: tuple[np.ndarray, ...]) -> str:
    """Return median, mean and 95th percentile of |error| of both halves, in percent."""
    for half in halves:
        error = np.abs(np.exp(log_errors[half]) - 1.0)
        figures = (np.median(error), error.mean(), np.quantile(error, 0.95))
        cells = [*cells, " / ".join(f"{100 * figure:.1f}" for figure in figures)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
