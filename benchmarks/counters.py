"""What are profiler counters worth to a predictor? On KTT's spaces, RTX 2080 Ti and RTX 3090.

    PYTHONPATH=src python benchmarks/counters.py SPACES [--draws 3]

A predictor knows 50 or 500 rows of the RTX 3090, drawn at random, and predicts 1,500 others.
Counters are those of the RTX 2080 Ti for the same configuration, in known and in asked rows. Beside
them: its time alone, its rows with 3090's as calibration, the compiled code, and counters of the
known rows only, which a forest predicts from the configuration for all others. Printed is the mean
error in percent, over the draws. Counters of the asked run itself give its time away: bytes over
throughput is a time.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from machine import heading, markdown
from sklearn.ensemble import ExtraTreesRegressor

from foretune.collect import local_device
from foretune.datasets.schema import columns_of
from foretune.models import Predictor

KERNELS = ("convolution_ktt", "pnpoly_ktt")
KNOWN = (50, 500)
ASKED = 1500


def read(folder: Path, kernel: str, device: str) -> pd.DataFrame:
    rows = pd.read_parquet(folder / f"{kernel}__{device}.parquet")
    return rows[rows["status"] == "ok"].reset_index(drop=True)


def error(predictor: Predictor, asked: pd.DataFrame) -> float:
    predicted = predictor.predict(asked)["time_ms"].to_numpy()
    return float(100 * np.abs(predicted / asked["time_ms"].to_numpy() - 1).mean())


def predicted_counters(rows: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Return rows with counters that a forest predicts, for known rows from trees without them."""
    config = columns_of(rows, "config")
    counters = columns_of(rows, "counter")
    forest = ExtraTreesRegressor(200, random_state=0, bootstrap=True, oob_score=True)
    forest.fit(known[config].astype(float), np.log1p(known[counters]))
    values = pd.DataFrame(forest.predict(rows[config].astype(float)), rows.index, counters)
    values.loc[known.index] = forest.oob_prediction_
    return rows.drop(columns=counters).join(values)


def errors(old: pd.DataFrame, new: pd.DataFrame, known: int, seed: int) -> dict[str, float]:
    """Return the error of every variant on the new device, with ``known`` of its rows."""
    config = columns_of(old, "config")

    # Each configuration gets the counters, or the time, of the old device.
    counters = [name for name in columns_of(old, "counter") if old[name].nunique() > 1]
    with_counters = new.merge(old[[*config, *counters]], on=config)
    old_ms = old[[*config, "time_ms"]].rename(columns={"time_ms": "counter.other_ms"})
    with_time = new.merge(old_ms, on=config)

    shuffled = np.random.default_rng(seed).permutation(len(with_counters))
    training = shuffled[:known]
    test = shuffled[-ASKED:]

    def fitted(table: pd.DataFrame, *extra: str) -> float:
        predictor = Predictor(targets=("time_ms",), extra_columns=extra)
        return error(predictor.fit(table.iloc[training]), table.iloc[test])

    other = Predictor(targets=("time_ms",)).fit(old)
    calibrated = other.calibrate(with_counters.iloc[training])
    predicted = predicted_counters(with_counters, with_counters.iloc[training])
    return {
        "without": fitted(with_counters),
        "counters": fitted(with_counters, "counter"),
        "other time": fitted(with_time, "counter"),
        "calibrated": error(calibrated, with_counters.iloc[test]),
        "compiled": fitted(with_counters, "static"),
        "compiled, counters": fitted(with_counters, "static", "counter"),
        "predicted counters": fitted(predicted, "counter"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("spaces", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(heading("Profiler counters as features", local_device("cpu")))
    lines = []
    for kernel in KERNELS:
        old = read(options.spaces, kernel, "RTX_2080_Ti")
        new = read(options.spaces, kernel, "RTX_3090")
        for known in KNOWN:
            drawn = pd.DataFrame(errors(old, new, known, s) for s in range(options.draws)).mean()
            lines.append([kernel, str(known), *(f"{e:.2f}" for e in drawn)])
    print(markdown(["space", "known rows", *drawn.index], lines))


if __name__ == "__main__":
    main()
