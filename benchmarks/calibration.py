"""Does the search know how sure it is? Its 90 % intervals on recorded spaces.

    python benchmarks/calibration.py SPACES [--only NAMES] [--repeats 2] [--budget 60]

The interval of every proposal of the surrogate's process is kept. Printed are the share of
intervals that contain the logarithm of the time measured next, and the root mean square of its
distance from the mean in standard deviations: 1 for a calibrated process.
"""

import argparse
from pathlib import Path

import numpy as np
from machine import heading, markdown
from spaces import complete_spaces

from foretune.collect import local_device
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.surrogate import SurrogateSearcher

HALF_WIDTH_90 = 1.645
"""Half of a 90 % interval of the normal distribution, in standard deviations."""


class RecordingSearcher(SurrogateSearcher):
    """Keeps the mean and standard deviation that it expected of each proposal."""

    def _prepare(self) -> None:
        self.expected: dict[int, tuple[float, float]] = {}
        super()._prepare()

    def _best_candidate(self, free: np.ndarray, chosen: list[int]) -> int:
        number = super()._best_candidate(free, chosen)
        assert self._loss_posterior is not None
        posterior = self._loss_posterior.of_candidates
        row = int(np.searchsorted(self._pool, number))
        noise = posterior.scale**2 * posterior.process.noise
        spread = np.sqrt(posterior.spread[row] ** 2 + noise)
        self.expected[number] = (float(posterior.mean[row]), float(spread))
        return number


def standardized_errors(space: RecordedSpace, budget: int, seed: int) -> list[float]:
    """Return the errors of the proposals that ran, in standard deviations."""
    searcher = RecordingSearcher(
        space.space, space.objective, seed, None, space.problem, space.device
    )
    for _ in range(min(budget, len(space))):
        (config,) = searcher.ask()
        number = space.space.index(config)
        searcher.tell_values({number: float(space.values[number])})

    errors = []
    for number, (mean, spread) in searcher.expected.items():
        value = space.values[number]
        if np.isfinite(value):
            errors.append(float(np.log(value) - mean) / spread)
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spaces", type=Path, help="folder of recorded spaces")
    parser.add_argument("--only", default="", help="tables with one of these texts in their name")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--budget", type=int, default=60)
    options = parser.parse_args()
    print(heading("How sure the search is", local_device()))
    print(f"{options.repeats} repeats of {options.budget} measurements\n")
    rows = []
    all_errors: list[float] = []
    for space in complete_spaces(options.spaces, options.only):
        of_space: list[float] = []
        for seed in range(options.repeats):
            of_space += standardized_errors(space, options.budget, seed)
        rows.append(row(space.name, of_space))
        all_errors += of_space
    rows.append(row("all", all_errors))
    print(markdown(["space", "predicted", "in the 90 % interval", "error / spread"], rows))


def row(name: str, errors: list[float]) -> list[str]:
    """Return a line of the table."""
    inside = np.abs(errors) <= HALF_WIDTH_90
    root_mean_square = np.sqrt(np.mean(np.square(errors)))
    return [name, str(len(errors)), f"{inside.mean():.2f}", f"{root_mean_square:.2f}"]


if __name__ == "__main__":
    main()
