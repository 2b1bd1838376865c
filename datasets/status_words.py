"""Words of other tools for how a run ended."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from foretune.errors import UsageError
from foretune.measurement import Status

_WORDS = {
    Status.OK: "ok okay passed pass success successful succeeded correct valid "
    "complete completed done finished verified not_verified unverified \u2713 \u2714 \u2705",
    Status.WRONG_RESULT: "wrong_result incorrect wrong mismatch mismatched not_correct "
    "verification_failed failed_verification correctness invalid_result \u2717 \u2718 \u274c",
    Status.INVALID: "invalid not_run skipped skip not_supported unsupported constraints "
    "invalid_config invalidconfig misaligned_operand invalid_data_type invalid_layout "
    "invalid_problem workspace_null arch_mismatch insufficient_driver infeasible",
    Status.COMPILE_ERROR: "compile_error compile compilation_error compilation_failed "
    "compile_failed build_error build_failed build_failure instantiation_error "
    "compilationfailedconfig",
    Status.RUNTIME_ERROR: "runtime_error runtime failed fail failure error errored crashed crash "
    "exception oom out_of_memory memory_allocation cuda_error internal launch_failed "
    "runtimefailedconfig killed aborted",
    Status.TIMEOUT: "timeout timed_out time_out timedout",
}
"""Status -> the words for it, in lower case with underscores.

``not_verified`` is CUTLASS's word for a run whose output was not compared.
"""
STATUS_OF_WORD = {word: status for status, words in _WORDS.items() for word in words.split()}

UNFINISHED = ("pruned", "running", "waiting", "pending", "queued", "started")
"""Words, in lower case, for a run that has not ended: its time is none."""

STATED = ("disposition", "status")
"""Columns, in lower case, that say how a run ended, whatever their words are."""

OTHER_STATUS_COLUMNS = (
    *("correct", "passed", "verified", "valid", "pass", "ok", "success", "succeeded"),
    *("is_correct", "is_valid", "result", "outcome", "state", "check", "correctness"),
    *("verification", "validation"),
)
"""Columns, in lower case, that say how a run ended if all their words do."""

FLAGS = {
    "failed": Status.RUNTIME_ERROR,
    "crashed": Status.RUNTIME_ERROR,
    "error_occurred": Status.RUNTIME_ERROR,
    "has_error": Status.RUNTIME_ERROR,
    "oom": Status.RUNTIME_ERROR,
    "timed_out": Status.TIMEOUT,
    "invalid": Status.INVALID,
}
"""Columns, in lower case -> the status of rows in which they are true."""

EXIT_CODES = ("returncode", "return_code", "exitcode", "exit_code", "exit_status")
"""Columns, in lower case, with the exit code of a program: 0 is success."""

STATUS_COLUMNS = (*STATED, *OTHER_STATUS_COLUMNS, *FLAGS, *EXIT_CODES)

_YES = ("true", "yes", "1", "1.0")
_NO = ("false", "no", "0", "0.0")
_POSITIVE = {
    *("correct", "passed", "pass", "verified", "valid", "ok", "okay", "match", "matches"),
    *("matched", "allclose", "success", "succeeded", "successful", "feasible"),
}
"""Words in names of columns whose yes means success."""
_NEGATIVE = {
    "failed": Status.RUNTIME_ERROR,
    "crashed": Status.RUNTIME_ERROR,
    "oom": Status.RUNTIME_ERROR,
    "invalid": Status.INVALID,
    "incorrect": Status.WRONG_RESULT,
    "wrong": Status.WRONG_RESULT,
    "mismatch": Status.WRONG_RESULT,
}
"""Last word of names of columns whose yes means failure -> status."""
_REVERSED = {"not", "no", "un", "error", "errors", *_NEGATIVE}
"""Words in names of columns whose yes may mean failure."""

NO_ERRORS = ("none", "no error", "no errors", "ok", "success", "cudasuccess", "hipsuccess", "nan")
"""Texts, in lower case, of an error that did not occur."""


def status_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns that may say how a run ended: known ones, and ``test_passed`` or alike."""
    listed = list(columns)
    by_name = {column.strip().lower(): column for column in listed}
    known = [by_name[name] for name in STATUS_COLUMNS if name in by_name]
    asking = [column for column in listed if _asks_for_success(column)]
    return list(dict.fromkeys([*known, *asking]))


