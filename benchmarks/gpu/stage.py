"""What the stages on a GPU share: the table they write, and a clock for their box.

A stage measures what its table does not hold yet, row by row, until the work or the time is over;
so the same command goes on where it stopped. Rows are in a journal the moment they are measured and
are folded into a Parquet file at the end; `foretune.datasets.read_runs` reads both.
"""

import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO

import numpy as np
import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1]))  # machine.py, beside this folder

from machine import markdown

from foretune.datasets.journal import journal_path, truncate_partial_line
from foretune.datasets.runs import (
    read_runs,
    to_measurements,
    to_row,
    write_runs,
)
from foretune.datasets.schema import columns_of
from foretune.device import Device
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.files import atomic_write

__all__ = [
    "Bests",
    "Deadline",
    "Job",
    "Table",
    "labels",
    "library_columns",
    "markdown",
    "medians",
    "noise",
    "rounded",
    "share_of_best",
    "write_json",
]

Key = tuple[str, Problem, Configuration, int]
DIGITS = 6
"""Significant digits of a number that are kept: a device's events tick more coarsely."""
SAMPLE_DIGITS = 4
"""Significant digits of a repeat: repeats agree no better, and more would fill the table."""


@dataclass(frozen=True)
class Job:
    """One thing to measure.

    Attributes:
        kernel: the kernel that runs.
        problem: what it computes.
        config: its configuration.
        role: why it is measured, e.g. ``default``, ``list``, ``repeat``.
        repeat: number of the repeat; 0 is the first measurement.
    """

    kernel: Kernel
    problem: Problem
    config: Configuration
    role: str
    repeat: int = 0

    @property
    def key(self) -> Key:
        """What distinguishes its row from all others of a table."""
        return self.kernel.name, self.problem, self.config, self.repeat


class Bests:
    """The fastest configuration of every problem so far."""

    def __init__(self, measurements: list[Measurement]) -> None:
        self._best: dict[tuple[str, Problem], Measurement] = {}
        for measurement in measurements:
            self.see(measurement)

    def see(self, measurement: Measurement) -> None:
        """Note a measurement."""
        if not measurement.ok:
            return
        key = (measurement.kernel, measurement.problem)
        best = self._best.get(key)
        if best is None or measurement.time_ms < best.time_ms:
            self._best[key] = measurement

    def __call__(self, kernel: Kernel, problem: Problem) -> Configuration | None:
        """Return the fastest of a problem; None if nothing has worked."""
        best = self._best.get((kernel.name, problem))
        return best.config if best else None


