"""Progress on stderr: bars on a terminal, a live line in a notebook, else a line per stage.

Nothing is silent for long: bars show the time that passes, and without a terminal a line says every
few seconds which stage runs and how far it is.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.text import Text

from foretune.support.progress import Progress as ProgressSeam

MIN_STAGE_WIDTH = 25
"""Characters of a stage's name that are always shown."""
MAX_NOTE_WIDTH = 40
"""Characters of a note that are shown."""
MAX_SILENCE_S = 5.0
"""Seconds after which a line says what runs, where there is no terminal."""


@contextmanager
def progress_bar(notes: bool = False) -> Iterator[ProgressSeam]:
    """Show progress on stderr: a bar on a terminal, one line in a notebook, else one per stage.

    A nested bar is shown below the outer ones. ``notes`` are printed without a terminal, too.
    """
    if not sys.stderr.isatty():
        if "ipykernel" in sys.modules:
            yield _LiveLine()
        else:
            lines = _Lines(notes)
            with lines.reminding():
                yield lines
        return

    outer = _active_bar.get()
    if outer is not None:
        with outer.nested():
            yield outer
        return

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        _Time(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Progress(*columns, console=Console(stderr=True), expand=False) as bar:
        active = _Bar(bar)
        token = _active_bar.set(active)
        try:
            with active.nested():
                yield active
        finally:
            _active_bar.reset(token)


class _Time(ProgressColumn):
    """The time left; the time gone while the former is unknown, and at the end."""

    def render(self, task: Task) -> Text:
        left = None if task.finished else task.time_remaining
        if left is not None:
            return Text(f"{timedelta(seconds=int(left))} left")
        gone = task.finished_time if task.finished else task.elapsed
        return Text(str(timedelta(seconds=int(gone or 0))))


class _Bar:
    """Bars on a terminal, one below the other.

    At each level of nesting, one stage runs, or none: the next stage ends it.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._running: list[TaskID | None] = []

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Show stages below those that run, which go on afterwards."""
        self._running.append(None)
        try:
            yield
        finally:
            self._end_stage()
            self._running.pop()

    def start(self, stage: str, total: int) -> None:
        self._end_stage()
        if total == 0:
            return

        # A problem's name may be long.
        width = max(MIN_STAGE_WIDTH, self._bar.console.width // 3)
        shown = stage if len(stage) <= width else f"{stage[: width - 1]}…"

        # A workload verifies many problems: a stage that repeats the last one takes its line.
        last = self._bar.tasks[-1] if self._bar.tasks else None
        if last is not None and last.finished and last.description == shown:
            self._bar.reset(last.id, total=total, note="")
            self._running[-1] = last.id
        else:
            self._running[-1] = self._bar.add_task(shown, total=total, note="")

    def advance(self, note: str = "") -> None:
        task = self._running[-1]
        if task is not None:
            self._bar.update(task, advance=1, note=note[:MAX_NOTE_WIDTH])

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False)

    def _end_stage(self) -> None:
        """Let the bar of the stage that runs end with what was done: it may have stopped early."""
        running = self._running[-1]
        self._running[-1] = None
        for task in self._bar.tasks:
            if task.id == running and not task.finished:
                done = int(task.completed)
                self._bar.update(task.id, total=done, visible=done > 0)


_active_bar: ContextVar[_Bar | None] = ContextVar("shown", default=None)


class _Lines:
    """A line per stage, and per note if they are asked for; a reminder in between."""

    def __init__(self, notes: bool) -> None:
        self._notes = notes
        self._last_note = ""
        self._stage = ""
        self._done = 0
        self._total = 0
        self._stage_start = self._last_line = time.monotonic()
        self._ended = threading.Event()

    @contextmanager
    def reminding(self) -> Iterator[None]:
        """Say which stage runs after `MAX_SILENCE_S` without a line."""
        reminder = threading.Thread(target=self._remind, name="foretune-progress", daemon=True)
        reminder.start()
        try:
            yield
        finally:
            self._ended.set()
            reminder.join()

    def start(self, stage: str, total: int) -> None:
        self._stage = stage
        self._done = 0
        self._total = total
        self._last_note = ""
        self._stage_start = time.monotonic()
        self.say(f"{stage} …")

    def advance(self, note: str = "") -> None:
        self._done += 1
        if self._notes and note and note != self._last_note:
            self.say(f"  {note}")
        self._last_note = note

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self._last_line = time.monotonic()

    def _remind(self) -> None:
        silent_until = self._last_line + MAX_SILENCE_S
        while not self._ended.wait(max(0.0, silent_until - time.monotonic())):
            silent_until = self._last_line + MAX_SILENCE_S
            if self._stage and time.monotonic() >= silent_until:
                self.say(self._reminder())
                silent_until = self._last_line + MAX_SILENCE_S

    def _reminder(self) -> str:
        seconds = time.monotonic() - self._stage_start
        counted = f" {self._done} of {self._total}," if self._total > 1 else ""
        note = f", {self._last_note}" if self._last_note else ""
        return f"  {self._stage}:{counted} {seconds:.0f} s{note}"


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
