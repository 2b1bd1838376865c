"""How much of a whole space do a few proposed configurations hold, beside authors' lists?

    python benchmarks/proposed_lists.py all_times.parquet --lists mm__A100.parquet …

``all_times.parquet`` has the time of every tile, number of warps and of stages of a product on an
A100 (`recorded_tables`). The orders are learned from the tables after ``--lists``, without the
kernel that is judged. `foretune.tune.triton.proposals` proposes lists for all five problems
together. Printed is the share of the space's best speed that the best entry of a list has: mean and
worst over the problems, and over `SEEDS`. Beside: Triton's tutorial, Inductor's list of the table
``mm__A100.parquet``, the first of the learned order, and as many random configurations that fit.

Of lists that other tables recorded whole, the best few are chosen in the same way.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from launch_training import fit_orders
from machine import markdown
from recorded_calls import TILE_KNOBS
from recorded_lists import ListedProblem, ProblemList, read_or_load
from recorded_tables import whole_spaces

from foretune.space import Configuration
from foretune.tune.triton.launch_order import LaunchOrders
from foretune.tune.triton.prior import launch_prior
from foretune.tune.triton.proposals import MIN_P_VALID, STAGES, WARPS, portfolio

COUNTS = (4, 8, 16)
"""Entries of a list."""
SEEDS = range(5)
"""Seeds of the draws."""
LEARN = 60
"""Maximum number of problems of a list from which orders learn."""
JUDGED = 24
"""Maximum number of problems of a recorded list that are judged."""
DRAWS = 50
"""Random lists whose mean is printed."""
MIN_LARGE = 512
"""Smallest size of problems for which Inductor does not shrink its tiles."""
MAX_SPACE = 64
"""A list is recorded whole for several problems if it has at most so many entries."""
TUTORIAL = (
    (128, 256, 64, 8, 3),
    (64, 256, 32, 4, 4),
    (128, 128, 32, 4, 4),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4),
    (128, 32, 32, 4, 4),
    (64, 32, 32, 2, 5),
    (32, 64, 32, 2, 5),
)
"""The list for 16 bits in Triton's tutorial on products: rows, columns, depth, warps, stages."""
NAMES = (*TILE_KNOBS, "num_warps", "num_stages")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("space", type=Path, help="all_times.parquet")
    parser.add_argument("--lists", nargs="+", type=Path, required=True, help="other tables")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where the lists are kept")
    options = parser.parse_args(argv)

    lists = read_or_load(options.keep, [*options.lists, options.space], LEARN)
    problems = [ListedProblem.of(recorded) for recorded in whole_spaces(options.space)]
    print(text_of_space(problems, lists, options.lists))
    print(text_of_lists(lists))


def text_of_space(
    problems: Sequence[ListedProblem], lists: Sequence[ProblemList], tables: Sequence[Path]
) -> str:
    """Return a table for the whole space."""
    orders = orders_without(problems[0].kernel, lists)
    space = Space.of(problems, orders)
    authors = {"Triton's tutorial": TUTORIAL, "Inductor's list": inductor_list(tables)}
    rows = []
    for name, entries in authors.items():
        numbers = [space.numbers[entry] for entry in entries if entry in space.numbers]
        rows.append([name, str(len(numbers)), *cells([space.held(numbers)])])
    for count in COUNTS:
        rows += [[name, str(count), *cells(held)] for name, held in space.judge(count).items()]
    head = ["list", "entries", "mean", "worst", "mean of each seed"]
    return f"{len(space.configs)} configurations of {problems[0].kernel}\n{markdown(head, rows)}"


def text_of_lists(lists: Sequence[ProblemList]) -> str:
    """Return a table for the lists that were recorded whole, each kernel left out."""
    rows = []
    for of_kernel in lists:
        same = whole_lists(of_kernel)
        if len(same) < 2:
            continue
        space = Space.of(same, orders_without(of_kernel.kernel, lists))
        for count in COUNTS[:-1]:
            for name, held in space.judge(count).items():
                n_entries = f"{count} of {len(space.configs)}"
                rows.append([of_kernel.name, name, n_entries, *cells(held)[:2]])
        print(f"{of_kernel.name} is judged", file=sys.stderr)
    return markdown(["recorded list", "choice", "entries", "mean", "worst"], rows)


