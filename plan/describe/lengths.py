"""Requests of several lengths: a histogram of prompts and answers, and what follows from it.

A request is in flight as long as its answer takes. Of the requests that run at a moment, those with
long answers are therefore more than their share of all requests: each counts ``osl`` times
(`LengthMix.running_shares`). This decides the cache that a step reads, and the memory it takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.errors import ProblemError

MAX_TOKENS = 2**31
"""Maximum tokens of a request."""
PROMPT_GROUPS = 16
ANSWER_GROUPS = 8
"""A histogram with more kinds of requests is joined to groups of prompts, each with groups of
answers. Each group is a kind with its mean lengths."""
MAX_KINDS = PROMPT_GROUPS * ANSWER_GROUPS


@dataclass(frozen=True)
class LengthMix:
    """Kinds of requests, and the share of each. Raises ProblemError if they are none.

    Attributes:
        isl: input tokens of each kind.
        osl: output tokens of each kind.
        shares: of all requests; they add up to 1.
        longest: input and output tokens of the longest request.
        longest_prompt: input tokens of the longest prompt.
    """

    isl: tuple[int, ...]
    osl: tuple[int, ...]
    shares: tuple[float, ...]
    longest: int
    longest_prompt: int

    @classmethod
    def from_counts(cls, isl: Sequence[int], osl: Sequence[int], counts: Sequence[float]) -> Self:
        """Return the mix of requests that occur ``counts`` times each.

        Equal requests are added up, those that never occur are left out, and a long list is joined
        to at most `MAX_KINDS` kinds. The mean lengths stay.
        """
        # Each pair of lengths once, with all that occur of it.
        lengths = np.column_stack(
            [np.asarray(isl, dtype=np.int64), np.asarray(osl, dtype=np.int64)]
        )
        number = np.asarray(counts, dtype=float)
        occurs = number > 0
        if not occurs.any():
            raise ProblemError("no request occurs: give lengths with counts or shares above 0")
        if lengths.min() < 1 or lengths.max() >= MAX_TOKENS:
            raise ProblemError("each length must be at least 1 token, and less than 2^31")
        joint = lengths[occurs, 0] * MAX_TOKENS + lengths[occurs, 1]
        distinct, pair_of_row = np.unique(joint, return_inverse=True)
        pairs = np.column_stack(np.divmod(distinct, MAX_TOKENS))
        occurrences = np.bincount(pair_of_row, number[occurs])
        shares = occurrences / occurrences.sum()

        longest = int(pairs.sum(axis=1).max())
        longest_prompt = int(pairs[:, 0].max())
        if len(pairs) > MAX_KINDS:
            pairs, shares = _joined(pairs, shares)
        return cls(
            isl=tuple(pairs[:, 0].tolist()),
            osl=tuple(pairs[:, 1].tolist()),
            shares=tuple(shares.tolist()),
            longest=longest,
            longest_prompt=longest_prompt,
        )

    @classmethod
    def of_independent(cls, prompts: Mapping[int, float], answers: Mapping[int, float]) -> Self:
        """Return the mix of prompts and answers that do not depend on each other.

        Both map tokens to a count or a share.
        """
        pairs = [(isl, osl) for isl in prompts for osl in answers]
        return cls.from_counts(
            isl=[isl for isl, _ in pairs],
            osl=[osl for _, osl in pairs],
            counts=[prompts[isl] * answers[osl] for isl, osl in pairs],
        )

    def __str__(self) -> str:
        prompts = f"prompts of {min(self.isl):,} to {self.longest_prompt:,} tokens"
        answers = f"answers of {min(self.osl):,} to {max(self.osl):,}"
        return (
            f"{prompts} (mean {self.mean_isl:,.0f}), {answers} (mean {self.mean_osl:,.0f}), "
            f"{len(self.shares)} kinds"
        )

    @property
    def mean_isl(self) -> float:
        """Mean input tokens."""
        return float(np.dot(self.shares, self.isl))

    @property
    def mean_osl(self) -> float:
        """Mean output tokens."""
        return float(np.dot(self.shares, self.osl))

    @property
    def running_shares(self) -> np.ndarray:
        """The share of each kind among the requests that run at a moment."""
        weights = np.multiply(self.shares, self.osl)
        running: np.ndarray = weights / weights.sum()
        return running

    @property
    def mean_context(self) -> float:
        """Mean cached tokens of a running request: it is halfway through its answer."""
        halfway = np.array(self.isl) + np.array(self.osl) / 2
        return float(self.running_shares @ halfway)

    def draw(self, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the input and output tokens of ``count`` requests in random order.

        Each kind occurs as often as its share says, give or take one request, so that few requests
        have the mix's mean lengths, too.
        """
        # Where each of the requests lies in the cumulated shares, as in systematic sampling.
        rng = np.random.default_rng(seed)
        positions = (np.arange(count) + rng.random()) / count
        ends = np.cumsum(self.shares)
        kinds = np.searchsorted(ends / ends[-1], positions, side="right")
        shuffled = rng.permutation(np.minimum(kinds, len(self.shares) - 1))
        return np.array(self.isl)[shuffled], np.array(self.osl)[shuffled]


def _joined(pairs: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return few kinds in place of many: groups of prompts, each with groups of answers.

    All groups of a list have about equal shares. A group's lengths are its means, rounded.
    """
    group = ANSWER_GROUPS * _equal_groups(pairs[:, 0], shares, PROMPT_GROUPS)
    for first in np.unique(group):
        members = group == first
        group[members] += _equal_groups(pairs[members, 1], shares[members], ANSWER_GROUPS)

    _, group_of_pair = np.unique(group, return_inverse=True)
    share_of_group = np.bincount(group_of_pair, shares)
    means = [
        np.bincount(group_of_pair, shares * pairs[:, axis]) / share_of_group for axis in (0, 1)
    ]
    return np.maximum(np.round(np.column_stack(means)), 1).astype(int), share_of_group


def _equal_groups(lengths: np.ndarray, shares: np.ndarray, groups: int) -> np.ndarray:
    """Return the group of each length, from short to long; equal lengths have one group."""
    distinct, number = np.unique(lengths, return_inverse=True)
    share_of_length = np.bincount(number, shares, minlength=len(distinct))
    before = np.cumsum(share_of_length) - share_of_length
    group_of_length = (groups * before / share_of_length.sum()).astype(int)
    group: np.ndarray = np.minimum(group_of_length, groups - 1)[number]
    return group
