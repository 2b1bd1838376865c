"""What measuring on a fleet costs, and where its scheduler bends.

On a Ray cluster of this machine: the speed-up of two devices over one, for a kernel that only
sleeps; what a measurement takes beyond the same one without Ray; what this process spends on it,
and on keeping the row. From these a simulation, in which the real dispatcher hands out work to up
to a thousand devices, gives their utilization.
"""

import argparse
import heapq
import json
import os
import tempfile
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from machine import heading, markdown
from ray.cluster_utils import Cluster
from sleeping_kernel import SleepingKernel

import foretune as ft
from foretune.collect import Timing
from foretune.collect.distributed.actor import resource_counts
from foretune.collect.distributed.dispatcher import Dispatcher
from foretune.datasets import RunLog
from foretune.tune.store.cache import MeasurementCache

KERNEL = SleepingKernel()
PROBLEM = KERNEL.problem(n=1)
SLEEPY = ft.Configuration(ms=20)
SHORT = ft.Configuration(ms=1)
TIMING = Timing(max_seconds=0.5, warmup_s=0.02, min_repeats=1000)
BRIEF = Timing(max_seconds=0.004, warmup_s=0.001)
DEVICES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
LENGTHS_S = (0.01, 0.1, 1.0, 10.0)
PER_DEVICE = 30
"""Measurements of each device in a simulation."""


@dataclass(frozen=True)
class Costs:
    """What one measurement costs beside the measuring, in milliseconds.

    Attributes:
        overhead_ms: from the free device to its next measurement, and back.
        driver_ms: of that, work of the process that hands out.
        keep_ms: work of the same process on the row, in run log and store.
    """

    overhead_ms: float
    driver_ms: float
    keep_ms: float


class SimulatedCrew:
    """Devices whose measurements take as many seconds as they say; time is simulated."""

    def __init__(self, devices: int, costs: Costs) -> None:
        self.devices = devices
        self.now = 0.0
        self.busy_s = 0.0
        self._driver_s = costs.driver_ms * 1e-3
        self._way_s = max(0.0, costs.overhead_ms - costs.driver_ms) * 1e-3
        self._events: list[tuple[float, Any]] = []
        self._started = 0

    def capacity(self) -> int:
        """Return how many devices there are."""
        return self.devices

    def start(self) -> int:
        """Start a worker at once."""
        self._started += 1
        heapq.heappush(self._events, (self.now, self._started))
        return self._started

    def send(self, worker: Hashable, work: float) -> None:
        """Give a worker a measurement of ``work`` seconds."""
        self.now += self._driver_s
        self.busy_s += work
        heapq.heappush(self._events, (self.now + self._way_s + work, worker))

    def receive(self, timeout_s: float) -> tuple[int, Any]:
        """Return the next answer."""
        at, worker = heapq.heappop(self._events)
        self.now = max(self.now, at)
        return worker, "done"


