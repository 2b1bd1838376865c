"""Reads measurements and choices from a database or from a file shipped with a library.

`StoreReader.export` writes such a file::

    {"format": "foretune tuned results", "version": 1, "rows": 1, "subjects": [
     {"kernel": "softmax", "source": "9f…", "device": "NVIDIA H200", "versions": "…", "problems": [
      {"problem": {"n": 4096}, "choice": {"config": {"BLOCK": 1024}, …}, "measurements": [
       {"config": {"BLOCK": 1024}, "status": "ok", "time_ms": 0.031, …},
       …
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import StoreError, UnknownName, UsageError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.files import atomic_write, parse_json, read_bytes, translate_read_errors
from foretune.tune.store.subject import (
    Choice,
    Subject,
    Summary,
    group_by_problem,
    measurement_from_record,
    measurement_to_record,
    sort_key,
    timestamp,
    without_tags,
)

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "foretune tuned results"
VERSION = 1


def write_file(
    path: str | os.PathLike[str],
    known: Iterable[tuple[Subject, Mapping[Problem, Choice], list[Measurement]]],
) -> None:
    """Write subjects with their choices and measurements; on failure nothing is written.

    Raises StoreError if the file cannot be written.
    """
    contents = list(known)
    rows = sum(len(chosen) + len(measured) for _, chosen, measured in contents)
    head = f'{{"format": {json.dumps(FORMAT)}, "version": {VERSION}, "rows": {rows}, "subjects": ['
    text = f"{head}\n{_listed(_subject_text(*content) for content in contents)}]}}\n"
    with atomic_write(path, StoreError) as new:
        new.write_text(text, encoding="utf-8")


def _listed(texts: Iterable[str]) -> str:
    """Return the items of a list, one per line."""
    joined = ",\n".join(texts)
    return f"{joined}\n" if joined else ""


def _subject_text(
    subject: Subject, chosen: Mapping[Problem, Choice], measured: Sequence[Measurement]
) -> str:
    head = json.dumps(asdict(subject)).removesuffix("}")
    grouped, parts = group_by_problem(measured), []
    for problem in sorted({*chosen, *grouped}, key=sort_key):
        choice = chosen.get(problem)
        chose = f'"choice": {json.dumps(choice.to_record())}, ' if choice else ""
        rows = sorted(grouped.get(problem, []), key=lambda m: sort_key(m.config))
        texts = _listed(f"   {json.dumps(measurement_to_record(row))}" for row in rows)
        described = json.dumps(dict(problem))
        parts.append(f'  {{"problem": {described}, {chose}"measurements": [\n{texts}  ]}}')
    return f' {head}, "problems": [\n{_listed(parts)} ]}}'


def read_file(path: Path) -> Any:
    """Return the JSON of an exported file, or raise StoreError."""
    try:
        text = read_bytes(path)
    except OSError as e:
        raise StoreError(f"cannot read {path}: {e.strerror or e}") from e
    says = "is not an exported store ({}): write one with 'foretune store --export'"
    with translate_read_errors(path, StoreError, says):
        data = parse_json(text)
        if data.get("format") != FORMAT:
            raise ValueError("its format is missing or different")
        version = int(data["version"])
    if version > VERSION:
        raise StoreError(
            f"{path} has version {version}, but this Foretune reads up to {VERSION}: "
            "install a newer Foretune"
        )
    return data


def problems_in(
    data: Mapping[str, Any],
) -> Iterator[tuple[Subject, Problem, Choice | None, dict[Configuration, Measurement]]]:
    """Yield each problem in an exported file's JSON: subject, problem, choice and measurements.

    Damaged files raise ValueError, KeyError, TypeError or AttributeError.
    """
    if unknown := {*data} - {"format", "version", "rows", "subjects"}:
        raise ValueError(f"{min(unknown)!r} is unknown")
    seen, missing = set(), data["rows"]
    for described in data["subjects"]:
        names = ("kernel", "source", "device", "versions")
        if {*described} != {*names, "problems"}:
            raise ValueError(f"a subject has {', '.join(names)} and problems")
        subject = Subject(*(str(described[name]) for name in names))
        for entry in described["problems"]:
            if not {"problem", "measurements"} <= {*entry} <= {"problem", "choice", "measurements"}:
                raise ValueError("a problem has measurements and at most one choice")
            problem = Problem(entry["problem"])
            choice = Choice.from_record(entry["choice"]) if "choice" in entry else None
            rows = [measurement_from_record(row, subject, problem) for row in entry["measurements"]]
            found = {row.config: row for row in rows}
            if (subject, problem) in seen or len(found) < len(rows):
                raise ValueError(f"{problem} or a configuration of it occurs twice")
            seen.add((subject, problem))
            missing -= len(found) + (choice is not None)
            yield subject, problem, choice, found
    if missing:
        raise ValueError(f"{missing} measurements and choices are missing")


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

        Raises UnknownName if the kernel was never tuned, UsageError if nothing was tuned yet.
        """
        found = self.subjects()
        names = {s.kernel for s in found}
        if kernel is not None and not names:
            raise UsageError(f"{self.name} knows no kernel {kernel!r}: nothing has been tuned yet")
        if kernel is not None and kernel not in names:
            raise UnknownName("kernel in this store", kernel, names)
        return [s for s in found if kernel in (None, s.kernel)]

    def newest_subject(self, kernel: str, device: str | None = None) -> Subject:
        """Return the most recently tuned subject of a kernel; its code or versions may differ.

        Raises UnknownName for another kernel or device, UsageError if there are several devices.
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

        A measurement without an environment gets the subject's: its versions and code. Raises
        UnknownName if the kernel was never tuned.
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
        """Write one kernel's (or all) measurements and choices to a JSON file, one per line.

        The same content gives the same file. Raises UnknownName if the kernel was never tuned,
        StoreError if the file cannot be written.
        """
        subjects = sorted(self.find_subjects(kernel))
        write_file(path, ((s, self.choices(s), self.measurements(s)) for s in subjects))

    def _last_tuned(self, subject: Subject) -> tuple[float, Subject]:
        times = [m.recorded_at for m in self.measurements(subject)]
        times += [choice.chosen_at for choice in self.choices(subject).values()]
        return max(map(timestamp, times), default=0.0), subject

    def _summary(self, subject: Subject) -> Summary:
        measured = self.measurements(subject)
        chosen = {*map(without_tags, self.choices(subject))}
        problems, failed = chosen | {m.problem for m in measured}, [m for m in measured if not m.ok]
        return Summary(subject, len(problems), len(measured), len(failed), len(chosen))


class StoreFile(StoreReader):
    """The content of an exported file, read once.

    Raises StoreError if it cannot be read, or is not an export.
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
