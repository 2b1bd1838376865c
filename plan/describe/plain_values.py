"""Values in a description of a model, or in a result, as they were meant.

Some tools write numbers and booleans as texts (``"128"``, ``"False"``), or whole numbers with a
fraction (``8.0``). Taken as they stand, a text would count as true, and a size as missing.
"""

import re
from typing import Any

_WHOLE_NUMBER = re.compile(r"[+-]?\d{1,15}")
_DECIMAL_NUMBER = re.compile(r"[+-]?\d{1,15}\.\d+([eE][+-]?\d{1,2})?")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
"""Text in lower case -> what it stands for."""
MAX_WHOLE = 2.0**53
"""Larger floats are not exact."""


def plain_values(value: Any) -> Any:
    """Return a JSON value in which texts of numbers, booleans and null are what they say."""
    if isinstance(value, dict):
        return {name: plain_values(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain_values(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_WHOLE:
        return int(value)
    if not isinstance(value, str):
        return value

    text = value.strip()
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    if _DECIMAL_NUMBER.fullmatch(text):
        return float(text)
    return _WORDS.get(text.lower(), value)
