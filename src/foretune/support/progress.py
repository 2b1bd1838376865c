"""Progress reports of long work; the command line shows them."""

import logging
from typing import Protocol

LOGGER = logging.getLogger("foretune")
# A library says nothing unless it is asked to.
LOGGER.addHandler(logging.NullHandler())


class Progress(Protocol):
    """Receives progress reports, for people."""

    def start(self, stage: str, total: int) -> None:
        """Start a stage of ``total`` steps; it ends when the next one starts."""

    def advance(self, note: str = "") -> None:
        """Report a finished step; ``note`` is its result."""

    def say(self, text: str) -> None:
        """Print a line."""


class _Silent:
    def start(self, stage: str, total: int) -> None:
        LOGGER.info("%s: %d steps", stage, total)

    def advance(self, note: str = "") -> None:
        LOGGER.debug("%s", note)

    def say(self, text: str) -> None:
        LOGGER.info("%s", text)


SILENT = _Silent()
"""Shows nothing; the default in Python. The logger ``foretune`` gets stages and messages."""