class Space:
    """Configurations that all problems of a kernel have, with their times and expected times."""

    def __init__(
        self,
        configs: Sequence[Configuration],
        shares: np.ndarray,
        log_times: np.ndarray,
        fits: np.ndarray,
    ) -> None:
        self.configs = configs
        self.shares = shares
        self.log_times = log_times
        self.fits = fits
        names = [name for name in configs[0] if type(configs[0][name]) is int]
        self.points = np.log2([[float(config[name]) + 1.0 for name in names] for config in configs])
        self.numbers = {
            tuple(config.get(name) for name in NAMES): i for i, config in enumerate(configs)
        }

    @classmethod
    def of(cls, problems: Sequence[ListedProblem], orders: LaunchOrders) -> "Space":
        """Return the space of problems; a table's order may tell the times, so it is not kept."""
        configs = sorted(problems[0].configs, key=str)
        shares, log_times, fits = [], [], []
        for problem in problems:
            number = {config: i for i, config in enumerate(problem.configs)}
            rows = [number[config] for config in configs]
            prior = launch_prior(problem.learned.columns, orders)
            expected = prior.log_mean - np.log(np.maximum(prior.p_valid, MIN_P_VALID))
            shares.append(problem.shares[rows])
            log_times.append(expected[rows])
            fits.append(prior.p_valid[rows] == 1.0)
        may_run = np.asarray(np.array(fits).all(axis=0))
        return cls(configs, np.array(shares), np.array(log_times), may_run)

    def held(self, numbers: Sequence[int]) -> np.ndarray:
        """Return the share of the best speed that a list holds of each problem."""
        return np.asarray(self.shares[:, list(numbers)].max(axis=1))

    def judge(self, count: int) -> dict[str, list[np.ndarray]]:
        """Return what lists hold, by way of choosing, for each seed."""
        allowed = np.array([may_be_proposed(config) for config in self.configs])
        proposed = [
            self.held(portfolio(self.log_times, self.points, allowed, count=count, seed=seed))
            for seed in SEEDS
        ]
        by_order = np.argsort(self.log_times.mean(axis=0), kind="stable")[:count]
        rng = np.random.default_rng(0)
        may_run = np.flatnonzero(self.fits)
        size = min(count, len(may_run))
        draws = [rng.choice(may_run, size, replace=False).tolist() for _ in range(DRAWS)]
        random = [self.held(drawn) for drawn in draws]
        return {
            "proposed": proposed,
            "first of the order": [self.held(by_order.tolist())],
            "random": [np.mean(random, axis=0)],
        }


def may_be_proposed(config: Configuration) -> bool:
    """Return whether a configuration of the whole space is among the candidates of proposals.

    Recorded lists have values of their own, all of which are candidates.
    """
    if any(name not in config for name in NAMES):
        return True
    return config.get("num_warps") in WARPS and config.get("num_stages") in STAGES


def whole_lists(of_kernel: ProblemList) -> list[ListedProblem]:
    """Return problems with the same list of products: those of the most frequent one."""
    by_list: dict[frozenset[Configuration], list[ListedProblem]] = {}
    for problem in of_kernel.problems:
        if problem.launches and len(problem.configs) <= MAX_SPACE:
            by_list.setdefault(frozenset(problem.configs), []).append(problem)
    return max(by_list.values(), key=len, default=[])[:JUDGED]


def orders_without(kernel: str, lists: Sequence[ProblemList]) -> LaunchOrders:
    """Learn the orders from the lists of other kernels."""
    others = [of_kernel for of_kernel in lists if of_kernel.kernel != kernel]
    problems = [p for of_kernel in others for p in of_kernel.problems if p.launches]
    return fit_orders([problem.learned for problem in problems])


def inductor_list(tables: Sequence[Path]) -> list[tuple[int, ...]]:
    """Return the configurations of ``mm__A100.parquet`` as entries of the space.

    Inductor shrinks the tiles of small problems, so only large ones count.
    """
    (table,) = [path for path in tables if path.stem == "mm__A100"]
    rows = pd.read_parquet(table)
    is_large = (rows[["problem.M", "problem.N", "problem.K"]] >= MIN_LARGE).all(axis=1)
    names = ["BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"]
    entries = rows.loc[is_large, [f"config.{name}" for name in names]].drop_duplicates()
    return [tuple(map(int, row)) for row in entries.to_numpy()]


def cells(held: Sequence[np.ndarray]) -> list[str]:
    """Return the mean, the worst, and the mean of each seed."""
    means = [of_seed.mean() for of_seed in held]
    worst = min(of_seed.min() for of_seed in held)
    of_seeds = " ".join(f"{mean:.3f}" for mean in means) if len(means) > 1 else ""
    return [f"{np.mean(means):.3f}", f"{worst:.3f}", of_seeds]


if __name__ == "__main__":
    main(sys.argv[1:])
