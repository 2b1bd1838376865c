"""Write-ahead journal of a run table: one JSON line per row, synced before the row counts."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foretune.errors import OutputError, RunTableError
from foretune.support import files

Row = dict[str, Any]


def journal_path(path: Path) -> Path:
    """Return the path of the journal beside the run table ``path``."""
    return path.with_name(path.name + ".journal")


class Journal:
    """A journal open for appending, without a partial last line; raises OutputError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with files.translate_write_errors(f"to {path.parent}"):
            truncate_partial_line(path)
            self._file = os.fdopen(files.open_private(path, os.O_WRONLY | os.O_APPEND), "ab")
            self._reader = path.open("rb")
        self._end = self._file.tell()

    def append(self, row: Mapping[str, Any]) -> int:
        """Write and sync a row, and return its offset; raise OutputError if rows may be lost."""
        line = json.dumps(row, default=float).encode() + b"\n"
        with files.translate_write_errors(self.path):
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
            was_deleted = os.fstat(self._file.fileno()).st_nlink == 0
        if was_deleted:
            raise OutputError(
                f"{self.path} was deleted while it was in use: rows written since it was "
                "opened are lost; run the command again"
            )
        offset = self._end
        self._end += len(line)
        return offset

    def read_at(self, offset: int) -> Row:
        """Return the row that begins at ``offset``."""
        self._reader.seek(offset)
        return dict(json.loads(self._reader.readline()))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._reader.closed

    def close(self) -> None:
        """Close the file without removing it."""
        self._reader.close()
        self._file.close()


def read_journal(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield offset and row of each complete line; raise RunTableError if one is damaged."""
    with files.translate_read_errors(path, RunTableError, "cannot be read: {}"):
        file = files.require_regular_file(path).open("rb")
    offset = 0
    with file:
        for number, line in enumerate(file, start=1):
            # The writing process was killed.
            if not line.endswith(b"\n"):
                return
            message = "is damaged ({}): delete the line"
            with files.translate_read_errors(f"{path}, line {number}", RunTableError, message):
                row = files.parse_json(line)
            yield offset, row
            offset += len(line)


def digest(path: Path) -> str:
    """Return the journal's digest, or "" if there is no journal."""
    return hashlib.sha256(files.read_bytes(path)).hexdigest() if path.exists() else ""


def truncate_partial_line(journal: Path) -> None:
    """Remove a partial last line, left by a process killed while writing."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    whole_lines = content.rfind(b"\n") + 1
    if whole_lines < len(content):
        os.truncate(journal, whole_lines)
