"""Progress bars on stderr."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from foretune.support.progress import Progress as ProgressSeam

MIN_STAGE_WIDTH = 25
"""Characters of a stage's name that are always shown."""
MAX_NOTE_WIDTH = 40
"""Characters of a note that are shown."""


@contextmanager
def progress_bar(notes: bool = False) -> Iterator[ProgressSeam]:
    """Show progress on stderr: a bar on a terminal, one line in a notebook, else one per stage.

    A nested bar is shown below the outer ones. ``notes`` are printed without a terminal, too.
    """
    if not sys.stderr.isatty():
        yield _LiveLine() if "ipykernel" in sys.modules else _Lines(notes)
        return
    outer = _active_bar.get()
    if outer is not None:
        yield outer
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Progress(*columns, console=Console(stderr=True), expand=False) as bar:
        active = _Bar(bar)
        token = _active_bar.set(active)
        try:
            yield active
        finally:
            _active_bar.reset(token)


class _Bar:
    """A bar on a terminal; a stage inside another one is shown below it."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: list[Any] = []

    def start(self, stage: str, total: int) -> None:
        if self._tasks:
            self._bar.update(self._tasks[-1], note="")

        # A problem's name may be long.
        width = max(MIN_STAGE_WIDTH, self._bar.console.width // 3)
        shown = stage if len(stage) <= width else f"{stage[: width - 1]}…"

        # A workload verifies many problems: a stage that repeats the last one takes its line.
        last = self._bar.tasks[-1] if self._bar.tasks else None
        if last is not None and last.finished and last.description == shown:
            self._bar.reset(last.id, total=total, note="")
            self._tasks.append(last.id)
        else:
            self._tasks.append(self._bar.add_task(shown, total=total, note=""))

    def advance(self, note: str = "") -> None:
        task = self._tasks[-1]
        self._bar.update(task, advance=1, note=note[:MAX_NOTE_WIDTH])
        if len(self._tasks) > 1 and self._bar.tasks[task].finished:
            self._tasks.pop()

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False)


_active_bar: ContextVar[_Bar | None] = ContextVar("shown", default=None)


class _Lines:
    """A line per stage, and per note if they are asked for."""

    def __init__(self, notes: bool) -> None:
        self._notes = notes
        self._last = ""

    def start(self, stage: str, total: int) -> None:
        self.say(f"{stage} …")

    def advance(self, note: str = "") -> None:
        if self._notes and note and note != self._last:
            self.say(f"  {note}")
        self._last = note

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class _LiveLine:
    """A line that is rewritten in place, because notebooks have no bars."""

    def start(self, stage: str, total: int) -> None:
        self._stage = stage
        self._done = 0
        self._total = total
        self._show(note="")

    def advance(self, note: str = "") -> None:
        self._done += 1
        self._show(note)

    def _show(self, note: str) -> None:
        self.say(f"{self._stage} {self._done}/{self._total} {note}")

    def say(self, text: str) -> None:
        print(f"\r{text:<79.79}", end="", file=sys.stderr, flush=True)
