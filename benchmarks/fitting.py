"""What does it cost to fit a predictor, and how far off is it then?

    taskset -c 1 python benchmarks/fitting.py DATA [--only MIOpen,prefill]

DATA is that of `predictors.py`. Each line trains on at most 10,000 rows of whole problems, and
tests on problems that were held out. The baseline is plain XGBoost on the same features.
CPU-seconds are those of all threads during the fit alone; on one core (``taskset``), threads do not
wait for each other.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import heading
from plain_models import default_xgboost, on_our_features
from predictor_tasks import Task, attention, few_problems, gemm, held_out, libraries, moe, power
from predictors import errors, score_of
from shipped import to_learn_from

from foretune.collect import local_device
from foretune.datasets import load
from foretune.datasets.schema import columns_of
from foretune.models import Predictor
from foretune.models.splits import group_numbers, task_numbers
from foretune.models.validation.metrics import score

MAX_TRAINING_ROWS = 10_000
MAX_TEST_ROWS = 5_000
SHIPPED = "amd-epyc-2-cores"
DRAWS = 2
FEW_PROBLEMS = ("16 bits: 8 problems (draw 1)", "16 bits: 32 problems (draw 1)")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    arguments = parser.parse_args()
    parts = tuple(filter(None, arguments.only.split(",")))
    print(heading("What a fit costs", local_device("cpu")))
    print(
        "| held out | train / test rows | Foretune, % | 90 % interval holds; width | CPU-s | "
        "XGBoost, % | CPU-s |"
    )
    print("|---|---|---|---|---|---|---|")
    for task in tasks(arguments.data):
        if not parts or any(part in task.name for part in parts):
            run_task(smaller(task))


def tasks(data: Path) -> Iterator[Task]:
    """Yield tables of every kind: many problems and few, with neighbors and without."""
    runs = to_learn_from(load(SHIPPED))
    for kernel in ("matmul", "softmax", "quantized_matvec"):
        rows = runs[runs["kernel"] == kernel].dropna(axis=1, how="all").reset_index(drop=True)
        for draw in range(DRAWS):
            out = held_out(rows, columns_of(rows, "problem"), draw)
            yield Task(f"shipped {kernel}, problems (draw {draw + 1})", rows, out)
    for draw in range(DRAWS):
        for group in (gemm, attention, moe, libraries, power):
            task = next(group(data, draw))
            yield replace(task, name=f"{task.name} (draw {draw + 1})")
    for task in few_problems(data):
        if "mm, A100" in task.name and task.name.endswith(FEW_PROBLEMS):
            yield task


def smaller(task: Task) -> Task:
    """Return the task with at most `MAX_TRAINING_ROWS` and `MAX_TEST_ROWS`."""
    rng = np.random.default_rng(0)

    # Training rows: whole problems in random order; the last one may be cut.
    problem = group_numbers(task.runs, "problem")
    shuffled = rng.permutation(int(problem.max()) + 1)
    position_of_problem = np.argsort(shuffled)
    training = np.flatnonzero(~task.test)
    by_problem = np.argsort(position_of_problem[problem[training]], kind="stable")
    training = training[by_problem[:MAX_TRAINING_ROWS]]

    # Test rows: any of them.
    test = np.flatnonzero(task.test)
    if len(test) > MAX_TEST_ROWS:
        test = rng.choice(test, MAX_TEST_ROWS, replace=False)

    kept = np.sort(np.concatenate([training, test]))
    runs = task.runs.iloc[kept].reset_index(drop=True)
    return replace(task, runs=runs, test=np.asarray(task.test)[kept])


def run_task(task: Task) -> None:
    """Fit, test, print one line."""
    train = task.runs[~task.test].reset_index(drop=True)
    measured = (task.runs["status"] == "ok") & task.runs[task.target].notna()
    measured_train = task.runs[~task.test & measured].reset_index(drop=True)
    test = task.runs[task.test & measured].reset_index(drop=True)

    predictor = Predictor(targets=(task.target,))
    predictor_seconds = cpu_seconds(lambda: predictor.fit(train))
    xgboost_seconds: list[float] = []

    def timed_xgboost() -> object:
        learner = default_xgboost().set_params(n_jobs=1)  # waiting threads cost CPU time, too
        fit = learner.fit
        learner.fit = lambda X, y: xgboost_seconds.append(cpu_seconds(lambda: fit(X, y)))
        return learner

    value = on_our_features(timed_xgboost, predictor, measured_train, test, task.target)
    plain = errors(score(test[task.target].to_numpy(), value, task_numbers(test)))
    scores = score_of(predictor, test, task.target)
    interval = f"{100 * scores['coverage90']:.0f} %; ±{100 * scores['width90']:.0f} %"
    cells = [
        task.name,
        f"{len(measured_train):,} / {len(test):,}",
        errors(scores),
        interval,
        f"{predictor_seconds:.1f}",
        plain,
        f"{xgboost_seconds[0]:.1f}",
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of ``work``, of all threads together."""
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
