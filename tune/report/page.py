"""A report's page: one HTML file without links or scripts, from a template that escapes values."""

import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from foretune.replacing import atomic_write
from foretune.tune.report.chart import kind_of
from foretune.tune.report.numbers import counted, duration, interval, number, percent, ratio

_FOLDER = Path(__file__).parent


def render(template: Path, **values: Any) -> str:
    """Return a page. Text in ``values`` is shown as it is and can never become markup.

    Args:
        template: extends ``page.html``; ``parts.html`` has tables and sections,
            ``charts.html`` charts.
        values: what it names, ``title`` and ``headline`` at least.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, _FOLDER]), autoescape=True, finalize=_finalize,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["kind_of"] = kind_of
    for show in (number, ratio, percent, counted,
                 interval, duration):  # fmt: skip
        environment.filters[show.__name__] = show
    page = {"heading": "", "lead": "", "tiles": {}, "links": {}}
    return environment.get_template(template.name).render({**page, **values})


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write a page to ``path`` in one step, all or nothing, and return it.

    Raises:
        OutputError: the file cannot be written.
    """
    with atomic_write(path, what="the report ") as new:
        new.write_text(text, encoding="utf-8")
    return Path(path)


def _finalize(value: object) -> object:
    """Keep a number and its percent sign on one line."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return value.replace(" %", "\N{NO-BREAK SPACE}%")
    return value
