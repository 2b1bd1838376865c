"""Measures operators of language models on this machine, row by row into a run table.

A step of a deployment runs thousands of operators, so weights have left the cache before their next
use. All launches are timed with a cold cache; those of a GPU are replayed from a graph, as in
engines.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import psutil
import torch

from foretune.collect.collection import CollectSummary, describe
from foretune.collect.timing import ColdCpuTimer, Timer, Timing, gpu_timer, time_launch
from foretune.collect.torch_operators.operators import CLASSES
from foretune.collect.versions import versions
from foretune.datasets.run_file import RowIdentity
from foretune.datasets.run_log import RunLog
from foretune.device import Device
from foretune.errors import MeasurementError, describe_error
from foretune.kernel import Launch
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.progress import SILENT, Progress

TIMING = Timing(max_seconds=0.3, warmup_s=0.02, relative_width=0.02, max_repeats=200)
USABLE_FRACTION = 0.8
"""Share of the free memory that one operator may take."""
MAX_FAILURES = 3
"""Failures without a success after which a kernel is skipped in these formats."""
KIB = 2**10
WARMUP_RUNS = 3
"""Launches before recording a graph: libraries initialize in the first ones."""


class OperatorRun(Protocol):
    """Kernel, problem and configuration of a run table."""

    @property
    def kernel(self) -> str:
        """The kernel's name."""

    @property
    def problem(self) -> Problem:
        """The ``problem.*`` columns: sizes on one rank."""

    @property
    def config(self) -> Configuration:
        """The ``config.*`` columns: number formats, and the number of ranks that share experts."""


def cannot_run(operator: OperatorRun) -> str:
    """Return why torch cannot run ``operator``; empty if it can."""
    if operator.kernel not in CLASSES:
        return f"{operator.kernel} has no equivalent in torch, or needs several devices"
    return CLASSES[operator.kernel].cannot_run(operator.problem, operator.config)


def build(operator: OperatorRun, device: str) -> Launch:
    """Return a call that runs ``operator`` on torch's ``device``.

    Raises MeasurementError if torch cannot run it.
    """
    reason = cannot_run(operator)
    if reason:
        raise MeasurementError(reason)
    return CLASSES[operator.kernel].build(operator.problem, operator.config, device)


def _timer(device: Device) -> Timer:
    """Return a timer that flushes the caches before each launch."""
    if device.kind == "gpu":
        return gpu_timer(device)
    return ColdCpuTimer(cache_bytes=KIB * device.specs.get("l3_kib", 0.0))


class OperatorBenchmarker:
    """Runs operators one after the other on a GPU or the CPU of this machine, with torch."""

    def __init__(self, device: Device, timing: Timing = TIMING) -> None:
        self.device = device
        self.timing = timing
        self._torch_device = f"cuda:{device.index}" if device.kind == "gpu" else "cpu"
        self._timer = _timer(device)

    def measure(self, operator: OperatorRun) -> Measurement:
        """Return the measurement of ``operator``; a failure is a status, not an error."""
        free_bytes = self._free_bytes()
        memory_bytes = CLASSES[operator.kernel].memory_bytes
        needed_bytes = memory_bytes(operator.problem, operator.config)
        if needed_bytes > USABLE_FRACTION * free_bytes:
            reason = f"needs {needed_bytes / 2**30:.1f} GiB, {free_bytes / 2**30:.1f} GiB are free"
            return self._row(operator, Status.INVALID, error=reason)

        start = time.perf_counter()
        with torch.inference_mode():
            try:
                launch = self._as_graph(build(operator, self._torch_device))
            except Exception as e:
                return self._row(operator, Status.COMPILE_ERROR, error=describe_error(e))
            compile_s = time.perf_counter() - start
            try:
                samples = time_launch(launch, self.timing, timer=self._timer)
            except Exception as e:
                return self._row(operator, Status.RUNTIME_ERROR, error=describe_error(e))
        return self._row(
            operator,
            Status.OK,
            time_ms=float(np.median(samples)),
            time_ms_samples=tuple(map(float, samples)),
            compile_s=compile_s,
        )

    def log_key(self, operator: OperatorRun) -> RowIdentity:
        """Return the key of ``operator`` in a run log."""
        return operator.kernel, self.device.name, operator.problem, operator.config

    def _row(self, operator: OperatorRun, status: Status, **values: Any) -> Measurement:
        kernel, device, problem, config = self.log_key(operator)
        return Measurement(
            kernel=kernel,
            problem=problem,
            config=config,
            device=device,
            status=status,
            environment=versions(),
            **values,
        )

    def _as_graph(self, launch: Launch) -> Launch:
        """Run and return ``launch``; on a GPU as a graph, because the host limits small ones."""
        if self.device.kind != "gpu":
            launch()
            return launch

        # Libraries must not initialize while the graph is recorded.
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARMUP_RUNS):
                launch()
        torch.cuda.current_stream().wait_stream(side_stream)

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()

        # The graph reads the launch's tensors, so the launch is kept.
        def replay(kept: Launch = launch) -> None:
            graph.replay()

        return replay

    def _free_bytes(self) -> float:
        if self.device.kind != "gpu":
            return float(psutil.virtual_memory().available)
        torch.cuda.empty_cache()
        return float(torch.cuda.mem_get_info(self.device.index)[0])


def collect_operators(
    operators: Sequence[OperatorRun],
    log: RunLog,
    benchmarker: OperatorBenchmarker,
    minutes: float,
    progress: Progress = SILENT,
) -> CollectSummary:
    """Measure operators in order until the time is over; write each row immediately.

    The most informative operators come first; none starts after ``minutes``. Operators in ``log``
    are not measured again, so a repeated call resumes. A kernel that fails repeatedly in some
    formats is skipped in these formats. Raises OutputError if the log cannot be written.
    """
    progress.start("measuring operators", len(operators))
    start = time.perf_counter()
    measured = 0
    failed = 0
    keys = map(benchmarker.log_key, operators)
    known = {key for key in keys if is_current(log.find(key))}
    failures = _failures(known, log)
    for operator in operators:
        if time.perf_counter() - start > 60.0 * minutes:
            break
        key = benchmarker.log_key(operator)
        formats = _formats(operator)
        if key in known:
            progress.advance("known already")
            continue
        if failures[formats] >= MAX_FAILURES:
            progress.advance("cannot run here")
            continue

        measurement = benchmarker.measure(operator)
        log.append(measurement)
        known.add(key)
        measured += 1
        if measurement.ok:
            # These formats are known to run: they are not skipped any more.
            failures[formats] -= len(operators)
        else:
            failures[formats] += 1
            failed += 1
        progress.advance(f"{measurement.kernel} {describe(measurement)}")
    return CollectSummary(
        rows=measured,
        ok=measured - failed,
        failed=failed,
        reused=len(known) - measured,
        seconds=time.perf_counter() - start,
    )


def is_current(found: Measurement | None) -> bool:
    """Return whether a measurement exists and was made with the versions that run now."""
    return found is not None and found.environment == versions()


def _failures(known: Iterable[RowIdentity], log: RunLog) -> Counter[tuple[str, ...]]:
    """Return the number of failures by format in the log; far below zero if the format ever ran."""
    failures: Counter[tuple[str, ...]] = Counter()
    for measurement in map(log.find, known):
        if measurement is None:
            continue
        failures[_formats(measurement)] += -len(log) if measurement.ok else 1
    return failures


def _formats(operator: OperatorRun) -> tuple[str, ...]:
    """Return an operator's kernel and its formats, which fail or run together."""
    config = operator.config
    return operator.kernel, str(config.get("format", "")), str(config.get("kv_format", ""))
