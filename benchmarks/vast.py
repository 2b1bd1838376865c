"""What does a search cost in a space of 10^12 combinations, which cannot be listed?

    python benchmarks/vast.py

Twelve parameters of ten values, three restrictions, invented times. Prints the share of the optimum
after 20 to 200 measurements, milliseconds of `ask` and `tell`, and the peak memory of the process.
"""

import resource
import time

import numpy as np
from machine import heading, markdown

from foretune.collect import local_device
from foretune.search import Searcher, make_searcher
from foretune.space import Configuration, SearchSpace

SPACE = SearchSpace(
    {f"p{i}": tuple(2**k for k in range(10)) for i in range(12)},
    ["p0 * p1 * p2 <= 1024", "p3 <= p4", "p5 * p6 >= 4"],
)
BEST = dict(zip(SPACE.parameters, (4, 8, 16, 8, 64, 2, 2, 128, 8, 1, 256, 16), strict=True))
POINTS = (20, 50, 100, 200)


def time_ms(config: Configuration) -> float:
    """Return a made-up time, 1 at best."""
    octaves = [np.log2(float(config[name]) / BEST[name]) for name in SPACE.parameters]
    return 1.0 + float(np.square(octaves).sum()) / 20.0


def search(searcher: Searcher) -> tuple[list[float], list[float]]:
    """Return the best so far, and the milliseconds of each proposal."""
    best = list[float]()
    cost = list[float]()
    for _ in range(POINTS[-1]):
        start = time.perf_counter()
        (config,) = searcher.ask()
        searcher.tell_values({SPACE.index(config): time_ms(config)})
        cost.append(1e3 * (time.perf_counter() - start))
        best.append(min(searcher.observed.values()))
    return best, cost


def main() -> None:
    assert BEST in SPACE
    print(heading(f"Search among {len(SPACE):,} combinations", local_device()))
    rows = []
    for name in ("surrogate", "random"):
        best, cost = search(make_searcher(name, SPACE, seed=0))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        shares = [f"{1.0 / best[n - 1]:.3f}" for n in POINTS]
        spent = f"{np.mean(cost):.1f} ({np.median(cost):.1f}, {max(cost):.0f})"
        rows.append([name, *shares, spent, f"{peak:.0f} MiB"])
    columns = ["searcher", *(f"f{n}" for n in POINTS), "ms: mean (median, most)", "peak memory"]
    print(markdown(columns, rows))


if __name__ == "__main__":
    main()
