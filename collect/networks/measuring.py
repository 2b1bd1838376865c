"""Measures operators of networks in rounds: each runs once after another kind of operator.

An operator run repeatedly finds its code, weights and results in the nearest caches, unlike in a
network. So operators take turns in random order, and a group of them has about as many bytes as a
network.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from foretune.collect.collection import CollectSummary
from foretune.collect.networks.operators import NetworkOperator
from foretune.collect.power import PowerMeter, find_meter, measure_power
from foretune.collect.torch_operators.measuring import is_current
from foretune.collect.versions import versions
from foretune.datasets import RunLog
from foretune.device import Device
from foretune.errors import describe_error
from foretune.kernel import Launch
from foretune.measurement import Measurement, Status
from foretune.support.progress import SILENT, Progress

ROUNDS = 15
"""Rounds that are timed."""
WARM_UP_ROUNDS = 2
"""Rounds before them that are not."""
GROUP_BYTES = 2**25
"""Bytes of a group's arguments, unless it would have fewer than `GROUP` operators."""
GROUP = 12
"""Minimum number of operators of a group."""
MAX_BYTES = 2**30
"""Operators with larger arguments are left out: a group of them might not fit."""

Clock = Callable[[], int]
"""Returns nanoseconds."""


def collect_network(
    operators: Sequence[NetworkOperator],
    log: RunLog,
    device: Device,
    minutes: float,
    clock: Clock = time.perf_counter_ns,
    progress: Progress = SILENT,
) -> CollectSummary:
    """Measure operators group by group until the time is over; write each group's rows immediately.

    ``operators`` begin with the most important. Those in ``log`` are not measured again, so a
    repeated call resumes. Power is measured if the device, this machine's CPU, has a meter. No
    group starts after ``minutes``. On a busy machine, ``clock`` may be the CPU's instead of the
    wall clock. Raises OutputError if the log cannot be written.
    """
    progress.start("measuring operators", len(operators))
    start = time.perf_counter()
    meter = find_meter(device.kind)
    remaining = [
        o
        for o in operators
        if not is_current(log.find((o.kernel, device.name, o.problem, o.config)))
    ]
    n_measured = 0
    n_failed = 0
    for group in _groups(remaining):
        if time.perf_counter() - start > 60.0 * minutes:
            break
        with torch.inference_mode():
            measured = _measure(group, device, clock, meter)
        for measurement in measured:
            log.append(measurement)
            n_measured += 1
            if not measurement.ok:
                n_failed += 1
            progress.advance(measurement.kernel)
    return CollectSummary(
        rows=n_measured,
        ok=n_measured - n_failed,
        failed=n_failed,
        reused=len(operators) - len(remaining),
        seconds=time.perf_counter() - start,
    )


def _groups(operators: Sequence[NetworkOperator]) -> Iterator[list[NetworkOperator]]:
    """Yield operators with equal threads, in groups of many kinds."""
    for threads in sorted({int(o.config["threads"]) for o in operators}):
        group: list[NetworkOperator] = []
        for operator in operators:
            if operator.config["threads"] != threads:
                continue
            group.append(operator)
            if len(group) >= GROUP and sum(o.bytes for o in group) >= GROUP_BYTES:
                yield group
                group = []
        if group:
            yield group


def _measure(
    group: Sequence[NetworkOperator], device: Device, clock: Clock, meter: PowerMeter | None
) -> list[Measurement]:
    """Return the measurements of a group, whose operators have equal threads."""
    torch.set_num_threads(int(group[0].config["threads"]))

    # Build every operator, and run it once. One that fails takes no part in the rounds.
    launches: dict[NetworkOperator, Launch] = {}
    errors: dict[NetworkOperator, str] = {}
    for operator in group:
        try:
            if operator.bytes > MAX_BYTES:
                raise MemoryError(f"its arguments take {operator.bytes / 2**30:.1f} GiB")
            launches[operator] = operator.build()
            launches[operator]()
        except Exception as e:
            launches.pop(operator, None)
            errors[operator] = describe_error(e)

    samples = _time_rounds(launches, clock)
    measured = []
    for operator in group:
        row = Measurement(
            kernel=operator.kernel,
            problem=operator.problem,
            config=operator.config,
            device=device.name,
            status=Status.RUNTIME_ERROR,
            environment=versions(),
        )
        if operator in errors:
            measured.append(replace(row, error=errors[operator]))
            continue
        times = samples[operator]
        time_ms = float(np.median(times))
        power_w = math.nan
        energy_mj = math.nan
        if meter:
            power_w, energy_mj = measure_power(
                meter, launches[operator], time_ms=time_ms, wait=lambda: None
            )
        measured.append(
            replace(
                row,
                status=Status.OK,
                time_ms=time_ms,
                time_ms_samples=tuple(times),
                power_w=power_w,
                energy_mj=energy_mj,
            )
        )
    return measured


def _time_rounds(
    launches: dict[NetworkOperator, Launch], clock: Clock
) -> dict[NetworkOperator, list[float]]:
    """Return the times of every launch in milliseconds, one per round after the warm-up."""
    samples: dict[NetworkOperator, list[float]] = {operator: [] for operator in launches}
    order = list(launches)
    shuffler = random.Random(0)
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        shuffler.shuffle(order)
        for operator in order:
            launch = launches[operator]
            start = clock()
            launch()
            # A coarse clock may not have moved: a time is at least a nanosecond.
            elapsed_ns = max(clock() - start, 1)
            if number >= WARM_UP_ROUNDS:
                samples[operator].append(elapsed_ns * 1e-6)
    return samples
