"""Is training on packed documents as fast as plans say? Prints a table; needs torch.

Run: ``python benchmarks/plan_packing.py [--rounds 5]``. A small decoder trains on this machine's
CPU, on sequences of 2,048 tokens: whole, and packed with documents of several histograms, each of
which attends to itself. As in plans, all operators but attention take the time that they take in
whole sequences, and attention takes each length's share of its time in sequences that are full of
documents of that length (measured here, alone). Beside it: attention in proportion to the keys of a
mean token, and no gain at all. All are ratios to whole sequences in the same round.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from foretune.plan.train.documents import Documents

SEQUENCE = 2048
HIDDEN = 256
HEADS = 4
LAYERS = 2
SEQUENCES = 6
"""Packed sequences of a histogram."""
REPEATS = 5
"""Measurements of what a plan is told; packed sequences are averaged."""
HISTOGRAMS = {
    "equal, a quarter": {512: 1.0},
    "short and long": {128: 0.8, 2048: 0.2},
    "chats": {100: 0.3, 300: 0.4, 900: 0.2, 1800: 0.1},
    "longer than a sequence": {256: 0.5, 5000: 0.5},
    "many kinds": {length: 1.0 / length for length in range(32, 2048, 16)},
}
"""Name -> length of documents -> their share."""


@dataclass
class Case:
    """Packed sequences of a histogram.

    Attributes:
        documents: what a plan is told.
        sequences: lengths of the documents in each, drawn at random.
        measured: time over that of whole sequences, by round.
        planned: the same as plans say.
        by_keys: the same if attention is proportional to the mean keys.
    """

    documents: Documents
    sequences: list[list[int]]
    measured: list[float] = field(default_factory=list)
    planned: list[float] = field(default_factory=list)
    by_keys: list[float] = field(default_factory=list)


class Block(nn.Module):
    """A layer of a decoder, whose documents attend to themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.queries_keys_values = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate_up = nn.Linear(HIDDEN, 8 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """Return the layer's output of ``x`` (tokens, `HIDDEN`), packed with these documents."""
        heads = self.queries_keys_values(self.norms[0](x)).view(len(x), 3, HEADS, -1)
        attended = [attention(document) for document in heads.split(lengths)]
        x = x + self.out(torch.cat(attended))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def main() -> None:
    """Print a row per histogram."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    model = nn.ModuleList(Block() for _ in range(LAYERS))
    cases = {name: make_case(counts) for name, counts in HISTOGRAMS.items()}
    step_s(model, [SEQUENCE])
    for _ in range(rounds):
        time_round(model, list(cases.values()))

    print("| documents | mean length | mean keys | measured | planned | by mean keys |")
    print("|---|---|---|---|---|---|")
    for name, case in cases.items():
        told = case.documents
        cells = [name, f"{told.mean_length:.0f}", f"{told.mean_keys:.0f}"]
        cells += [spread(values) for values in (case.measured, case.planned, case.by_keys)]
        print(f"| {' | '.join(cells)} |")


def make_case(counts: dict[int, float]) -> Case:
    """Return sequences that hold documents of a histogram, cut where a sequence ends.

    A plan is told of the pieces, since it takes documents to be packed whole.
    """
    shares = np.array(list(counts.values()))
    draws = np.random.default_rng(0).choice(
        list(counts), SEQUENCES * SEQUENCE, p=shares / shares.sum()
    )

    sequences: list[list[int]] = [[]]
    for document in draws:
        left = int(document)
        while left:
            if sum(sequences[-1]) == SEQUENCE:
                sequences.append([])
            piece = min(left, SEQUENCE - sum(sequences[-1]))
            sequences[-1].append(piece)
            left -= piece
        if len(sequences) > SEQUENCES:
            break
    sequences = sequences[:SEQUENCES]
    pieces = Counter(length for lengths in sequences for length in lengths)
    return Case(Documents.from_counts(pieces, SEQUENCE), sequences)


def time_round(model: nn.ModuleList, cases: Sequence[Case]) -> None:
    """Time whole and packed sequences in turn, and attention of each length alone."""
    for case in cases:
        documents = case.documents
        whole_s = repeated_s(lambda: step_s(model, [SEQUENCE]))
        packed_s = [step_s(model, lengths) for lengths in case.sequences]
        case.measured.append(float(np.mean(packed_s)) / whole_s)

        # What plans say: attention alone changes.
        attention_s = LAYERS * repeated_s(lambda: attention_step_s(SEQUENCE))
        of_kinds_s = [
            LAYERS * repeated_s(partial(attention_step_s, length)) for length in documents.lengths
        ]
        mixed_s = float(np.dot(of_kinds_s, documents.token_shares))
        case.planned.append((whole_s - attention_s + mixed_s) / whole_s)
        by_keys_s = attention_s * documents.mean_keys / SEQUENCE
        case.by_keys.append((whole_s - attention_s + by_keys_s) / whole_s)


def repeated_s(timed: Callable[[], float]) -> float:
    """Return the median of some measurements."""
    return median(timed() for _ in range(REPEATS))


def step_s(model: nn.ModuleList, lengths: list[int]) -> float:
    """Return the seconds of both passes over a sequence of these documents."""
    x = torch.randn(SEQUENCE, HIDDEN)
    start = time.perf_counter()
    for layer in model:
        x = layer(x, lengths)
    x.square().mean().backward()
    return time.perf_counter() - start


def attention_step_s(length: int) -> float:
    """Return the seconds of attention in both passes, of a sequence full of equal documents."""
    count = max(round(SEQUENCE / length), 1)
    inputs = torch.randn(count, length, 3, HEADS, HIDDEN // HEADS, requires_grad=True)
    start = time.perf_counter()
    outputs = torch.cat([attention(document) for document in inputs])
    outputs.square().mean().backward()
    return (time.perf_counter() - start) * SEQUENCE / (count * length)


def attention(document: torch.Tensor) -> torch.Tensor:
    """Return a document's causal attention to itself (tokens, `HIDDEN`)."""
    queries, keys, values = document.permute(1, 2, 0, 3)
    attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return attended.transpose(0, 1).reshape(len(document), HIDDEN)


def spread(values: Sequence[float]) -> str:
    """Return the median, and least to largest."""
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    main()
