"""Words of other tools for how a run ended."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from foretune.errors import UsageError
from foretune.measurement import Status

_WORDS = {
    Status.OK: "ok okay passed pass success successful succeeded correct valid true yes 1 1.0 "
    "complete completed done finished verified not_verified unverified",
    Status.WRONG_RESULT: "wrong_result incorrect wrong mismatch mismatched not_correct "
    "verification_failed failed_verification correctness invalid_result",
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

STATUS_COLUMNS = ("disposition", "status", "correct", "passed", "verified", "valid")
"""Names, in lower case, of columns that say how a run ended."""

_FALSE = ("false", "no", "0", "0.0")


def status_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns that say how a run ended."""
    by_name = {column.strip().lower(): column for column in columns}
    return [by_name[name] for name in STATUS_COLUMNS if name in by_name]


def statuses(values: "pd.Series[Any]", column: str) -> "pd.Series[Any]":
    """Return the status of every row; a gap stays one.

    Raises UsageError, which names the word, if one is unknown.
    """
    cells = values.astype(object)
    known: dict[Any, str | None] = {}
    for cell in cells.dropna().unique():
        word = re.sub(r"[\s\-]+", "_", str(cell).strip().lower())
        status = _status(word, column)
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


def _status(word: str, column: str) -> Status | None:
    if word in _FALSE:
        name = column.strip().lower()
        return Status.INVALID if name == "valid" else Status.WRONG_RESULT
    return STATUS_OF_WORD.get(word) or STATUS_OF_WORD.get(word.removeprefix("error_"))
