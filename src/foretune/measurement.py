"""Measurements: one configuration run on one problem on one device."""

import datetime
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from foretune.errors import RunTableError
from foretune.problem import Problem
from foretune.redaction import redact
from foretune.space import Configuration

POWER_MARGIN = 1.2
"""A board may briefly exceed its limit; 20 % more is a wrong unit or a broken meter."""


class Status(StrEnum):
    """How a run ended. Failures are kept: a validity model learns from them."""

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
        device: the device's name in its driver.
        status: times and power are NaN unless it is ``ok``.
        time_ms: median of the timed repeats, milliseconds.
        power_w: mean power over the metered window, watts; NaN without a meter.
        energy_mj: energy of one launch, millijoules; NaN without a meter.
        compile_s: seconds to compile and load the configuration.
        relative_error: error of the output (`foretune.relative_error`); NaN if not compared.
        static: properties of the compiled code, such as registers.
        error: reason of a failure, one line.
        source: tool that measured the row.
        recorded_at: ISO time.
        environment: fingerprint of package versions.
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

    def __post_init__(self) -> None:
        if self.error:  # what a program printed
            object.__setattr__(self, "error", redact(self.error))

    @property
    def ok(self) -> bool:
        """Whether the run succeeded."""
        return self.status is Status.OK

    def check(self, power_limit_w: float = math.inf) -> None:
        """Raise RunTableError if the row is contradictory or impossible."""
        for reason in self._contradictions(power_limit_w):
            raise RunTableError(f"{self.kernel} {self.config}: {reason}")

    def _contradictions(self, power_limit_w: float) -> Iterator[str]:
        for what, text in (("kernel", self.kernel), ("device", self.device)):
            if not text:
                yield f"{what} is empty"
        if not self.problem and not self.config:
            yield "both problem and configuration are empty"
        timed, metered = not math.isnan(self.time_ms), not math.isnan(self.power_w)
        if self.ok and (timed or not metered) and not _is_amount(self.time_ms):
            yield f"status is ok but time_ms is {self.time_ms}"
        if not self.ok and timed:
            yield f"the run failed but time_ms is {self.time_ms}"
        if metered and not _is_amount(self.power_w):
            yield f"power_w is {self.power_w}: leave it empty without a meter"
        if self.power_w > power_limit_w * POWER_MARGIN:
            yield f"power_w is {self.power_w}, far above the device's power limit"
        if not math.isnan(self.energy_mj) and not _is_amount(self.energy_mj):
            yield f"energy_mj is {self.energy_mj}"


def _is_amount(value: float) -> bool:
    return value > 0 and math.isfinite(value)
