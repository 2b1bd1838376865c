"""Latency of networks whose operators no training row comes from.

python benchmarks/networks.py [--out FOLDER] [--batches 1,4] [--minutes 10]

Each of the eight networks of ``network_zoo.py`` is predicted from the operators of the other
seven, and from neighbors of these in size. One thread; times are CPU times of the process, which
other work on the machine stretches less. Measurements stay in FOLDER, so a second run only
computes.
"""

import argparse
import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from machine import heading, markdown
from network_zoo import NETWORKS, export
from xgboost import XGBRegressor

from foretune.collect import local_device
from foretune.collect.networks.measuring import collect_network
from foretune.collect.networks.network import Network, network_of
from foretune.collect.networks.operators import NetworkOperator
from foretune.datasets import RunLog, read_runs
from foretune.device import Device
from foretune.features.candidates import rows_of
from foretune.models.network import NetworkPredictor, roofline_ms
from foretune.support.console import progress_bar

ROUNDS = 15
ONCE = 3
"""Runs of a network per round; the first is not timed."""
METHODS = ("Foretune", "XGBoost in ten lines", "rooflines", "operators measured")
OPERATORS = "operators.parquet"
LATENCIES = "latencies.json"
Key = tuple[str, int]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, predict, print."""
    parser = argparse.ArgumentParser(description="Latency of networks left out.")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "networks")
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    device = local_device("cpu")
    programs = {
        (name, int(batch)): export(name, int(batch))
        for batch in options.batches.split(",")
        for name in NETWORKS
    }
    networks = {key: network_of(program, key[0]) for key, program in programs.items()}
    own = {name: operators_of(networks, name) for name in NETWORKS}
    collect(own, device, options.out, options.minutes)
    measured = latencies(programs, options.out / LATENCIES)
    runs = read_runs(options.out / OPERATORS)
    predicted = predict(networks, own, runs, device)
    report(device, measured, predicted, runs)
    rows = []
    for key, program in programs.items():
        given = sum(x.numel() * x.element_size() for x in program.example_inputs[0])
        mib = (networks[key].activation_bytes - given) / 2**20
        rows.append([f"{key[0]}, batch {key[1]}", f"{mib:.2f}", f"{peak_mib(program):.2f}"])
    print()
    print(markdown(["results that live at once, MiB", "predicted", "by torch's allocator"], rows))


def operators_of(networks: dict[Key, Network], name: str) -> list[NetworkOperator]:
    """Return a network's operators at all batch sizes, then their neighbors."""
    own = [o for key, network in networks.items() if key[0] == name for o in network.operators]
    return list(dict.fromkeys([*own, *(x for o in own for x in o.neighbors())]))


def collect(
    own: dict[str, list[NetworkOperator]], device: Device, out: Path, minutes: float
) -> None:
    """Measure the operators of all networks."""
    every = list(dict.fromkeys(o for operators in own.values() for o in operators))
    with RunLog(out / OPERATORS, device) as log, progress_bar() as progress:
        done = collect_network(every, log, device, minutes, time.process_time_ns, progress)
    print(
        f"{done.rows} rows measured in {done.seconds:.0f} s, {done.failed} failed, "
        f"{done.reused} reused"
    )


def latencies(programs: dict[Key, torch.export.ExportedProgram], path: Path) -> dict[Key, list]:
    """Return interleaved measurements of the exported networks in milliseconds."""
    if path.exists():
        return {tuple(key): times for key, times in json.loads(path.read_text())}
    modules = {key: (p.module(), p.example_inputs[0]) for key, p in programs.items()}
    times: dict[Key, list[float]] = {key: [] for key in modules}
    order = list(modules)
    shuffler = random.Random(0)
    with torch.inference_mode():
        for _ in range(ROUNDS):
            shuffler.shuffle(order)
            for key in order:
                module, inputs = modules[key]
                for run in range(ONCE):
                    start = time.process_time_ns()
                    module(*inputs)
                    if run:
                        times[key].append((time.process_time_ns() - start) * 1e-6)
    path.write_text(json.dumps(list(times.items())))
    return times


def peak_mib(program: torch.export.ExportedProgram) -> float:
    """Return the most results that live at once, as torch's allocator counts them."""
    module = program.module()
    inputs = program.example_inputs[0]
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.inference_mode():
        module(*inputs)
        with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
            module(*inputs)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    changes = [e for e in events if e.get("name") == "[memory]"]
    ordered = sorted(changes, key=lambda event: event["ts"])
    return max(itertools.accumulate(e["args"]["Bytes"] for e in ordered)) / 2**20


