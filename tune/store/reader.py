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
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import StoreError, UnknownName, UsageError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.files import atomic_write, parse_json, read_bytes, translate_read_errors
from foretune.tune.store.measurement_record import measurement_from_record, measurement_to_record
from foretune.tune.store.subject import (
    Choice,
    Subject,
    Summary,
    group_by_problem,
    sort_key,
    timestamp,
    without_tags,
)

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "foretune tuned results"
VERSION = 1
MAX_OTHER_ROWS = 400
"""Measurements of other problems that a search begins with. Searchers learn from at most 300, the
nearest; reading 400 takes about 10 ms."""


@dataclass(frozen=True)
class SubjectContents:
    """All that a store knows of a subject."""

    subject: Subject
    choices: Mapping[Problem, Choice]
    measurements: Sequence[Measurement]


@dataclass(frozen=True)
class FileEntry:
    """All that a file holds of a problem."""

    subject: Subject
    problem: Problem
    choice: Choice | None
    measurements: Mapping[Configuration, Measurement]


def write_file(path: str | os.PathLike[str], known: Iterable[SubjectContents]) -> None:
    """Write subjects with their choices and measurements; on failure nothing is written.

    Raises StoreError if the file cannot be written.
    """
    contents = list(known)
    rows = sum(len(content.choices) + len(content.measurements) for content in contents)
    head = f'{{"format": {json.dumps(FORMAT)}, "version": {VERSION}, "rows": {rows}, "subjects": ['
    text = f"{head}\n{_listed(map(_subject_text, contents))}]}}\n"
    with atomic_write(path, StoreError) as new:
        new.write_text(text, encoding="utf-8")


def _listed(texts: Iterable[str]) -> str:
    """Return the items of a list, one per line."""
    joined = ",\n".join(texts)
    return f"{joined}\n" if joined else ""


def _subject_text(contents: SubjectContents) -> str:
    grouped = group_by_problem(contents.measurements)
    problems = []
    for problem in sorted({*contents.choices, *grouped}, key=sort_key):
        choice = contents.choices.get(problem)
        chosen = ""
        if choice is not None:
            chosen = f'"choice": {json.dumps(choice.to_record())}, '
        rows = sorted(grouped.get(problem, []), key=lambda m: sort_key(m.config))
        texts = _listed(f"   {json.dumps(measurement_to_record(row))}" for row in rows)
        described = json.dumps(dict(problem))
        problems.append(f'  {{"problem": {described}, {chosen}"measurements": [\n{texts}  ]}}')
    head = json.dumps(asdict(contents.subject)).removesuffix("}")
    return f' {head}, "problems": [\n{_listed(problems)} ]}}'


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


def entries_in(data: Mapping[str, Any]) -> Iterator[FileEntry]:
    """Yield each problem in an exported file's JSON.

    Damaged files raise ValueError, KeyError, TypeError or AttributeError.
    """
    unknown = {*data} - {"format", "version", "rows", "subjects"}
    if unknown:
        raise ValueError(f"{min(unknown)!r} is unknown")
    missing = data["rows"]
    seen = set()
    for described in data["subjects"]:
        subject = _subject_in(described)
        for entry in map(partial(_entry_in, subject), described["problems"]):
            if (subject, entry.problem) in seen:
                raise ValueError(f"{entry.problem} occurs twice")
            seen.add((subject, entry.problem))
            missing -= len(entry.measurements) + (0 if entry.choice is None else 1)
            yield entry
    if missing:
        raise ValueError(f"{missing} measurements and choices are missing")


def _subject_in(described: Mapping[str, Any]) -> Subject:
    names = ("kernel", "source", "device", "versions")
    if {*described} != {*names, "problems"}:
        raise ValueError(f"a subject has {', '.join(names)} and problems")
    return Subject(*(str(described[name]) for name in names))


def _entry_in(subject: Subject, described: Mapping[str, Any]) -> FileEntry:
    required = {"problem", "measurements"}
    if not required <= {*described} <= required | {"choice"}:
        raise ValueError("a problem has measurements and at most one choice")
    problem = Problem(described["problem"])
    choice = Choice.from_record(described["choice"]) if "choice" in described else None
    rows = [measurement_from_record(row, subject, problem) for row in described["measurements"]]
    by_config = {row.config: row for row in rows}
    if len(by_config) < len(rows):
        raise ValueError(f"a configuration of {problem} occurs twice")
    return FileEntry(subject=subject, problem=problem, choice=choice, measurements=by_config)


def nearest_problems(problems: Iterable[Problem], problem: Problem) -> list[Problem]:
    """Return different problems, those with the most similar sizes first."""
    from foretune.search.encoding import problem_distance

    return sorted(dict.fromkeys(problems), key=lambda other: problem_distance(other, problem))


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

    def other_measurements(self, subject: Subject, problem: Problem) -> list[Measurement]:
        """Return the measurements of all other problems, from which a search may learn."""
        return [m for m in self.measurements(subject) if m.problem != problem]

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
        on_device = [s for s in found if device in (None, s.device)]
        return max(on_device, key=lambda subject: (self._last_tuned_at(subject), subject))

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
        write_file(
            path, (SubjectContents(s, self.choices(s), self.measurements(s)) for s in subjects)
        )

    def _last_tuned_at(self, subject: Subject) -> float:
        """Return when a subject was measured, or chosen from, for the last time."""
        chosen = [timestamp(choice.chosen_at) for choice in self.choices(subject).values()]
        return max([self._last_measured_at(subject), *chosen])

    def _last_measured_at(self, subject: Subject) -> float:
        times = [timestamp(m.recorded_at) for m in self.measurements(subject)]
        return max(times, default=0.0)

    def _summary(self, subject: Subject) -> Summary:
        measured = self.measurements(subject)
        chosen = {without_tags(problem) for problem in self.choices(subject)}
        return Summary(
            subject=subject,
            problems=len(chosen | {m.problem for m in measured}),
            measurements=len(measured),
            failed=sum(not m.ok for m in measured),
            choices=len(chosen),
        )


class StoreFile(StoreReader):
    """The content of an exported file, read once.

    Raises StoreError if it cannot be read, or is not an export.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._measured: dict[Subject, dict[Problem, Mapping[Configuration, Measurement]]] = {}
        self._chosen: dict[Subject, dict[Problem, Choice]] = {}
        data = read_file(self._path)
        with translate_read_errors(
            path, StoreError, "is damaged ({}): export it again", passthrough=StoreError
        ):
            for entry in entries_in(data):
                measured = self._measured.setdefault(entry.subject, {})
                measured[entry.problem] = entry.measurements
                chosen = self._chosen.setdefault(entry.subject, {})
                if entry.choice is not None:
                    chosen[entry.problem] = entry.choice

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    def subjects(self) -> list[Subject]:
        """Return all subjects in alphabetical order."""
        return sorted(self._measured)

    def measurements(self, subject: Subject, problem: Problem | None = None) -> list[Measurement]:
        """Return the measurements of a subject, of one problem or all of them."""
        by_problem = self._measured.get(subject, {})
        wanted = [*by_problem] if problem is None else [problem]
        return [m for p in wanted for m in by_problem.get(p, {}).values()]

    def choices(self, subject: Subject) -> dict[Problem, Choice]:
        """Return all choices of a subject."""
        return dict(self._chosen.get(subject, {}))
