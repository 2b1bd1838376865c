"""The tuning store: a database of measurements and choices."""

import functools
import json
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from foretune.errors import StoreError, UsageError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store.database import Database
from foretune.tune.store.reader import StoreFile, StoreReader
from foretune.tune.store.subject import (
    Choice,
    MergeReport,
    Subject,
    measurement_from_record,
    measurement_to_record,
    timestamp,
)
from foretune.values import FrozenParameters

LOCK_TIMEOUT_S = 10.0  # seconds to wait for writers before the store counts as locked
MAX_CLAIM_S = 120.0  # age in seconds at which another process's claim expires
FATAL_DEATHS = 2
"""Process deaths after which a configuration is given up; one may have been a kill from outside."""
MAX_CLOCK_SKEW_S = 3600.0  # maximum difference between the clocks of two machines


class Store(StoreReader):
    """A database of measurements and choices.

    Threads and processes can share it. It is opened on first use. Every method but the constructor
    raises StoreError if the database is damaged, locked, read-only or unreachable.

    Args:
        location: path of an SQLite file, or a URL (``postgresql+psycopg://…``); None is
            ``$FORETUNE_STORE``, else ``tuned.db`` in the user's cache folder.
        patience_s: seconds to wait for other processes that are writing.
        create: whether to create a missing database on first use; otherwise that is a StoreError.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | None = None,
        patience_s: float = LOCK_TIMEOUT_S,
        create: bool = True,
    ) -> None:
        self._database = Database(location or _default_location(), patience_s, create)

    @property
    def name(self) -> str:
        """The path, or the URL without its password."""
        return self._database.name

    def close(self) -> None:
        """Close the open connection; the next use opens another."""
        self._database.close()

    def put(self, subject: Subject, measurements: Iterable[Measurement]) -> None:
        """Store measurements, failures included; they replace older ones of the configuration.

        Raises UsageError if one has another kernel or device than the subject, RunTableError if one
        contradicts itself; then none is stored.
        """
        rows = [_measured_row(subject, m) for m in measurements]
        with self._database.transaction(write=True) as table:
            table.insert_subject(subject)
            table.upsert("measurements", rows)
            table.unmark(rows)

    def measurements(self, subject: Subject, problem: Problem | None = None) -> list[Measurement]:
        """Return the last measurement of each configuration in the order of writing."""
        with self._database.transaction() as table:
            rows = table.rows("measurements", subject.id, None if problem is None else problem.id)
        with self._translate_row_errors():
            return [
                measurement_from_record(json.loads(record), subject, Problem(json.loads(described)))
                for described, record in rows
            ]

    def begin_measurement(self, subject: Subject, problem: Problem, config: Configuration) -> None:
        """Mark a configuration as being measured here, until `put` or `end_measurement`."""
        with self._database.transaction(write=True) as table:
            table.mark(_new_mark(subject, problem, config))

    def try_claim(
        self, subject: Subject, problem: Problem, config: Configuration, remeasure: bool = False
    ) -> bool:
        """Mark a configuration, unless another process measured it or is measuring it.

        Claims of other hosts expire after `MAX_CLAIM_S`, because their processes may have died.
        With ``remeasure``, a configuration that has a measurement is claimed, too. Return whether
        this process may measure it.
        """
        new_mark = _new_mark(subject, problem, config)
        with self._database.transaction(write=True) as table:
            which = {name: new_mark[name] for name in ("subject", "problem", "config")}
            if not remeasure and table.is_measured(which):
                return False
            for host, pid, started, since, _ in table.marks(which):
                is_other = (host, pid) != (new_mark["host"], new_mark["pid"])
                young = new_mark["since"] - since < MAX_CLAIM_S
                if is_other and young and Process(host, pid, started).is_alive is not False:
                    return False
            table.mark(new_mark)
        return True

    def end_measurement(self, subject: Subject, problem: Problem, config: Configuration) -> None:
        """Remove this process's mark from a configuration."""
        with self._database.transaction(write=True) as table:
            table.unmark([_new_mark(subject, problem, config)])

    def crashed_configurations(self, subject: Subject, problem: Problem) -> list[Configuration]:
        """Return configurations that `FATAL_DEATHS` processes of this host died measuring."""
        which = {"subject": subject.id, "problem": problem.id, "host": this_process().host}
        with self._database.transaction() as table:
            marks = table.marks(which)
        deaths = Counter(text for *who, _, text in marks if Process(*who).is_alive is False)
        with self._translate_row_errors():
            return [Configuration(json.loads(t)) for t, n in deaths.items() if n >= FATAL_DEATHS]

    def choose(
        self, subject: Subject, problem: Problem, choice: Choice, replacing: Choice | None = None
    ) -> Choice:
        """Store a choice unless another process was first, and return the stored one.

        So processes that tune at the same time agree. A stored choice is replaced only by one that
        is based on more measurements and names it as ``replacing``. If it is verified again, only
        its time is updated. Raises UsageError if the choice's method does not exist.
        """
        row = _chosen_row(subject, problem, choice)
        with self._database.transaction(write=True) as table:
            table.insert_subject(subject)
            stands = self._choices(table.rows("choices", subject.id, problem.id)).get(problem)
            if stands is not None and _is_verified_again(stands, choice):
                renewed = replace(stands, chosen_at=choice.chosen_at)
                table.upsert("choices", [_chosen_row(subject, problem, renewed)], "not worse")
            elif stands is not None and stands == replacing:
                table.upsert("choices", [row], "better")
            else:
                table.upsert("choices", [row], "never")
            chosen = table.rows("choices", subject.id, problem.id)
        return self._choices(chosen)[problem]

    def choice(self, subject: Subject, problem: Problem) -> Choice | None:
        """Return the choice for a problem; None if there is none yet."""
        with self._database.transaction() as table:
            stands = table.rows("choices", subject.id, problem.id)
        return self._choices(stands).get(problem)

    def choices(self, subject: Subject) -> dict[Problem, Choice]:
        """Return all choices of a subject, oldest first."""
        with self._database.transaction() as table:
            return self._choices(table.rows("choices", subject.id))

    def subjects(self) -> list[Subject]:
        """Return all subjects in alphabetical order."""
        with self._database.transaction() as table:
            return sorted(Subject(*row) for row in table.subjects())

    def forget(self, subject: Subject | None = None, problem: Problem | None = None) -> int:
        """Delete a problem of a subject, a subject, or everything; return the number of rows.

        Raises UsageError if a problem is given without its subject.
        """
        if subject is None and problem is not None:
            raise UsageError("a problem belongs to a subject: name it, too")
        with self._database.transaction(write=True) as table:
            return table.delete(getattr(subject, "id", None), getattr(problem, "id", None))

    def merge(self, path: str | os.PathLike[str]) -> MergeReport:
        """Merge an exported file; newer measurements and better choices replace existing ones.

        The better of two choices is based on more measurements; ties go to the later one.
        Timestamps in the future do not count as newer. Merging a file again changes nothing. Raises
        StoreError if the file cannot be read, or is not an export; then nothing is merged.
        """
        new = StoreFile(path)
        unknown = {*new.subjects()} - {*self.subjects()}
        counts = [self._merge_subject(new, subject) for subject in new.subjects()]
        return MergeReport(len(unknown), *map(sum, zip(*counts, strict=True)))

    def _merge_subject(self, new: StoreReader, subject: Subject) -> tuple[int, int, int]:
        """Return the numbers of newer measurements, better choices, and known rows."""
        existing = {(m.problem, m.config): m for m in self.measurements(subject)}
        incoming = {(m.problem, m.config): m for m in new.measurements(subject)}
        new_measurements = {
            k: m
            for k, m in incoming.items()
            if k not in existing
            or _trusted_timestamp(m.recorded_at) > _trusted_timestamp(existing[k].recorded_at)
        }
        existing_choices, proposed = self.choices(subject), new.choices(subject)
        better = {
            p: c
            for p, c in proposed.items()
            if p not in existing_choices or _choice_rank(c) > _choice_rank(existing_choices[p])
        }
        with self._database.transaction(write=True) as table:
            table.insert_subject(subject)
            measured = [_measured_row(subject, m) for m in new_measurements.values()]
            table.upsert("measurements", measured)
            chosen = [_chosen_row(subject, p, c) for p, c in better.items()]
            table.upsert("choices", chosen, "not worse")
        same = len(incoming) - len(new_measurements) + len(proposed) - len(better)
        return len(new_measurements), len(better), same

    def _choices(self, rows: Iterable[tuple[str, ...]]) -> dict[Problem, Choice]:
        with self._translate_row_errors():
            return {
                Problem(json.loads(p)): Choice.from_record(json.loads(record)) for p, record in rows
            }

    @contextmanager
    def _translate_row_errors(self) -> Iterator[None]:
        """Report a damaged row in one line."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as e:
            raise StoreError(
                f"{self.name} holds a damaged row ({type(e).__name__} {e}): "
                "move it away; then a new one is created"
            ) from e


def _default_location() -> str:
    if location := os.environ.get("FORETUNE_STORE"):
        return location
    import platformdirs

    return os.path.join(platformdirs.user_cache_dir("foretune", appauthor=False), "tuned.db")


def _measured_row(subject: Subject, m: Measurement) -> dict[str, Any]:
    if (m.kernel, m.device) != (subject.kernel, subject.device):
        raise UsageError(
            f"a measurement of {m.kernel} on {m.device} is not of {subject.kernel} "
            f"on {subject.device}"
        )
    return {
        "subject": subject.id,
        "problem": m.problem.id,
        "described": _json(m.problem),
        "config": m.config.id,
        "record": json.dumps(measurement_to_record(m)),
    }


def _chosen_row(subject: Subject, problem: Problem, choice: Choice) -> dict[str, Any]:
    return {
        "subject": subject.id,
        "problem": problem.id,
        "described": _json(problem),
        "record": json.dumps(choice.to_record()),
        "measured": choice.measured,
    }


def _is_verified_again(stands: Choice, choice: Choice) -> bool:
    known = choice.measured <= stands.measured
    return known and choice.how == "verified" and choice.config == stands.config


def _choice_rank(choice: Choice) -> tuple[int, float]:
    return choice.measured, _trusted_timestamp(choice.chosen_at)


def _trusted_timestamp(iso: str) -> float:
    """Return a time in seconds; 0 for a time in the future, which comes from a wrong clock."""
    when = timestamp(iso)
    return when if when <= time.time() + MAX_CLOCK_SKEW_S else 0.0


def _new_mark(subject: Subject, problem: Problem, config: Configuration) -> dict[str, Any]:
    return {
        "subject": subject.id,
        "problem": problem.id,
        "config": config.id,
        "described": _json(config),
        **asdict(this_process()),
        "since": time.time(),
    }


def _json(values: FrozenParameters) -> str:
    return json.dumps(dict(values))


_START_TOLERANCE_S = 2.0
"""A change of the clock changes a process's apparent start time by up to this much."""


@dataclass(frozen=True)
class Process:
    """A process of a host; the start time (seconds since 1970) distinguishes reused pids."""

    host: str
    pid: int
    started: float

    @property
    def is_alive(self) -> bool | None:
        """Whether it still runs; None if unknown: on another host, or hidden by permissions."""
        if self.host != platform.node():
            return None
        now = _start_time(self.pid)
        if now is None:
            return False
        return None if math.isnan(now) else abs(now - self.started) <= _START_TOLERANCE_S


def this_process() -> Process:
    """Return the calling process; in a forked child, the child."""
    return _process(os.getpid())


@functools.cache
def _process(pid: int) -> Process:
    return Process(platform.node(), pid, _start_time(pid) or math.nan)


def _start_time(pid: int) -> float | None:
    """Return a process's start time; None without such a process, NaN without permission."""
    import psutil

    try:
        process = psutil.Process(pid)
        killed = process.status() == psutil.STATUS_ZOMBIE  # and its parent does not know yet
        return None if killed else float(process.create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return math.nan
