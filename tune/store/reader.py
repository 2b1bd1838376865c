"""Reads measurements and choices from a database or from a file shipped with a library."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.errors import StoreError, UnknownName, UsageError
from foretune.files import translate_read_errors
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store.file import problems_in, read_file, write_file
from foretune.tune.store.subject import Choice, Subject, Summary, timestamp, without_tags

if TYPE_CHECKING:
    import pandas as pd


class StoreReader(ABC):
    """Measurements and choices by subject and problem."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The path or URL."""

    @abstractmethod
    def subjects(self) -> list[Subject]:
        """Return all subjects in alphabetical order."""

    @abstractmethod
    def measurements(self, subject: Subject, problem: Problem | None = None) -> list[Measurement]:
        """Return the newest measurement of each configuration, of one problem or all of them."""

    @abstractmethod
    def choices(self, subject: Subject) -> dict[Problem, Choice]:
        """Return all choices of a subject."""

    def choice(self, subject: Subject, problem: Problem) -> Choice | None:
        """Return the choice for a problem; None if there is none yet."""
        return self.choices(subject).get(problem)

    def find_subjects(self, kernel: str | None) -> list[Subject]:
        """Return the subjects of a kernel, or all.

        Raises:
            UnknownName: the kernel was never tuned.
            UsageError: nothing was tuned yet.
        """
        found = self.subjects()
        names = {s.kernel for s in found}
        if kernel is not None and not names:
            raise UsageError(f"{self.name} knows no kernel {kernel!r}: nothing has been tuned yet")
        if kernel is not None and kernel not in names:
            raise UnknownName("kernel in this store", kernel, names)
        return [s for s in found if kernel in (None, s.kernel)]

    def newest_subject(self, kernel: str, device: str | None = None) -> Subject:
        """Return the subject of a kernel that was tuned last; its code or versions may differ.

        Raises:
            UnknownName: the kernel was never tuned on that device.
            UsageError: it was tuned on several devices, and none is named.
        """
        found = self.find_subjects(kernel)
        devices = {s.device for s in found}
        if device is not None and device not in devices:
            raise UnknownName(f"device of {kernel} in this store", device, devices)
        if device is None and len(devices) > 1:
            listed = ", ".join(sorted(devices))
            raise UsageError(f"{kernel} was tuned on {listed}: name one of them as device")
        return max((s for s in found if device in (None, s.device)), key=self._last_tuned)

    def summary(self) -> list[Summary]:
        """Return the counts of problems, measurements and choices of each subject."""
        return [self._summary(s) for s in self.subjects()]

    def runs(
        self, kernel: str | None = None, subjects: Iterable[Subject] | None = None
    ) -> "pd.DataFrame":
        """Return the measurements of a kernel, of some subjects, or all, as a run table.

        A measurement without an environment gets the subject's: its versions and code.

        Raises:
            UnknownName: the kernel was never tuned.
        """
        from foretune.datasets.runs import from_measurements
        from foretune.datasets.schema import validate

        found = [
            replace(m, environment=m.environment or f"{s.versions}, source {s.source}")
            for s in (self.find_subjects(kernel) if subjects is None else subjects)
            for m in self.measurements(s)
        ]
        runs = from_measurements(found)
        return validate(runs, self.name) if found else runs

    def export(self, path: str | os.PathLike[str], kernel: str | None = None) -> None:
        """Write one kernel's or all measurements and choices to a JSON file, one per line.

        The same content gives the same file.

        Raises:
            UnknownName: the kernel was never tuned.
            StoreError: the file cannot be written.
        """
        subjects = sorted(self.find_subjects(kernel))
        write_file(path, ((s, self.choices(s), self.measurements(s)) for s in subjects))

    def _last_tuned(self, subject: Subject) -> tuple[float, Subject]:
        times = [m.recorded_at for m in self.measurements(subject)]
        times += [choice.chosen_at for choice in self.choices(subject).values()]
        return max(map(timestamp, times), default=0.0), subject

    def _summary(self, subject: Subject) -> Summary:
        measured: Sequence[Measurement] = self.measurements(subject)
        chosen = self.choices(subject)
        return Summary(
            subject=subject,
            problems=len({m.problem for m in measured} | set(map(without_tags, chosen))),
            measurements=len(measured),
            failed=sum(not m.ok for m in measured),
            choices=len(set(map(without_tags, chosen))),
        )


class StoreFile(StoreReader):
    """The content of an exported file, read once.

    Raises:
        StoreError: the file cannot be read, or is not an export.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._measured: dict[Subject, dict[Problem, dict[Configuration, Measurement]]] = {}
        self._chosen: dict[Subject, dict[Problem, Choice]] = {}
        data = read_file(self._path)
        with translate_read_errors(
            path, StoreError, "is damaged ({}): export it again", passthrough=StoreError
        ):
            for subject, problem, choice, measured in problems_in(data):
                self._measured.setdefault(subject, {})[problem] = measured
                chosen = self._chosen.setdefault(subject, {})
                if choice is not None:
                    chosen[problem] = choice

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    def subjects(self) -> list[Subject]:
        """Return all subjects in alphabetical order."""
        return sorted(self._measured)

    def measurements(self, subject: Subject, problem: Problem | None = None) -> list[Measurement]:
        """Return the measurements of a subject, of one problem or all of them."""
        of_subject = self._measured.get(subject, {})
        wanted = of_subject.values() if problem is None else [of_subject.get(problem, {})]
        return [m for measured in wanted for m in measured.values()]

    def choices(self, subject: Subject) -> dict[Problem, Choice]:
        """Return all choices of a subject."""
        return dict(self._chosen.get(subject, {}))
