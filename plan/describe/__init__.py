"""Inputs of a plan: models, formats, systems, layouts, request lengths."""

import csv
import json
from importlib.resources import files
from typing import Any


def shipped_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV table that is shipped in this package."""
    return list(csv.DictReader(shipped_text(name).splitlines()))


def shipped_json(name: str) -> dict[str, Any]:
    """Return the object of a JSON file that is shipped in this package."""
    found: dict[str, Any] = json.loads(shipped_text(name))
    return found


def shipped_text(name: str) -> str:
    """Return the text of a file that is shipped in this package."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