class Deadline:
    """The moment at which a stage begins nothing new."""

    def __init__(self, minutes: float) -> None:
        self._end_s = time.monotonic() + 60 * minutes

    @property
    def left_s(self) -> float:
        """Seconds that are left; negative afterwards."""
        return self._end_s - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether nothing new should begin."""
        return self.left_s <= 0


class Table:
    """A run table that grows row by row; a context manager.

    Columns beside those of every run table: ``role`` (see `Job`), ``counter.repeat`` and what a
    stage adds as ``counter.…``. The device's descriptor is added when the journal is folded.

    Args:
        path: the Parquet file, existing or not.
        device: whose descriptor the rows get.

    Attributes:
        done: keys of all rows.
        new: rows written by this process.
    """

    def __init__(self, path: Path, device: Device) -> None:
        self.path = path
        self.new = 0
        self.done: set[Key] = set()
        self._device = device
        self._journal_path = journal_path(path)
        self._journal: TextIO | None = None
        """Opened by the first row: a table that is only read changes no file."""
        truncate_partial_line(self._journal_path)
        self._add_to_done(self.runs())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def append(self, measurement: Measurement, role: str, repeat: int = 0, **columns: Any) -> None:
        """Write one row; ``columns`` are numbers of the group ``counter``, or text."""
        samples = measurement.time_ms_samples
        row = {
            **to_row(measurement),
            "role": role,
            "counter.repeat": repeat,
            "time_ms_samples": [rounded(sample, SAMPLE_DIGITS) for sample in samples],
        }
        for name, value in columns.items():
            is_text = isinstance(value, str)
            row[name if is_text else f"counter.{name}"] = value

        if self._journal is None:
            self._journal_path.parent.mkdir(parents=True, exist_ok=True)
            self._journal = self._journal_path.open("a", encoding="utf-8")

        # A row is on the disk before the next measurement begins.
        self._journal.write(json.dumps(row, default=float) + "\n")
        self._journal.flush()
        self.done.add(_key(measurement, repeat))
        self.new += 1

    def runs(self) -> pd.DataFrame:
        """Return all rows; an empty table if there are none."""
        journal = self._journal_path
        if not self.path.exists() and not (journal.exists() and journal.stat().st_size):
            return pd.DataFrame()
        runs = read_runs(self.path)

        # If a process was killed while it folded, rows are in the Parquet file and in the journal.
        repeat = runs["counter.repeat"].astype(int).astype(str)
        key = labels(runs, "problem", "config") + repeat
        return runs[~key.duplicated()].reset_index(drop=True)

    def close(self) -> None:
        """Fold the journal into the Parquet file."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if not self._journal_path.exists():
            return
        runs = self.runs()
        if len(runs):
            specs = {f"device.{name}": value for name, value in self._device.specs.items()}
            write_runs(self.path, runs.assign(**specs))
        self._journal_path.unlink()

    def _add_to_done(self, runs: pd.DataFrame) -> None:
        if not len(runs):
            return
        repeats = runs["counter.repeat"].astype(int)
        for measurement, repeat in zip(to_measurements(runs), repeats, strict=True):
            self.done.add(_key(measurement, repeat))


def _key(measurement: Measurement, repeat: int) -> Key:
    """Return the key of a measurement, equal to that of its job."""
    return measurement.kernel, measurement.problem, measurement.config, repeat


def share_of_best(runs: pd.DataFrame) -> pd.Series:
    """Return the best time of each row's problem over the row's time; NaN where it failed."""
    is_ok = runs["status"] == Status.OK.value
    times = runs["time_ms"].where(is_ok).astype(float)
    best_of_problem = times.groupby(labels(runs, "problem")).transform("min")
    return best_of_problem / times


def labels(runs: pd.DataFrame, *groups: str) -> pd.Series:
    """Return a text per row: its kernel and the columns of ``groups`` (``problem``, ``config``)."""
    columns = ["kernel"]
    for group in groups:
        columns += columns_of(runs, group)
    cells = runs[columns].astype(object).where(runs[columns].notna(), "")
    rows = zip(*(cells[column].tolist() for column in columns), strict=True)
    return pd.Series(map(str, rows), index=runs.index, dtype=object)


def rounded(value: float, digits: int = DIGITS) -> float:
    """Return ``value`` with as many digits as are worth keeping."""
    return float(f"{value:.{digits}g}")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write ``values`` in one step: all or nothing."""
    with atomic_write(path) as new:
        new.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def medians(values: Iterable[float], form: str = "{:.3f}") -> str:
    """Return the median as text, a dash where there is nothing."""
    known = pd.Series(list(values), dtype=float).dropna()
    return form.format(known.median()) if len(known) else "–"


def library_columns(times: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the columns of the library's call from interleaved times, for `Table.append`."""
    name = next((name for name in times if name.startswith("library:")), None)
    if name is None:
        return {}
    median = rounded(float(np.median(times[name])))
    return {"library_ms": median, "library": name.removeprefix("library:")}


def noise(runs: pd.DataFrame, column: str) -> str:
    """Return the median difference between rows and their repeats, as percent."""
    by_key = runs.assign(key=labels(runs, "problem", "config")).set_index("key")
    first = by_key.loc[by_key["counter.repeat"] == 0, column]
    repeated = by_key.loc[by_key["counter.repeat"] > 0, column]
    difference = repeated / first.reindex(repeated.index) - 1
    return medians(100 * difference.abs(), "{:.2f}")
