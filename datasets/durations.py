"""Durations of several parts, or above a second: ``1m 2.3s``, ``2 min``, ``00:01:02.3``.

Shells, Go and people write parts with units, GNU time and Excel a clock, pandas days and a clock,
Java ISO 8601. A text that may be read in two ways, like ``01:02`` or ``2m``, is none.
"""

import re
from dataclasses import dataclass

_MS = {
    "d": 86_400_000.0,
    "h": 3_600_000.0,
    "min": 60_000.0,
    "s": 1e3,
    "ms": 1.0,
    "us": 1e-3,
    "ns": 1e-6,
}
"""Unit -> milliseconds per unit, from the largest to the smallest."""

_SPELLINGS = {
    "d": "d day days",
    "h": "h hr hrs hour hours",
    "min": "m min mins minute minutes",
    "s": "s sec secs second seconds",
    "ms": "ms msec msecs millisecond milliseconds",
    "us": "us \u00b5s \u03bcs usec usecs microsecond microseconds",
    "ns": "ns nsec nsecs nanosecond nanoseconds",
}
_UNITS = {word: unit for unit, words in _SPELLINGS.items() for word in words.split()}
_LONG = ("d", "h", "min")
_MOST = {"h": 24.0, "min": 60.0, "s": 60.0, "ms": 1e3, "us": 1e3, "ns": 1e3}
"""Unit -> a part behind a larger unit is below this."""
MILLI_OR_MINUTE = "m"
"""Alone, it may be either."""

_PART = re.compile(r"(\d+(?:[.,]\d+)?)\s*([A-Za-z\u00b5\u03bc]+)(?:\s*,\s+|\s+and\s+|\s*)")
_CLOCK = re.compile(r"(?:(?P<days>\d+) days?,? )?(?P<clock>\d+:\d\d:\d\d(?:[.,]\d+)?)")
_MINUTES = re.compile(r"(\d+):(\d\d[.,]\d+)")
"""Without a fraction, ``01:02`` may also be hours and minutes."""
_ISO = re.compile(r"P(?:(\d+)D)?T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:[.,]\d+)?)S)?")

CLOCK = "h:mm:ss"


@dataclass(frozen=True)
class Duration:
    """A duration, and how it was written.

    ``notation`` is `CLOCK`, which may also be a time of the day, or names the units.
    """

    milliseconds: float
    notation: str


def parse_duration(text: str) -> Duration | None:
    """Return the duration that a text is; None if it is none, or may be read in two ways.

    A number with one short unit, like ``12.5 us``, is left to `foretune.datasets.time_units`.
    """
    text = text.strip()
    return _iso(text) or _clock(text) or _parts(text)


def _parts(text: str) -> Duration | None:
    """Return a duration of numbers with units, the largest unit first."""
    parts = []
    end = 0
    while end < len(text):
        matched = _PART.match(text, end)
        if matched is None:
            return None
        parts.append((matched[1].replace(",", "."), matched[2]))
        end = matched.end()

    if not parts:
        return None
    numbers: dict[str, str] = {}
    for number, word in parts:
        unit = _UNITS.get(word) or _UNITS.get(word.lower())
        if unit is None or unit in numbers:
            return None
        numbers[unit] = number
    if list(numbers) != [unit for unit in _MS if unit in numbers]:
        return None
    if len(parts) == 1:
        word = parts[0][1]
        is_long = not numbers.keys().isdisjoint(_LONG)
        if word == MILLI_OR_MINUTE or "," in text or not is_long:
            return None
    return _sum(numbers, " and ".join(numbers))


def _clock(text: str) -> Duration | None:
    """Return a duration written as a clock; days before it show that it is no time of the day."""
    minutes = _MINUTES.fullmatch(text)
    if minutes is not None:
        return _sum({"min": minutes[1], "s": minutes[2]}, "m:ss")
    matched = _CLOCK.fullmatch(text)
    if matched is None:
        return None
    hours, minute, second = matched["clock"].split(":")
    clock = {"h": hours, "min": minute, "s": second}
    if matched["days"] is None:
        return _sum(clock, CLOCK)
    return _sum({"d": matched["days"], **clock}, f"days and {CLOCK}")


def _iso(text: str) -> Duration | None:
    """Return a duration in the format of ISO 8601, like ``PT1M2.3S``."""
    matched = _ISO.fullmatch(text)
    if matched is None:
        return None
    given = zip(("d", "h", "min", "s"), matched.groups(), strict=True)
    numbers = {unit: number for unit, number in given if number is not None}
    return _sum(numbers, "ISO 8601") if numbers else None


def _sum(numbers: dict[str, str], notation: str) -> Duration | None:
    """Return the sum of parts; None unless all but the last are whole and none is too large."""
    total = 0.0
    for place, (unit, text) in enumerate(numbers.items()):
        text = text.replace(",", ".")
        is_last = place == len(numbers) - 1
        if not is_last and not text.isdigit():
            return None
        number = float(text)
        if place > 0 and number >= _MOST[unit]:
            return None
        total += number * _MS[unit]
    return Duration(total, notation)
