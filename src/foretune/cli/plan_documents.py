"""Documents of several lengths that a training plan packs into its sequences (``--lengths``)."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.errors import ForetuneError, UsageError
from foretune.values import percent

if TYPE_CHECKING:
    from foretune.plan.train.documents import Documents
    from foretune.plan.train.training_planner import TrainingPlan

LENGTHS = typer.Option(
    "",
    help="Tokens of the documents that are packed into sequences, each attending to itself: a file "
    "(CSV, JSON or Parquet; a row per document, or with counts), or 512:0.7,4096:0.3.",
    show_default=False,
)

_HISTOGRAM = re.compile(r"\d+(:[^,]*)?(,[^,]*)*")
"""Text that begins with a number of tokens; a file with such a name exists."""


def read_documents(text: str, sequence: int) -> "tuple[Documents | None, list[str]]":
    """Return the documents of ``--lengths``, and how they were understood; None without any.

    Raises UsageError if the text is neither a file nor a histogram, and RunTableError for a file
    without lengths.
    """
    from foretune.plan.describe.document_files import read_document_lengths
    from foretune.plan.describe.length_files import parse_histogram
    from foretune.plan.train.documents import Documents

    if not text:
        return None, []
    path = Path(text).expanduser()
    notes: list[str] = []
    if path.exists() or not _HISTOGRAM.fullmatch(text):
        read = read_document_lengths(path)
        counts = dict(read.counts)
        notes += read.notes
    else:
        counts = dict(parse_histogram(text, "--lengths"))
    try:
        documents = Documents.from_counts(counts, sequence)
    except ForetuneError as error:
        raise UsageError(f"--lengths {text}: {error}") from error

    notes.append("documents are packed whole, and no room is left in a sequence")
    longest = max(counts)
    if longest > sequence:
        notes.append(
            f"documents are cut at {sequence:,} tokens; the longest has {longest:,}: without cuts, "
            "give a longer --sequence"
        )
    return documents, notes


def packing_gain(packed: "TrainingPlan", padded: "TrainingPlan") -> dict[str, float]:
    """Return what packing gains over a sequence per document, the rest of it padding.

    Keys: ``documents_per_sequence``; ``mean_keys`` that a token may attend to; ``useful_share`` of
    the tokens with padding, and ``padded_tokens_per_s_per_gpu``, of useful ones; ``speedup``.
    """
    task = packed.task
    mean_length = task.documents.mean_length if task.documents else task.sequence
    useful_share = mean_length / task.sequence
    padded_rate = useful_share * padded.best["tokens_per_s_per_gpu"]
    return {
        "documents_per_sequence": 1.0 / useful_share,
        "mean_keys": task.mean_keys,
        "useful_share": useful_share,
        "padded_tokens_per_s_per_gpu": float(padded_rate),
        "speedup": float(packed.best["tokens_per_s_per_gpu"] / padded_rate),
    }


def describe_packing(gain: dict[str, float], sequence: int) -> str:
    """Return the result of `packing_gain` as a sentence."""
    return (
        f"a sequence holds {gain['documents_per_sequence']:.3g} documents, and a token sees "
        f"{gain['mean_keys']:,.0f} keys instead of {sequence:,}; padded to that, "
        f"{percent(gain['useful_share'])} of the tokens would be useful: "
        f"{gain['padded_tokens_per_s_per_gpu']:.0f} tokens/s per GPU, packing is "
        f"{gain['speedup']:.3g} × as fast"
    )
