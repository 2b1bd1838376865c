"""Is expected improvement per second of measuring worth it, where time is the budget?

    python benchmarks/seconds.py SPACES [--only convolution__,milo] [--repeats 3]

Only tables that recorded how long each configuration took to compile count. Measuring one costs
what was recorded, and 32 launches; a failure costs its compilation. Prints the seconds until the
best so far is within 5 % (1 %) of the optimum, geometric means over repeats; a miss counts twice
the seconds of the whole search.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import markdown
from spaces import complete_spaces

from foretune.datasets import read_runs, to_measurements
from foretune.search import make_searcher
from foretune.search.replay.recorded import RecordedSpace

LAUNCHES = 32
SHARES = (0.95, 0.99)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spaces", type=Path, help="folder of run tables")
    parser.add_argument("--only", default="", help="texts in names, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=int, default=80, help="measurements of a search")
    options = parser.parse_args()
    lines = []
    for space in complete_spaces(options.spaces, options.only):
        cost_s = costs_of(space, options.spaces)
        if cost_s is None:
            continue
        low, high = np.percentile(cost_s, [5, 95])
        line = [space.name, f"{low:.2g}–{high:.2g}"]
        for by_seconds in (False, True):
            found = [
                seconds(space, cost_s, by_seconds, seed, options.budget)
                for seed in range(options.repeats)
            ]
            line.append(" / ".join(f"{s:.0f}" for s in np.exp(np.log(found).mean(axis=0))))
        lines.append(line)
    print(markdown(["space", "seconds each", "improvement", "improvement per second"], lines))


def costs_of(space: RecordedSpace, folder: Path) -> np.ndarray | None:
    """Return the seconds that measuring each configuration takes; None where nobody recorded it."""
    runs = read_runs(folder / f"{space.name}.parquet")
    if "compile_s" not in runs or runs["compile_s"].isna().any():
        return None
    cost_s = np.zeros(len(space))
    for m in to_measurements(runs):
        if (number := space.space.index_or_none(m.config)) is not None:
            cost_s[number] = m.compile_s + (LAUNCHES * m.time_ms * 1e-3 if m.ok else 0.0)
    return cost_s


def seconds(
    space: RecordedSpace, cost_s: np.ndarray, by_seconds: bool, seed: int, budget: int
) -> list[float]:
    """Return the seconds until a search has reached each of `SHARES`."""
    searcher = make_searcher("surrogate", space.space, seed=seed, device=space.device)
    spent, best, optimum = 0.0, np.inf, float(np.nanmin(space.values))
    reached: dict[float, float] = {}
    for _ in range(budget):
        (config,) = searcher.ask()
        number = space.space.index(config)
        value = float(space.values[number])
        spent += float(cost_s[number])
        measured = space.measurement(number)
        searcher.tell([replace(measured, cost_s=cost_s[number]) if by_seconds else measured])
        best = min(best, value)
        for share in SHARES:
            if optimum / best >= share:
                reached.setdefault(share, spent)
    return [reached.get(share, 2.0 * spent) for share in SHARES]


if __name__ == "__main__":
    main()
