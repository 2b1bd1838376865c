"""What is a policy worth on problems that it has not seen? It was trained on a predictor.

Prints, for every searcher, the share of the optimum of its first proposal, with nothing measured,
and of the best after 5 and 10 measurements.

Unseen devices: recorded spaces of one kernel on several GPUs. Each GPU is left out in turn; the
predictor learns from the other GPUs, the policy from the predictor's times on them.

    python benchmarks/policy.py DATA                     # the folder that holds spaces/

Unseen problems: recordings of `tuning.py --out`. The predictor learns from its training problems,
the policy from its predictions of 64 other random problems.

    python benchmarks/policy.py DATA --recorded tuning-runs
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from machine import heading, markdown

from foretune.collect import local_device
from foretune.datasets import read_runs
from foretune.datasets.runs import with_specs
from foretune.models import Predictor
from foretune.registry import get_kernel
from foretune.search.policies.policy import Policy
from foretune.search.policies.searcher import PolicySearcher
from foretune.search.policies.tasks import Task, predicted_task, predicted_tasks
from foretune.search.prior import prior_from_predictor
from foretune.search.replay.recorded import RecordedSpace, read_spaces
from foretune.search.replay.replay import prior_from_source, replay, runs_on_other_devices
from foretune.search.searcher import Prior, Searcher

FAMILIES = ("convolution_milo", "convolution_milo_shmem1", "dedispersion_milo")
MEASUREMENTS = (1, 5, 10)
"""The first proposal needs no measurement: its share is known after one, for the table alone."""
ROWS = 10_000
"""Most rows a predictor of the other devices learns from."""
PROBLEMS = 64
"""That the policy learns from, predicted."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--families", nargs="*", default=FAMILIES, help="recorded spaces")
    parser.add_argument("--recorded", type=Path, help="folder of tuning.py's recordings")
    parser.add_argument("--seeds", type=int, default=3, help="policies")
    options = parser.parse_args()
    print(heading("Policies", local_device("cpu")))
    for family in options.families:
        unseen_devices(options.data / "spaces", family, options.seeds)
    for path in sorted(options.recorded.glob("*-unseen.parquet")) if options.recorded else ():
        unseen_problems(path, options.seeds)


class Shares:
    """Shares of the optimum by searcher, collected over spaces and seeds."""

    def __init__(self) -> None:
        self.rows: dict[str, list[np.ndarray]] = defaultdict(list)

    def add(
        self,
        name: str,
        recorded: RecordedSpace,
        searcher: str | Callable[..., Searcher],
        repeats: int,
        prior: Prior | None = None,
        seed: int = 0,
    ) -> None:
        """Replay a searcher."""
        curves = replay(recorded, searcher, max(MEASUREMENTS), repeats, seed, prior).curves
        self.rows[name].append(curves.mean(axis=0)[np.array(MEASUREMENTS) - 1])

    def show(self, title: str) -> None:
        """Print the means."""
        print(title + "\n")
        columns = ["searcher", "nothing measured", *(f"{n} measured" for n in MEASUREMENTS[1:])]
        table = [[k, *(f"{v:.3f}" for v in np.mean(r, axis=0))] for k, r in self.rows.items()]
        print(markdown(columns, table), flush=True)


def unseen_devices(folder: Path, family: str, seeds: int) -> None:
    """Leave every device of a family out in turn."""
    files = sorted(folder.glob(f"{family}__*.parquet"))
    spaces = [space for file in files for space in read_spaces(file)]
    runs = with_specs(pd.concat(map(read_runs, files), ignore_index=True))
    specs = [c for c in runs if c.startswith("device.")]
    runs = runs.drop(columns=[c for c in specs if runs[c].isna().any()])
    runs = runs.drop(columns=[c for c in runs if c.startswith(("static.", "counter."))])
    shares = Shares()
    seconds = []
    for unseen in spaces:
        elsewhere = runs_on_other_devices(runs, unseen)
        elsewhere = elsewhere.sample(min(ROWS, len(elsewhere)), random_state=0)
        plain = elsewhere.drop(columns=[c for c in specs if c in elsewhere])
        prior = prior_from_source(plain, unseen).prior
        assert prior is not None
        compare(shares, unseen, prior)
        told = Predictor(targets=("time_ms",)).fit(elsewhere)
        prior = prior_from_predictor(told, unseen.problem, unseen.space, unseen.device)
        shares.add("predictor's order, told the specs", unseen, "exhaustive", 1, prior)
        others = [s for s in spaces if s.device.name != unseen.device.name]
        tasks = [predicted_task(told, s.problem, s.space, s.device) for s in others]
        seconds += add_policies(shares, [unseen], tasks, seeds)
    shares.show(
        f"{family}, unseen devices: each of {len(spaces)} left out in turn, {seeds} policies; "
        f"one is trained in {np.median(seconds):.1f} s"
    )


def unseen_problems(path: Path, seeds: int) -> None:
    """Tune the recorded problems of a kernel; none of them was learned from."""
    kernel = get_kernel(path.name.removesuffix("-unseen.parquet"))
    spaces = read_spaces(path)
    predictor = Predictor(targets=("time_ms",)).fit(
        read_runs(path.with_name(f"{kernel.name}-train.parquet"))
    )
    recorded = {space.problem for space in spaces}
    drawn = [p for p in kernel.training_problems(PROBLEMS, seed=7) if p not in recorded]
    tasks = predicted_tasks(predictor, kernel, drawn, spaces[0].device)
    shares = Shares()
    for space in spaces:
        compare(
            shares, space, prior_from_predictor(predictor, space.problem, space.space, space.device)
        )
    seconds = add_policies(shares, spaces, tasks, seeds)
    shares.show(
        f"{kernel.name}, unseen problems: {len(spaces)} with {len(spaces[0])} configurations each; "
        f"policies learned from {len(tasks)} predicted ones in {np.median(seconds):.1f} s"
    )


def compare(shares: Shares, unseen: RecordedSpace, prior: Prior) -> None:
    """Add searchers without a policy."""
    shares.add("random", unseen, "random", 100)
    shares.add("surrogate", unseen, "surrogate", 10)
    shares.add("predictor's order", unseen, "exhaustive", 1, prior)
    shares.add("surrogate + predictor", unseen, "surrogate", 3, prior)


def add_policies(
    shares: Shares, spaces: Sequence[RecordedSpace], tasks: Sequence[Task], seeds: int
) -> list[float]:
    """Add policies; return the seconds that each took."""
    seconds = []
    for seed in range(seeds):
        started = time.perf_counter()
        policy = Policy.train(tasks, seed=seed)
        seconds.append(time.perf_counter() - started)
        for space in spaces:
            shares.add("policy", space, partial(PolicySearcher, policy=policy), 1, seed=seed)
    return seconds


if __name__ == "__main__":
    main()
