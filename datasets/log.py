"""The run log: measurements on disk the moment they are made, a Parquet file when it is closed."""

import json
import os
from pathlib import Path
from typing import Self

import pandas as pd

from foretune.datasets.runs import (
    from_measurements,
    journal_of,
    latest,
    read_runs,
    to_measurements,
    to_row,
    write_runs,
)
from foretune.datasets.schema import validate
from foretune.device import Device
from foretune.errors import OutputError
from foretune.locking import Lock
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration


class RunLog:
    """Appends measurements to the run table at ``path``; a context manager.

    Every row is on the disk, in a journal beside the file, before `append` returns, so neither a
    killed process nor a power cut loses any: opening the log again, or `read_runs`, finds the rows.
    Closing folds the journal into the Parquet file.

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
        self._known: dict[tuple[str, str, Problem, Configuration], Measurement] = {}
        self._lock = Lock(self.path)
        try:
            if self.path.exists() or _has_rows(journal_of(self.path)):
                for m in to_measurements(latest(read_runs(self.path))):
                    self._known[self._key(m)] = m
        except BaseException:
            self._lock.release()
            raise
        try:
            drop_half_line(journal_of(self.path))
            self._journal = journal_of(self.path).open("a", encoding="utf-8")
        except OSError as e:
            raise OutputError(f"cannot write to {self.path.parent}: {e.strerror or e}") from e

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._known)

    def append(self, measurement: Measurement) -> None:
        """Write one row.

        Raises:
            RunTableError: the row is impossible; it is not written.
            OutputError: the disk is full or gone; every row before this one is kept. Or somebody
                deleted the journal.
        """
        validate(from_measurements([measurement], self._device), str(self.path))
        try:
            row = json.dumps(to_row(measurement, self._device), default=float)
            self._journal.write(row + "\n")
            self._journal.flush()
            os.fsync(self._journal.fileno())
            gone = not os.fstat(self._journal.fileno()).st_nlink
        except OSError as e:
            raise OutputError(f"cannot write {self._journal.name}: {e.strerror or e}") from e
        if gone:
            raise OutputError(
                f"{self._journal.name} was deleted while measurements went there: those since it "
                "was opened are lost; start again"
            )
        self._known[self._key(measurement)] = measurement

    def find(
        self, like: Measurement | tuple[str, str, Problem, Configuration]
    ) -> Measurement | None:
        """Return the newest measurement of the same (kernel, device, problem, configuration)."""
        return self._known.get(self._key(like) if isinstance(like, Measurement) else like)

    def measurements(self) -> list[Measurement]:
        """Return the newest measurement of everything in the log, oldest first."""
        return list(self._known.values())

    def runs(self) -> pd.DataFrame:
        """Return all rows as a run table (empty if nothing has been measured)."""
        if not self._known:
            return pd.DataFrame()
        return read_runs(self.path)

    def close(self) -> None:
        """Fold the journal into the Parquet file; do nothing if there is no row at all."""
        if self._journal.closed:
            return
        try:
            self._journal.close()
            if self._known and journal_of(self.path).exists():  # else somebody deleted it
                # Twice in both, where a process was killed between this line and the next.
                runs = read_runs(self.path)
                objects = [c for c in runs if runs[c].dtype == object]
                lists = [c for c in objects if runs[c].map(pd.api.types.is_list_like).any()]
                same = runs.drop(columns=lists).duplicated()
                write_runs(self.path, runs[~same])
            journal_of(self.path).unlink(missing_ok=True)
        except OutputError:
            raise
        except OSError as e:
            raise OutputError(f"cannot write {self.path}: {e.strerror or e}") from e
        finally:
            self._lock.release()

    @staticmethod
    def _key(m: Measurement) -> tuple[str, str, Problem, Configuration]:
        return m.kernel, m.device, m.problem, m.config


def _has_rows(journal: Path) -> bool:
    return journal.exists() and b"\n" in journal.read_bytes()


def drop_half_line(journal: Path) -> None:
    """Remove what a process that was killed while writing left behind the last whole line."""
    if journal.exists():
        whole = journal.read_bytes().rpartition(b"\n")
        if whole[2]:
            os.truncate(journal, len(whole[0]) + len(whole[1]))
