"""Power meters that read hardware energy counters, and the energy of one launch."""

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.collect.gpu_handles import is_mig_slice, visible_gpus
from foretune.errors import ForetuneError, MissingExtra
from foretune.registry import load, registered
from foretune.support.lazy import require

RAMP_S = 0.3
"""Unmetered time in which clocks and power settle."""
WINDOW_S = 0.6
"""Minimum duration of the metered window."""
BATCH_MS = 20.0
"""Duration of the work queued at once: long, so that the pause after it does not count."""
MAX_CAPTURED = 1000
"""Maximum number of launches in one graph."""


@dataclass
class Window:
    """Energy (joules) and duration (seconds) of a metered window.

    Both are NaN until it closes; the energy stays NaN if the counter did not report it.
    """

    joules: float = math.nan
    seconds: float = math.nan

    @property
    def power_w(self) -> float:
        """Mean power over the window, watts."""
        return self.joules / self.seconds if self.seconds > 0 else math.nan


class PowerMeter(ABC):
    """Measures the energy of one device of the kind ``device_kind``, ``cpu`` or ``gpu``.

    To add a meter, register a subclass under the entry point ``foretune.meters``. Its constructor
    takes the device's number among the devices of its kind, and must not fail;
    `unavailable_because` reports problems.
    """

    name: str
    device_kind: str

    @abstractmethod
    def unavailable_because(self) -> str | None:
        """Return why this meter cannot work here and what would help; None if it works."""

    @abstractmethod
    def start(self) -> None:
        """Start metering."""

    @abstractmethod
    def stop(self) -> float:
        """Return the energy in joules since `start`; NaN if the sensor did not report it."""

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Meter the ``with`` block; the window gets its values when the block ends."""
        window = Window()
        self.start()
        begin = time.perf_counter()
        try:
            yield window
        finally:
            window.seconds = time.perf_counter() - begin
            window.joules = self.stop()


def find_meter(device_kind: str, index: int = 0) -> PowerMeter | None:
    """Return a working meter of the device of this kind and number, or None."""
    for meter, reason in _candidates(device_kind, index):
        if meter and reason is None:
            return meter
    return None


def explain_missing_meter(device_kind: str | None = None) -> str:
    """Return, on one line, why no registered meter (of this kind) works; empty if one does."""
    reasons = []
    for meter, reason in _candidates(device_kind, 0):
        if reason is None:
            return ""
        reasons.append(f"{meter.name}: {reason}" if meter else reason)
    return "; ".join(reasons) or f"no meter is registered for a {device_kind}"


def _candidates(
    device_kind: str | None, index: int
) -> Iterator[tuple[PowerMeter | None, str | None]]:
    """Yield each registered meter of a kind of device, and why it is unavailable.

    The meter is None if it cannot be imported. The reason is None if the meter works.
    """
    for name in registered("meters"):
        try:
            meter: PowerMeter = load("meters", name)(index)
        except ForetuneError as e:  # a meter of another package that cannot be imported
            yield None, str(e)
            continue
        if device_kind in (None, meter.device_kind):
            yield meter, meter.unavailable_because()


@dataclass(frozen=True)
class _EnergyCounter:
    """A counter of microjoules, and the value at which it wraps around."""

    value_uj: int
    limit_uj: int

    def microjoules_since(self, before: Self) -> int:
        """Return the energy since an earlier reading, which is less than one round."""
        difference_uj = self.value_uj - before.value_uj
        has_wrapped = difference_uj < 0
        return difference_uj + self.limit_uj if has_wrapped else difference_uj


class RaplMeter(PowerMeter):
    """Linux's energy counters of x86 processors (RAPL), the sum of all packages.

    A counter wraps around every few minutes at full power; a window must be shorter than that. All
    packages are one CPU, so ``index`` is ignored; ``root`` is Linux's folder of their zones.
    """

    name = "rapl"
    device_kind = "cpu"

    def __init__(self, index: int = 0, root: Path = Path("/sys/class/powercap")) -> None:
        self._root = root
        self._begin: list[_EnergyCounter] = []

    def unavailable_because(self) -> str | None:
        """Return None if the package counters exist and are readable."""
        try:
            if self._counters():
                return None
        except PermissionError:
            return (
                "only root may read the energy counters: "
                f"sudo chmod a+r {self._root}/intel-rapl:*/energy_uj"
            )
        except (OSError, ValueError) as e:
            return f"the energy counters cannot be read: {e}"
        return (
            f"there is no energy counter under {self._root}: "
            "only Linux has them, and virtual machines and containers mostly do not"
        )

    def start(self) -> None:
        """Read the counters."""
        self._begin = []
        with suppress(OSError, ValueError):
            self._begin = self._counters()

    def stop(self) -> float:
        """Return joules since `start`; NaN if no counter moved or one cannot be read."""
        try:
            total_uj = sum(
                end.microjoules_since(begin)
                for begin, end in zip(self._begin, self._counters(), strict=True)
            )
        except (OSError, ValueError):
            return math.nan
        return total_uj * 1e-6 if total_uj > 0 else math.nan

    def _counters(self) -> list[_EnergyCounter]:
        """Read the counter of each package."""
        return [
            _EnergyCounter(
                value_uj=int((zone / "energy_uj").read_text()),
                limit_uj=int((zone / "max_energy_range_uj").read_text()),
            )
            for zone in self._packages()
        ]

    def _packages(self) -> list[Path]:
        """Return the zones of whole packages; their subzones would count twice."""
        packages = []
        for zone in sorted(self._root.glob("intel-rapl:*")):
            with suppress(OSError):
                if (zone / "name").read_text().startswith("package"):
                    packages.append(zone)
        return packages


class NvmlMeter(PowerMeter):
    """The driver's energy counter of an NVIDIA GPU (Volta and newer), ``index`` as in ``cuda:0``.

    The counter moves in ticks of 20 to 100 ms, so single readings are late by up to one tick. The
    meter polls it every ``poll_s`` and keeps the times at which it moved. Power is the
    least-squares slope through them, and energy is power times the length of the window. The load
    in the window must be steady, like one kernel back to back.
    """

    name = "nvml"
    device_kind = "gpu"

    def __init__(
        self,
        index: int = 0,
        nvml: Any = None,
        poll_s: float = 0.004,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._index = index
        self._nvml = nvml
        self._poll_s = poll_s
        self._clock = clock
        self._handle: Any = None
        self._ticks: list[tuple[float, float]] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._begin_s = 0.0

    def unavailable_because(self) -> str | None:
        """Return None if the driver reads this GPU's energy counter."""
        try:
            self._open()
            if is_mig_slice(self._nvml, self._handle):
                return (
                    f"GPU {self._index} is a MIG slice, and the energy counter is its whole "
                    "board's: meter on a GPU that is not split"
                )
            self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except MissingExtra as e:
            return str(e)
        except LookupError:
            return f"there is no GPU {self._index}"
        except self._nvml.NVMLError_NotSupported:
            return f"GPU {self._index} has no energy counter: those before Volta have none"
        except self._nvml.NVMLError as e:
            return f"the NVIDIA driver does not answer: {e}"
        return None

    def start(self) -> None:
        """Start polling the counter."""
        self._open()
        self._ticks = []
        self._done.clear()
        self._thread = threading.Thread(target=self._poll, name="foretune-nvml", daemon=True)
        self._begin_s = self._clock()
        self._thread.start()

    def stop(self) -> float:
        """Return joules since `start`; NaN if the counter moved less than twice."""
        seconds = self._clock() - self._begin_s
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return slope_w(self._ticks) * seconds

    def _open(self) -> None:
        if self._handle is None:
            self._nvml = self._nvml or require("pynvml", "gpu", "metering power")
            self._nvml.nvmlInit()
            self._handle = visible_gpus(self._nvml)[self._index]

    def _poll(self) -> None:
        """Keep the times at which the counter moves, until the window ends."""
        before: int | None = None
        while not self._done.is_set():
            try:
                millijoules = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
            except self._nvml.NVMLError:
                # The window is incomplete: it gets no energy.
                self._ticks = []
                return
            if before is not None and millijoules != before:
                self._ticks.append((self._clock(), millijoules * 1e-3))
            before = millijoules
            self._done.wait(self._poll_s)


