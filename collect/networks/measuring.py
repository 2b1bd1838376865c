"""Measures operators of networks in rounds: each runs once after another kind of operator.

An operator run repeatedly finds its code, weights and results in the nearest caches, unlike in a
network. So operators take turns in random order, and a group of them has about as many bytes as a
network.
"""

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

ROUNDS, WARM_UP_ROUNDS = 15, 2
GROUP_BYTES = 2**25
"""Bytes of a group's arguments, unless it would have fewer than `GROUP` operators."""
GROUP = 12
MAX_BYTES = 2**30  # operators with larger arguments are left out: a group of them might not fit

Clock = Callable[[], int]  # returns nanoseconds


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
    start, meter, done, failed = time.perf_counter(), find_meter(device.kind), 0, 0
    found = [log.find((o.kernel, device.name, o.problem, o.config)) for o in operators]
    left = [o for o, known in zip(operators, found, strict=True) if not is_current(known)]
    for group in _groups(left):
        if time.perf_counter() - start > 60.0 * minutes:
            break
        with torch.inference_mode():
            measured = _measure(group, device, clock, meter)
        for measurement in measured:
            log.append(measurement)
            done, failed = done + 1, failed + (not measurement.ok)
            progress.advance(measurement.kernel)
    reused = len(operators) - len(left)
    return CollectSummary(done, done - failed, failed, reused, time.perf_counter() - start)


def _groups(operators: Sequence[NetworkOperator]) -> Iterator[list[NetworkOperator]]:
    """Yield operators with equal threads, in groups of many kinds."""
    for threads in sorted({int(o.config["threads"]) for o in operators}):
        group: list[NetworkOperator] = []
        for operator in (o for o in operators if o.config["threads"] == threads):
            group.append(operator)
            if len(group) >= GROUP and sum(o.bytes for o in group) >= GROUP_BYTES:
                yield group
                group = []
        if group:
            yield group


def _measure(
    group: Sequence[NetworkOperator], device: Device, clock: Clock, meter: PowerMeter | None
) -> list[Measurement]:
    torch.set_num_threads(int(group[0].config["threads"]))
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
            operator.kernel,
            operator.problem,
            operator.config,
            device.name,
            Status.RUNTIME_ERROR,
            environment=versions(),
        )
        if operator in errors:
            measured.append(replace(row, error=errors[operator]))
            continue
        times, launch = samples[operator], launches[operator]
        time_ms = float(np.median(times))
        power_w = energy_mj = float("nan")
        if meter:
            power_w, energy_mj = measure_power(meter, launch, time_ms, wait=lambda: None)
        measured.append(
            replace(
                row,
                status=Status.OK,
                time_ms=time_ms,
                power_w=power_w,
                time_ms_samples=tuple(times),
                energy_mj=energy_mj,
            )
        )
    return measured


def _time_rounds(
    launches: dict[NetworkOperator, Launch], clock: Clock
) -> dict[NetworkOperator, list[float]]:
    """Return the times of every launch in milliseconds, one per round after the warm-up."""
    samples: dict[NetworkOperator, list[float]] = {operator: [] for operator in launches}
    order, shuffler = list(launches), random.Random(0)
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        shuffler.shuffle(order)
        for operator in order:
            launch = launches[operator]
            start = clock()
            launch()
            elapsed = max(clock() - start, 1) * 1e-6
            if number >= WARM_UP_ROUNDS:
                samples[operator].append(elapsed)
    return samples
