"""Do searchers differ once each one's settings were swept with the same budget?

    python benchmarks/settings.py SPACES --repeats 5

After ArchGym (Krishnan et al., ISCA 2023), which found that they tie. Every setting of a searcher
searches every second recorded space (sorted by name), and the best one the others. A search is
worth its mean share of the optimum after half and all of its evaluations.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import optuna
from machine import heading, markdown
from spaces import complete_spaces

from foretune.collect import local_device
from foretune.search import Searcher
from foretune.search.optuna.searchers import OptunaSearcher, TPESearcher
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.replay.replay import replay
from foretune.search.surrogate import SurrogateSearcher

Settings = Mapping[str, Any]


def surrogate(settings: Settings) -> Callable[..., Searcher]:
    """Return searchers with other constants; each proposal sees them."""

    class Swept(SurrogateSearcher):
        def _propose(self, n: int) -> list[int]:
            with patch.multiple("foretune.search.surrogate", **settings):
                return super()._propose(n)

    return Swept


def tpe(settings: Settings) -> Callable[..., Searcher]:
    """Return Optuna's TPE with arguments."""

    class Swept(TPESearcher):
        def _make_sampler(self) -> optuna.samplers.BaseSampler:
            return optuna.samplers.TPESampler(seed=self.seed, **settings)

    return Swept


def genetic(settings: Settings) -> Callable[..., Searcher]:
    """Return Optuna's genetic algorithm with arguments."""

    class Swept(OptunaSearcher):
        def _make_sampler(self) -> optuna.samplers.BaseSampler:
            return optuna.samplers.NSGAIISampler(seed=self.seed, **settings)

    return Swept


SEARCHERS: dict[str, tuple[Callable[[Settings], Callable[..., Searcher]], dict[str, list[Any]]]] = {
    "surrogate": (surrogate, {"INITIAL_DESIGN_SIZE": [6, 12], "NEIGHBOR_PERIOD": [4, 2, 8]}),
    "TPE": (tpe, {"multivariate": [True, False], "n_startup_trials": [10, 5, 20]}),
    "genetic": (genetic, {"population_size": [20, 10], "mutation_prob": [None, 0.1, 0.3]}),
}
"""How to make each searcher, and what is swept; the first values are the usual ones."""


def main() -> None:
    """Sweep, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spaces", type=Path, help="folder of recorded spaces")
    parser.add_argument("--only", default="", help="tables with this text in their name")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget", type=int, default=60)
    options = parser.parse_args()
    spaces = complete_spaces(options.spaces, options.only)
    chosen_on, reported_on = spaces[::2], spaces[1::2]
    print(heading("Searchers, swept", local_device()))
    print(f"chosen on {', '.join(s.name for s in chosen_on)}")
    print(f"reported on {', '.join(s.name for s in reported_on)}; {options.repeats} repeats\n")
    rows = []
    for name, (make, values) in SEARCHERS.items():
        settings = [*settings_of(values)]
        worth = [worth_of(make(one), chosen_on, options) for one in settings]
        best = settings[int(np.argmax(worth))]
        after = [worth_of(make(one), reported_on, options) for one in (settings[0], best)]
        figures = (worth[0], min(worth), max(worth), *after)
        label = ", ".join(f"{k.lower()} {v}" for k, v in best.items())
        rows.append([name, label, *(f"{figure:.3f}" for figure in figures)])
    columns = [
        "searcher",
        "best settings",
        "usual",
        "worst",
        "best",
        "others: usual",
        "others: best",
    ]
    print(markdown(columns, rows))


def settings_of(values: Mapping[str, list[Any]]) -> Iterator[Settings]:
    """Yield every combination, the usual one first."""
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def worth_of(
    kind: Callable[..., Searcher], spaces: list[RecordedSpace], options: argparse.Namespace
) -> float:
    """Return the mean share of the optimum after half and all evaluations."""
    replays = (replay(space, kind, options.budget, options.repeats) for space in spaces)
    points = [options.budget // 2 - 1, options.budget - 1]
    return float(np.mean([result.curves[:, points].mean() for result in replays]))


if __name__ == "__main__":
    main()
