"""What it costs to fit a predictor, and how far off it then is: prints a table.

Run: ``python benchmarks/fitting.py DATA [--only MIOpen,prefill]``, on one core (``taskset``): there
threads do not wait for each other. DATA is that of `predictors.py`. Every line trains on at most
10,000 rows, whole problems, and tests on problems that were held out. Beside it stands plain
XGBoost on the same features. CPU-seconds are those of all threads, of the fit alone.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import heading
from predictor_tasks import Task, attention, few_problems, gemm, held_out, libraries, moe, power
from predictors import errors, on_roofline, score_of, xgboost_beside
from shipped import to_learn_from

from foretune.collect import local_device
from foretune.datasets import load
from foretune.datasets.schema import columns_of
from foretune.models import Predictor
from foretune.models.splits import group_numbers, task_numbers
from foretune.models.validation.metrics import score

MOST_ROWS, MOST_TESTED = 10_000, 5_000
SHIPPED = "amd-epyc-2-cores"
DRAWS = 2
FEW = ("16 bits: 8 problems (draw 1)", "16 bits: 32 problems (draw 1)")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    arguments = parser.parse_args()
    wanted = tuple(filter(None, arguments.only.split(",")))
    print(heading("What a fit costs", local_device("cpu")))
    print(
        "| held out | train / test rows | Foretune, % | 90 % interval holds; width | CPU-s | "
        "XGBoost, % | CPU-s |"
    )
    print("|---|---|---|---|---|---|---|")
    for task in tasks(arguments.data):
        if not wanted or any(name in task.name for name in wanted):
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
        if "mm, A100" in task.name and task.name.endswith(FEW):
            yield task


def smaller(task: Task) -> Task:
    """Return the task with at most so many rows to learn from and to test on."""
    rng = np.random.default_rng(0)
    groups = group_numbers(task.runs, "problem")
    known = np.flatnonzero(~task.test)
    order = rng.permutation(int(groups.max()) + 1)
    rank = np.argsort(order)[groups[known]]
    known = known[np.argsort(rank, kind="stable")[:MOST_ROWS]]
    out = np.flatnonzero(task.test)
    out = out if len(out) <= MOST_TESTED else rng.choice(out, MOST_TESTED, replace=False)
    some = np.sort(np.concatenate([known, out]))
    runs = task.runs.iloc[some].reset_index(drop=True)
    return replace(task, runs=runs, test=np.asarray(task.test)[some])


def run_task(task: Task) -> None:
    """Fit, test, print one line."""
    train, test = (task.runs[of].reset_index(drop=True) for of in (~task.test, task.test))
    ok = [(rows["status"] == "ok") & rows[task.target].notna() for rows in (train, test)]
    known, test = train[ok[0]].reset_index(drop=True), test[ok[1]].reset_index(drop=True)
    predictor = Predictor(targets=(task.target,))
    own = cpu_seconds(lambda: predictor.fit(train))
    spent: list[float] = []

    def timed() -> object:
        learner = xgboost_beside().set_params(n_jobs=1)  # threads that wait for another cost too
        fit = learner.fit
        learner.fit = lambda X, y: spent.append(cpu_seconds(lambda: fit(X, y)))
        return learner

    value = on_roofline(timed, predictor, known, test, task.target)
    plain = errors(score(test[task.target].to_numpy(), value, task_numbers(test)))
    scores = score_of(predictor, test, task.target)
    interval = f"{100 * scores['coverage90']:.0f} %; ±{100 * scores['width90']:.0f} %"
    cells = [
        task.name,
        f"{len(known):,} / {len(test):,}",
        errors(scores),
        interval,
        f"{own:.1f}",
        plain,
        f"{spent[0]:.1f}",
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return what ``work`` takes of all threads together."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
