"""Output: tables for people, JSON for programs."""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from foretune.redaction import redact
from foretune.result import plain
from foretune.values import percent

_STDOUT: ContextVar[TextIO | None] = ContextVar("_STDOUT", default=None)
"""Where the JSON object goes; None is sys.stdout."""


JSON_SCHEMA_VERSION = 1
"""Grows if a key of a JSON output goes away, or changes its type, unit or meaning: docs/json.md."""
METRIC_COLUMNS = ("held out: model", "MAPE", "median", "p95", "rank", "regret", "90% int.")


@contextmanager
def only_results_to_stdout() -> Iterator[None]:
    """Redirect other output to stderr, such as that of a user's module at its import."""
    token = _STDOUT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _STDOUT.reset(token)


class Output:
    """Writes text to stdout; with ``--json``, one object to stdout and the text to stderr."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(stderr=as_json, highlight=False)

    def say(self, text: str, wrapped: bool = False) -> None:
        """Print a line; with ``wrapped``, a long one is broken into several."""
        self.console.print(redact(text), markup=False, soft_wrap=not wrapped)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table, numeric columns flush right."""
        table = Table(box=None, pad_edge=False)
        for i, heading in enumerate(columns):
            is_numeric = all(_looks_numeric(row[i]) for row in rows)
            table.add_column(heading, justify="right" if is_numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        self.console.print(Text(title, style="italic"))
        self.console.print(table)

    def result(self, data: Any) -> None:
        """Print a mapping or dataclass as the JSON object, if ``--json`` was given."""
        if self.as_json:
            content = {"schema_version": JSON_SCHEMA_VERSION, **plain(data, as_json=True)}
            print(json.dumps(content), file=_STDOUT.get())


def format_config(config: Mapping[str, Any]) -> str:
    """Return a configuration as ``BLOCK=64 num_warps=4``."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def metric_rows(scores: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[list[str]]:
    """Return a row of `METRIC_COLUMNS` per (split, model) of ``scores``."""
    rows = []
    for split, metrics_of_model in scores.items():
        for model, metrics in metrics_of_model.items():
            rank = metrics["spearman"]
            rows.append(
                [
                    f"{split}: {model}",
                    percent(metrics["mape"]),
                    percent(metrics["median_ape"]),
                    percent(metrics["p95_ape"]),
                    f"{rank:.2f}" if math.isfinite(rank) else "–",
                    percent(metrics["top1_regret"]),
                    percent(metrics["coverage90"]),
                ]
            )
    return rows


def _looks_numeric(cell: str) -> bool:
    """Return whether a cell begins like a number, or is empty or a dash."""
    first = cell[:1]
    return first.isdigit() or first in "–-"
