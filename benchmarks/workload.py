"""One budget over many problems: how much of the possible gain is reached, and how soon?

    python benchmarks/workload.py TABLE.parquet… [--problems 20] [--draws 3]

Each table holds problems that were measured with every configuration of a list; ``shipped`` are the
shipped runs of the CPU kernels. A workload is a random draw of problems of a table. Numbers of
calls are drawn so that shares of the time are log-normal, as in a real model. The default is the
kernel's own, else the first configuration that runs. The possible gain is that from the defaults to
the best of every list.

Printed is the share of this gain after 10 to 100 measurements of all problems together: mean over
draws (and the smallest). The next measurement goes to the problem with the largest expected loss
(`foretune.search.workload`), or to every problem in turn (equal shares). Both use the same process,
which knows all measurements. The verification of each choice against the default comes on top.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from machine import heading, markdown

from foretune.collect import local_device
from foretune.datasets import read_runs
from foretune.errors import UnknownName
from foretune.features.families_of_runs import family_for
from foretune.features.roofline import row_roofline_ms
from foretune.measurement import Measurement
from foretune.registry import get_kernel
from foretune.search.loop import run, search
from foretune.search.replay.recorded import RecordedSpace, recorded_spaces
from foretune.search.stopping import Stopping
from foretune.search.workload import WorkloadItem, WorkloadProblem, WorkloadSearcher

POINTS = (10, 30, 100)
SPREAD = 1.0
"""Standard deviation of the logarithm of a problem's share of the time."""
SHIPPED = Path(__file__).parents[1] / "datasets/shipped/amd-epyc-2-cores.parquet"


class EqualShares(WorkloadSearcher):
    """Every part has its turn; the one that takes longest begins."""

    def expected_loss_ms(self, number: int) -> float:
        """Return what gives everyone the same number of turns."""
        part = self.parts[number]
        return -1e9 * len(self._proposed[number]) + part.calls * part.work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kinds = {"where most is lost": WorkloadSearcher, "equal shares": EqualShares}
    print(heading("Many problems, one budget", local_device()))
    print(f"{options.draws} draws of {options.problems} problems\n")
    rows = []
    for name in options.tables:
        runs = read_runs(SHIPPED if name == "shipped" else Path(name))
        seeds = range(options.seed, options.seed + options.draws)
        drawn = {seed: problems(runs, options.problems, seed) for seed in seeds}
        for how, kind in kinds.items():
            found = np.array([gained(spaces, kind, seed) for seed, spaces in drawn.items()])
            cells = [f"{m:.3f} ({w:.3f})" for m, w in zip(found.mean(0), found.min(0), strict=True)]
            rows.append([Path(name).stem, how, *cells])
    print(markdown(["table", "next measurement", *map(str, POINTS)], rows))


def problems(runs: pd.DataFrame, n: int, seed: int) -> list[RecordedSpace]:
    """Return ``n`` problems of a table, drawn at random."""
    columns = [c for c in runs if c.startswith("problem.")]
    group = runs.groupby(["kernel", *columns], dropna=False, sort=False).ngroup()
    some = np.random.default_rng(seed).permutation(int(group.max()) + 1)[:n]
    ran = {g for g in some if (runs["status"][group == g] == "ok").any()}
    return recorded_spaces(runs[group.isin(ran)], "workload")


def gained(spaces: Sequence[RecordedSpace], kind: type[WorkloadSearcher], seed: int) -> list[float]:
    """Return the share of the possible gain after each of `POINTS`."""
    parts = []
    defaults = np.empty(len(spaces))
    share = np.exp(np.random.default_rng(seed).normal(0.0, SPREAD, len(spaces)))
    for i, space in enumerate(spaces):
        number = default_of(space)
        defaults[i] = space.values[number]
        weight = float(share[i] / defaults[i])
        default = space.space[number]
        parts.append(
            WorkloadProblem(
                space.kernel, space.problem, space.space, weight, work_of(space), default
            )
        )
    calls = share / defaults
    possible = calls @ defaults - calls @ [space.optimum for space in spaces]
    searcher = kind(parts, seed=seed, device=spaces[0].device)
    found = []
    by_part = dict(zip(parts, spaces, strict=True))

    def measure(items: Sequence[WorkloadItem]) -> Iterator[Measurement]:
        for part, config in items:
            yield by_part[part].measurements[part.space.index(config)]

    for more in np.diff([0, *POINTS]).tolist():
        run(search(searcher, Stopping(more)), measure)
        chosen = [s.values[s.space.index(searcher.choice(i))] for i, s in enumerate(spaces)]
        now = np.minimum(chosen, defaults)
        found.append(float((calls @ defaults - calls @ now) / possible))
    return found


def default_of(space: RecordedSpace) -> int:
    """Return the number of the configuration that runs without tuning."""
    try:
        number = space.space.index_or_none(get_kernel(space.kernel).default(space.problem))
    except UnknownName:
        number = None
    if number is not None and np.isfinite(space.values[number]):
        return number
    return int(np.flatnonzero(np.isfinite(space.values))[0])


def work_of(space: RecordedSpace) -> float:
    """Return the least time that a problem can take on its device, by its roofline."""
    row = {"kernel": space.kernel, **{f"problem.{k}": v for k, v in space.problem.items()}}
    row |= {f"config.{k}": v for k, v in space.space[0].items()}
    row |= {f"device.{k}": v for k, v in space.device.specs.items()}
    runs = pd.DataFrame([row])
    roofline_ms = row_roofline_ms(family_for(space.kernel, runs), runs)
    return float(np.nan_to_num(roofline_ms[0], nan=1.0)) or 1.0


if __name__ == "__main__":
    main()
