"""HTML pages and number formats."""

import math
import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from foretune.errors import OutputError
from foretune.support.files import atomic_write
from foretune.values import counted

PAGES = Path(__file__).parent
"""Folder of the templates that all pages share."""
EMPTY_PAGE = {
    "heading": "",
    "lead": "",
    "tiles": {},
    "links": {},
    "nan": math.nan,
}
"""Values of what a page leaves out."""


def number(value: float, unit: str = "") -> str:
    """Return ``value`` with three significant digits, without exponent; a dash for NaN."""
    if not math.isfinite(value):
        return "–"
    decimals = 0
    if value:
        decimals = 2 - math.floor(math.log10(abs(value)))
    text = f"{value:,.{min(max(decimals, 0), 9)}f}"
    return f"{text} {unit}" if unit else text


def ratio(value: float) -> str:
    """Return ``value`` as a factor: ``1.58×``."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.2f}×" if value < 100 else f"{number(value)}×"


def percent(fraction: float) -> str:
    """Return ``fraction`` in percent; a dash for NaN."""
    if not math.isfinite(fraction):
        return "–"
    decimals = 1 if abs(fraction) < 0.1 else 0
    return f"{100 * fraction:,.{decimals}f} %"


def spaced(named: object) -> str:
    """Return names and values with a space after each comma."""
    return str(named).replace(",", ", ")


def interval(low: float, high: float) -> str:
    """Return both ends; a dash for an end that is NaN."""
    return f"{number(low)} – {number(high)}"


def duration(seconds: float) -> str:
    """Return a wall time in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def render(template: Path, **values: Any) -> str:
    """Return a page from a template that extends ``page.html``; text in ``values`` is escaped."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, PAGES]),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for show in (number, ratio, percent, counted, spaced, interval, duration):
        environment.filters[show.__name__] = show
    return environment.get_template(template.name).render({**EMPTY_PAGE, **values})


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write a page to ``path`` and return it; on failure (OutputError) an old file remains."""
    target = Path(path)
    if not target.parent.is_dir():  # a typing error should not create folders
        raise OutputError(f"there is no folder {target.parent}: create it, or write elsewhere")
    with atomic_write(path, what="the report ") as new:
        new.write_text(text, encoding="utf-8")
    return target


def _finalize(value: object) -> object:
    """Keep a number and its percent sign on one line."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return value.replace(" %", "\N{NO-BREAK SPACE}%")
    return value
