"""Checks the contract of a power meter: it works or explains why not, and invents no values."""

import math
import time
from collections.abc import Callable

import numpy as np

from foretune.collect.power import PowerMeter
from foretune.testing.contract import ContractViolation, ensure


def check_meter(make: Callable[[int], PowerMeter], seconds: float = 0.6) -> None:
    """Meter a busy processor if the meter works; else check that it says why not.

    ``make`` is the meter's class, which takes the index of a device; ``seconds`` is the length of a
    window: NVML's counters tick every 20 to 100 ms. Raises ContractViolation if the meter violates
    the contract of `PowerMeter`.
    """
    try:
        meter = make(0)
        absent = make(1000)
    except Exception as e:
        raise ContractViolation(f"constructing an unavailable meter must not fail: {e!r}") from e
    ensure(getattr(meter, "name", ""), "the meter has no name")
    kind = getattr(meter, "device_kind", None)
    ensure(kind in ("cpu", "gpu"), f"device_kind is {kind!r}")
    for each in (meter, absent):
        try:
            reason = each.unavailable_because()
        except Exception as e:
            raise ContractViolation(f"unavailable_because raises {e!r}: return the reason") from e
        valid = reason is None or (reason and "\n" not in reason)
        ensure(valid, f"unavailable_because returns {reason!r}, not None or one line")
    try:
        joules = meter.stop()
    except Exception as e:
        raise ContractViolation(f"stop without start raises {e!r}") from e
    ensure(_is_energy_or_nan(joules), "stop without start must return NaN or joules")
    for _ in range(2 if meter.unavailable_because() is None else 0):  # twice: meters are reused
        with meter.window() as window:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass
        ensure(_is_energy_or_nan(window.joules), f"{window.joules} joules were metered")
        ensure(window.seconds >= seconds, f"{window.seconds} s of a window of {seconds} s")


def _is_energy_or_nan(joules: float) -> bool:
    is_number = isinstance(joules, float | int | np.number)
    return is_number and (math.isnan(joules) or 0 < joules < math.inf)