def slope_w(ticks: list[tuple[float, float]]) -> float:
    """Return the least-squares slope in watts of (seconds, joules); NaN below two ticks."""
    if len(ticks) < 2:
        return math.nan
    seconds, joules = np.array(ticks).T
    centered_s = seconds - seconds.mean()
    centered_j = joules - joules.mean()
    return float(centered_s @ centered_j / (centered_s @ centered_s))


def measure_power(
    meter: PowerMeter,
    run: Callable[[], Any],
    time_ms: float,
    wait: Callable[[], object],
    interface: Any = None,
) -> tuple[float, float]:
    """Return the mean power (W) of back-to-back launches and the energy of one launch (mJ).

    A launch takes about ``time_ms``; ``wait`` returns when all launches are done; ``interface`` is
    ``torch.cuda`` or a substitute with graphs, or None.
    """
    wanted = max(1, int(BATCH_MS / time_ms))
    batch, launches_per_batch = _batched(run, wanted, wait, interface)
    _run_for(batch, RAMP_S, wait)
    with meter.window() as window:
        launches = launches_per_batch * _run_for(batch, WINDOW_S, wait)
    energy_mj = window.joules / launches * 1e3
    return window.power_w, energy_mj


def _batched(
    run: Callable[[], Any], count: int, wait: Callable[[], object], interface: Any
) -> tuple[Callable[[], Any], int]:
    """Return a function that launches several times, as a graph if possible, and how often."""
    if hasattr(interface, "CUDAGraph"):
        captured = min(count, MAX_CAPTURED)
        try:
            run()
            wait()
            graph = interface.CUDAGraph()
            with interface.graph(graph):
                for _ in range(captured):
                    run()
            return graph.replay, captured
        except Exception:
            # A launch that cannot be captured is run without a graph.
            wait()

    def launch() -> None:
        for _ in range(count):
            run()

    return launch, count


def _run_for(batch: Callable[[], Any], seconds: float, wait: Callable[[], object]) -> int:
    """Run batches for some time, at least one; return their number."""
    end = time.perf_counter() + seconds
    batches = 0
    while batches == 0 or time.perf_counter() < end:
        batch()
        batches += 1
        # Without waiting, seconds of launches would queue up.
        wait()
    return batches
