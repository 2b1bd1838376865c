"""The tuning store: a database of what has been measured and chosen."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from foretune.errors import StoreError, UsageError
from foretune.mapping import NamedValues
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store.database import Database
from foretune.tune.store.process import Process, this_process
from foretune.tune.store.record import from_choice, from_record, moment, to_choice, to_record
from foretune.tune.store.shipped import ShippedStore
from foretune.tune.store.subject import Choice, Conflict, Merged, Subject
from foretune.tune.store.tuned import Tuned

PATIENCE_S = 10.0
"""How long one waits for other processes that write before the store counts as locked."""

LONGEST_S = 120.0
"""After so long another process's mark no longer keeps a configuration from being measured."""


CLOCKS_DIFFER_S = 3600.0
"""By so much may the clocks of two machines differ."""


class Store(Tuned):
    """What has been measured and chosen, kept in a database.

    Any number of threads and processes may use one at the same time. Nothing is opened before it is
    first used, and every method but the constructor raises StoreError if the database is damaged,
    locked, read-only or out of reach.

    Args:
        where: path of an SQLite file, or an SQLAlchemy URL (``postgresql+psycopg://…``); None is
            ``$FORETUNE_STORE``, else ``tuned.db`` in the user's cache folder.
        patience_s: how long to wait for other processes that write, seconds.
        create: whether it is made when it is first used and not there; else that is a StoreError.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | None = None,
        patience_s: float = PATIENCE_S,
        create: bool = True,
    ) -> None:
        self._database = Database(where or _default_place(), patience_s, create)

    @staticmethod
    def of_file(path: str | os.PathLike[str]) -> ShippedStore:
        """Return the content of an exported file, e.g. one that came with a library.

        Raises:
            StoreError: the file cannot be read, or is something else.
        """
        return ShippedStore(path)

    @property
    def name(self) -> str:
        """The path, or the URL without its password."""
        return self._database.name

    def put(self, subject: Subject, measurements: Iterable[Measurement]) -> None:
        """Keep measurements, failures too; of the same configuration the last one stays.

        Raises:
            UsageError: one is of another kernel or device than the subject.
            RunTableError: one contradicts itself; none is kept.
        """
        rows = [_measured_row(subject, m) for m in measurements]
        with self._database.writing() as table:
            table.know(_subject_row(subject))
            table.write_measured(rows)
            for row in rows:
                table.unmark(row)

    def measurements(self, subject: Subject, problem: Problem | None = None) -> list[Measurement]:
        """Return the last measurement of each configuration, in the order they were put there."""
        with self._database.reading() as table:
            rows = table.measured(subject.id, problem.id if problem is not None else None)
        with self._damage():
            return [
                from_record(json.loads(record), subject, Problem(json.loads(described)))
                for described, record in rows
            ]

    def begin(self, subject: Subject, problem: Problem, config: Configuration) -> None:
        """Mark a configuration as being measured by this process; `put` and `end` undo it."""
        with self._database.writing() as table:
            table.mark(_mark(subject, problem, config))

    def claim(
        self, subject: Subject, problem: Problem, config: Configuration, again: bool = False
    ) -> bool:
        """Mark a configuration as `begin` does, unless another process measured it or is at it.

        Of a process on another host nobody knows whether it lives: its mark counts for a while.

        Args:
            subject: what is tuned.
            problem: what it is to be run with.
            config: to be measured.
            again: though it was measured before.

        Returns:
            whether it is this process's to measure.
        """
        mine = _mark(subject, problem, config)
        with self._database.writing() as table:
            if not again and table.is_measured(mine):
                return False
            for host, pid, started, since in table.doing(mine):
                lives = Process(host, pid, started).lives
                young = mine["since"] - since < LONGEST_S
                if (host, pid) != (mine["host"], mine["pid"]) and lives is not False and young:
                    return False
            table.mark(mine)
        return True

    def end(self, subject: Subject, problem: Problem, config: Configuration) -> None:
        """Take the mark of `begin` away: this process lives on, whatever came of it."""
        me = this_process()
        mark = {"subject": subject.id, "problem": problem.id, "config": config.id,
                "host": me.host, "pid": me.pid}  # fmt: skip
        with self._database.writing() as table:
            table.unmark(mark)

    def abandoned(self, subject: Subject, problem: Problem) -> list[Configuration]:
        """Return what a process of this host began to measure and did not live to finish.

        Such a configuration crashes, or hangs until somebody kills it: it is not to be tried again.
        """
        host = this_process().host
        with self._database.reading() as table:
            marks = table.begun(subject.id, problem.id, host)
        dead = [text for pid, started, text in marks if Process(host, pid, started).lives is False]
        with self._damage():
            return [Configuration(json.loads(text)) for text in dict.fromkeys(dead)]

    def choose(
        self,
        subject: Subject,
        problem: Problem,
        choice: Choice,
        instead_of: Choice | None = None,
    ) -> Choice:
        """Return the choice that stands for a problem: the first one that any process proposed.

        So processes that tune at the same time end up with the same. Only who knew the standing
        choice, and found one that rests on more measurements, can replace it.

        Args:
            subject: what is tuned.
            problem: what it is to be run with.
            choice: what this process proposes.
            instead_of: the choice that stood when it began.

        Raises:
            UsageError: the proposal is impossible.
        """
        row = _chosen_row(subject, problem, choice)
        with self._database.writing() as table:
            table.know(_subject_row(subject))
            stands = self._choices(table.chosen(subject.id, problem.id)).get(problem)
            if stands is not None and stands == instead_of:
                table.propose(row)
            else:
                table.propose_first(row)
            chosen = table.chosen(subject.id, problem.id)
        return self._choices(chosen)[problem]

    def choice(self, subject: Subject, problem: Problem) -> Choice | None:
        """Return what was chosen for a problem; None if nothing has been yet."""
        with self._database.reading() as table:
            stands = table.chosen(subject.id, problem.id)
        return self._choices(stands).get(problem)

    def choices(self, subject: Subject) -> dict[Problem, Choice]:
        """Return every choice made for a subject, oldest first."""
        with self._database.reading() as table:
            return self._choices(table.chosen(subject.id, None))

    def subjects(self) -> list[Subject]:
        """Return every subject anything is known of, in alphabetical order."""
        with self._database.reading() as table:
            return sorted(Subject(*row) for row in table.subjects())

    def forget(self, subject: Subject | None = None, problem: Problem | None = None) -> int:
        """Delete what is known of a problem, a subject, or (None) everything.

        Returns:
            How many measurements and choices that were.

        Raises:
            UsageError: a problem without its subject.
        """
        if subject is None and problem is not None:
            raise UsageError("a problem is forgotten of one subject: name it")
        with self._database.writing() as table:
            return table.delete(
                None if subject is None else subject.id, None if problem is None else problem.id
            )

    def merge(self, path: str | os.PathLike[str]) -> Merged:
        """Take in an exported file: newer measurements replace those there, and better choices.

        Better is a choice that rests on more measurements, or on as many and is later. What says it
        was made in the future does not count as newer. Merging a file twice changes nothing the
        second time.

        Raises:
            StoreError: the file cannot be read, or is something else; nothing is taken in.
        """
        new = ShippedStore(path)
        known = set(self.subjects())
        merged = Merged(len(set(new.subjects()) - known))
        for subject in new.subjects():
            merged += self._take(new, subject)
        return merged

    def _take(self, new: Tuned, subject: Subject) -> Merged:
        """Take in what is news of one subject."""
        there = {(m.problem, m.config): m for m in self.measurements(subject)}
        offered = {(m.problem, m.config): m for m in new.measurements(subject)}
        news = {k: m for k, m in offered.items() if k not in there or _newer(m, there[k])}
        standing, proposed = self.choices(subject), new.choices(subject)
        better = {
            p: c for p, c in proposed.items()
            if p not in standing or _standing(c) > _standing(standing[p])
        }  # fmt: skip
        conflicts = [
            conflict for key in offered.keys() & there.keys()
            if (conflict := Conflict.between(there[key], offered[key], key in news))
        ]  # fmt: skip
        with self._database.writing() as table:
            table.know(_subject_row(subject))
            table.write_measured([_measured_row(subject, m) for m in news.values()])
            table.write_chosen([_chosen_row(subject, p, c) for p, c in better.items()])
        same = len(offered) - len(news) + len(proposed) - len(better)
        return Merged(0, len(news), len(better), same, tuple(sorted(conflicts)))

    def _choices(self, rows: Iterable[tuple[str, ...]]) -> dict[Problem, Choice]:
        with self._damage():
            return {Problem(json.loads(p)): to_choice(json.loads(record)) for p, record in rows}

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Turn what a row should not hold into one line."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise StoreError(
                f"{self.name} holds a damaged row ({type(e).__name__} {e}): "
                "move it away, and a new one is made"
            ) from e


def _default_place() -> str:
    if place := os.environ.get("FORETUNE_STORE"):
        return place
    import platformdirs

    return os.path.join(platformdirs.user_cache_dir("foretune", appauthor=False), "tuned.db")


def _subject_row(subject: Subject) -> dict[str, Any]:
    return {"id": subject.id, **asdict(subject)}


def _measured_row(subject: Subject, m: Measurement) -> dict[str, Any]:
    if (m.kernel, m.device) != (subject.kernel, subject.device):
        raise UsageError(
            f"a measurement of {m.kernel} on {m.device} is none of {subject.kernel} "
            f"on {subject.device}"
        )
    return {
        "subject": subject.id, "problem": m.problem.id, "described": _json(m.problem),
        "config": m.config.id, "record": json.dumps(to_record(m)),
    }  # fmt: skip


def _chosen_row(subject: Subject, problem: Problem, choice: Choice) -> dict[str, Any]:
    return {
        "subject": subject.id, "problem": problem.id, "described": _json(problem),
        "record": json.dumps(from_choice(choice)), "measured": choice.measured,
    }  # fmt: skip


def _standing(choice: Choice) -> tuple[int, float]:
    """Return what decides between two choices that are merged."""
    return choice.measured, _past(choice.chosen_at)


def _newer(one: Measurement, other: Measurement) -> bool:
    return _past(one.recorded_at) > _past(other.recorded_at)


def _past(iso: str) -> float:
    """Return a moment; one in the future is of a wrong clock, and counts as unknown."""
    when = moment(iso)
    return when if when <= time.time() + CLOCKS_DIFFER_S else 0.0


def _mark(subject: Subject, problem: Problem, config: Configuration) -> dict[str, Any]:
    """Return the mark of a configuration that this process measures."""
    me = this_process()
    return {
        "subject": subject.id, "problem": problem.id, "config": config.id,
        "described": _json(config), "host": me.host, "pid": me.pid, "started": me.started,
        "since": time.time(),
    }  # fmt: skip


def _json(values: NamedValues) -> str:
    return json.dumps(dict(values))
