"""Reads lengths of requests: histograms and logs of anybody, and ``512:0.7,4096:0.3``.

A table has a column of prompts' tokens and one of answers', under any of the names in `COLUMNS`,
and maybe a column of counts or shares; without one, each row is a request.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import read_table
from foretune.errors import ForetuneError, RunTableError, UsageError
from foretune.plan.describe.lengths import MAX_TOKENS, LengthMix
from foretune.support.files import translate_read_errors
from foretune.values import counted

COLUMNS: Mapping[str, Sequence[str]] = {
    "isl": (
        *("isl", "prompt_tokens", "num_prompt_tokens", "context_tokens", "input_tokens"),
        *("num_input_tokens", "input_length", "input_len", "prompt_length", "prompt_len"),
        *("num_prefill_tokens", "request_tokens"),
    ),
    "osl": (
        *("osl", "completion_tokens", "num_completion_tokens", "generated_tokens"),
        *("output_tokens", "num_output_tokens", "output_length", "output_len"),
        *("completion_length", "completion_len", "answer_tokens", "num_decode_tokens"),
        *("num_generated_tokens", "response_tokens"),
    ),
    "count": (
        *("count", "counts", "number", "requests", "num_requests", "frequency", "weight"),
        *("requests_per_s", "share", "shares", "probability", "percent"),
    ),
}
"""What a column is -> names of it, in lower case and with ``_`` between words: of vLLM's and
OpenAI's usage, Azure's traces (``ContextTokens``, ``GeneratedTokens``), BurstGPT (``Request
tokens``, ``Response tokens``), Mooncake (``input_length``), Vidur (``num_prefill_tokens``)."""
DOCUMENT_COLUMNS: Mapping[str, Sequence[str]] = {
    "tokens": (
        *("tokens", "num_tokens", "n_tokens", "token_count", "total_tokens", "length", "lengths"),
        *("document_length", "doc_length", "sequence_length", "seq_length", "seq_len", "seqlen"),
        *("num_input_ids", "input_ids_length"),
    ),
    "count": COLUMNS["count"],
}
"""The same of documents to train on. A prompt and its answer are a document, too."""
SHARE_COLUMNS = ("share", "shares", "probability", "percent")
"""Names of columns that must add up to 1, or to 100."""
SHARES_TOLERANCE = 0.02
"""Rounded shares may be off their sum by so much, relatively."""
TEXTS = ("conversations", "messages", "prompt", "text", "body.messages")
"""Columns of data sets with texts, in which nothing is counted."""


@dataclass(frozen=True)
class ReadLengths:
    """The lengths in a file, and how it was understood, a line each."""

    mix: LengthMix
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ReadDocuments:
    """Tokens of the documents in a file -> their count, and how it was understood, a line each."""

    counts: Mapping[int, float]
    notes: tuple[str, ...]


def read_lengths(path: str | os.PathLike[str]) -> ReadLengths:
    """Return the lengths of requests in a CSV, JSON or Parquet file.

    Raises RunTableError if it cannot be read, has no lengths or two columns of one, or an invalid
    row.
    """
    notes: list[str] = []
    table = _read_rows(path, COLUMNS, notes)
    found = _columns(table, path, COLUMNS)
    numbers = _numbers(table, found, path, notes)

    # Requests that failed have no answer.
    has_no_answer = numbers["osl"] == 0
    if has_no_answer.any():
        failed = counted(int(has_no_answer.sum()), "row")
        notes.append(f"{path}: {failed} without an answer left out")
        numbers = numbers[~has_no_answer]
    counts = _valid_counts(numbers, found, path)
    try:
        mix = LengthMix.from_counts(
            isl=numbers["isl"].astype(int).tolist(),
            osl=numbers["osl"].astype(int).tolist(),
            counts=counts.tolist(),
        )
    except ForetuneError as error:
        raise RunTableError(f"{path}: {error}") from error
    return ReadLengths(mix, tuple(notes))


def read_document_lengths(path: str | os.PathLike[str]) -> ReadDocuments:
    """Return the tokens of documents in a CSV, JSON or Parquet file.

    It has a column of `DOCUMENT_COLUMNS`, or prompts and answers as in `read_lengths`. Raises
    RunTableError as that does.
    """
    notes: list[str] = []
    table = _read_rows(path, DOCUMENT_COLUMNS, notes)
    has_tokens = any(_plain(str(name)) in DOCUMENT_COLUMNS["tokens"] for name in table)
    has_prompts = any(_plain(str(name)) in COLUMNS["isl"] for name in table)
    found = _columns(table, path, COLUMNS if has_prompts and not has_tokens else DOCUMENT_COLUMNS)
    numbers = _numbers(table, found, path, notes)
    counts = _valid_counts(numbers, found, path)

    if "tokens" in numbers:
        tokens = numbers["tokens"]
    else:
        notes.append(f"{path}: a document is a prompt and its answer")
        tokens = numbers["isl"] + numbers["osl"]
    return ReadDocuments(counts.groupby(tokens.astype(int)).sum().to_dict(), tuple(notes))


def _read_rows(
    path: str | os.PathLike[str], known: Mapping[str, Sequence[str]], notes: list[str]
) -> pd.DataFrame:
    table = read_table(Path(path), [names[0] for names in known.values()], notes=notes)
    if table.empty:
        raise RunTableError(f"{path} has no rows: it needs one per {_each(known)}")
    return table


def _each(known: Mapping[str, Sequence[str]]) -> str:
    """Return what a row is of."""
    return "request, or per pair of lengths" if "isl" in known else "document, or per length"


def _numbers(
    table: pd.DataFrame, found: Mapping[str, str], path: str | os.PathLike[str], notes: list[str]
) -> pd.DataFrame:
    """Return the columns that are read, as numbers."""
    unread = [str(name) for name in table if name not in found.values()]
    if unread:
        notes.append(f"{path}: not read: {', '.join(unread)}")
    with translate_read_errors(path, RunTableError, "is damaged: {}"):
        return pd.DataFrame(
            {what: pd.to_numeric(table[name], errors="coerce") for what, name in found.items()}
        )


def _valid_counts(
    numbers: pd.DataFrame, found: Mapping[str, str], path: str | os.PathLike[str]
) -> "pd.Series[float]":
    """Return how often each row counts: once, if nothing else is said. Raises RunTableError."""
    _require_valid(numbers, found, path)
    counts = numbers["count"] if "count" in numbers else pd.Series(1.0, index=numbers.index)
    if _plain(found.get("count", "")) in SHARE_COLUMNS:
        _require_shares(counts.tolist(), str(path))
    return counts


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
            _require_shares(list(shares.values()), f"{option} {text}")
        except RunTableError as error:
            raise UsageError(str(error)) from None
    return shares


def _columns(
    table: pd.DataFrame, path: str | os.PathLike[str], known: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the name of each column that is read: what it is -> name."""
    found: dict[str, str] = {}
    for what, names in known.items():
        of_kind = [str(name) for name in table if _plain(str(name)) in names]
        if len(of_kind) > 1:
            raise RunTableError(
                f"{path} has {' and '.join(of_kind)}, which both are {what}: leave one out"
            )
        if of_kind:
            found[what] = of_kind[0]
    lengths = [what for what in known if what != "count"]
    missing = [what for what in lengths if what not in found]
    if not missing:
        return found

    texts = [str(name) for name in table if str(name) in TEXTS]
    if texts:
        columns = " and ".join(lengths)
        raise RunTableError(
            f"{path} has texts ({texts[0]}), not lengths: count their tokens with the model's "
            f"tokenizer, and write {'a column' if len(lengths) == 1 else 'columns'} {columns}"
        )
    raise RunTableError(
        f"{path} has no column {missing[0]}, also not as {', '.join(known[missing[0]][1:5])}, …; "
        f"it has {', '.join(map(str, table))}"
    )


