"""What does it cost a predictor not to know a GPU?

    python benchmarks/unknown_gpu.py DATA

DATA holds ``gpperf/``, ``neusight/`` and ``llm/`` (tables of other tools' measurements, see their
manifests). One GPU of each table gets an unknown name. Its rows have its own specifications, those
of the nearest other GPU of our table, none (the generic GPU's are used), or none without the
generic GPU.
"""

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
from machine import heading
from neusight import read
from predictor_tasks import RTX, held_out, operators

from foretune.collect import local_device
from foretune.datasets.runs import with_specs, with_specs_of
from foretune.device import Device, find_device, known_devices
from foretune.errors import DataWarning, PredictorError
from foretune.features import featureset
from foretune.models import Predictor

NAME = "a GPU without a name"
ROWS = 500
"""Training rows per device, and tested rows."""
KNOWN_ROWS = 40
"""Rows of the new device that the second variant of a task knows."""


@dataclass(frozen=True)
class Task:
    """``runs`` of which the rows ``test`` are held out; those of ``device`` lose its name."""

    name: str
    runs: pd.DataFrame
    test: np.ndarray
    device: str


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    warnings.simplefilter("ignore", DataWarning)
    print(heading("A GPU without specifications", local_device("cpu")))
    print("mean of |error| in % on held-out rows, by the specs that the GPU's rows have")
    print("| held out | train / test rows | its own | nearest GPU's | generic | none |")
    print("|---|---|---|---|---|---|")
    for task in chain(sweep(data), single_operators(data), serving_operators(data)):
        gpu = find_device(task.device)
        near = nearest(gpu)
        errors = [mean_error(task, specs) for specs in (gpu, near, None)]
        errors.append(mean_error(task, None, generic=False))
        cells = " | ".join("no prediction" if e is None else f"{e:.1f}" for e in errors)
        rows = f"{(~task.test).sum():,} / {task.test.sum():,}"
        print(f"| {task.name} (nearest: {near.name}) | {rows} | {cells} |", flush=True)


def sweep(data: Path) -> Iterator[Task]:
    """GPPerf's sweep of one GEMM kernel on an RTX 4070, alone in its table."""
    table = pd.read_parquet(data / "gpperf" / "sweep.parquet")
    names = {
        "m": "problem.M",
        "n": "problem.N",
        "k": "problem.K",
        "runtime": "time_ms",
        "Layout": "config.layout",
        "alpha": "config.alpha",
        "beta": "config.beta",
    }
    runs = table.rename(columns=names)[list(names.values())]
    device = "NVIDIA GeForce RTX 4070"
    runs = runs.assign(kernel="gemm", device=device, status="ok", **{"config.format": "fp32"})
    runs = sample(runs, 2 * ROWS)
    sizes = ["problem.M", "problem.N", "problem.K"]
    yield Task("GPPerf, RTX 4070: shapes", runs, held_out(runs, sizes), device)
    for name in ("problem.M", "problem.K"):
        largest = (runs[name] == runs[name].max()).to_numpy()
        yield Task(f"GPPerf, RTX 4070: largest {name[-1]}", runs, largest, device)


def single_operators(data: Path) -> Iterator[Task]:
    """NeuSight's operators on a T4, known from P100 and A100."""
    for name in ("linear", "softmax"):
        runs = read(data / "neusight" / f"{name}.parquet").drop(columns="environment")
        yield from unseen_device(f"NeuSight {name}, T4 unseen", runs, "T4")


def serving_operators(data: Path) -> Iterator[Task]:
    """AIConfigurator's GEMM on a GPU that was not measured."""
    runs = operators(data, "gemm", backend="trtllm")
    runs = runs[runs["config.format"].astype(str).isin(["bf16", "fp8"])]
    yield from unseen_device("GEMM, RTX PRO 6000 unseen", runs, RTX)


def unseen_device(name: str, runs: pd.DataFrame, device: str) -> Iterator[Task]:
    """Hold out all rows of a device, then all but `KNOWN_ROWS` of them."""
    runs = runs.assign(device=runs["device"].astype(str)).reset_index(drop=True)
    full_name = next(name for name in runs["device"].unique() if device in name)
    of_devices = [sample(of_device, ROWS) for _, of_device in runs.groupby("device")]
    runs = pd.concat(of_devices, ignore_index=True)

    is_test = (runs["device"] == full_name).to_numpy()
    yield Task(name, runs, is_test, full_name)

    few_known = is_test.copy()
    few_known[np.flatnonzero(is_test)[:KNOWN_ROWS]] = False
    yield Task(f"{name} but for {KNOWN_ROWS} rows", runs, few_known, full_name)


def sample(runs: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return at most ``count`` rows, drawn at random."""
    return runs.sample(min(count, len(runs)), random_state=0).reset_index(drop=True)


def nearest(gpu: Device) -> Device:
    """Return the other GPU of our table that is nearest in rates."""

    def distance(other: Device) -> float:
        rates = ("fp32_gflops", "memory_gbps")
        if other.name == gpu.name or not other.specs.keys() >= set(rates):
            return np.inf
        return float(sum(np.log(other.specs[r] / gpu.specs[r]) ** 2 for r in rates))

    return min((d for d in known_devices().values() if d.kind == "gpu"), key=distance)


def mean_error(task: Task, specs: Device | None, generic: bool = True) -> float | None:
    """Return the mean error in % if the GPU's rows have ``specs``; None without a prediction."""
    runs = with_specs(task.runs[[c for c in task.runs if not c.startswith("device.")]])

    # The rows of the GPU lose its name, and get other specifications.
    of_gpu = (runs["device"] == task.device).to_numpy()
    without_specs = [name for name in runs if not name.startswith("device.")]
    renamed = with_specs_of(runs.loc[of_gpu, without_specs], specs).assign(device=NAME)
    parts = [part for part in (runs[~of_gpu], renamed) if len(part)]
    runs = pd.concat(parts).loc[task.runs.index]
    train = runs[~task.test].reset_index(drop=True)
    test = runs[task.test].reset_index(drop=True)

    with_generic_rates = featureset.with_rates
    if not generic:
        featureset.with_rates = lambda family, rows: rows
    try:
        predicted = Predictor(targets=("time_ms",)).fit(train).predict(test)["time_ms"]
    except PredictorError:
        return None
    finally:
        featureset.with_rates = with_generic_rates
    return 100.0 * float((predicted / test["time_ms"] - 1.0).abs().mean())


if __name__ == "__main__":
    main()
