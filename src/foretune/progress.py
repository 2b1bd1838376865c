"""Progress reports of long work; the command line shows them."""

from typing import Protocol


class Progress(Protocol):
    """Receives progress reports, for people."""

    def start(self, stage: str, total: int) -> None:
        """Start a stage of ``total`` steps; it ends when the next one starts."""

    def advance(self, note: str = "") -> None:
        """Report a finished step; ``note`` is its result."""

    def say(self, text: str) -> None:
        """Print a line."""


class Silent:
    """Ignores all reports; the default in Python."""

    def start(self, stage: str, total: int) -> None:
        """Ignore."""

    def advance(self, note: str = "") -> None:
        """Ignore."""

    def say(self, text: str) -> None:
        """Ignore."""


SILENT = Silent()
