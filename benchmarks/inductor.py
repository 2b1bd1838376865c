"""What does `foretune.patch_inductor()` keep, and how many timings does it save?

Replays a recorded table of Inductor's own: for each problem the library's routine and all templates
with what they took. Every problem comes once, as when a model is compiled; the chooser says what to
time, and is told what that took. Printed per budget: the share of the best choice's speed that the
best one timed keeps, how many templates were timed, and the same of as many drawn at random.

    python benchmarks/inductor.py DATA/triton/mm__A100.parquet --learn-from OTHER.parquet …

The order of launches is learned from the tables of other kernels that are named: the one that comes
with Foretune has seen this table. The routines are in the table beside it, ``…__library.parquet``.
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
from launch_training import fit_order
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
"""Problems of another table that the order of launches learns from."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--learn-from", type=Path, nargs="+", required=True)
    parser.add_argument("--problems", type=int, default=100)
    options = parser.parse_args()
    library = options.table.with_name(f"{options.table.stem}__library.parquet")
    runs, routines = pd.read_parquet(options.table), pd.read_parquet(library)
    device = str(runs["device"].iloc[0])
    others = [
        r.learned
        for path in options.learn_from
        for some in read(path, LEARNED).values()
        for r in some
    ]
    order = fit_order(others)
    rows = []
    with (
        patch.object(prior, "shipped_order", lambda: order),
        ReplayDriver(lambda launch: 1.0, device=device).active(),
    ):
        problems = list(listed(runs, routines, options.problems))
        for budget in BUDGETS:
            chooser = InductorChooser(budget, False)
            rng = np.random.default_rng(budget)
            kept, drawn, timed, every = [], [], 0, 0
            for choices in problems:
                times = {c: c.time_ms for c in choices}
                few = chooser.shorten(choices)
                chooser.record_timings({c: times[c] for c in few}, "mm", None, few)
                best = min(times.values())
                kept.append(best / min(times[c] for c in few))
                some = [0, *rng.choice(range(1, len(choices)), len(few) - 1, replace=False)]
                drawn.append(best / min(times[choices[i]] for i in some))
                timed, every = timed + len(few) - 1, every + len(choices) - 1
            rows.append(
                [
                    str(budget),
                    f"{np.mean(kept):.3f}",
                    f"{np.percentile(kept, 5):.3f}",
                    f"{min(kept):.3f}",
                    f"{np.mean(drawn):.3f}",
                    f"{1 - timed / every:.0%}",
                ]
            )
    print(heading(f"Inductor's choices, {options.table.stem}", local_device("cpu")))
    print(f"{len(problems)} problems, {every / len(problems):.0f} templates each\n")
    columns = ["templates timed", "share kept, mean", "5 %", "worst", "random", "timings saved"]
    print(markdown(columns, rows))


@dataclass
class Node:
    """An operand."""

    layout: FixedLayout

    def get_layout(self) -> FixedLayout:
        """Return how it lies in memory."""
        return self.layout


@dataclass(eq=False)
class Recorded:
    """A choice of Inductor's, and what it took."""

    name: str
    description: str
    input_nodes: list[Node]
    layout: FixedLayout
    time_ms: float


def listed(runs: pd.DataFrame, routines: pd.DataFrame, count: int) -> Iterator[list[Recorded]]:
    """Yield the choices of problems, drawn at random: the routine first."""
    keys = [c for c in columns_of(routines, "problem") if c in runs]
    routine_ms = {tuple(r[keys]): r["time_ms"] for _, r in routines.iterrows()}
    groups = list(runs.groupby(keys, sort=False, dropna=False))
    order = np.random.default_rng(0).permutation(len(groups))
    for key, rows in (groups[i] for i in order[:count]):
        a, b, c = layouts(rows.iloc[0])
        nodes = [Node(a), Node(b)]
        known = routine_ms.get(key, np.nan)
        choices = [Recorded("mm", "", nodes, c, known)] if known == known else []
        for i, row in enumerate(rows.to_dict("records")):
            knobs = {n.removeprefix("config."): row[n] for n in columns_of(rows, "config")}
            text = ", ".join(f"{n}={v}" for n, v in knobs.items())
            time_ms = row["time_ms"] if row["status"] == "ok" else np.inf
            choices.append(Recorded(f"triton_mm_{i}", text, nodes, c, time_ms))
        if choices[0].name == "mm":
            yield choices


def layouts(row: Any) -> tuple[FixedLayout, FixedLayout, FixedLayout]:
    """Return how both operands and the result of a product lie in memory."""
    m, n, k = (int(row[f"problem.{x}"]) for x in "MNK")
    made = []
    for i, shape in ((1, (m, k)), (2, (k, n))):
        strides = [int(row[f"problem.mat{i}_stride_{axis}"]) for axis in (0, 1)]
        dtype = getattr(torch, row[f"problem.mat{i}_dtype"])
        made.append(FixedLayout(torch.device("cuda:0"), dtype, list(shape), strides))
    result = FixedLayout(torch.device("cuda:0"), made[0].dtype, [m, n], [n, 1])
    return made[0], made[1], result


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
