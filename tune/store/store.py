"""The tuning store: a database of measurements and choices."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any, TypeVar

from foretune.errors import ForetuneError, UsageError, warn
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store.database import Database
from foretune.tune.store.measurement_record import (
    OK_RECORD,
    measurement_from_record,
    measurement_to_record,
)
from foretune.tune.store.process import Process, this_process
from foretune.tune.store.reader import MAX_OTHER_ROWS, StoreFile, StoreReader, nearest_problems
from foretune.tune.store.sql import ResultRow, ResultRows, StoreTransaction, SubjectRow
from foretune.tune.store.subject import (
    Choice,
    MergeReport,
    Subject,
    Summary,
    timestamp,
    without_tags,
)
from foretune.values import FrozenParameters, counted

T = TypeVar("T")

LOCK_TIMEOUT_S = 10.0
"""Seconds to wait for writers before the store counts as locked."""
MAX_CLAIM_S = 120.0
"""Age in seconds at which another process's claim expires."""
FATAL_DEATHS = 2
"""Process deaths after which a configuration is given up; one may have been a kill from outside."""
MAX_CLOCK_SKEW_S = 3600.0
"""Maximum difference in seconds between the clocks of two machines."""
MAX_OTHER_PROBLEMS = 500
"""Problems among which the nearest ones are sought, to keep reading fast."""
MIN_SHARING_PROBLEMS = 8
"""If there are this many other problems, none provides more than its share of their rows."""
DAMAGED = (
    ForetuneError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What decoding a damaged row may raise."""


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
        self._reported_damage = 0

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
        """Return the last measurement of each configuration in the order of writing.

        Damaged rows are skipped; one warning counts them.
        """
        problem_id = None if problem is None else problem.id
        with self._database.transaction() as table:
            found = table.rows("measurements", subject.id, problem_id)
        return self._decode_measurements(found, subject)

    def other_measurements(self, subject: Subject, problem: Problem) -> list[Measurement]:
        """Return measurements of other problems: all, or if there are many, of the nearest."""
        with self._database.transaction() as table:
            if table.has_more_rows_than(MAX_OTHER_ROWS, subject.id):
                found = self._sample_nearest(table, subject, problem)
            else:
                found = table.rows("measurements", subject.id)
        measured = self._decode_measurements(found, subject)
        return [m for m in measured if m.problem != problem]

    def _sample_nearest(
        self, table: StoreTransaction, subject: Subject, problem: Problem
    ) -> ResultRows:
        """Return at most `MAX_OTHER_ROWS` rows of the problems that are nearest to ``problem``."""
        rows = table.problems(subject.id, MAX_OTHER_PROBLEMS)
        known = self._decode(rows, lambda row: Problem(json.loads(row.described)))
        others = nearest_problems((p for p in known if p != problem), problem)
        if not others:
            return ResultRows([])

        # Near problems tell most, but a single one does not show the influence of sizes.
        share = -(-MAX_OTHER_ROWS // min(len(others), MIN_SHARING_PROBLEMS))
        sampled: list[ResultRow] = []
        for other in others:
            room = min(share, MAX_OTHER_ROWS - len(sampled))
            if not room:
                break
            sampled += table.sample(subject.id, other.id, room).rows
        return ResultRows(sampled)

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
        which = {name: new_mark[name] for name in ("subject", "problem", "config")}
        with self._database.transaction(write=True) as table:
            if not remeasure and table.is_measured(which):
                return False

            # Another process may be measuring it.
            for mark in table.marks(which):
                is_ours = (mark.host, mark.pid) == (new_mark["host"], new_mark["pid"])
                is_expired = new_mark["since"] - mark.since >= MAX_CLAIM_S
                if is_ours or is_expired:
                    continue
                if Process(mark.host, mark.pid, mark.started).is_alive is not False:
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
        deaths = Counter(
            mark.described
            for mark in marks
            if Process(mark.host, mark.pid, mark.started).is_alive is False
        )
        fatal = [described for described, number in deaths.items() if number >= FATAL_DEATHS]
        return self._decode(fatal, lambda described: Configuration(json.loads(described)))

    def choose(
        self, subject: Subject, problem: Problem, choice: Choice, replacing: Choice | None = None
    ) -> Choice:
        """Store a choice unless another process was first, and return the stored one.

        So processes that tune at the same time agree. A stored choice is replaced only by one that
        names it as ``replacing``, and is based on more measurements, or on as many and verifies or
        keeps it. Raises UsageError if the choice's method does not exist.
        """
        row = _chosen_row(subject, problem, choice)
        with self._database.transaction(write=True) as table:
            table.insert_subject(subject)
            found = table.rows("choices", subject.id, problem.id)
            standing = self._decode_choices(found).get(problem)
            if standing is None:
                is_damaged = bool(found.rows) or found.unreadable > 0
                table.upsert("choices", [row], "always" if is_damaged else "never")
            elif standing == replacing:
                kept = choice.how == "verified" or choice.config == standing.config
                table.upsert("choices", [row], "not worse" if kept else "better")
            elif _is_verified_again(standing, choice):
                renewed = replace(choice, measured=standing.measured, regret=standing.regret)
                table.upsert("choices", [_chosen_row(subject, problem, renewed)], "not worse")
            stored = table.rows("choices", subject.id, problem.id)
        return self._decode_choices(stored).get(problem, choice)

    def choice(self, subject: Subject, problem: Problem) -> Choice | None:
        """Return the choice for a problem; None if there is none yet."""
        with self._database.transaction() as table:
            found = table.rows("choices", subject.id, problem.id)
        return self._decode_choices(found).get(problem)

    def choices(self, subject: Subject) -> dict[Problem, Choice]:
        """Return all choices of a subject, oldest first."""
        with self._database.transaction() as table:
            found = table.rows("choices", subject.id)
        return self._decode_choices(found)

    def subjects(self) -> list[Subject]:
        """Return all subjects in alphabetical order."""
        with self._database.transaction() as table:
            rows = table.subjects()
        return sorted(self._decode(rows, _subject_of))

    def _summary(self, subject: Subject) -> Summary:
        with self._database.transaction() as table:
            counts = table.count_measurements(subject.id, ok=OK_RECORD)
        chosen = {without_tags(problem) for problem in self.choices(subject)}
        return Summary(
            subject=subject,
            problems=len(counts.problems | {problem.id for problem in chosen}),
            measurements=counts.measurements,
            failed=counts.failed,
            choices=len(chosen),
        )

    def _last_measured_at(self, subject: Subject) -> float:
        with self._database.transaction() as table:
            record = table.newest_record(subject.id)
        records = [] if record is None else [record]
        times = self._decode(records, lambda text: timestamp(json.loads(text)["recorded_at"]))
        return max(times, default=0.0)

    def forget(self, subject: Subject | None = None, problem: Problem | None = None) -> int:
        """Delete a problem of a subject, a subject, or everything; return the number of rows.

        Raises UsageError if a problem is given without its subject.
        """
        if subject is None and problem is not None:
            raise UsageError("a problem belongs to a subject: name it, too")
        with self._database.transaction(write=True) as table:
            return table.delete(
                None if subject is None else subject.id,
                None if problem is None else problem.id,
            )

    def merge(self, path: str | os.PathLike[str]) -> MergeReport:
        """Merge an exported file; newer measurements and better choices replace existing ones.

        The better of two choices is based on more measurements; ties go to the later one.
        Timestamps in the future do not count as newer. Merging a file again changes nothing. Raises
        StoreError if the file cannot be read, or is not an export; then nothing is merged.
        """
        new = StoreFile(path)
        known = set(self.subjects())
        report = MergeReport(subjects=len(set(new.subjects()) - known))
        for subject in new.subjects():
            report += self._merge_subject(new, subject)
        return report

    def _merge_subject(self, new: StoreReader, subject: Subject) -> MergeReport:
        """Write the newer measurements and better choices of a subject."""
        existing = {(m.problem, m.config): m for m in self.measurements(subject)}
        incoming = {(m.problem, m.config): m for m in new.measurements(subject)}
        newer = [
            m for key, m in incoming.items() if key not in existing or _is_newer(m, existing[key])
        ]

        existing_choices = self.choices(subject)
        incoming_choices = new.choices(subject)
        better = {
            problem: choice
            for problem, choice in incoming_choices.items()
            if problem not in existing_choices
            or _choice_rank(choice) > _choice_rank(existing_choices[problem])
        }

        with self._database.transaction(write=True) as table:
            table.insert_subject(subject)
            table.upsert("measurements", [_measured_row(subject, m) for m in newer])
            chosen = [_chosen_row(subject, p, c) for p, c in better.items()]
            table.upsert("choices", chosen, "not worse")
        return MergeReport(
            measurements=len(newer),
            choices=len(better),
            unchanged=len(incoming) - len(newer) + len(incoming_choices) - len(better),
        )

    def _decode_measurements(self, found: ResultRows, subject: Subject) -> list[Measurement]:
        problems: dict[Any, Problem] = {}  # many rows describe the same problem

        def measurement(row: ResultRow) -> Measurement:
            problem = problems.get(row.described)
            if problem is None:
                problem = problems[row.described] = _problem_of(row)
            if row.problem != problem.id:
                raise ValueError("its problem has another key")
            decoded = measurement_from_record(json.loads(row.record), subject, problem)
            if row.config != decoded.config.id:
                raise ValueError("its configuration has another key")
            return decoded

        return self._decode(found.rows, measurement, unreadable=found.unreadable)

    def _decode_choices(self, found: ResultRows) -> dict[Problem, Choice]:
        def choice(row: ResultRow) -> tuple[Problem, Choice]:
            return _problem_of(row), Choice.from_record(json.loads(row.record))

        return dict(self._decode(found.rows, choice, unreadable=found.unreadable))

    def _decode(
        self, rows: Iterable[Any], decode: Callable[[Any], T], unreadable: int = 0
    ) -> list[T]:
        """Decode rows one by one; skip damaged ones, and warn if there are more than before."""
        decoded = []
        damaged = unreadable
        for row in rows:
            try:
                decoded.append(decode(row))
            except DAMAGED:
                damaged += 1
        if damaged > self._reported_damage:
            self._reported_damage = damaged
            warn(
                f"{self.name}: {counted(damaged, 'damaged row')} skipped: "
                "they are measured again; move the file away to begin a new one",
                stacklevel=1,  # one place, so that a second store of the same name is silent
            )
        return decoded


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


def _subject_of(row: SubjectRow) -> Subject:
    subject = Subject(row.kernel, row.source, row.device, row.versions)
    if subject.id != row.id:
        raise ValueError("it has another key")
    return subject


def _problem_of(row: ResultRow) -> Problem:
    problem = Problem(json.loads(row.described))
    if problem.id != row.problem:
        raise ValueError("it has another key")
    return problem


def _is_verified_again(standing: Choice, choice: Choice) -> bool:
    if choice.how != "verified" or choice.config != standing.config:
        return False
    return choice.measured <= standing.measured


def _is_newer(measurement: Measurement, existing: Measurement) -> bool:
    newer = _trusted_timestamp(measurement.recorded_at)
    return newer > _trusted_timestamp(existing.recorded_at)


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