def _asks_for_success(column: str) -> bool:
    """Whether the last word of a column's name asks for success or failure: ``is_failed``."""
    words = re.findall("[a-z]+", column.lower())
    return bool(words) and words[-1] in {*_POSITIVE, *_NEGATIVE}


def tells_outcomes(cells: "pd.Series[Any]") -> bool:
    """Whether all texts of a column are words for how a run ended, of successes and of failures."""
    texts = set(cells.astype(object).dropna())
    if not all(is_status_word(text) for text in texts):
        return False
    found = {STATUS_OF_WORD[_word(text)] for text in texts}
    return Status.OK in found and len(found) > 1


def is_answer(cell: Any) -> bool:
    """Whether a cell is a yes or a no in words."""
    return str(cell).strip().lower() in ("true", "false", "yes", "no")


def is_unfinished(cell: Any) -> bool:
    """Whether a cell is a word for a run that has not ended."""
    return isinstance(cell, str) and cell.strip().lower() in UNFINISHED


def statuses(values: "pd.Series[Any]", column: str) -> "pd.Series[Any]":
    """Return the status of every row; a gap stays one.

    Raises UsageError, which names the word, if one is unknown.
    """
    cells = values.astype(object)
    known: dict[Any, str | None] = {}
    for cell in cells.dropna().unique():
        status = _status(cell, column)
        if status is None:
            raise UsageError(
                f"{cell!r} in column {column!r} is no known status: replace it in the file by "
                f"{', '.join(s.value for s in Status)}, or say that all rows are valid with "
                "--map status==ok"
            )
        known[cell] = status.value
    return cells.map(known)


def combined_status(table: pd.DataFrame, columns: Sequence[str]) -> "pd.Series[Any]":
    """Return each row's first status that is not ``ok``; a row is ``ok`` if all columns say so."""
    combined = statuses(table[columns[0]], columns[0])
    for column in columns[1:]:
        other = statuses(table[column], column)
        combined = combined.where(combined.notna() & (combined != Status.OK.value), other)
    return combined


def is_failure_word(cell: Any) -> bool:
    """Whether a cell is a word for a run that failed, such as ``OOM``."""
    if not isinstance(cell, str):
        return False
    status = STATUS_OF_WORD.get(_word(cell))
    return status is not None and status is not Status.OK


def is_status_word(cell: Any) -> bool:
    """Whether a cell is a known word for how a run ended."""
    return isinstance(cell, str) and _word(cell) in STATUS_OF_WORD


def _word(cell: Any) -> str:
    return re.sub(r"[\s\-]+", "_", str(cell).strip().lower())


def _status(cell: Any, column: str) -> Status | None:
    """Return the status of a cell; None if it is unknown, or may mean success or failure."""
    word = _word(cell)
    name = column.strip().lower()
    if name in EXIT_CODES:
        code = str(cell).strip()
        is_number = re.fullmatch(r"-?\d+(\.0)?", code) is not None
        return _exit_status(code) if is_number else STATUS_OF_WORD.get(word)
    if word in (*_YES, *_NO):
        if name in FLAGS:
            return FLAGS[name] if word in _YES else Status.OK
        return _answer(word, name)
    return STATUS_OF_WORD.get(word) or STATUS_OF_WORD.get(word.removeprefix("error_"))


def _exit_status(code: str) -> Status:
    return Status.OK if float(code) == 0 else Status.RUNTIME_ERROR


def _answer(word: str, name: str) -> Status | None:
    """Return the status of a yes or no in a column whose name asks whether a run was right."""
    words = re.findall(r"[a-z]+", name)
    reversed_words = _REVERSED.intersection(words)
    if not words:
        return None
    if words[-1] in _NEGATIVE and reversed_words == {words[-1]}:
        return _NEGATIVE[words[-1]] if word in _YES else Status.OK
    if _POSITIVE.isdisjoint(words) or reversed_words:
        return None
    if word in _YES:
        return Status.OK
    return Status.INVALID if {"valid", "feasible"} & set(words) else Status.WRONG_RESULT
