"""Nsight Compute's units: values with prefixes into bytes, nanoseconds and hertz."""

import math

UNITS = {
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12,
    "ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6,
    "s": 1e9, "sec": 1e9, "second": 1e9, "nsec": 1.0, "usec": 1e3, "msec": 1e6,
    "hz": 1.0, "Hz": 1.0, "Khz": 1e3, "Mhz": 1e6, "Ghz": 1e9, "KHz": 1e3, "MHz": 1e6, "GHz": 1e9,
    "Kinst": 1e3, "Minst": 1e6, "Ginst": 1e9, "Kcycle": 1e3, "Mcycle": 1e6, "Gcycle": 1e9,
    "Ksector": 1e3, "Msector": 1e6, "Gsector": 1e9,
}  # fmt: skip
"""Unit -> how many bytes, nanoseconds, hertz, instructions, … one is; others count as they are."""

PER_SECOND = {"second": 1.0, "s": 1.0, "msecond": 1e3, "ms": 1e3, "usecond": 1e6, "us": 1e6,
              "nsecond": 1e9, "ns": 1e9}  # fmt: skip
"""What a rate is per -> how many of them a second has."""


def to_base(text: str, unit: str) -> float | None:
    """Return a value in base units; None for what is no number (``n/a``, names, bit masks)."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    amount, _, per = unit.strip().partition("/")
    return value * UNITS.get(amount, 1.0) * PER_SECOND.get(per, 1.0)
