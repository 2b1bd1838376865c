"""Reads lengths of requests: histograms and logs of anybody, and ``512:0.7,4096:0.3``.

A table has a column of prompts' tokens and one of answers', under any of the names in
`length_columns`, and maybe a column of counts or shares; without one, each row is a request.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.decimal_marks import MARKS
from foretune.datasets.importers.files import read_table
from foretune.datasets.text_tables import Dialect
from foretune.errors import ForetuneError, RunTableError, UsageError
from foretune.plan.describe.length_columns import (
    COLUMNS,
    LengthColumns,
    length_columns,
    require_shares,
)
from foretune.plan.describe.lengths import MAX_TOKENS, LengthMix
from foretune.support.files import translate_read_errors
from foretune.values import counted

_BUCKET = re.compile(r"\d\s*(-|–|\.\.|to)\s*\d|^[<>≤≥\[(]")
"""A bucket of a histogram: 0-512, [512, 1024), <=512."""


@dataclass(frozen=True)
class ReadLengths:
    """The lengths in a file, and how it was understood, a line each."""

    mix: LengthMix
    notes: tuple[str, ...]


def read_lengths(path: str | os.PathLike[str]) -> ReadLengths:
    """Return the lengths of requests in a CSV, JSON or Parquet file.

    Raises RunTableError if it cannot be read, has no lengths or two columns of one, or an invalid
    row.
    """
    notes: list[str] = []
    table = _table(Path(path), notes)
    if table.empty:
        raise RunTableError(f"{path} has no rows: it needs one per request, or per pair of lengths")

    # Which column is what?
    columns = length_columns(table, path)
    if columns.unread:
        each = "" if columns.count else "; each row counts as one request"
        notes.append(f"{path}: not read: {', '.join(columns.unread)}{each}")
    with translate_read_errors(path, RunTableError, "is damaged: {}"):
        numbers = _numbers(table, columns)

    # Requests that failed have no answer, or no lengths at all.
    is_request = (numbers["osl"] != 0) & numbers[["isl", "osl"]].notna().any(axis=1)
    if not is_request.all():
        failed = counted(int((~is_request).sum()), "row")
        notes.append(f"{path}: {failed} without an answer left out")
        numbers = numbers[is_request]
    _require_valid(numbers, table, columns, path)
    counts = numbers["count"] if "count" in numbers else pd.Series(1.0, index=numbers.index)
    if columns.has_shares:
        require_shares(counts.tolist(), str(path))
    try:
        mix = LengthMix.from_counts(
            isl=numbers["isl"].astype(int).tolist(),
            osl=numbers["osl"].astype(int).tolist(),
            counts=counts.tolist(),
        )
    except ForetuneError as error:
        raise RunTableError(f"{path}: {error}") from error
    return ReadLengths(mix, tuple(notes))


def parse_histogram(text: str, option: str) -> dict[int, float]:
    """Parse ``512:0.7,4096:0.3``, tokens and their shares or counts; ``512`` alone is all.

    Raises UsageError for anything else. ``option`` is named in it.
    """
    shares: dict[int, float] = {}
    example = f"{option} {text}: write tokens, or TOKENS:SHARE,…, like 512:0.7,4096:0.3"
    parts = text.split(",")
    for part in parts:
        tokens_text, colon, share_text = part.partition(":")
        try:
            tokens = int(tokens_text)
            share = float(share_text) if colon else 1.0
        except ValueError:
            raise UsageError(example) from None
        if not colon and len(parts) > 1:
            raise UsageError(example)
        if not 1 <= tokens < MAX_TOKENS:
            raise UsageError(f"{option} {text}: {tokens} must be at least 1 token")
        if not 0 < share < float("inf"):
            raise UsageError(f"{option} {text}: the share of {tokens} must be above 0")
        if tokens in shares:
            raise UsageError(f"{option} {text}: {tokens} is given twice")
        shares[tokens] = share
    if max(shares.values()) < 1.0:
        try:
            require_shares(list(shares.values()), f"{option} {text}")
        except RunTableError as error:
            raise UsageError(str(error)) from None
    return shares


def _table(path: Path, notes: list[str]) -> pd.DataFrame:
    """Return the table in a file. Lengths are whole, so ``1,024`` is no fraction."""
    expected = [names[0] for names in COLUMNS.values()]
    try:
        return read_table(path, expected, notes=notes)
    except UsageError:
        readings = []
        for mark in MARKS:
            settled: list[str] = []
            with suppress(ForetuneError):
                table = read_table(path, expected, Dialect(decimal=mark), notes=settled)
                lengths = _numbers(table, length_columns(table, path))[["isl", "osl"]]
                if (lengths % 1 == 0).all(axis=None):
                    readings.append((float(lengths.sum(axis=None)), table, settled))
        if not readings:
            raise

        # Nobody writes 1.000 for one token: the marks are those of thousands.
        _, table, settled = max(readings, key=lambda reading: reading[0])
        notes += settled
        return table


def _numbers(table: pd.DataFrame, columns: LengthColumns) -> pd.DataFrame:
    """Return the lengths, and the counts if there are any; NaN for texts."""
    numbers = pd.DataFrame(
        {
            "isl": pd.to_numeric(table[columns.isl], errors="coerce"),
            "osl": pd.to_numeric(table[columns.osl], errors="coerce"),
        }
    )
    for name in columns.other_prompts:
        numbers["isl"] += pd.to_numeric(table[name], errors="coerce").fillna(0)
    if columns.count:
        texts = table[columns.count].astype(str).str.strip().str.removesuffix("%")
        numbers["count"] = pd.to_numeric(texts, errors="coerce")
    return numbers


def _require_valid(
    numbers: pd.DataFrame,
    table: pd.DataFrame,
    columns: LengthColumns,
    path: str | os.PathLike[str],
) -> None:
    """Raise RunTableError for the first row that has no whole lengths, or no count."""
    lengths = numbers[["isl", "osl"]]
    is_whole = (lengths % 1 == 0) & (lengths >= 1) & (lengths < MAX_TOKENS)
    for what, name in (("isl", columns.isl), ("osl", columns.osl)):
        if not is_whole[what].all():
            row = int(numbers.index[~is_whole[what]][0])
            cell = str(table[name].iloc[row])
            hint = ": give each bucket one length, like its middle" if _BUCKET.search(cell) else ""
            raise RunTableError(
                f"{path}, row {row + 1}: {name} must be a whole number of tokens, at least 1, "
                f"not {cell}{hint}"
            )
    if "count" in numbers:
        is_count = (numbers["count"] >= 0) & (numbers["count"] < np.inf)
        if not is_count.all():
            row = int(numbers.index[~is_count][0])
            raise RunTableError(
                f"{path}, row {row + 1}: {columns.count} must be a number from 0 on, not "
                f"{table[columns.count].iloc[row]}"
            )
