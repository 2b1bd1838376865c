"""The command line: ``foretune COMMAND``; one file per group of commands."""

import sys

from foretune.cli.app import run


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 (failed) or 2 (asked for the impossible)."""
    return run(sys.argv[1:] if argv is None else argv)
