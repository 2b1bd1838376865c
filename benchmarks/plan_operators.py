"""How far off the planner's operators are on rows that were held out: prints a table, or JSON.

Run: ``python benchmarks/plan_operators.py DATA [--only gemm] [--json]`` where DATA holds ``llm/``
(tables of AIConfigurator's measurements, Apache-2.0). Every line takes rows out of the planner's
tables and asks its clock about them. Beside it stands a predictor that was trained on the same rows
for the line alone, with all columns of the table: the difference is what planners do not know.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from machine import heading, markdown
from predictor_tasks import H100, Task, attention, gemm, moe

from foretune.collect import local_device
from foretune.device import find_device
from foretune.models import Predictor
from foretune.plan.cost.kinds import with_expert_kind
from foretune.plan.cost.operator_predictor import TrainedPredictorCache
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.cost.times import OperatorTimer

SYSTEM = "h100_sxm"
ENGINE = "trtllm"
TASKS = (
    "GEMM (n, k), H100",
    "GEMM m, H100",
    "attention prefill, heads, H100",
    "attention decode, KV length, H100",
    "MoE models, H100 (draw 1)",
)
METRICS = ("mape", "median_ape")
Scores = dict[str, float]


class Known(OperatorTables):
    """The rows that were not held out, in the place of files."""

    def __init__(self, runs: pd.DataFrame) -> None:
        super().__init__()
        self._runs = runs

    def backends(self, system: str) -> list[str]:
        """Return the one engine."""
        return [ENGINE]

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        """Return all rows."""
        return self._runs


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="", help="lines whose name holds this")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result: dict[str, dict[str, Scores]] = {}
    for task in tasks(arguments.data, arguments.only):
        result[task.name] = {"planner": of_planner(task), "alone": of_predictor(task)}
        print(f"{task.name}: {result[task.name]}", file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps(result))
        return
    print(heading("The planner's operators on rows that were held out", local_device("cpu")))
    print("error: mean / median, %\n")
    names = ("held out", "planner", "predictor of this line alone")
    print(markdown(names, [[name, *cells(line)] for name, line in result.items()]))


def tasks(data: Path, only: str) -> Iterator[Task]:
    """Give the lines whose name holds ``only``."""
    for group, word in ((gemm, "GEMM"), (attention, "attention"), (moe, "MoE")):
        if any(only in name for name in TASKS if name.startswith(word)):
            for task in group(data):
                if task.name in TASKS and only in task.name:
                    told = with_expert_kind(task.runs) if word == "MoE" else task.runs
                    yield replace(task, runs=told)


def of_planner(task: Task) -> Scores:
    """Return how the planner's clock does that has the rows which were not held out."""
    known = task.runs[~task.test]
    test = task.runs[task.test]
    with tempfile.TemporaryDirectory() as folder:
        kept = TrainedPredictorCache(folder=Path(folder))
        clock = OperatorTimer(find_device(H100), Known(known), SYSTEM, ENGINE, predictors=kept)
        times = clock.times(test.drop(columns="time_ms"))
    return scores(times.ms, test)


def of_predictor(task: Task) -> Scores:
    """Return how a predictor does that was trained for the task alone."""
    test = task.runs[task.test]
    said = Predictor(targets=("time_ms",)).fit(task.runs[~task.test]).predict(test)
    return scores(said["time_ms"].to_numpy(), test)


def scores(ms: np.ndarray, test: pd.DataFrame) -> Scores:
    """Return the errors."""
    measured = test["time_ms"].to_numpy(dtype=float)
    error = np.abs(ms / measured - 1.0)
    return dict(zip(METRICS, (float(error.mean()), float(np.median(error))), strict=True))


def cells(line: dict[str, Scores]) -> list[str]:
    """Return the cells of one line of the table."""
    return [" / ".join(f"{100.0 * s[name]:.2f}" for name in METRICS) for s in line.values()]


if __name__ == "__main__":
    main()
