"""The run log: rows are synced to disk as they are measured and become Parquet on close."""

import math
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.datasets.journal import Journal, digest, journal_path, read_journal
from foretune.datasets.run_file import RowIdentity, RunFile, extend, row_key
from foretune.datasets.runs import from_rows, read_runs, require_table_name, to_measurement, to_row
from foretune.datasets.schema import validate
from foretune.device import Device
from foretune.errors import RunTableError
from foretune.measurement import Measurement
from foretune.support.files import Lock, translate_read_errors, translate_write_errors

MAX_JOURNAL_ROWS = 20_000
"""Rows after which an open log compacts its journal (or a quarter of the file's rows, if more)."""


class RunLog:
    """Appends measurements to the run table at ``path``; a context manager.

    `append` writes every row to a journal beside the file and syncs it before it returns. A killed
    process or a power cut loses no row: `read_runs` or opening the log again finds them. Closing
    merges the journal into the Parquet file. Only row keys are kept in memory. The specs of
    ``device`` are stored with the rows. Raises OutputError if the directory cannot be written;
    RunTableError if an existing file is not a run table.
    """

    def __init__(self, path: str | os.PathLike[str], device: Device | None = None) -> None:
        self.path = require_table_name(Path(path))
        self._device = device
        specs = device.specs if device is not None else {}
        self._power_limit_w = specs.get("power_limit_w", math.inf)
        self._lock = Lock(self.path)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of distinct measured (kernel, device, problem, configuration)."""
        return self._distinct_count

    def append(self, measurement: Measurement) -> None:
        """Write one row.

        Raises RunTableError if the row is impossible, so not written; OutputError if the disk is
        full or gone, or the journal was deleted. Earlier rows are kept unless it was deleted.
        """
        measurement.check(self._power_limit_w)
        offset = self._journal.append(to_row(measurement, self._device))
        self._index_row(row_key(_identity_of(measurement)), offset)
        if self._journal_rows >= max(MAX_JOURNAL_ROWS, len(self._keys) // 4):
            self._compact()
            self._open()

    def find(self, like: Measurement | RowIdentity) -> Measurement | None:
        """Return the last measurement of the same (kernel, device, problem, configuration)."""
        identity = _identity_of(like) if isinstance(like, Measurement) else like
        row = self._newest_row(row_key(identity))
        if row is None:
            return None
        measurement = to_measurement(row)
        # Different rows may have equal keys.
        return measurement if _identity_of(measurement) == identity else None

    def _newest_row(self, key: int) -> dict[str, Any] | None:
        """Return the last row with a key: the journal's, else the file's."""
        offset = self._offsets.get(key)
        if offset is not None:
            return self._journal.read_at(offset)
        number = self._file_row_of(key)
        if number is None or self._file is None:
            return None
        return self._file.row(number)

    def kernels(self) -> set[str]:
        """Return the names of the measured kernels."""
        names = {self._journal.read_at(offset)["kernel"] for offset in self._offsets.values()}
        if self._file is not None:
            names |= self._file.kernels()
        return names

    def runs(self) -> pd.DataFrame:
        """Return all rows as a run table; empty if there are none."""
        if not self._distinct_count:
            return pd.DataFrame()
        return read_runs(self.path)

    def close(self) -> None:
        """Merge the journal into the Parquet file; do nothing if the log is empty."""
        if self._journal.closed:
            return
        try:
            self._compact()
        finally:
            self._lock.release()

    def _open(self) -> None:
        """Read the keys of existing rows and open the journal."""
        journal = journal_path(self.path)
        self._file = RunFile(self.path) if self.path.exists() else None
        keys = np.zeros(0, dtype=np.uint64) if self._file is None else self._file.keys()

        # File order is measurement order: for equal keys the last row counts.
        self._keys, index_from_end = np.unique(keys[::-1], return_index=True)
        self._file_rows = len(keys) - 1 - index_from_end
        self._offsets: dict[int, int] = {}
        self._journal_rows = 0
        self._distinct_count = len(self._keys)

        # A process was killed between writing the file and removing the journal.
        if self._file is not None and digest(journal) == self._file.journal_digest:
            journal.unlink(missing_ok=True)

        rows = list(read_journal(journal)) if journal.exists() else []
        with translate_read_errors(journal, RunTableError, "is damaged: {}"):
            if rows:
                validate(from_rows([row for _, row in rows]), str(journal))
            for offset, row in rows:
                self._index_row(row_key(_identity_of(to_measurement(row))), offset)
        self._journal = Journal(journal)

    def _index_row(self, key: int, offset: int) -> None:
        """Note where the journal has a row with a key."""
        is_new = key not in self._offsets and self._file_row_of(key) is None
        if is_new:
            self._distinct_count += 1
        self._offsets[key] = offset
        self._journal_rows += 1

    def _file_row_of(self, key: int) -> int | None:
        """Return the number of the file's last row with a key; None if there is none."""
        position = int(np.searchsorted(self._keys, np.uint64(key)))
        if position == len(self._keys) or int(self._keys[position]) != key:
            return None
        return int(self._file_rows[position])

    def _compact(self) -> None:
        """Close the journal, and merge its rows into the file."""
        journal = self._journal.path
        with translate_write_errors(self.path):
            self._journal.close()
            was_deleted = not journal.exists()
            if self._journal_rows and not was_deleted:
                rows = [row for _, row in read_journal(journal)]
                extend(self.path, from_rows(rows), digest(journal))
            journal.unlink(missing_ok=True)


def _identity_of(measurement: Measurement) -> RowIdentity:
    """Return what was run, which identifies a row."""
    return measurement.kernel, measurement.device, measurement.problem, measurement.config
