"""What people and programs get to see: tables and progress for the one, JSON for the other."""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from foretune.progress import Progress as ProgressSeam


class Output:
    """Where a command writes: with ``--json`` one object on stdout and people's text on stderr."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.human = Console(stderr=as_json, highlight=False)

    def say(self, text: str) -> None:
        """Print a line for people."""
        self.human.print(text, markup=False, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table for people; columns of numbers flush right."""
        table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
        for i, column in enumerate(columns):
            numeric = all(row[i][:1].isdigit() or row[i][:1] in "–-" for row in rows)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        self.human.print(table)

    def result(self, data: Mapping[str, Any]) -> None:
        """Print the JSON object, if asked for."""
        if self.as_json:
            print(json.dumps(_plain(data)))


@contextmanager
def progress_bar() -> Iterator[ProgressSeam]:
    """Show progress on stderr: a bar on a terminal, a line per stage elsewhere.

    Within another one, its bars stand below those of the other, which go on afterwards.
    """
    if not sys.stderr.isatty():
        yield _Lines()
        return
    if (outer := _shown.get()) is not None:
        yield outer
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Progress(*columns, console=Console(stderr=True), expand=False) as bar:
        shown = _Bar(bar)
        token = _shown.set(shown)
        try:
            yield shown
        finally:
            _shown.reset(token)


class _Bar:
    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: list[Any] = []

    def start(self, stage: str, total: int) -> None:
        if self._tasks:
            self._bar.update(self._tasks[-1], note="")
        self._tasks.append(self._bar.add_task(stage, total=total, note=""))

    def advance(self, note: str = "") -> None:
        task = self._tasks[-1]
        self._bar.update(task, advance=1, note=note[:40])
        if len(self._tasks) > 1 and self._bar.tasks[task].finished:
            self._tasks.pop()

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False)


_shown: ContextVar[_Bar | None] = ContextVar("shown", default=None)


class _Lines:
    def start(self, stage: str, total: int) -> None:
        self.say(f"{stage} …")

    def advance(self, note: str = "") -> None:
        pass

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _plain(value: Any) -> Any:
    """Return ``value`` with what JSON cannot say (NaN, infinity) as null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if hasattr(value, "item") else value


def percent(fraction: float) -> str:
    """Return a fraction as a percentage for tables: ``3.1 %``; a dash where undefined."""
    return f"{100 * fraction:.1f} %" if math.isfinite(fraction) else "–"


def score_rows(scores: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[list[str]]:
    """Return table rows of (split, model) scores; the columns are `SCORE_COLUMNS`."""
    return [
        [
            f"{split}: {model}",
            percent(s["mape"]),
            percent(s["median_ape"]),
            percent(s["p95_ape"]),
            f"{s['spearman']:.2f}" if math.isfinite(s["spearman"]) else "–",
            percent(s["top1_regret"]),
            percent(s["coverage90"]),
        ]
        for split, models in scores.items()
        for model, s in models.items()
    ]


SCORE_COLUMNS = ("held out: model", "MAPE", "median", "p95", "rank", "regret", "90% int.")
