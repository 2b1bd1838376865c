"""What does `foretune.patch_inductor()` keep, and how many timings does it save?

Replays a recorded table: for each problem, the times of the library's routine and of all of
Inductor's templates. Every problem comes once, as when a model is compiled. The chooser names the
templates to time, and gets their times. Printed per budget: the share of the best choice's speed
that the best timed one keeps, the timings that are saved, and the share for as many random ones.

    python benchmarks/inductor.py DATA/triton/mm__A100.parquet --learn-from OTHER.parquet …

The orders of launches are learned from the tables of other kernels, because the shipped ones have
learned from this table. The library's routines are in the table ``…__library.parquet`` beside it.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from launch_training import fit_orders
from machine import heading, markdown
from recorded_tables import read
from torch._inductor.ir import FixedLayout

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "replay_gpu"))

from replay_driver import ReplayDriver

from foretune.collect import local_device
from foretune.datasets.schema import columns_of
from foretune.tune.triton import prior
from foretune.tune.triton.inductor import InductorChooser

BUDGETS = (1, 2, 4, 8)
LEARNED = 400
"""Problems of another table that the orders of launches learn from."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--learn-from", type=Path, nargs="+", required=True)
    parser.add_argument("--problems", type=int, default=100)
    options = parser.parse_args()
    library = options.table.with_name(f"{options.table.stem}__library.parquet")
    runs = pd.read_parquet(options.table)
    routines = pd.read_parquet(library)
    device = str(runs["device"].iloc[0])
    orders = fit_orders(
        [
            problem.learned
            for path in options.learn_from
            for of_kernel in read(path, LEARNED).values()
            for problem in of_kernel
        ]
    )
    with (
        patch.object(prior, "shipped_orders", lambda: orders),
        ReplayDriver(lambda launch: 1.0, device=device).active(),
    ):
        problems = list(listed(runs, routines, options.problems))
        rows = [[str(budget), *replay(problems, budget)] for budget in BUDGETS]
    templates = sum(len(choices) - 1 for choices in problems)
    print(heading(f"Inductor's choices, {options.table.stem}", local_device("cpu")))
    print(f"{len(problems)} problems, {templates / len(problems):.0f} templates each\n")
    columns = ["templates timed", "share kept, mean", "5 %", "worst", "random", "timings saved"]
    print(markdown(columns, rows))


def replay(problems: list[list["Recorded"]], budget: int) -> list[str]:
    """Return the cells of a budget. The first choice of a problem, the routine, is always timed."""
    chooser = InductorChooser(budget, False)
    rng = np.random.default_rng(budget)
    kept = []
    kept_by_random = []
    n_timed = 0
    n_templates = 0
    for choices in problems:
        best_ms = min(choice.time_ms for choice in choices)

        shortened = chooser.shorten(choices)
        timings = {choice: choice.time_ms for choice in shortened}
        chooser.record_timings(timings, "mm", None, shortened)
        kept.append(best_ms / min(timings.values()))
        n_timed += len(shortened) - 1
        n_templates += len(choices) - 1

        drawn = rng.choice(range(1, len(choices)), len(shortened) - 1, replace=False)
        drawn_ms = [choices[i].time_ms for i in (0, *drawn)]
        kept_by_random.append(best_ms / min(drawn_ms))
    return [
        f"{np.mean(kept):.3f}",
        f"{np.percentile(kept, 5):.3f}",
        f"{min(kept):.3f}",
        f"{np.mean(kept_by_random):.3f}",
        f"{1 - n_timed / n_templates:.0%}",
    ]


@dataclass
class Node:
    """An operand."""

    layout: FixedLayout

    def get_layout(self) -> FixedLayout:
        """Return shape, strides and type."""
        return self.layout


@dataclass(eq=False)
class Recorded:
    """A choice of Inductor and its time."""

    name: str
    description: str
    input_nodes: list[Node]
    layout: FixedLayout
    time_ms: float


def listed(runs: pd.DataFrame, routines: pd.DataFrame, count: int) -> Iterator[list[Recorded]]:
    """Yield the choices of ``count`` random problems whose routine was timed: the routine first."""
    keys = [name for name in columns_of(routines, "problem") if name in runs]
    routine_ms = {tuple(row[keys]): row["time_ms"] for _, row in routines.iterrows()}
    problems = list(runs.groupby(keys, sort=False, dropna=False))
    order = np.random.default_rng(0).permutation(len(problems))
    for key, rows in (problems[i] for i in order[:count]):
        library_ms = routine_ms.get(key, np.nan)
        if np.isnan(library_ms):
            continue

        a, b, result = layouts(rows.iloc[0])
        operands = [Node(a), Node(b)]
        choices = [Recorded("mm", "", operands, result, library_ms)]
        for i, row in enumerate(rows.to_dict("records")):
            knobs = {name.removeprefix("config."): row[name] for name in columns_of(rows, "config")}
            text = ", ".join(f"{name}={value}" for name, value in knobs.items())
            time_ms = row["time_ms"] if row["status"] == "ok" else np.inf
            choices.append(Recorded(f"triton_mm_{i}", text, operands, result, time_ms))
        yield choices


def layouts(row: Any) -> tuple[FixedLayout, FixedLayout, FixedLayout]:
    """Return the layouts of both operands and the result of a product."""
    m, n, k = (int(row[f"problem.{size}"]) for size in "MNK")

    def operand(number: int, shape: list[int]) -> FixedLayout:
        strides = [int(row[f"problem.mat{number}_stride_{axis}"]) for axis in (0, 1)]
        dtype = getattr(torch, row[f"problem.mat{number}_dtype"])
        return FixedLayout(torch.device("cuda:0"), dtype, shape, strides)

    a = operand(1, [m, k])
    b = operand(2, [k, n])
    result = FixedLayout(torch.device("cuda:0"), a.dtype, [m, n], [n, 1])
    return a, b, result


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
