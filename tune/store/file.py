"""The file of tuned results, which `StoreReader.export` writes and a library ships with its code.

::

    {"format": "foretune tuned results", "version": 1, "rows": 1, "subjects": [
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
from typing import Any

from foretune.errors import StoreError
from foretune.files import atomic_write, parse_json, read_bytes, translate_read_errors
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store.subject import (
    Choice,
    Subject,
    choice_from_record,
    choice_to_record,
    group_by_problem,
    measurement_from_record,
    measurement_to_record,
    sort_key,
)

FORMAT = "foretune tuned results"
VERSION = 1

SubjectContent = tuple[Subject, Mapping[Problem, Choice], list[Measurement]]
"""A subject with its choices and measurements."""


def write_file(path: str | os.PathLike[str], known: Iterable[SubjectContent]) -> None:
    """Write subjects with their choices and measurements; on failure nothing is written.

    Raises:
        StoreError: the file cannot be written.
    """
    with atomic_write(path, StoreError) as new:
        new.write_text("".join(_file_lines(list(known))), encoding="utf-8")


def _file_lines(known: list[SubjectContent]) -> Iterator[str]:
    rows = sum(len(chosen) + len(measured) for _, chosen, measured in known)
    yield f'{{"format": {_json(FORMAT)}, "version": {VERSION}, "rows": {rows}, "subjects": [\n'
    for i, (subject, chosen, measured) in enumerate(known):
        head = _json(asdict(subject)).removesuffix("}")
        yield f' {head}, "problems": [\n'
        yield from _problem_lines(chosen, group_by_problem(measured))
        yield " ]}" + _line_end(i, known)
    yield "]}\n"


def _problem_lines(
    chosen: Mapping[Problem, Choice], measured: Mapping[Problem, list[Measurement]]
) -> Iterator[str]:
    problems = sorted({*chosen, *measured}, key=sort_key)
    for i, problem in enumerate(problems):
        choice = chosen.get(problem)
        choice_text = f'"choice": {_json(choice_to_record(choice))}, ' if choice else ""
        yield f'  {{"problem": {_json(dict(problem))}, {choice_text}"measurements": [\n'
        rows = sorted(measured.get(problem, []), key=lambda m: sort_key(m.config))
        for j, row in enumerate(rows):
            yield f"   {_json(measurement_to_record(row))}" + _line_end(j, rows)
        yield "  ]}" + _line_end(i, problems)


def _line_end(i: int, items: list[Any]) -> str:
    return "\n" if i == len(items) - 1 else ",\n"


def _json(value: Any) -> str:
    return json.dumps(value)


def read_file(path: Path) -> Any:
    """Return the JSON of an exported file.

    Raises:
        StoreError: it cannot be read, or is not an export.
    """
    try:
        text = read_bytes(path)
    except OSError as e:
        raise StoreError(f"cannot read {path}: {e.strerror or e}") from e
    says = "is no exported store ({}): write one with 'foretune store --export'"
    with translate_read_errors(path, StoreError, says):
        data = parse_json(text)
        if data.get("format") != FORMAT:
            raise ValueError("it says no format, or another")
        version = int(data["version"])
    if version > VERSION:
        raise StoreError(
            f"{path} has version {version}, this Foretune reads up to {VERSION}: "
            "install a newer Foretune"
        )
    return data


def problems_in(
    data: Mapping[str, Any],
) -> Iterator[tuple[Subject, Problem, Choice | None, dict[Configuration, Measurement]]]:
    """Yield subject, problem, choice and measurements of each problem in an exported file's JSON.

    Damaged files raise ValueError, KeyError, TypeError or AttributeError.
    """
    if unknown := {*data} - {"format", "version", "rows", "subjects"}:
        raise ValueError(f"{min(unknown)!r} is not known")
    seen, missing = set(), data["rows"]
    for described in data["subjects"]:
        names = ("kernel", "source", "device", "versions")
        if {*described} != {*names, "problems"}:
            raise ValueError(f"a subject has {', '.join(names)} and problems")
        subject = Subject(*(str(described[name]) for name in names))
        for entry in described["problems"]:
            if not {"problem", "measurements"} <= {*entry} <= {"problem", "choice", "measurements"}:
                raise ValueError("a problem has measurements, and a choice at most")
            problem = Problem(entry["problem"])
            choice = choice_from_record(entry["choice"]) if "choice" in entry else None
            rows = [measurement_from_record(row, subject, problem) for row in entry["measurements"]]
            found = {row.config: row for row in rows}
            if (subject, problem) in seen or len(found) < len(rows):
                raise ValueError(f"{problem} or a configuration of it is there twice")
            seen.add((subject, problem))
            missing -= len(found) + (choice is not None)
            yield subject, problem, choice, found
    if missing:
        raise ValueError(f"{missing} measurements and choices are missing")