def predict(
    networks: dict[Key, Network],
    own: dict[str, list[NetworkOperator]],
    runs: pd.DataFrame,
    device: Device,
) -> dict[Key, dict[str, Any]]:
    """Return the milliseconds of every network by every method, and operators measured before."""
    every = NetworkPredictor(runs)
    row_keys = [NetworkPredictor.key_of(row) for row in runs.to_dict("records")]
    found: dict[Key, dict[str, Any]] = {}
    for name in NETWORKS:
        others = {
            NetworkPredictor.key_of(rows_of(o.kernel, o.problem, [o.config], device).iloc[0])
            for other in NETWORKS
            if other != name
            for o in own[other]
        }
        kept = runs[[key in others for key in row_keys]]
        ours = NetworkPredictor(kept)
        plain = ten_lines(kept, device)
        for key in (k for k in networks if k[0] == name):
            network = networks[key]
            made = ours.predict(networks[key], device)
            table = made.operators
            same = (table["count"] * table["time_ms"])[table["source"] == "measured"].sum()
            sums = {
                "Foretune": made.time_ms,
                "XGBoost in ten lines": total(network, plain),
                "rooflines": total(network, lambda o: roofline_ms(o, device)),
                "operators measured": every.predict(network, device).time_ms,
            }
            found[key] = {
                **sums,
                "same": same / made.time_ms,
                "unknown": made.unknown,
                "low": made.interval_ms[0],
                "high": made.interval_ms[1],
            }
    return found


def total(network: Network, one: Callable[[NetworkOperator], float]) -> float:
    """Return the sum over a network's operators."""
    return sum(count * one(operator) for operator, count in network.operators.items())


def ten_lines(runs: pd.DataFrame, device: Device) -> Callable[[NetworkOperator], float]:
    """Return a baseline: one XGBoost on the sizes of all operators together."""
    texts = ["kernel", "problem.op"]
    sizes = [name for name in runs.filter(like="problem.") if name not in texts]
    values = {text: sorted(runs[text].dropna().unique()) for text in texts}

    def features(rows: pd.DataFrame) -> np.ndarray:
        indicators = [rows[text] == value for text in texts for value in values[text]]
        numbers = [pd.to_numeric(rows[size]) for size in sizes]
        return np.column_stack([*indicators, *numbers]).astype(float)

    trees = XGBRegressor(n_estimators=500, learning_rate=0.05, n_jobs=1)
    trees.fit(features(runs), np.log(runs["time_ms"].to_numpy()))

    def predict(operator: NetworkOperator) -> float:
        rows = rows_of(operator.kernel, operator.problem, [operator.config], device)
        rows = rows.reindex(columns=runs.columns)
        return float(np.exp(trees.predict(features(rows))[0]))

    return predict


def report(
    device: Device,
    measured: dict[Key, list[float]],
    predicted: dict[Key, dict[str, Any]],
    runs: pd.DataFrame,
) -> None:
    """Print a row per network, then the errors and the order of every method."""
    print(heading("Networks left out", device))
    truth = {key: float(np.median(times)) for key, times in measured.items()}
    rows = []
    for key, times in measured.items():
        low, high = np.quantile(times, (0.25, 0.75))
        one = predicted[key]
        rows.append(
            [
                f"{key[0]}, batch {key[1]}",
                f"{truth[key]:.2f} ({low:.2f}–{high:.2f})",
                *(f"{one[m]:.2f} ({one[m] / truth[key] - 1:+.0%})" for m in METHODS),
                f"{one['same']:.0%}",
                ", ".join(one["unknown"]) or "–",
            ]
        )
    names = ("network", "measured, ms (quartiles)", *METHODS, "operators of others", "by roofline")
    print(markdown(list(names), rows))
    rows = []
    for method in METHODS:
        off = [abs(predicted[k][method] / truth[k] - 1.0) for k in truth]
        right = [
            (truth[a] < truth[b]) == (predicted[a][method] < predicted[b][method])
            for a, b in itertools.combinations(truth, 2)
        ]
        rows.append(
            [
                method,
                f"{np.mean(off):.1%}",
                f"{np.median(off):.1%}",
                f"{max(off):.1%}",
                f"{np.mean(right):.1%}",
            ]
        )
    print(markdown(["sum of", "mean error", "median", "largest", "pairs ordered right"], rows))
    inside = [predicted[k]["low"] <= truth[k] <= predicted[k]["high"] for k in truth]
    covered = f"{sum(inside)} of {len(inside)} inside the 90 % interval"
    print(f"{len(runs):,} rows of operators; {covered}")


if __name__ == "__main__":
    main()
