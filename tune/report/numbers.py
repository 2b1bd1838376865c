"""Numbers as a report's reader takes them in."""

import math


def number(value: float, unit: str = "") -> str:
    """Return ``value`` with three significant digits and no exponent; a dash for NaN."""
    if not math.isfinite(value):
        return "–"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(digits, 0), 9)}f}" + (f" {unit}" if unit else "")


def ratio(value: float) -> str:
    """Return ``value`` as a factor: ``1.58×``."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.2f}×" if value < 100 else f"{number(value)}×"


def percent(fraction: float) -> str:
    """Return ``fraction`` in percent; a dash for NaN."""
    if not math.isfinite(fraction):
        return "–"
    return f"{100 * fraction:,.1f} %" if abs(fraction) < 0.1 else f"{100 * fraction:,.0f} %"


def counted(n: int, noun: str) -> str:
    """Return ``n`` with the noun in the right number."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def interval(low: float, high: float) -> str:
    """Return both ends; a dash for an end that is NaN."""
    return f"{number(low)} – {number(high)}"


def duration(seconds: float) -> str:
    """Return a wall time as people say it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
