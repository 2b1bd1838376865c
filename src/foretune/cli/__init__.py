"""The command line, ``foretune COMMAND``: one module per command or group of commands."""

import io
import os
import sys


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for a failure, 2 for a wrong command line."""
    for name in ("stdout", "stderr"):  # None if closed, and print() would take the other one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - stays open
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every encoding has an ellipsis
    try:
        from foretune.cli.app import run  # here, so that Ctrl-C meanwhile is one line, too
    except KeyboardInterrupt:
        print("foretune: interrupted before it started", file=sys.stderr)
        return 130
    return run(sys.argv[1:] if argv is None else argv)
