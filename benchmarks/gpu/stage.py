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
from typing import Any, Self

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
        kernel: that is run.
        problem: it computes.
        config: how.
        role: why it is measured, e.g. ``default``, ``list``, ``repeat``.
        repeat: 0 the first time.
    """

    kernel: Kernel
    problem: Problem
    config: Configuration
    role: str
    repeat: int = 0

    @property
    def key(self) -> Key:
        """What tells it from every other row of a table."""
        return self.kernel.name, self.problem, self.config, self.repeat


class Bests:
    """The fastest configuration of every problem so far."""

    def __init__(self, measurements: list[Measurement]) -> None:
        self._best: dict[tuple[str, Problem], Measurement] = {}
        for m in measurements:
            self.see(m)

    def see(self, m: Measurement) -> None:
        """Note a measurement."""
        known = self._best.get((m.kernel, m.problem))
        if m.ok and (known is None or m.time_ms < known.time_ms):
            self._best[m.kernel, m.problem] = m

    def __call__(self, kernel: Kernel, problem: Problem) -> Configuration | None:
        """Return the fastest of a problem; None if nothing has worked."""
        found = self._best.get((kernel.name, problem))
        return found.config if found else None


class Deadline:
    """The moment at which a stage begins nothing new."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes

    @property
    def left_s(self) -> float:
        """Seconds that are left; negative afterwards."""
        return self._end - time.monotonic()

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
        path.parent.mkdir(parents=True, exist_ok=True)
        truncate_partial_line(journal_path(path))
        self._keep(self.runs())
        self._journal = journal_path(path).open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def append(self, m: Measurement, role: str, repeat: int = 0, **more: Any) -> None:
        """Write one row; ``more`` are numbers of the group ``counter``, or text."""
        row = {**to_row(m), "role": role, "counter.repeat": repeat}
        row["time_ms_samples"] = [rounded(t, SAMPLE_DIGITS) for t in m.time_ms_samples]
        row |= {n if isinstance(v, str) else f"counter.{n}": v for n, v in more.items()}
        self._journal.write(json.dumps(row, default=float) + "\n")
        self._journal.flush()
        self.done.add((m.kernel, m.problem, m.config, repeat))
        self.new += 1

    def runs(self) -> pd.DataFrame:
        """Return all rows; an empty table if there are none."""
        journal = journal_path(self.path)
        if not self.path.exists() and not (journal.exists() and journal.stat().st_size):
            return pd.DataFrame()
        runs = read_runs(self.path)
        # twice, in Parquet file and journal, where a process was killed while it folded
        what = labels(runs, "problem", "config") + runs["counter.repeat"].astype(int).astype(str)
        return runs[~what.duplicated()].reset_index(drop=True)

    def close(self) -> None:
        """Fold the journal into the Parquet file."""
        if self._journal.closed:
            return
        self._journal.close()
        runs = self.runs()
        if len(runs):
            specs = {f"device.{name}": value for name, value in self._device.specs.items()}
            write_runs(self.path, runs.assign(**specs))
        journal_path(self.path).unlink(missing_ok=True)

    def _keep(self, runs: pd.DataFrame) -> None:
        if not len(runs):
            return
        repeats = runs["counter.repeat"].astype(int)
        for m, repeat in zip(to_measurements(runs), repeats, strict=True):
            self.done.add((m.kernel, m.problem, m.config, repeat))


def share_of_best(runs: pd.DataFrame) -> pd.Series:
    """Return the best time of each row's problem over the row's time; NaN where it failed."""
    times = runs["time_ms"].where(runs["status"] == Status.OK.value).astype(float)
    return times.groupby(labels(runs, "problem")).transform("min") / times


def labels(runs: pd.DataFrame, *groups: str) -> pd.Series:
    """Return a text per row that says which kernel, problem or configuration it is of."""
    columns = ["kernel", *(c for group in groups for c in columns_of(runs, group))]
    known = runs[columns].astype(object).where(runs[columns].notna(), "")
    cells = zip(*(known[c].tolist() for c in columns), strict=True)
    return pd.Series(map(str, cells), index=runs.index, dtype=object)


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
    named = runs.assign(key=labels(runs, "problem", "config"))
    first = named[named["counter.repeat"] == 0].set_index("key")[column]
    again = named[named["counter.repeat"] > 0].set_index("key")[column]
    return medians(100 * (again / first.reindex(again.index) - 1).abs(), "{:.2f}")
