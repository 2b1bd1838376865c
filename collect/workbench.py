"""The workbench: builds, checks, times and meters configurations in this process."""

import math
import platform
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from foretune.collect.meters import PowerMeter
from foretune.collect.timer import Timing, time_interleaved, time_launch
from foretune.errors import ForetuneError
from foretune.kernel import Inputs, Kernel, Launch
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration

INPUT_SETS_KEPT = 2
POWER_WINDOW_S = 0.6


@dataclass(frozen=True)
class _Prepared:
    inputs: Inputs
    expected: Any


class Workbench:
    """Runs configurations one after the other.

    Args:
        device_name: written into every measurement.
        timing: when to stop repeating.
        meter: reads power after timing; None leaves power missing.
    """

    def __init__(
        self, device_name: str, timing: Timing | None = None, meter: PowerMeter | None = None
    ) -> None:
        self.device_name = device_name
        self.timing = timing or Timing()
        self.meter = meter
        self._prepared: OrderedDict[tuple[str, Problem], _Prepared] = OrderedDict()

    def measure(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Configuration,
        incumbent_ms: float = math.inf,
    ) -> Measurement:
        """Return what came of building, checking and timing ``config``; failures are statuses.

        Raises:
            ForetuneError: nothing of this kernel can be measured here (a package is missing, …).
        """
        prepared = self._prepare(kernel, problem)
        start = time.perf_counter()
        try:
            launch = kernel.build(problem, config, prepared.inputs)
        except ForetuneError:
            raise
        except Exception as e:
            return self._failed(kernel, problem, config, Status.COMPILE_ERROR, e)
        compile_s = time.perf_counter() - start
        try:
            error = kernel.relative_error(launch(), prepared.expected)
            if not error <= kernel.error_limit(problem):
                reason = f"relative error {error:.2g} is above {kernel.error_limit(problem):.2g}"
                return self._failed(kernel, problem, config, Status.WRONG_RESULT, reason)
            samples = time_launch(launch, self.timing, incumbent_ms)
            time_ms = float(np.median(samples))
            power_w = self._power_w(launch, time_ms)
        except Exception as e:
            return self._failed(kernel, problem, config, Status.RUNTIME_ERROR, e)
        return Measurement(
            kernel=kernel.name,
            problem=problem,
            config=config,
            device=self.device_name,
            status=Status.OK,
            time_ms=time_ms,
            time_ms_samples=tuple(float(s) for s in samples),
            power_w=power_w,
            energy_mj=power_w * time_ms,
            compile_s=compile_s,
            environment=environment(),
        )

    def race(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        box_s: float,
    ) -> dict[str, np.ndarray]:
        """Return interleaved times in milliseconds by configuration id, and of the library call.

        The library call's name is prefixed with ``library:``.
        """
        inputs = self._prepare(kernel, problem).inputs
        launches: dict[str, Launch] = {c.id: kernel.build(problem, c, inputs) for c in configs}
        if library := kernel.library(problem, inputs):
            launches[f"library:{library[0]}"] = library[1]
        return time_interleaved(launches, box_s)

    def _prepare(self, kernel: Kernel, problem: Problem) -> _Prepared:
        key = (kernel.name, problem)
        if key not in self._prepared:
            while len(self._prepared) >= INPUT_SETS_KEPT:
                self._prepared.popitem(last=False)
            inputs = kernel.make_inputs(problem)
            self._prepared[key] = _Prepared(inputs, kernel.reference(inputs))
        self._prepared.move_to_end(key)
        return self._prepared[key]

    def _power_w(self, launch: Launch, time_ms: float) -> float:
        if self.meter is None:
            return math.nan
        batch = max(1, int(5.0 / time_ms))
        with self.meter.window() as window:
            end = time.perf_counter() + POWER_WINDOW_S
            while time.perf_counter() < end:
                for _ in range(batch):
                    launch()
        return window.power_w

    def _failed(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Configuration,
        status: Status,
        reason: Exception | str,
    ) -> Measurement:
        text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        return Measurement(
            kernel=kernel.name,
            problem=problem,
            config=config,
            device=self.device_name,
            status=status,
            error=next(iter(text.splitlines()), "")[:300],
            environment=environment(),
        )


@cache
def environment() -> str:
    """Return the versions that timings depend on, e.g. ``python 3.12.1, numpy 2.4.0, …``."""
    parts = [f"python {platform.python_version()}"]
    for package in ("foretune", "numpy", "numba", "triton", "torch"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts)
