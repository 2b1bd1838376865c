"""Tuned results as one JSON file: what `Store.export` writes, and a library ships beside its code.

::

    {"format": "foretune tuned results", "version": 1, "subjects": [
     {"kernel": "softmax", "source": "9f…", "device": "NVIDIA H200", "versions": "…", "problems": [
      {"problem": {"n": 4096}, "choice": {"config": {"BLOCK": 1024}, …}, "measurements": [
       {"config": {"BLOCK": 1024}, "status": "ok", "time_ms": 0.031, …},
       …
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.errors import ForetuneError, StoreError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.replacing import replacing
from foretune.tune.store.record import from_choice, from_record, to_choice, to_record
from foretune.tune.store.subject import Choice, Subject
from foretune.tune.store.tuned import Tuned, by_problem, by_value

if TYPE_CHECKING:
    from foretune.space import Configuration

FORMAT = "foretune tuned results"
VERSION = 1


class ShippedStore(Tuned):
    """The content of an exported file, read once; it cannot be written.

    Raises:
        StoreError: the file cannot be read, or is something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._measured: dict[Subject, dict[Problem, dict[Configuration, Measurement]]] = {}
        self._chosen: dict[Subject, dict[Problem, Choice]] = {}
        try:
            for subject, problem, choice, measured in _parts(_read(self._path)):
                of_subject = self._measured.setdefault(subject, {})
                of_subject.setdefault(problem, {}).update(measured)
                chosen = self._chosen.setdefault(subject, {})
                if choice is not None:
                    chosen[problem] = choice
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            reason = e if isinstance(e, ForetuneError) else f"{type(e).__name__} {e}"
            raise StoreError(f"{path} is damaged ({reason}): export it again") from e

    @property
    def name(self) -> str:
        """The file."""
        return str(self._path)

    def subjects(self) -> list[Subject]:
        """Return every subject of the file, in alphabetical order."""
        return sorted(self._measured)

    def measurements(self, subject: Subject, problem: Problem | None = None) -> list[Measurement]:
        """Return the measurements of a subject, of one problem or all of them."""
        of_subject = self._measured.get(subject, {})
        wanted = of_subject.values() if problem is None else [of_subject.get(problem, {})]
        return [m for measured in wanted for m in measured.values()]

    def choices(self, subject: Subject) -> dict[Problem, Choice]:
        """Return every choice made for a subject."""
        return dict(self._chosen.get(subject, {}))


def write_file(path: str | os.PathLike[str], tuned: Tuned, subjects: Iterable[Subject]) -> None:
    """Write what is known of some subjects, all or nothing.

    Raises:
        StoreError: the file cannot be written.
    """
    with replacing(path, StoreError) as new:
        new.write_text("".join(_text(tuned, sorted(subjects))), encoding="utf-8")


def _text(tuned: Tuned, subjects: list[Subject]) -> Iterator[str]:
    yield f'{{"format": {_json(FORMAT)}, "version": {VERSION}, "subjects": [\n'
    for i, subject in enumerate(subjects):
        head = _json(asdict(subject)).removesuffix("}")
        yield f' {head}, "problems": [\n'
        yield from _problems(tuned, subject)
        yield " ]}" + _end(i, subjects)
    yield "]}\n"


def _problems(tuned: Tuned, subject: Subject) -> Iterator[str]:
    chosen, measured = tuned.choices(subject), by_problem(tuned.measurements(subject))
    problems = sorted({*chosen, *measured}, key=by_value)
    for i, problem in enumerate(problems):
        choice = chosen.get(problem)
        said = f'"choice": {_json(from_choice(choice))}, ' if choice else ""
        yield f'  {{"problem": {_json(dict(problem))}, {said}"measurements": [\n'
        rows = sorted(measured.get(problem, []), key=lambda m: by_value(m.config))
        for j, row in enumerate(rows):
            yield f"   {_json(to_record(row))}" + _end(j, rows)
        yield "  ]}" + _end(i, problems)


def _end(i: int, items: list[Any]) -> str:
    return "\n" if i == len(items) - 1 else ",\n"


def _json(value: Any) -> str:
    return json.dumps(value)


def _read(path: Path) -> Any:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise StoreError(f"cannot read {path}: {e.strerror or e}") from e
    except ValueError as e:
        raise StoreError(
            f"{path} is no exported store ({e}): write one with 'foretune store export'"
        ) from e
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise StoreError(f"{path} is no exported store: write one with 'foretune store export'")
    if data.get("version", 0) > VERSION:
        raise StoreError(
            f"{path} has version {data['version']}, this Foretune reads up to {VERSION}: "
            "install a newer Foretune"
        )
    return data


def _parts(
    data: Mapping[str, Any],
) -> Iterator[tuple[Subject, Problem, Choice | None, "dict[Configuration, Measurement]"]]:
    for described in data["subjects"]:
        names = ("kernel", "source", "device", "versions")
        subject = Subject(*(str(described[name]) for name in names))
        for entry in described["problems"]:
            problem = Problem(entry["problem"])
            choice = to_choice(entry["choice"]) if "choice" in entry else None
            rows = [from_record(row, subject, problem) for row in entry["measurements"]]
            yield subject, problem, choice, {row.config: row for row in rows}
