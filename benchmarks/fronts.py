"""How much of a Pareto front do searchers find on recorded spaces?

    python benchmarks/fronts.py SPACES --repeats 5

The objectives are the times of one kernel on several devices (one configuration for a fleet), or a
time and the seconds to compile. Prints the share of the whole front's hypervolume after several
numbers of evaluations, in logarithms; the reference point is the median of each objective.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from machine import heading, markdown
from spaces import complete_spaces

from foretune.collect import local_device
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.search.pareto import ParetoSearcher
from foretune.search.pareto_front import hypervolume, pareto_front
from foretune.search.replay.recorded import RecordedSpace
from foretune.space import Configuration, SearchSpace

POINTS = (20, 50, 100)
"""Numbers of evaluations."""
MAX_DEVICES = 3
RETRIES = 20
"""Proposals of an Optuna sampler outside the space, or repeated, before a random one."""


@dataclass(frozen=True, eq=False)
class Objectives:
    """A space with several objectives.

    Attributes:
        name: kernel and objectives.
        space: the configurations.
        values: shape (configurations, objectives); infinite where one failed.
    """

    name: str
    space: SearchSpace
    values: np.ndarray

    def share(self, found: Sequence[int]) -> float:
        """Return the share of the front's hypervolume that some configurations dominate."""
        return self._volume(self.values[list(found)]) / self._volume(self.values)

    def _volume(self, values: np.ndarray) -> float:
        ran = self.values[np.isfinite(self.values).all(axis=1)]
        reference = np.log(np.median(ran, axis=0))
        return hypervolume(np.log(values), reference)


@dataclass(frozen=True)
class Column:
    """One objective, as a searcher sees it."""

    of: Objectives
    number: int

    def value_of(self, measurement: Measurement) -> float:
        """Return its value."""
        return float(self.of.values[self.of.space.index(measurement.config), self.number])


def problems(spaces: Sequence[RecordedSpace]) -> Iterator[Objectives]:
    """Yield what the recorded spaces offer."""
    for kernel, group in itertools.groupby(spaces, lambda s: s.name.partition("__")[0]):
        devices = list(group)
        if len(devices) > 1:
            yield across_devices(kernel, devices[:MAX_DEVICES])
        compile_s = [m.compile_s for m in devices[0].measurements]
        if np.isfinite(compile_s).all():
            values = np.column_stack([devices[0].values, compile_s])
            yield Objectives(f"{devices[0].name}: time, compiling", devices[0].space, values)


def across_devices(kernel: str, devices: Sequence[RecordedSpace]) -> Objectives:
    """Return the times on every device of the configurations that all have."""
    by_config = [{c: s.values[i] for i, c in enumerate(s.space)} for s in devices]
    common = [c for c in by_config[0] if all(c in times for times in by_config)]
    space = SearchSpace.from_configs(common)
    values = np.array([[times[c] for times in by_config] for c in space])
    values[~np.isfinite(values).all(axis=1)] = np.inf
    return Objectives(f"{kernel}: {len(devices)} devices", space, values)


def foretune(of: Objectives, seed: int, budget: int) -> Iterator[int]:
    """Yield the numbers that Foretune's searcher measures."""
    columns = [Column(of, i) for i in range(of.values.shape[1])]
    searcher = ParetoSearcher(of.space, columns, seed)
    for _ in range(budget):
        (config,) = searcher.ask()
        number = of.space.index(config)
        ran = np.isfinite(of.values[number]).all()
        status = Status.OK if ran else Status.RUNTIME_ERROR
        searcher.tell([Measurement("recorded", Problem(), config, "", status, time_ms=1.0)])
        yield number


def optuna_sampler(
    make: Callable[[int], optuna.samplers.BaseSampler],
) -> Callable[[Objectives, int, int], Iterator[int]]:
    """Return a search by an Optuna sampler, which knows no restrictions: misses are free."""

    def search(of: Objectives, seed: int, budget: int) -> Iterator[int]:
        rng = np.random.default_rng(seed)
        seen = set[int]()
        study = optuna.create_study(
            sampler=make(seed), directions=["minimize"] * of.values.shape[1]
        )
        worst = np.nanmax(np.where(np.isfinite(of.values), of.values, np.nan), axis=0)
        choices: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(values)
            for name, values in of.space.parameters.items()
        }
        while len(seen) < budget:
            for _ in range(RETRIES):
                trial = study.ask(choices)
                number = of.space.index_or_none(Configuration(trial.params))
                logs = np.log(worst if number is None else np.fmin(of.values[number], worst))
                study.tell(trial, logs.tolist())
                if number is not None and number not in seen:
                    break
            else:
                number = int(rng.choice([i for i in range(len(of.space)) if i not in seen]))
            seen.add(number)
            yield number

    return search


def random(of: Objectives, seed: int, budget: int) -> Iterator[int]:
    """Yield random numbers."""
    yield from np.random.default_rng(seed).permutation(len(of.space))[:budget].tolist()


SEARCHES: dict[str, Callable[[Objectives, int, int], Iterator[int]]] = {
    "Foretune": foretune,
    "MOTPE": optuna_sampler(lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=True)),
    "NSGA-II": optuna_sampler(
        lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=20)
    ),
    "random": random,
}


def main() -> None:
    """Search, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spaces", type=Path, help="folder of recorded spaces")
    parser.add_argument("--only", default="", help="tables with this text in their name")
    parser.add_argument("--searches", default=",".join(SEARCHES))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(heading("Pareto fronts", local_device()))
    names = options.searches.split(",")
    rows = list[list[str]]()
    shares: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for of in problems(complete_spaces(options.spaces, options.only)):
        front = int(pareto_front(of.values).sum())
        cells = []
        for name in names:
            runs = [[*SEARCHES[name](of, seed, max(POINTS))] for seed in range(options.repeats)]
            mean = np.mean([[of.share(run[:n]) for n in POINTS] for run in runs], axis=0)
            shares[name].append(mean)
            cells.append(" / ".join(f"{share:.3f}" for share in mean))
        rows.append([of.name, f"{len(of.space):,}", f"{front}", *cells])
    means = (np.mean(shares[name], axis=0) for name in names)
    rows.append(["mean", "", "", *(" / ".join(f"{v:.3f}" for v in mean) for mean in means)])
    print(f"{options.repeats} repeats; hypervolume after {' / '.join(map(str, POINTS))}\n")
    print(markdown(["objectives", "configurations", "front", *names], rows))
    seconds = [time_of_volume(objectives) for objectives in (2, 3, 4)]
    milliseconds = ", ".join(f"{1e3 * s:.2f}" for s in seconds)
    print(
        f"A hypervolume of 200 points on a sphere of two, three, four objectives: {milliseconds} ms"
    )


def time_of_volume(objectives: int, points: int = 200) -> float:
    """Return the least seconds of CPU that a hypervolume takes."""
    directions = np.abs(np.random.default_rng(0).standard_normal((points, objectives)))
    values = 1 - directions / np.linalg.norm(directions, axis=1)[:, None]
    taken = []
    for _ in range(5):
        started = time.process_time()
        hypervolume(values, np.ones(objectives))
        taken.append(time.process_time() - started)
    return min(taken)


if __name__ == "__main__":
    main()
