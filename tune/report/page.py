"""HTML pages and number formats."""

import math
import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from foretune.errors import OutputError
from foretune.support.files import atomic_write
from foretune.values import counted


def number(value: float, unit: str = "") -> str:
    """Return ``value`` with three significant digits, without exponent; a dash for NaN."""
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


_FOLDER = Path(__file__).parent


def render(template: Path, **values: Any) -> str:
    """Return a page from a template that extends ``page.html``; text in ``values`` is escaped."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, _FOLDER]),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for show in (number, ratio, percent, counted, spaced, interval, duration):
        environment.filters[show.__name__] = show
    page = {"heading": "", "lead": "", "tiles": {}, "links": {}, "nan": math.nan}
    return environment.get_template(template.name).render({**page, **values})


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write a page to ``path`` and return it; on failure (OutputError) an old file remains."""
    if not Path(path).parent.is_dir():  # a typing error should not create folders
        raise OutputError(f"there is no folder {Path(path).parent}: create it, or write elsewhere")
    with atomic_write(path, what="the report ") as new:
        new.write_text(text, encoding="utf-8")
    return Path(path)


def _finalize(value: object) -> object:
    """Keep a number and its percent sign on one line."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return value.replace(" %", "\N{NO-BREAK SPACE}%")
    return value
