"""Values on the command line: lists, and ranges that say how they go on."""

import re

from foretune.errors import UsageError
from foretune.values import Value, parse_value

RANGE = re.compile(r"(?P<low>-?\d+)\.\.(?P<high>-?\d+)(?::(?P<times>x?)(?P<step>\d+))?")
"""``0..3``, ``0..100:10`` (every tenth) or ``8..256:x2`` (each twice the last)."""
BEGINS_AS_RANGE = re.compile(r"-?[\d.]*\d\.\.-?\d")
"""What is meant as a range, also if it is not one."""
MAX_RANGE = 1000
"""Values of a range at most; a longer one is rather meant to have a step."""
FORMS = "0..3, 0..100:10 or 8..256:x2"


def parse_values(text: str) -> list[Value]:
    """Return the values of a list, like ``8,16,32``; a part may be a range, see `parse_range`.

    A value stays text if its number would be written differently, like ``08``.
    """
    values: list[Value] = []
    for part in map(str.strip, text.split(",")):
        if BEGINS_AS_RANGE.match(part):
            values += parse_range(part)
        else:
            value = parse_value(part)
            values.append(value if str(value) == part else part)
    return values


def parse_range(text: str) -> list[int]:
    """Return the integers of a range, both ends included; raise UsageError if there are none."""
    found = RANGE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text} is no range: write whole numbers, like {FORMS}")
    low = int(found["low"])
    high = int(found["high"])
    step = int(found["step"] or 1)

    if found["times"]:
        if step < 2 or low < 1:
            raise UsageError(f"{text}: a range that multiplies starts above 0, like 8..256:x2")
        values = _multiples(low, high, step)
    elif step < 1:
        raise UsageError(f"{text}: the step must be at least 1, like 0..100:10")
    else:
        values = [*range(low, high + 1, step)]

    if not values:
        raise UsageError(f"{text} holds no value: write the smaller number first, like 8..256:x2")
    if len(values) > MAX_RANGE:
        raise UsageError(
            f"{text} has {len(values):,} values, more than {MAX_RANGE:,}: write {low}..{high}:x2 "
            "to double, or a step, like 0..100:10"
        )
    return values


def _multiples(low: int, high: int, factor: int) -> list[int]:
    """Return ``low``, ``factor`` times that, and so on up to ``high``."""
    values = []
    value = low
    while value <= high:
        values.append(value)
        value *= factor
    return values
