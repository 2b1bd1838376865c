"""Which columns of a table hold lengths of requests, and how often each occurs.

Names are those of many tools. A column that may be the counts but is called otherwise is refused:
without it, each row would count as one request.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from foretune.errors import RunTableError

COLUMNS: Mapping[str, Sequence[str]] = {
    "isl": (
        *("isl", "prompt_tokens", "num_prompt_tokens", "context_tokens", "input_tokens"),
        *("num_input_tokens", "input_length", "input_len", "prompt_length", "prompt_len"),
        *("num_prefill_tokens", "prefill_tokens", "request_tokens", "tokens_in", "in_tokens"),
        *("input_token_count", "prompt_token_count", "input_sequence_length", "input_lens"),
        *("prompt_size", "input_size"),
    ),
    "osl": (
        *("osl", "completion_tokens", "num_completion_tokens", "generated_tokens"),
        *("output_tokens", "num_output_tokens", "output_length", "output_len"),
        *("completion_length", "completion_len", "answer_tokens", "num_decode_tokens"),
        *("num_generated_tokens", "response_tokens", "decode_tokens", "tokens_out", "out_tokens"),
        *("output_token_count", "candidates_token_count", "output_sequence_length", "output_lens"),
        *("token_size", "output_size"),
    ),
    "count": (
        *("count", "counts", "number", "requests", "num_requests", "frequency", "weight"),
        *("requests_per_s", "share", "shares", "probability", "percent"),
        *("n", "freq", "cnt", "occurrences", "rate", "rps", "qps", "anzahl"),
        *("prob", "fraction", "ratio", "pct", "percentage", "density", "anteil"),
    ),
}
"""What a column is -> names of it, in lower case and with ``_`` between words: of vLLM's and
OpenAI's usage, Azure's traces (``ContextTokens``, ``GeneratedTokens``), BurstGPT (``Request
tokens``, ``Response tokens``), Mooncake (``input_length``), Vidur (``num_prefill_tokens``), AIPerf
(``input_sequence_length``), Gemini (``promptTokenCount``), ``vllm bench serve --save-detailed``
(``input_lens``), Splitwise (``prompt_size``, ``token_size``)."""

SHARE_COLUMNS = (
    *("share", "shares", "probability", "percent"),
    *("prob", "fraction", "ratio", "pct", "percentage", "density", "anteil"),
)
"""Names of columns that must add up to 1, or to 100."""
PERCENT = 100.0
SHARES_TOLERANCE = 0.02
"""Rounded shares may be off their sum by so much, relatively."""

OTHER_PROMPT_COLUMNS = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Anthropic's columns of prompts' tokens that its ``input_tokens`` leave out."""
PERCENTILE_COLUMNS = ("percentile", "percentiles", "quantile", "quantiles", "pctl")
TEXTS = ("conversations", "conversation", "messages", "prompt", "text", "body.messages")
"""Columns of data sets with texts, in which nothing is counted."""
VALUE_ENDINGS = (".value", ".avg", ".mean")
"""Ends of paths below the name of a metric: AIPerf writes a value beside its unit."""


@dataclass(frozen=True)
class LengthColumns:
    """The names of a table's columns of lengths.

    Attributes:
        isl, osl: tokens of prompts and of answers.
        count: how often each row occurs; empty if each is a request.
        other_prompts: tokens of prompts that ``isl`` leaves out.
        unread: all others.
    """

    isl: str
    osl: str
    count: str
    other_prompts: Sequence[str]
    unread: Sequence[str]

    @property
    def has_shares(self) -> bool:
        """Whether the counts are shares of all requests."""
        return plain_name(self.count) in SHARE_COLUMNS


def length_columns(table: pd.DataFrame, path: str | os.PathLike[str]) -> LengthColumns:
    """Return which columns are what; raises RunTableError if one is missing, or in doubt."""
    found = named_columns(table, COLUMNS, path)
    require_columns(found, ("isl", "osl"), COLUMNS, table, path)

    others = [str(name) for name in table if str(name) not in found.values()]
    other_prompts: list[str] = []
    if plain_name(found["isl"]) == "input_tokens":
        other_prompts = [name for name in others if plain_name(name) in OTHER_PROMPT_COLUMNS]
    unread = [name for name in others if name not in other_prompts]
    if "count" not in found:
        require_no_counts(table, unread, path)
    return LengthColumns(
        isl=found["isl"],
        osl=found["osl"],
        count=found.get("count", ""),
        other_prompts=other_prompts,
        unread=unread,
    )