def _plain(name: str) -> str:
    """Return a column's name in lower case, with ``_`` between words: ContextTokens, Prompt Len.

    Of a path (``response.body.usage.prompt_tokens``), it is the end.
    """
    name = name.strip().rpartition(".")[2]
    spaced = "".join(f"_{c}" if c.isupper() else c for c in name)
    words = spaced.replace(" ", "_").replace("-", "_").lower().split("_")
    # Capitals alone, like ISL, are one word.
    if name.isupper():
        return name.lower().replace(" ", "_")
    return "_".join(word for word in words if word)


def _require_valid(
    numbers: pd.DataFrame, names: Mapping[str, str], path: str | os.PathLike[str]
) -> None:
    """Raise RunTableError for the first row that has no whole lengths, or no count."""
    lengths = numbers.drop(columns="count", errors="ignore")
    is_whole = (lengths % 1 == 0) & (lengths >= 1) & (lengths < MAX_TOKENS)
    for what in lengths:
        if not is_whole[what].all():
            row = int(numbers.index[~is_whole[what]][0]) + 1
            raise RunTableError(
                f"{path}, row {row}: {names[what]} must be a whole number of tokens, at least 1"
            )
    if "count" in numbers:
        is_count = (numbers["count"] >= 0) & (numbers["count"] < np.inf)
        if not is_count.all():
            row = int(numbers.index[~is_count][0]) + 1
            raise RunTableError(f"{path}, row {row}: {names['count']} must be a number from 0 on")


def _require_shares(shares: Sequence[float], where: str) -> None:
    """Raise RunTableError unless shares add up to 1, or to 100 percent."""
    total = sum(shares)
    if not any(abs(total / whole - 1.0) <= SHARES_TOLERANCE for whole in (1.0, 100.0)):
        raise RunTableError(f"{where}: the shares add up to {total:.4g} instead of 1: check them")
