"""Should deployments whose operators are not in the tables be chosen last?

Run: ``python benchmarks/plan_extrapolated.py e2e_silicon.parquet [--operators DIR]``, measured
deployments as for ``plan.py``. Number formats are taken out of the operators' tables, one after the
other. The deployments in such a format are then extrapolated from other formats, as in plans, and
compete with measured ones for the same load. Configurations are held out of the correction.

Printed per hidden format: the median error of times per token with and without its tables; and the
mean regret of choices by predicted throughput, if extrapolated deployments count like others, and
if they are chosen only where there is no other.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from machine import markdown
from plan_choices import groups_of, regret_of, table_of
from plan_table import SOME, Table, folds

from foretune.plan.cost.operator_predictor import TrainedPredictorCache
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import OperatorTables, find_tables
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.correction import LatencyPredictor
from foretune.plan.serve.planner import MAX_EXTRAPOLATED_SHARE

HIDDEN = {
    "none": (),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("mxfp4", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8"),
    "fp8": ("fp8", "fp8_static", "fp8_block"),
}
SAME = {
    "formats": ["model", "system", "backend", "isl", "osl", "concurrency", "layout"],
    "everything": ["model", "system", "isl", "osl", "concurrency"],
}
"""What is chosen -> the columns that agree among the deployments to choose from."""


class PartialTables(OperatorTables):
    """Measured operators without those in some formats."""

    def __init__(self, whole: OperatorTables, hidden: tuple[str, ...]) -> None:
        super().__init__(*whole.folders)
        self._hidden = hidden

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        """Return the rows that are left."""
        rows = super().rows(kernel, system, backend)
        if rows is None or "config.format" not in rows:
            return rows
        left = rows[~rows["config.format"].isin(self._hidden)]
        return left if len(left) else None


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("deployments", type=Path)
    parser.add_argument("--operators", type=Path, help="folder of measured operators")
    arguments = parser.parse_args()
    tables = find_tables(arguments.operators)
    if tables is None:
        parser.error("no measured operators: install aiconfigurator-core, or give --operators")
    whole = Table.read(arguments.deployments, StepTimerFactory(tables), None)
    fold = folds(whole.data.groups, SOME)
    models = [
        LatencyPredictor().fit_processes(whole.rows[fold != i], whole.data.measured[fold != i])
        for i in range(SOME)
    ]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        cache = TrainedPredictorCache(folder=Path(folder))
        for name, formats in HIDDEN.items():
            timers = StepTimerFactory(PartialTables(tables, formats), cache)
            lines += compared(whole, fold, models, name, formats, timers)
    head = [
        "hidden",
        "deployments",
        "error, without / with tables, %",
        "choice",
        "models",
        "groups",
        "like others, %",
        "last, %",
    ]
    print(markdown(head, lines))


def compared(
    whole: Table,
    fold: np.ndarray,
    models: list[LatencyPredictor],
    name: str,
    formats: tuple[str, ...],
    timers: StepTimerFactory,
) -> list[list[str]]:
    """Return the lines of a hidden format."""
    deployments = whole.data.deployments
    measured = whole.data.measured
    hidden = np.array(
        [bool({d.formats.weights, d.formats.moe} & {*formats}) for d in deployments], dtype=bool
    )
    rows = whole.rows.copy()
    errors = ["", ""]
    before = predict(models, fold, rows)
    if hidden.any():
        index = np.flatnonzero(hidden)
        rows.loc[hidden] = analytic_times([deployments[i] for i in index], timers).to_numpy()
    predicted = predict(models, fold, rows)
    for i, latencies in enumerate((predicted, before)):
        error = (latencies["tpot_ms"] / measured["tpot_ms"] - 1.0).abs()
        errors[i] = f"{100 * error[hidden if hidden.any() else slice(None)].median():.1f}"
    table = table_of(deployments, measured, predicted)
    guessed = rows["guessed"].astype(float).to_numpy()[table["row"]]
    table["extrapolated"] = guessed > MAX_EXTRAPOLATED_SHARE
    lines = []
    for choice, same in SAME.items():
        groups = list(groups_of(table, same, "extrapolated"))
        if not groups:
            continue
        like = [regret_of(group) for group in groups]
        last = [regret_of(group, group[~group["extrapolated"]]) for group in groups]
        among = {group["model"].iloc[0] for group in groups}
        regrets = [f"{100 * np.mean(some):.1f}" for some in (like, last)]
        count = str(int(hidden.sum()) or len(deployments))
        lines.append(
            [name, count, " / ".join(errors), choice, str(len(among)), str(len(groups)), *regrets]
        )
    return lines


def predict(models: list[LatencyPredictor], fold: np.ndarray, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the latencies of rows, each by the model that did not learn its fold."""
    parts = [model.predict_mean(rows[fold == i])[0] for i, model in enumerate(models)]
    return pd.concat(parts).sort_index()


if __name__ == "__main__":
    main()
