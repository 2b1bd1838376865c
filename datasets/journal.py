"""The journal beside a run table: one line of JSON for each row, on the disk before it counts."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foretune.errors import OutputError, RunTableError
from foretune.files import read_bytes, require_regular_file, translate_read_errors

Row = dict[str, Any]


def journal_path(path: Path) -> Path:
    """Return where the rows of ``path`` are kept while they are being measured."""
    return path.with_name(path.name + ".journal")


class Journal:
    """Open for appending; what a killed process left behind its last whole line is removed.

    Args:
        path: the file, existing or not.

    Raises:
        OutputError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            truncate_partial_line(path)
            self._file = path.open("ab")
            self._reader = path.open("rb")
        except OSError as e:
            raise OutputError(f"cannot write to {path.parent}: {e.strerror or e}") from e
        self._end = self._file.tell()

    def append(self, row: Mapping[str, Any]) -> int:
        """Write a row and wait until it is on the disk; return where it begins.

        Raises:
            OutputError: the disk is full or gone, or somebody deleted the journal.
        """
        line = json.dumps(row, default=float).encode() + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
            gone = not os.fstat(self._file.fileno()).st_nlink
        except OSError as e:
            raise OutputError(f"cannot write {self.path}: {e.strerror or e}") from e
        if gone:
            raise OutputError(
                f"{self.path} was deleted while measurements went there: those since it "
                "was opened are lost; start again"
            )
        begin, self._end = self._end, self._end + len(line)
        return begin

    def read_at(self, offset: int) -> Row:
        """Return the row that begins at ``offset``."""
        self._reader.seek(offset)
        return dict(json.loads(self._reader.readline()))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._reader.closed

    def close(self) -> None:
        """Close the file, and leave it where it is."""
        self._reader.close()
        self._file.close()


def read_journal(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield where each whole line begins, and its row.

    Raises:
        RunTableError: a line is damaged; it is named.
    """
    with translate_read_errors(path, RunTableError, "cannot be read: {}"):
        file = require_regular_file(path).open("rb")
    offset = 0
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # a process was killed while it wrote this
            message = "is damaged ({}): delete the line"
            with translate_read_errors(f"{path}, line {number}", RunTableError, message):
                row = dict(json.loads(line))
            yield offset, row
            offset += len(line)


def digest(path: Path) -> str:
    """Return what tells one journal from another; empty where there is none."""
    return hashlib.sha256(read_bytes(path)).hexdigest() if path.exists() else ""


def truncate_partial_line(journal: Path) -> None:
    """Remove what a process that was killed while writing left behind the last whole line."""
    if journal.exists():
        whole = journal.read_bytes().rpartition(b"\n")
        if whole[2]:
            os.truncate(journal, len(whole[0]) + len(whole[1]))
