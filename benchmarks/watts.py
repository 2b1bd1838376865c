"""What watts are good for, and two ways to more accurate ones beside what the predictor does.

Run: ``python benchmarks/watts.py DATA [--draws 3]`` where DATA is that of `predictors`;
needs aiconfigurator-core (the extra ``llm``), whose tables of a B200 have times and watts.

1. Does the predicted time help as a column? Learned are 400 rows of the B200 under foreign names,
   with the measured time beside them; predicted are rows of other problems, with the predicted one.
2. Which runs of a new GPU correct the watts best: representative ones, as `Predictor.choose` takes
   them, as many of each predicted wattage, or random ones? Learned on an H200, tested on the B200.

The first table also says how much energy the choice of a configuration by prediction wastes, over
the least of its problem: by predicted energy, and by predicted time alone.

Choices would be made on mixtures of experts; attention is a report.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from machine import heading
from predictor_tasks import power_elsewhere

from foretune.collect import local_device
from foretune.datasets import import_runs
from foretune.datasets.importers.aiconfigurator import installed_tables
from foretune.errors import MissingExtra
from foretune.models import Predictor
from foretune.models.splits import task_numbers
from foretune.models.validation.energy_choice import EnergyChoice, predict_energy
from foretune.models.validation.metrics import score

TABLES = {
    "mixtures of experts": ("moe", "moe"),
    "attention, prefill": ("attention", "context_attention"),
    "attention, decode": ("attention", "generation_attention"),
}
LEARNED_ROWS = 400
TESTED_ROWS = 800
KNOWN_ROWS = 3000
"""Rows of the H200 to learn from."""
CANDIDATES = 6000
"""Rows of the B200 to choose from."""
CHOSEN = 64
BANDS = 16
"""Bands of predicted watts from which equally many runs are drawn."""
TIME_COLUMN = "config.log_ms"
"""A column of the logarithm of the time."""

ChooseRows = Callable[[Predictor, pd.DataFrame, int], pd.DataFrame]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    print(heading("Watts", local_device("cpu")))
    columns = ["B200, other problems", "watts alone", "with the time", "energy above the least"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for name, runs in metered_runs():
        for draw in range(arguments.draws):
            print(f"| {name} (draw {draw + 1}) | {time_as_column(runs, draw)} |", flush=True)

    print(f"\n| {CHOSEN} runs of the new GPU | " + " | ".join(CHOICES) + " |")
    print("|---" * (1 + len(CHOICES)) + "|")
    for task in power_elsewhere(arguments.data):
        if "device B200" not in task.name:
            continue
        known = sample(task.runs[~task.test], KNOWN_ROWS, seed=0)
        new = task.runs[task.test].reset_index(drop=True)
        predictor = Predictor(targets=("power_w",)).fit(known)
        for draw in range(arguments.draws):
            cells = choices_of_rows(predictor, new, draw)
            print(f"| {task.name} (draw {draw + 1}) | {' | '.join(cells)} |", flush=True)


def metered_runs() -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the runs of each metered table of the B200, under a foreign name."""
    installed = installed_tables()
    if installed is None:
        raise MissingExtra("aiconfigurator-core", "llm", "this benchmark")
    for name, (folder, operation) in TABLES.items():
        path = installed / "b200_sxm" / folder / "vllm" / "0.22.0" / f"{operation}_perf.parquet"
        runs = import_runs(path, "aiconfigurator").runs
        yield name, runs.assign(kernel="their_kernel")


def time_as_column(runs: pd.DataFrame, draw: int) -> str:
    """Return the errors of watts without and with a column of the time, and wasted energy."""
    rng = np.random.default_rng(draw)
    problem = task_numbers(runs)
    shuffled = rng.permutation(problem.max() + 1)
    is_test = np.isin(problem, shuffled[: len(shuffled) // 5])
    known = sample(runs[~is_test], LEARNED_ROWS, draw)
    test = sample(runs[is_test], TESTED_ROWS, draw)

    both = Predictor(targets=("time_ms", "power_w")).fit(known)
    predicted = both.predict(test)
    alone = describe(test, predicted)

    with_time = with_column(known, known["time_ms"].to_numpy(float))
    power = Predictor(targets=("power_w",), read_as="none").fit(with_time)
    asked = with_column(test, predicted["time_ms"].to_numpy())
    choice = EnergyChoice.from_table(predict_energy(both, runs[is_test].reset_index(drop=True)))
    return f"{alone} | {describe(test, power.predict(asked))} | {choice or 'one per problem'}"


def with_column(runs: pd.DataFrame, time_ms: np.ndarray) -> pd.DataFrame:
    """Return the runs with a column of the time."""
    return runs.assign(**{TIME_COLUMN: np.log2(time_ms)})


def choices_of_rows(predictor: Predictor, new: pd.DataFrame, draw: int) -> list[str]:
    """Return the errors of watts after a correction with the rows of each choice."""
    candidates = sample(new, CANDIDATES, 100 + draw)
    test = sample(new, TESTED_ROWS, draw)
    return [
        describe(test, predictor.calibrate(choose(predictor, candidates, draw)).predict(test))
        for choose in CHOICES.values()
    ]


def representative(predictor: Predictor, rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return the rows that `Predictor.choose` takes, with their watts."""
    chosen = predictor.choose(CHOSEN, rows, seed=seed)
    settings = [column for column in chosen if column in rows]
    return chosen.merge(rows.drop_duplicates(settings), on=settings)


def by_watts(predictor: Predictor, rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return as many rows of each band of predicted watts, at random; fewer of rare bands."""
    rng = np.random.default_rng(seed)
    log_watts = np.log(predictor.predict(rows)["power_w"].to_numpy())
    edges = np.linspace(log_watts.min(), log_watts.max(), BANDS + 1)[1:-1]
    band = np.digitize(log_watts, edges)

    # The rows of a band in random order: first the first of each band, then the second, ….
    order = rng.permutation(len(rows))
    turn = pd.Series(band[order]).groupby(band[order]).cumcount().to_numpy()
    first = order[np.argsort(turn, kind="stable")][:CHOSEN]
    return rows.iloc[first]


def at_random(predictor: Predictor, rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return random rows."""
    return sample(rows, CHOSEN, seed)


CHOICES: dict[str, ChooseRows] = {
    "representative (now)": representative,
    "by predicted watts": by_watts,
    "random": at_random,
}


def sample(runs: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """Return at most ``count`` random rows with a new index."""
    chosen = np.random.default_rng(seed).permutation(len(runs))[:count]
    return runs.iloc[chosen].reset_index(drop=True)


def describe(test: pd.DataFrame, predicted: pd.DataFrame) -> str:
    """Return mean and median error of watts, and the share inside the interval, in percent."""
    interval = (predicted["power_w_low"].to_numpy(), predicted["power_w_high"].to_numpy())
    scores = score(
        test["power_w"].to_numpy(float),
        predicted["power_w"].to_numpy(),
        task_numbers(test),
        interval,
    )
    errors = f"{100 * scores['mape']:.1f} / {100 * scores['median_ape']:.1f}"
    return f"{errors}; {100 * scores['coverage90']:.0f} %"


if __name__ == "__main__":
    main()
