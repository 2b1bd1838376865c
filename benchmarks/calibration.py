"""Does the search know how sure it is? Its 90 % intervals on recorded spaces.

    python calibration.py SPACES [--only NAMES] [--repeats 2] [--budget 60]

Before every measurement that the surrogate's process proposes, its interval is kept; printed is how
often the logarithm of the time that was then measured lay in it, and the root mean square of its
distance from the mean in standard deviations: 1 for a process that knows how sure it is.
"""

import argparse
from pathlib import Path

import numpy as np
from machine import heading, markdown
from spaces import complete_spaces

from foretune.collect import local_device
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.surrogate import SurrogateSearcher

NINETY = 1.645


class Watched(SurrogateSearcher):
    """Keeps what is expected of each proposal."""

    def _prepare(self) -> None:
        self.expected: dict[int, tuple[float, float]] = {}
        super()._prepare()

    def _best_candidate(self, free: np.ndarray, chosen: list[int]) -> int:
        number = super()._best_candidate(free, chosen)
        assert self._posterior is not None
        posterior = self._posterior.posterior
        place = int(np.searchsorted(self._pool, number))
        noise = posterior.scale**2 * posterior.process.noise
        spread = np.sqrt(posterior.spread[place] ** 2 + noise)
        self.expected[number] = float(posterior.mean[place]), float(spread)
        return number


def errors(space: RecordedSpace, budget: int, seed: int) -> list[float]:
    """Return how far off each proposal that ran was, in standard deviations."""
    searcher = Watched(space.space, space.objective, seed, None, space.problem, space.device)
    for _ in range(min(budget, len(space))):
        (config,) = searcher.ask()
        number = space.space.index(config)
        searcher.tell_values({number: float(space.values[number])})
    ran = ((n, e) for n, e in searcher.expected.items() if np.isfinite(space.values[n]))
    return [float(np.log(space.values[n]) - mean) / spread for n, (mean, spread) in ran]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spaces", type=Path, help="folder of recorded spaces")
    parser.add_argument("--only", default="", help="tables with one of these texts in their name")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--budget", type=int, default=60)
    options = parser.parse_args()
    print(heading("How sure the search is", local_device()))
    print(f"{options.repeats} repeats of {options.budget} measurements\n")
    rows, everything = [], list[float]()
    for space in complete_spaces(options.spaces, options.only):
        z = [e for seed in range(options.repeats) for e in errors(space, options.budget, seed)]
        rows.append(row(space.name, z))
        everything += z
    rows.append(row("all", everything))
    print(markdown(["space", "predicted", "in the 90 % interval", "error / spread"], rows))


def row(name: str, z: list[float]) -> list[str]:
    """Return a line of the table."""
    inside = np.abs(z) <= NINETY
    return [name, str(len(z)), f"{inside.mean():.2f}", f"{np.sqrt(np.mean(np.square(z))):.2f}"]


if __name__ == "__main__":
    main()
