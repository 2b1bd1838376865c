"""Measurements: one configuration run on one problem on one device."""

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from foretune.errors import RunTableError
from foretune.problem import Problem
from foretune.redaction import redact
from foretune.space import Configuration
from foretune.support.unknown_numbers import equal_fields

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
        # A program may print secrets.
        if self.error:
            object.__setattr__(self, "error", redact(self.error))

    __eq__ = equal_fields

    @property
    def ok(self) -> bool:
        """Whether the run succeeded."""
        return self.status is Status.OK

    def check(self, power_limit_w: float = math.inf) -> None:
        """Raise RunTableError if the row is contradictory or impossible."""
        reasons = [
            fault.message.format(fault.values)
            for fault in row_faults(self, power_limit_w)
            if fault.rows
        ]
        if not self.problem and not self.config:
            reasons.append("both problem and configuration are empty")
        for reason in reasons:
            raise RunTableError(f"{self.kernel} {self.config}: {reason}")


class RowFault(NamedTuple):
    """A rule, which rows break it, and the values that ``message`` takes."""

    name: str
    message: str
    rows: Any
    values: Any


def row_faults(row: Any, power_limit_w: Any) -> list[RowFault]:
    """Return every rule for rows.

    ``row`` is a `Measurement`, or has arrays of its attributes: the operators work for both.
    """
    ok = row.status == "ok"
    failed = row.status != "ok"
    time_ms = row.time_ms
    power_w = row.power_w
    energy_mj = row.energy_mj
    untimed = np.isnan(time_ms)
    unmetered = np.isnan(power_w)
    too_much_power = power_w > power_limit_w * POWER_MARGIN

    time_of_ok = "status is ok but time_ms is {}"
    time_of_failed = "the run failed but time_ms is {}"
    no_power = "power_w is {}: leave it empty without a meter"
    above_limit = "power_w is {}, far above the device's power limit"
    no_energy = "energy_mj is {}"
    return [
        RowFault("no kernel", "kernel is empty", row.kernel == "", row.kernel),
        RowFault("no device", "device is empty", row.device == "", row.device),
        RowFault("time is not a number", time_of_ok, ok & untimed & unmetered, time_ms),
        RowFault("time is zero", time_of_ok, ok & (time_ms == 0), time_ms),
        RowFault("time is negative", time_of_ok, ok & (time_ms < 0), time_ms),
        RowFault("time is infinite", time_of_ok, ok & (time_ms == math.inf), time_ms),
        RowFault("time of a failed run", time_of_failed, failed & ~untimed, time_ms),
        RowFault("power is not positive", no_power, _is_no_amount(power_w), power_w),
        RowFault("power is far above the device's limit", above_limit, too_much_power, power_w),
        RowFault("energy is not positive", no_energy, _is_no_amount(energy_mj), energy_mj),
    ]


def _is_no_amount(value: Any) -> Any:
    """Return whether a value is zero, negative or infinite; NaN is none of them."""
    return (value <= 0) | (value == math.inf)
