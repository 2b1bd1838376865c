"""Rows of `libraries.py`."""

import argparse
import json
from pathlib import Path
from typing import Any


class Log:
    """Writes rows; one is written before a call, so that a call that ends the process is known."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.path: Path = options.out
        self.pending: Path = options.work / f"{options.side}-pending.json"
        self.mine: Path = options.work / f"{options.side}.jsonl"
        self.side: str = options.side
        if self.pending.exists():
            row = json.loads(self.pending.read_text())
            self._write({**row, "error": "the process ended"})
            self.pending.unlink()

    def __call__(self, **row: Any) -> None:
        """Write a row that is about no call."""
        self._write({"side": self.side, **row})

    def begin(self, **row: Any) -> None:
        """Say which call comes next."""
        self.row = {"side": self.side, **row}
        self.pending.write_text(json.dumps(self.row))

    def end(self, **row: Any) -> None:
        """Write the result."""
        self._write({**self.row, **row})
        self.pending.unlink()

    def written(self) -> list[dict[str, Any]]:
        """Return what this side has written in this run."""
        return read(self.mine)

    def _write(self, row: dict[str, Any]) -> None:
        for path in (self.path, self.mine):
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return a file's rows."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def key_of(row: dict[str, Any]) -> tuple[str, str]:
    """Return kernel and problem of a row."""
    return row["kernel"], json.dumps(row["problem"])
