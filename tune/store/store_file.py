"""A file of tuned results, read like a store."""

import os
from pathlib import Path

from foretune.errors import StoreError
from foretune.files import translate_read_errors
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store.file import iter_problems, read_file
from foretune.tune.store.reader import StoreReader
from foretune.tune.store.subject import Choice, Subject


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
            for subject, problem, choice, measured in iter_problems(data):
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
