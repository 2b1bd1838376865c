"""Progress of long work, seen through two calls; the command line draws it."""

from typing import Protocol


class Progress(Protocol):
    """Receives what long work has to say. All of it is for people."""

    def start(self, stage: str, total: int) -> None:
        """Begin a stage of ``total`` steps; it ends when the next one begins."""

    def advance(self, note: str = "") -> None:
        """One step is done; ``note`` says what came of it."""

    def say(self, text: str) -> None:
        """Show a line that stays."""


class Silent:
    """Says nothing: the default everywhere but on the command line."""

    def start(self, stage: str, total: int) -> None:
        """Ignore."""

    def advance(self, note: str = "") -> None:
        """Ignore."""

    def say(self, text: str) -> None:
        """Ignore."""


SILENT = Silent()