def utilization(devices: int, length_s: float, costs: Costs) -> float:
    """Return the share of time in which devices measure; lengths vary by a fifth."""
    crew = SimulatedCrew(devices, costs)
    members = Dispatcher(crew, clock=lambda: crew.now)
    lengths = np.random.default_rng(0).uniform(0.8, 1.2, PER_DEVICE * devices) * length_s
    for _ in members.results((i // 20, float(length)) for i, length in enumerate(lengths)):
        crew.now += costs.keep_ms * 1e-3
    return crew.busy_s / (crew.now * devices)


@contextmanager
def cluster_of(node: dict[str, Any]) -> Iterator[Cluster]:
    """Give a cluster on this machine with one node."""
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def seconds(runner: ft.collect.Runner, configs: Sequence[ft.Configuration]) -> float:
    """Return what it takes to measure ``configs`` on all devices of a runner."""
    start = time.perf_counter()
    done = list(runner.run_many(KERNEL, [(PROBLEM, c) for c in configs]))
    assert all(m.ok for m in done)
    return time.perf_counter() - start


def each_ms(runner: ft.collect.Runner, count: int) -> np.ndarray:
    """Return what each of ``count`` short measurements takes, one after the other."""
    return np.array([seconds(runner, [SHORT]) for _ in range(count)]) * 1e3


def measured(device: ft.Device, count: int) -> tuple[Costs, float, float]:
    """Return the costs, and the seconds one and two devices take for the same work."""
    node: dict[str, Any] = {
        "num_cpus": 1,
        "resources": resource_counts([device]),
        "include_dashboard": False,
        "object_store_memory": 80 * 2**20,
    }
    with cluster_of(node) as cluster:
        with (
            ft.IsolatedRunner(device, BRIEF, power=False) as alone,
            ft.RayRunner(KERNEL, device, BRIEF, power=False, address=cluster.address) as runner,
        ):
            overheads = []
            driver = []
            for _ in range(10):  # in turn: the machine drifts
                without = np.median(each_ms(alone, count // 10))
                start = time.process_time()
                overheads.append(np.median(each_ms(runner, count // 10)) - without)
                driver.append((time.process_time() - start) * 1e3 / (count // 10))
        costs = Costs(float(np.median(overheads)), float(np.median(driver)), keep_ms(device, count))
        address = cluster.address
        with ft.RayRunner(KERNEL, device, TIMING, power=False, address=address) as runner:
            work = [SLEEPY] * 40
            seconds(runner, work[:2])
            one = seconds(runner, work)
            cluster.add_node(**node)
            while runner.parallelism < 2:  # the new node is found while the runner works
                seconds(runner, work[:2])
            seconds(runner, work[:4])
            two = seconds(runner, work)
    return costs, one, two


def keep_ms(device: ft.Device, count: int) -> float:
    """Return what keeping a row takes, in the run log and in the store."""
    with ft.collect.InProcessRunner(device, BRIEF, power=False) as runner:
        (row,) = runner.run(KERNEL, PROBLEM, [SHORT])
    with (
        tempfile.TemporaryDirectory() as folder,
        RunLog(Path(folder, "runs.parquet"), device) as log,
    ):
        record = MeasurementCache.for_kernel(KERNEL, device, str(Path(folder, "store.db")), log)
        record.append(row)
        start = time.perf_counter()
        for _ in range(count):
            record.append(row)
        return (time.perf_counter() - start) * 1e3 / count


def simulated(costs: Costs) -> dict[str, list[float]]:
    """Return the utilization by length of a measurement, for `DEVICES`."""
    return {f"{s:g} s": [utilization(n, s, costs) for n in DEVICES] for s in LENGTHS_S}


def table(shares: dict[str, list[float]]) -> str:
    """Return a simulation as a table."""
    rows = [[length, *(f"{100 * x:.0f} %" for x in found)] for length, found in shares.items()]
    return markdown(["a measurement takes", *map(str, DEVICES)], rows)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="short measurements to time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(None if arguments is None else list(arguments))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    device = ft.local_device("cpu")
    costs, one, two = measured(device, options.count)
    handing = Costs(costs.overhead_ms, costs.driver_ms, 0.0)
    start = time.perf_counter()
    simulations = {"handing out": simulated(handing), "and keeping rows": simulated(costs)}
    pieces = 2 * len(LENGTHS_S) * PER_DEVICE * sum(DEVICES)
    own_us = (time.perf_counter() - start) * 1e6 / pieces
    if options.json:
        print(
            json.dumps(
                {
                    "costs": asdict(costs),
                    "one_s": one,
                    "two_s": two,
                    "dispatcher_us": own_us,
                    "devices": DEVICES,
                    **simulations,
                }
            )
        )
        return
    print(heading(f"Measuring on a fleet (Ray {ray.__version__})", device))
    print(
        markdown(
            ["", "measured"],
            [
                ["40 measurements that sleep, on one device", f"{one:.1f} s"],
                ["on two", f"{two:.1f} s, {one / two:.2f}×"],
                ["a measurement costs beyond the same without Ray", f"{costs.overhead_ms:.2f} ms"],
                ["of that, work of the process that hands out", f"{costs.driver_ms:.2f} ms"],
                ["keeping a row (run log and store)", f"{costs.keep_ms:.2f} ms"],
                ["the dispatcher's own share, up to 1,000 devices", f"{own_us:.0f} µs"],
            ],
        )
    )
    for name, shares in simulations.items():
        print(f"Utilization by number of devices, simulated: {name}\n\n{table(shares)}")


if __name__ == "__main__":
    main()
