"""The command line, ``foretune COMMAND``: one module per command or group of commands."""

import sys

from foretune.cli.app import run


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for a failure, 2 for a wrong command line."""
    return run(sys.argv[1:] if argv is None else argv)
