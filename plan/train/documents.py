"""Documents that are packed into the sequences of a training step.

A packed sequence holds several documents, end to end, and each attends to itself alone (as with
variable-length attention). All other operators see only tokens, so packing changes the time of
attention, and nothing else. Without packing, each document has a sequence of its own, and the rest
of it is padding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.errors import ProblemError

MAX_KINDS = 16
"""Kinds of lengths that are kept apart; more are joined, each with its tokens' mean length."""


@dataclass(frozen=True)
class Documents:
    """Lengths of packed documents, none longer than a sequence.

    Attributes:
        lengths: tokens of each kind.
        token_shares: share of all tokens that are in documents of each kind; they add up to 1.
        mean_length: mean tokens of a document.
    """

    lengths: tuple[int, ...]
    token_shares: tuple[float, ...]
    mean_length: float

    @classmethod
    def from_counts(cls, counts: Mapping[int, float], sequence: int) -> Self:
        """Return the documents of a histogram, length -> count or share.

        Longer ones are cut into whole sequences and a rest. Raises ProblemError if there are none.
        """
        pieces = _cut(counts, sequence)
        if not pieces:
            raise ProblemError("no document has a token: give lengths with counts above 0")

        lengths = np.array(sorted(pieces), dtype=float)
        numbers = np.array([pieces[int(length)] for length in lengths])
        tokens = lengths * numbers
        mean_length = float(tokens.sum() / numbers.sum())
        if len(lengths) > MAX_KINDS:
            lengths, tokens = _joined(lengths, tokens)
        return cls(
            lengths=tuple(np.rint(lengths).astype(int).tolist()),
            token_shares=tuple((tokens / tokens.sum()).tolist()),
            mean_length=mean_length,
        )

    @property
    def mean_keys(self) -> float:
        """Keys in the document of a mean token, masked or not."""
        return float(np.dot(self.lengths, self.token_shares))


def _cut(counts: Mapping[int, float], sequence: int) -> dict[int, float]:
    """Return the lengths of pieces that fit in a sequence, and their counts."""
    pieces: dict[int, float] = {}
    for length, count in counts.items():
        whole, rest = divmod(length, sequence)
        for size, number in ((sequence, whole * count), (rest, count)):
            if size and number > 0:
                pieces[size] = pieces.get(size, 0.0) + number
    return pieces


def _joined(lengths: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `MAX_KINDS` kinds: neighbors are joined, so that attention's work stays."""
    edges = np.geomspace(lengths[0], lengths[-1], MAX_KINDS + 1)[1:-1]
    kind = np.searchsorted(edges, lengths, side="right")
    tokens_of_kind = np.bincount(kind, tokens, minlength=MAX_KINDS)
    work_of_kind = np.bincount(kind, tokens * lengths, minlength=MAX_KINDS)
    used = tokens_of_kind > 0
    return work_of_kind[used] / tokens_of_kind[used], tokens_of_kind[used]