def plain_name(name: str) -> str:
    """Return a column's name in lower case, with ``_`` between words: ContextTokens, Prompt Len.

    Of a path (``response.body.usage.prompt_tokens``), it is the end.
    """
    name = name.strip()
    for ending in VALUE_ENDINGS:
        name = name.removesuffix(ending)
    name = name.rpartition(".")[2]
    spaced = "".join(f"_{c}" if c.isupper() else c for c in name)
    words = spaced.replace(" ", "_").replace("-", "_").lower().split("_")
    # Capitals alone, like ISL, are one word.
    if name.isupper():
        return name.lower().replace(" ", "_")
    return "_".join(word for word in words if word)


def adds_up(shares: Sequence[float]) -> bool:
    """Whether shares add up to 1, or to 100 percent."""
    total = sum(shares)
    return any(abs(total / whole - 1.0) <= SHARES_TOLERANCE for whole in (1.0, PERCENT))


def require_shares(shares: Sequence[float], where: str) -> None:
    """Raise RunTableError unless shares add up to 1, or to 100 percent."""
    if not adds_up(shares):
        total = sum(shares)
        raise RunTableError(f"{where}: the shares add up to {total:.4g} instead of 1: check them")


def named_columns(
    table: pd.DataFrame, known: Mapping[str, Sequence[str]], path: str | os.PathLike[str]
) -> dict[str, str]:
    """Return the columns that are called by ``known`` names: what it is -> its name in the table.

    Raises RunTableError if two are the same.
    """
    found: dict[str, str] = {}
    for what, names in known.items():
        of_kind = [str(name) for name in table if plain_name(str(name)) in names]
        if len(of_kind) > 1:
            raise RunTableError(
                f"{path} has {' and '.join(of_kind)}, which both are {what}: leave one out"
            )
        if of_kind:
            found[what] = of_kind[0]
    return found


def require_columns(
    found: Mapping[str, str],
    needed: Sequence[str],
    known: Mapping[str, Sequence[str]],
    table: pd.DataFrame,
    path: str | os.PathLike[str],
) -> None:
    """Raise RunTableError if a column of lengths is missing."""
    missing = [what for what in needed if what not in found]
    if not missing:
        return
    texts = [str(name) for name in table if str(name) in TEXTS]
    if texts:
        columns = f"a column {needed[0]}" if len(needed) == 1 else f"columns {' and '.join(needed)}"
        raise RunTableError(
            f"{path} has texts ({texts[0]}), not lengths: count their tokens with the model's "
            f"tokenizer, and write {columns}"
        )
    raise RunTableError(
        f"{path} has no column {missing[0]}, also not as {', '.join(known[missing[0]][1:5])}, …; "
        f"it has {', '.join(map(str, table))}"
    )


def require_no_counts(
    table: pd.DataFrame, unread: Sequence[str], path: str | os.PathLike[str]
) -> None:
    """Raise RunTableError for rows that are percentiles, and for shares by another name."""
    for name in unread:
        if plain_name(name) in PERCENTILE_COLUMNS:
            raise RunTableError(
                f"{path} has percentiles ({name}), not requests: give a row per request, or per "
                "pair of lengths with a column share"
            )
        # A column of zeros and ones is no share.
        numbers = pd.to_numeric(table[name], errors="coerce").astype(float)
        are_fractions = bool(((numbers > 0) & (numbers < 1)).all())
        are_percent = bool((numbers > 0).all()) and numbers.sum() == PERCENT
        if len(table) > 1 and (are_percent or (are_fractions and adds_up(numbers.tolist()))):
            raise RunTableError(
                f"{path}: column {name} adds up to {numbers.sum():g}: call it share if it is the "
                "share of each row, else leave it out"
            )
