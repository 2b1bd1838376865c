"""Reading what has been tuned, wherever it is kept: a database or a file shipped with a library."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from foretune.errors import UnknownName, UsageError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.tune.store.file import write_file
from foretune.tune.store.json_rows import timestamp
from foretune.tune.store.subject import Choice, Subject, Summary, without_tags

if TYPE_CHECKING:
    import pandas as pd


class StoreReader(ABC):
    """What has been measured and chosen, by subject and problem."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Where it is kept."""

    @abstractmethod
    def subjects(self) -> list[Subject]:
        """Return every subject anything is known of, in alphabetical order."""

    @abstractmethod
    def measurements(self, subject: Subject, problem: Problem | None = None) -> list[Measurement]:
        """Return the newest measurement of each configuration, of one problem or all of them."""

    @abstractmethod
    def choices(self, subject: Subject) -> dict[Problem, Choice]:
        """Return every choice made for a subject."""

    def choice(self, subject: Subject, problem: Problem) -> Choice | None:
        """Return what was chosen for a problem; None if nothing has been yet."""
        return self.choices(subject).get(problem)

    def find_subjects(self, kernel: str | None) -> list[Subject]:
        """Return the subjects of a kernel, or all.

        Raises:
            UnknownName: nothing is known of that kernel.
            UsageError: nothing is known of any.
        """
        found = self.subjects()
        names = {s.kernel for s in found}
        if kernel is not None and not names:
            raise UsageError(f"{self.name} knows no kernel {kernel!r}: nothing has been tuned yet")
        if kernel is not None and kernel not in names:
            raise UnknownName("kernel in this store", kernel, names)
        return [s for s in found if kernel in (None, s.kernel)]

    def newest_subject(self, kernel: str, device: str | None = None) -> Subject:
        """Return the subject of a kernel that was tuned last, where its code or versions changed.

        Raises:
            UnknownName: nothing is known of that kernel on that device.
            UsageError: it is known on several devices, and none is named.
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
        """Return how much is known of each subject."""
        return [self._summary(s) for s in self.subjects()]

    def runs(
        self, kernel: str | None = None, subjects: Iterable[Subject] | None = None
    ) -> "pd.DataFrame":
        """Return the measurements as a run table; empty if there are none.

        Where a measurement does not say its environment, it is the subject's: versions and code.

        Args:
            kernel: of this kernel only.
            subjects: of these subjects only.

        Raises:
            UnknownName: nothing is known of that kernel.
        """
        from foretune.datasets import from_measurements, validate

        found = [
            replace(m, environment=m.environment or f"{s.versions}, source {s.source}")
            for s in (self.find_subjects(kernel) if subjects is None else subjects)
            for m in self.measurements(s)
        ]
        runs = from_measurements(found)
        return validate(runs, self.name) if found else runs

    def export(self, path: str | os.PathLike[str], kernel: str | None = None) -> None:
        """Write everything, or what is known of one kernel, to one JSON file.

        The same content makes the same file, with one measurement per line.

        Raises:
            UnknownName: nothing is known of that kernel.
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
