"""Mixtures of experts: those of the rank with the highest load.

Tokens are sorted by expert. In 16 bits all experts are one grouped product, in other formats they
are multiplied one after the other.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn import functional

from foretune.collect.expert_routing import mean_counts, routing_exponent
from foretune.collect.torch_operators.products import FORMATS, refuse_format
from foretune.collect.torch_operators.row_operations import silu_and_mul
from foretune.collect.torch_operators.tensors import random_tensor
from foretune.kernel import Launch
from foretune.values import FrozenParameters

BYTES_PER_NUMBER = 2.0
"""Of weights and activations as they are drawn."""

Experts = Callable[[torch.Tensor], torch.Tensor]
"""A function that applies the experts to rows sorted by expert."""


def experts(
    up: torch.Tensor, down: torch.Tensor, counts: Sequence[int], number_format: str
) -> Experts:
    """Return a function that applies the experts to rows sorted by expert, ``counts`` per expert.

    ``up`` is gate and up projection of every expert in 16 bits, (experts, 2 · inner, hidden), and
    ``down`` is (experts, hidden, inner).
    """
    # Torch has grouped products from 2.10 on.
    if number_format == "bf16" and hasattr(functional, "grouped_mm"):
        return _grouped(up, down, counts)
    return _one_by_one(up, down, counts, number_format)


def _grouped(up: torch.Tensor, down: torch.Tensor, counts: Sequence[int]) -> Experts:
    """Apply all experts by two grouped products."""
    ends = torch.as_tensor(np.cumsum(counts), dtype=torch.int32, device=up.device)
    up_columns = up.transpose(1, 2)
    down_columns = down.transpose(1, 2)

    def run(rows: torch.Tensor) -> torch.Tensor:
        inside = silu_and_mul(functional.grouped_mm(rows, up_columns, offs=ends))
        return functional.grouped_mm(inside, down_columns, offs=ends)

    return run


def _one_by_one(
    up: torch.Tensor, down: torch.Tensor, counts: Sequence[int], number_format: str
) -> Experts:
    """Apply one expert after the other; those without rows are left out."""
    make_linear = FORMATS[number_format]
    layers = [
        (make_linear(expert_up), make_linear(expert_down))
        for expert_up, expert_down, count in zip(up, down, counts, strict=True)
        if count
    ]
    nonzero_counts = [count for count in counts if count]

    def run(rows: torch.Tensor) -> torch.Tensor:
        results = []
        parts = torch.split(rows, nonzero_counts)
        for (first, second), part in zip(layers, parts, strict=True):
            inside = silu_and_mul(first.multiply(first.prepare(part)))
            results.append(second.multiply(second.prepare(inside)))
        return torch.cat(results).to(rows.dtype)

    return run


def combine_experts(
    activations: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor, run: Experts
) -> torch.Tensor:
    """Return the weighted sum of the experts' outputs per token, (tokens, hidden).

    ``rows`` is the token and ``weights`` the weight of each token-expert pair, sorted by expert.
    """
    weighted = run(activations[rows]).mul_(weights)
    return torch.zeros_like(activations).index_add_(0, rows, weighted)


def cannot_run(problem: FrozenParameters, config: FrozenParameters) -> str:
    """Return why torch cannot run an operator; "" if it can."""
    reason = refuse_format(str(config["format"]))
    if reason:
        return reason
    if config.get("experts", "gated") != "gated":
        return "only experts with a gate are measured"
    return ""


def memory_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    """Return twice the bytes of the rank's weights, plus the activations."""
    hidden, inner = _widths(problem, config)
    local_experts = int(problem["experts"]) // int(config.get("ep", 1))
    pairs = float(sum(busiest_rank_counts(problem, config)))

    # An expert has a gate, an up and a down projection.
    weights = 3.0 * local_experts * hidden * inner
    # Per token its input; per token-expert pair input and output, gate and up projection, and
    # their product.
    activations = float(problem["tokens"]) * hidden + pairs * (2.0 * hidden + 3.0 * inner)
    return 2.0 * BYTES_PER_NUMBER * weights + BYTES_PER_NUMBER * activations


def build(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    """Return a call that runs the busiest rank's experts on random tokens."""
    tokens = int(problem["tokens"])
    hidden, inner = _widths(problem, config)
    counts = busiest_rank_counts(problem, config)

    up = random_tensor((len(counts), 2 * inner, hidden), device)
    down = random_tensor((len(counts), hidden, inner), device)
    run = experts(up, down, counts, str(config["format"]))

    # Each expert gets random tokens, and all experts of a token weigh the same.
    rng = np.random.default_rng(0)
    tokens_by_expert = [np.sort(rng.choice(tokens, count, replace=False)) for count in counts]
    rows = torch.as_tensor(np.concatenate(tokens_by_expert), device=device)
    weight = 1.0 / int(problem["top_k"])
    weights = torch.full((len(rows), 1), weight, dtype=up.dtype, device=device)
    activations = random_tensor((tokens, hidden), device)
    return lambda: combine_experts(activations, rows, weights, run)


def busiest_rank_counts(problem: FrozenParameters, config: FrozenParameters) -> list[int]:
    """Return the busiest rank's tokens by expert: the most popular one, others evenly spaced."""
    n_experts, top_k, tokens = (int(problem[name]) for name in ("experts", "top_k", "tokens"))
    n_local = max(n_experts // int(config.get("ep", 1)), 1)
    exponent = routing_exponent(str(problem.get("distribution", "balanced")))

    # Mean counts, the most popular expert first. The busiest rank has that one, and others of all
    # ranks of popularity.
    mean_of_expert = mean_counts(tokens, top_k, n_experts, exponent)
    other_experts = np.linspace(1, n_experts - 1, n_local - 1).round().astype(int)
    mean_of_local = mean_of_expert[[0, *other_experts]]

    # Whole tokens with the same sum as the means, so that a few tokens still reach experts.
    ends = np.cumsum(mean_of_local).round().astype(int)
    counts = np.diff(ends, prepend=0).clip(max=tokens)
    counts[0] = max(counts[0], 1)
    return [int(count) for count in counts]


def _widths(problem: FrozenParameters, config: FrozenParameters) -> tuple[int, int]:
    """Return the hidden size, and the inner size of an expert on one rank."""
    hidden = int(problem["hidden"])
    inner = int(problem["intermediate"]) // int(config.get("tp", 1))
    return hidden, inner
