"""The run log: measurements on disk the moment they are made, a Parquet file when it is closed."""

import math
import os
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets.journal import Journal, digest, journal_of, read_journal
from foretune.datasets.row_keys import RowName, row_key
from foretune.datasets.run_file import RunFile, extend
from foretune.datasets.runs import frame_of_rows, read_runs, to_measurement, to_row
from foretune.datasets.schema import validate
from foretune.decoding import decoding
from foretune.device import Device
from foretune.errors import OutputError, RunTableError
from foretune.locking import Lock
from foretune.measurement import Measurement

LONGEST_JOURNAL = 20_000
"""Rows after which a journal is folded while the log is open, or a quarter of the file's rows."""


class RunLog:
    """Appends measurements to the run table at ``path``; a context manager.

    Every row is on the disk, in a journal beside the file, before `append` returns, so neither a
    killed process nor a power cut loses any: opening the log again, or `read_runs`, finds the rows.
    Closing folds the journal into the Parquet file. Only the keys of rows are kept in memory.

    Args:
        path: the Parquet file, existing or not.
        device: whose descriptor is stored with the rows.

    Raises:
        OutputError: the directory cannot be written.
        RunTableError: what is there already is not a run table.
    """

    def __init__(self, path: str | os.PathLike[str], device: Device | None = None) -> None:
        self.path = Path(path)
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
        """How many different (kernel, device, problem, configuration) have been measured."""
        return self._distinct

    def append(self, measurement: Measurement) -> None:
        """Write one row.

        Raises:
            RunTableError: the row is impossible; it is not written.
            OutputError: the disk is full or gone; every row before this one is kept. Or somebody
                deleted the journal.
        """
        measurement.check(self._power_limit_w)
        place = self._journal.append(to_row(measurement, self._device))
        self._note(row_key(_name(measurement)), place)
        if self._lines >= max(LONGEST_JOURNAL, len(self._keys) // 4):
            self._fold()
            self._open()

    def find(self, like: Measurement | RowName) -> Measurement | None:
        """Return the last measurement of the same (kernel, device, problem, configuration)."""
        name = _name(like) if isinstance(like, Measurement) else like
        key = row_key(name)
        if (place := self._places.get(key)) is not None:
            row = self._journal.at(place)
        elif (number := self._number(key)) is not None and self._file is not None:
            row = self._file.row(number)
        else:
            return None
        found = to_measurement(row)
        return found if _name(found) == name else None

    def kernels(self) -> set[str]:
        """Return the names of the kernels that have rows."""
        journal = {self._journal.at(place)["kernel"] for place in self._places.values()}
        return journal | (self._file.kernels() if self._file is not None else set())

    def runs(self) -> pd.DataFrame:
        """Return all rows as a run table (empty if nothing has been measured)."""
        if not self._distinct:
            return pd.DataFrame()
        return read_runs(self.path)

    def close(self) -> None:
        """Fold the journal into the Parquet file; do nothing if there is no row at all."""
        if self._journal.closed:
            return
        try:
            self._fold()
        finally:
            self._lock.release()

    def _open(self) -> None:
        """Read the keys of what is there, and open the journal."""
        journal = journal_of(self.path)
        self._file = RunFile(self.path) if self.path.exists() else None
        keys = np.zeros(0, dtype=np.uint64) if self._file is None else self._file.keys()
        # Of equal keys the last row counts; the file's order is that in which they were measured.
        self._keys, back = np.unique(keys[::-1], return_index=True)
        self._numbers = len(keys) - 1 - back
        self._places: dict[int, int] = {}
        self._lines, self._distinct = 0, len(self._keys)
        if self._file is not None and digest(journal) == self._file.notes.folded:
            # A process was killed between writing the file and removing the journal.
            journal.unlink(missing_ok=True)
        rows = list(read_journal(journal)) if journal.exists() else []
        with decoding(journal, RunTableError, "is damaged: {}"):
            if rows:
                validate(frame_of_rows([row for _, row in rows]), str(journal))
            for place, row in rows:
                self._note(row_key(_name(to_measurement(row))), place)
        self._journal = Journal(journal)

    def _note(self, key: int, place: int) -> None:
        self._distinct += key not in self._places and self._number(key) is None
        self._places[key] = place
        self._lines += 1

    def _number(self, key: int) -> int | None:
        """Return the number of the file's last row with a key."""
        at = int(np.searchsorted(self._keys, np.uint64(key)))
        found = at < len(self._keys) and int(self._keys[at]) == key
        return int(self._numbers[at]) if found else None

    def _fold(self) -> None:
        journal = self._journal.path
        try:
            self._journal.close()
            if self._lines and journal.exists():  # else somebody deleted it
                rows = [row for _, row in read_journal(journal)]
                extend(self.path, frame_of_rows(rows), digest(journal))
            journal.unlink(missing_ok=True)
        except OSError as e:
            raise OutputError(f"cannot write {self.path}: {e.strerror or e}") from e


def _name(m: Measurement) -> RowName:
    return m.kernel, m.device, m.problem, m.config
