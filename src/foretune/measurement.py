"""Measurements: one configuration run on one problem on one device."""

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from foretune.problem import Problem
from foretune.space import Configuration


class Status(StrEnum):
    """How a run ended. Failures are kept: they are what a validity model learns from."""

    OK = "ok"
    INVALID = "invalid"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"


@dataclass(frozen=True)
class Measurement:
    """One row of the run table.

    Attributes:
        kernel: the kernel's name.
        problem: what was computed.
        config: how.
        device: the device's name as its driver gives it.
        status: how it ended; times and power are NaN unless ``ok``.
        time_ms: median of the timed repeats, milliseconds.
        time_ms_samples: the repeats themselves.
        power_w: mean power over the metered window, watts; NaN where no meter is.
        energy_mj: energy of one launch, millijoules; NaN where no meter is.
        compile_s: seconds to compile and load the configuration.
        relative_error: ``‖output − reference‖ / ‖reference‖``; NaN where it was not compared.
        static: what the compiled code shows without running it.
        error: the reason of a failure, one line.
        source: where the row came from.
        recorded_at: ISO time.
        environment: versions fingerprint.
    """

    kernel: str
    problem: Problem
    config: Configuration
    device: str
    status: Status
    time_ms: float = math.nan
    time_ms_samples: tuple[float, ...] = ()
    power_w: float = math.nan
    energy_mj: float = math.nan
    compile_s: float = math.nan
    relative_error: float = math.nan
    static: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    source: str = "foretune"
    recorded_at: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    environment: str = ""

    @property
    def ok(self) -> bool:
        """Whether the run succeeded and its time can be used."""
        return self.status is Status.OK
