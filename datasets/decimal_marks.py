"""Numbers as people and programs write them: which mark is the decimal mark.

``1.234,56`` is a number with a decimal comma, ``1,234.56`` one with a decimal point. ``1.234`` may
be either: 1234 or 1.234. One mark counts for a whole file, so cells that can be read in one way
only settle those that can be read in two.
"""

import re
from collections.abc import Iterable

from foretune.errors import UsageError

POINT = "."
COMMA = ","
MARKS = (POINT, COMMA)

GAPS = {
    *("", "-", "--", "\u2013", "\u2014", "?", "n/a", "#n/a", "na", "n.a.", "<na>"),
    *("nan", "null", "none", "nil"),
    *("inf", "+inf", "-inf", "infinity", "-infinity", "\u221e"),
}
"""Cells, in lower case, that stand for no number among numbers."""

_SPACES_AND_APOSTROPHES = " \u00a0\u202f'\u2019"
"""Characters that group thousands beside either mark."""


def _pattern(mark: str) -> re.Pattern[str]:
    """Return the pattern of numbers with this decimal mark, grouped in thousands or not."""
    other = COMMA if mark == POINT else POINT
    decimals = rf"(?:{re.escape(mark)}\d*)?"
    exponent = r"(?:[eE][+-]?\d+)?"
    plain = rf"\d+{decimals}{exponent}|{re.escape(mark)}\d+{exponent}"
    # The same character groups all thousands of a number.
    groups = rf"[1-9]\d{{0,2}}(?P<group>[{re.escape(other)}{_SPACES_AND_APOSTROPHES}])\d{{3}}"
    grouped = rf"{groups}(?:(?P=group)\d{{3}})*{decimals}"
    return re.compile(rf"[+-]?(?:{plain}|{grouped})")


_PATTERNS = {mark: _pattern(mark) for mark in MARKS}


def plain_number(text: str, mark: str) -> str | None:
    """Return a number with a decimal point and without groups; None if it is not a number."""
    matched = _PATTERNS[mark].fullmatch(text)
    if matched is None:
        return None
    group = matched["group"]
    if group:
        text = text.replace(group, "")
    return text.replace(mark, POINT)


def decimal_mark(numbers: Iterable[str], *, where: str, ambiguous_points: bool = False) -> str:
    """Return the decimal mark of all ``numbers``; other texts are ignored.

    With ``ambiguous_points``, a point before three digits is a decimal point unless another number
    proves a decimal comma. Raises UsageError, which names the option that settles it, if numbers
    contradict each other or none of them decides.
    """
    proofs: dict[str, str] = {}
    undecided: dict[str, str] = {}
    for text in numbers:
        with_point = plain_number(text, POINT)
        with_comma = plain_number(text, COMMA)
        if with_point == with_comma:
            continue
        if with_comma is None:
            proofs.setdefault(POINT, text)
        elif with_point is None:
            proofs.setdefault(COMMA, text)
        else:
            undecided.setdefault(POINT if POINT in text else COMMA, text)

    settle = "give --decimal . or --decimal , (foretune import, train)"
    if len(proofs) == len(MARKS):
        raise UsageError(
            f"{where} has numbers with a decimal point ({proofs[POINT]}) and with a decimal comma "
            f"({proofs[COMMA]}): {settle}"
        )
    if proofs:
        return next(iter(proofs))
    if not undecided or (ambiguous_points and COMMA not in undecided):
        return POINT
    example = next(iter(undecided.values()))
    readings = sorted({plain_number(example, mark) or "" for mark in MARKS})
    raise UsageError(f"{where}: {example} may be {' or '.join(readings)}: {settle}")
