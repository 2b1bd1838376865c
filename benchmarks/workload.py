"""One budget over many problems: how much of the possible gain is reached, and how soon?

    python workload.py TABLE.parquet… [--problems 20] [--draws 3]

Each table was measured exhaustively on a real GPU. A workload is some problems of it, drawn at
random, each called so often that shares of the time at the default (the first configuration of the
list) are spread like those of a real model (log-normal). Possible is the gain from the defaults to
the best of every list; printed is the share of it after so many measurements in all, where the next
one goes where the whole workload loses most (`foretune.search.workload`), and where every problem
has its turn (equal shares), with the same searcher, which knows all measurements either way.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import recorded_tables
from machine import markdown
from recorded_tables import Recorded

from foretune.search.workload import Part, Workload
from foretune.space import ListedSpace

POINTS = (10, 30, 100)
SPREAD = 1.0
"""Standard deviation of the logarithm of a problem's share of the time."""


class EqualShares(Workload):
    """Every part has its turn; the one that takes longest begins."""

    def loss(self, number: int) -> float:
        """Return what gives everyone the same number of turns."""
        part = self.parts[number]
        return -1e9 * len(self.measured[number]) + part.calls * part.work


def workload(problems: Sequence[Recorded], kind: type[Workload], seed: int) -> list[float]:
    """Return the share of the possible gain after each of `POINTS`."""
    rng = np.random.default_rng(seed)
    defaults = [r.time_ms[np.isfinite(r.time_ms)][0] for r in problems]
    calls = np.exp(rng.normal(0.0, SPREAD, len(problems))) / defaults
    parts = [
        Part(
            r.kernel, r.call.problem, ListedSpace(r.configs), float(n), work_of(r),
            r.configs[int(np.flatnonzero(np.isfinite(r.time_ms))[0])],
        )
        for r, n in zip(problems, calls, strict=True)
    ]  # fmt: skip
    most = float(calls @ defaults - calls @ [r.time_ms.min() for r in problems])
    search = kind(parts, seed=seed, device=problems[0].call.device)
    slowest = [r.time_ms[np.isfinite(r.time_ms)].max() for r in problems]
    gained = []
    for n in range(1, POINTS[-1] + 1):
        if (asked := search.ask()) is not None:
            search.tell(asked[0], problems[asked[0]].run(asked[1]))
        if n in POINTS:
            chosen = [r.run(search.choice(i)).time_ms for i, r in enumerate(problems)]
            now = np.where(np.isnan(chosen), slowest, chosen)
            gained.append(float((calls @ defaults - calls @ now) / most))
    return gained


def work_of(recorded: Recorded) -> float:
    """Return the operations of a problem, as far as its sizes tell."""
    sizes = [v for n, v in recorded.call.problem.items() if n in recorded.call.arguments]
    return float(np.prod([float(v) for v in sizes if isinstance(v, int) and v > 0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--draws", type=int, default=3)
    options = parser.parse_args()
    kinds = {"where most is lost": Workload, "equal shares": EqualShares}
    rows = []
    for table in options.tables:
        drawn = [
            recorded_tables.read(table, options.problems, seed) for seed in range(options.draws)
        ]
        for name, kind in kinds.items():
            found = [workload(problems, kind, seed) for seed, problems in enumerate(drawn)]
            rows.append([table.stem, name, *(f"{v:.3f}" for v in np.mean(found, axis=0))])
            print(rows[-1], flush=True)
    print(markdown(["table", "next measurement", *map(str, POINTS)], rows))


if __name__ == "__main__":
    main()
