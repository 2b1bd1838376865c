"""How fast is the configuration that is predicted fastest, on shapes that were not learned?

Run: ``python benchmarks/first_choice.py DATA [--draws 3]`` where DATA is that of `predictors`.

It is the protocol by which AMD judges learned selection of matrix products: whole shapes are held
out, the first choice runs, and its share of the speed of the best configuration is reported as mean
and tenth percentile over shapes. A fifth of the shapes of each table is held out, three times.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from machine import heading
from plain_models import on_raw_columns
from predictor_tasks import SHARE, without_unused_texts

from foretune.collect import local_device
from foretune.datasets import read_runs
from foretune.datasets.runs import with_specs
from foretune.models import Predictor
from foretune.models.splits import group_numbers, task_numbers

TABLES = {
    "matrix products, A100": "triton/mm__A100",
    "mixed products, A100": "triton/mixed_mm__A100",
    "flex attention, H100": "triton/flex_attention__H100",
    "convolutions, MIOpen": "amd/convolution_miopen",
}
ROWS = 10_000
"""Most rows to learn from."""

PredictMs = Callable[[pd.DataFrame, pd.DataFrame], np.ndarray]


def main() -> None:
    """Print a line per table and rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    print(heading("The first choice", local_device("cpu")))
    print("| table | shapes | rule | mean | tenth percentile | worst |\n|---|---|---|---|---|---|")
    for name, file in TABLES.items():
        runs = with_specs(read_runs(arguments.data / f"{file}.parquet"))
        runs = without_unused_texts(runs[runs["status"] == "ok"])
        splits = list(held_out_shapes(runs, arguments.draws))
        for rule, predict_ms in RULES.items():
            shares = np.concatenate(
                [shares_of_best(test, predict_ms(known, test)) for known, test in splits]
            )
            cells = [name, f"{len(shares)}", rule, f"{shares.mean():.1%}"]
            cells += [f"{np.percentile(shares, 10):.1%}", f"{shares.min():.1%}"]
            print(f"| {' | '.join(cells)} |", flush=True)


def held_out_shapes(runs: pd.DataFrame, draws: int) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Yield rows to learn from, and all rows of a fifth of the shapes, on all devices."""
    shape = group_numbers(runs, "problem")
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        order = rng.permutation(int(shape.max()) + 1)
        is_out = np.isin(shape, order[: round(SHARE * len(order))])
        known = rng.permutation(np.flatnonzero(~is_out))[:ROWS]
        yield (
            runs.iloc[known].reset_index(drop=True),
            runs[is_out].reset_index(drop=True),
        )


def shares_of_best(test: pd.DataFrame, predicted_ms: np.ndarray) -> np.ndarray:
    """Return the best time over that of the first choice, for each shape with several rows."""
    time_ms = test["time_ms"].to_numpy(float)
    shares = []
    for rows in pd.Series(np.arange(len(test))).groupby(task_numbers(test)):
        numbers = rows[1].to_numpy()
        if len(numbers) > 1:
            first = numbers[np.argmin(predicted_ms[numbers])]
            shares.append(time_ms[numbers].min() / time_ms[first])
    return np.array(shares)


def predictor_ms(known: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Return the times that the predictor expects."""
    predictor = Predictor(targets=("time_ms",)).fit(known)
    return predictor.predict(test)["time_ms"].to_numpy()


def boosting_ms(known: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Return the times that XGBoost expects from the table's columns."""
    return on_raw_columns(known, test, "time_ms")


def usual_ms(known: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Return how slow each configuration is on average, over the mean time of its shapes."""
    # How much longer than the mean of its shape does each row take?
    log_ms = np.log(known["time_ms"].to_numpy(float))
    mean_of_shape = pd.Series(log_ms).groupby(task_numbers(known)).transform("mean")
    over_shape = log_ms - mean_of_shape

    # The mean of that over the rows of a configuration.
    columns = [column for column in known if column.startswith("config.")]
    known_configs = known[columns].astype(str).agg("|".join, axis=1)
    mean_of_config = over_shape.groupby(known_configs).mean()

    # A configuration that was not learned counts as the slowest.
    test_configs = test[columns].astype(str).agg("|".join, axis=1)
    usual = test_configs.map(mean_of_config)
    return np.asarray(usual.fillna(usual.max()), dtype=float)


def random_ms(known: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Return random numbers."""
    return np.random.default_rng(0).random(len(test))


RULES: dict[str, PredictMs] = {
    "Foretune": predictor_ms,
    "XGBoost, raw columns": boosting_ms,
    "best on average": usual_ms,
    "random": random_ms,
}

if __name__ == "__main__":
    main()
