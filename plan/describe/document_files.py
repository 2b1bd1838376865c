"""Reads lengths of documents to train on: a column of their tokens, or prompts and answers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import read_table
from foretune.errors import RunTableError
from foretune.plan.describe.length_columns import (
    COLUMNS,
    SHARE_COLUMNS,
    named_columns,
    plain_name,
    require_columns,
    require_no_counts,
    require_shares,
)
from foretune.plan.describe.length_files import read_lengths
from foretune.plan.describe.lengths import MAX_TOKENS

DOCUMENT_COLUMNS: Mapping[str, Sequence[str]] = {
    "tokens": (
        *("tokens", "num_tokens", "n_tokens", "token_count", "total_tokens", "length", "lengths"),
        *("document_length", "doc_length", "sequence_length", "seq_length", "seq_len", "seqlen"),
        *("num_input_ids", "input_ids_length"),
    ),
    "count": COLUMNS["count"],
}
"""What a column is -> names of it, in lower case and with ``_`` between words."""


@dataclass(frozen=True)
class ReadDocuments:
    """Tokens of the documents in a file -> their count, and how it was understood, a line each."""

    counts: Mapping[int, float]
    notes: tuple[str, ...]


def read_document_lengths(path: str | os.PathLike[str]) -> ReadDocuments:
    """Return the tokens of documents in a CSV, JSON or Parquet file.

    It has a column of tokens and maybe one of counts or shares, or prompts and answers as in
    `read_lengths`: both together are a document. Raises RunTableError as that does.
    """
    notes: list[str] = []
    expected = [names[0] for names in DOCUMENT_COLUMNS.values()]
    table = read_table(Path(path), expected, notes=notes)
    if table.empty:
        raise RunTableError(f"{path} has no rows: it needs one per document, or per length")
    found = named_columns(table, DOCUMENT_COLUMNS, path)
    if "tokens" not in found and "isl" in named_columns(table, COLUMNS, path):
        return _read_conversations(path)
    require_columns(found, ("tokens",), DOCUMENT_COLUMNS, table, path)

    unread = [str(name) for name in table if str(name) not in found.values()]
    if unread:
        notes.append(f"{path}: not read: {', '.join(unread)}")
    if "count" in found:
        counts = _counts(table, found["count"], path)
    else:
        require_no_counts(table, unread, path)
        counts = pd.Series(1.0, index=table.index)
    tokens = _tokens(table, found["tokens"], path)
    return ReadDocuments(counts.groupby(tokens).sum().to_dict(), tuple(notes))


def _read_conversations(path: str | os.PathLike[str]) -> ReadDocuments:
    """Return documents that are a prompt and its answer."""
    read = read_lengths(path)
    counts: dict[int, float] = {}
    for isl, osl, share in zip(read.mix.isl, read.mix.osl, read.mix.shares, strict=True):
        counts[isl + osl] = counts.get(isl + osl, 0.0) + share
    return ReadDocuments(counts, (*read.notes, f"{path}: a document is a prompt and its answer"))


def _tokens(table: pd.DataFrame, name: str, path: str | os.PathLike[str]) -> "pd.Series[int]":
    """Return the tokens of each row; raises RunTableError for the first that is no number."""
    tokens = pd.to_numeric(table[name], errors="coerce")
    is_whole = ((tokens % 1 == 0) & (tokens >= 1) & (tokens < MAX_TOKENS)).to_numpy()
    if not is_whole.all():
        row = int(np.argmin(is_whole))
        raise RunTableError(
            f"{path}, row {row + 1}: {name} must be a whole number of tokens, at least 1, not "
            f"{table[name].iloc[row]}"
        )
    return tokens.astype(int)


def _counts(table: pd.DataFrame, name: str, path: str | os.PathLike[str]) -> "pd.Series[float]":
    """Return how often each row counts; raises RunTableError for the first that is no count."""
    texts = table[name].astype(str).str.strip().str.removesuffix("%")
    counts = pd.to_numeric(texts, errors="coerce")
    is_count = ((counts >= 0) & (counts < np.inf)).to_numpy()
    if not is_count.all():
        row = int(np.argmin(is_count))
        raise RunTableError(
            f"{path}, row {row + 1}: {name} must be a number from 0 on, not {table[name].iloc[row]}"
        )
    if plain_name(name) in SHARE_COLUMNS:
        require_shares(counts.tolist(), str(path))
    return counts
