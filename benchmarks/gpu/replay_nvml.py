"""Sensors of a GPU that is not there: the part of ``pynvml`` that the stages ask."""

from typing import Any, Protocol

IDLE_W = 76.0
BUSY_W = 520.0
"""Power of the made-up board, in watts."""
TICK_S = 0.1
"""Seconds between two ticks of its energy counter."""
SM_CLOCK_MHZ = 1980
MEMORY_CLOCK_MHZ = 3201
TEMPERATURE_C = 48


class Board(Protocol):
    """A simulated clock."""

    @property
    def busy_s(self) -> float:
        """Seconds the device has worked."""

    @property
    def idle_s(self) -> float:
        """Seconds the device has not."""

    def now(self) -> float:
        """Return seconds since the clock began."""


class ReplayNvml:
    """Answers as ``pynvml`` would on a board with this clock."""

    class NVMLError(Exception):
        """What the driver raises."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, board: Board) -> None:
        self._board = board
        self._ticked_s = 0.0
        self._ticked_joules = 0.0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:  # noqa: N802
        """Return millijoules as of the last tick."""
        now_s = self._board.now()
        if now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            self._ticked_joules = IDLE_W * self._board.idle_s + BUSY_W * self._board.busy_s
        return int(1000 * self._ticked_joules)

    def nvmlDeviceGetClockInfo(self, handle: Any, which: int) -> int:  # noqa: N802
        """Return MHz."""
        clocks = {self.NVML_CLOCK_SM: SM_CLOCK_MHZ, self.NVML_CLOCK_MEM: MEMORY_CLOCK_MHZ}
        return clocks[which]

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:  # noqa: N802
        """Return degrees Celsius."""
        return TEMPERATURE_C

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:  # noqa: N802
        """Return none."""
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:  # noqa: N802
        """Return milliwatts."""
        return int(1000 * BUSY_W)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        """Return a name that no driver has."""
        return "replay"
