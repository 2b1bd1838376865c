"""What does a search lose if several devices measure at once?

Searches recorded spaces (run tables with every configuration of a kernel) with batches of several
sizes. Prints the share of the best performance found after 8 to 48 measurements: the mean over
seeds and spaces.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from machine import markdown

from foretune.measurement import Measurement
from foretune.search import make_searcher
from foretune.search.loop import run, search
from foretune.search.replay.recorded import RecordedSpace, read_spaces
from foretune.search.stopping import Stopping
from foretune.space import Configuration

BATCHES = (1, 2, 4, 8, 16)
AFTER = (8, 16, 32, 48)


def found(space: RecordedSpace, searcher: str, batch: int, seed: int) -> list[float]:
    """Return the share of the best performance found after `AFTER` measurements."""
    made = make_searcher(
        searcher, space.space, space.objective, seed, None, space.problem, space.device
    )
    values = list[float]()

    def measure(configs: Sequence[Configuration]) -> Iterator[Measurement]:
        for number in map(space.space.index, configs):
            values.append(space.values[number])
            yield space.measurements[number]

    run(search(made, Stopping(AFTER[-1]), parallel=batch), measure)
    return [space.optimum / min(values[:n]) for n in AFTER]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--searcher", default="surrogate")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    spaces = [space for table in options.tables for space in read_spaces(table)]
    rows = []
    for batch in BATCHES:
        shares = [
            found(s, options.searcher, batch, i) for s in spaces for i in range(options.seeds)
        ]
        rows.append([str(batch), *(f"{share:.3f}" for share in np.mean(shares, axis=0))])
    print(f"{options.searcher}, {len(spaces)} spaces, {options.seeds} seeds\n")
    print(markdown(["at once", *(f"after {n}" for n in AFTER)], rows))


if __name__ == "__main__":
    main()
