"""Routed experts by torch, on the rank with the highest load.

Tokens are sorted by expert. In 16 bits all experts are one grouped product. In other formats they
are multiplied one after the other.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn import functional

from foretune.collect.expert_routing import mean_counts, routing_exponent
from foretune.collect.torch_operators.linear import FORMATS, random_tensor
from foretune.collect.torch_operators.rowwise import silu_and_mul
from foretune.kernel import Launch
from foretune.values import FrozenParameters


def cannot_run(problem: FrozenParameters, config: FrozenParameters) -> str:
    """Return why torch does not run it; empty if it does."""
    if (kind := str(config["format"])) not in FORMATS:
        return f"torch multiplies in {', '.join(FORMATS)}, not in {kind}"
    if config.get("experts", "gated") != "gated":
        return "only experts with a gate are measured"
    return ""


def memory_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    """Return twice the bytes of the rank's weights, plus the activations."""
    hidden, inner = _widths(problem, config)
    local = int(problem["experts"]) // int(config.get("ep", 1))
    pairs = float(sum(_counts(problem, config)))
    weights = 3.0 * local * hidden * inner
    return 4.0 * weights + 2.0 * (
        float(problem["tokens"]) * hidden + pairs * (2.0 * hidden + 3.0 * inner)
    )


def build(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    """Return a call of the rank's experts on the tokens routed to them."""
    tokens = int(problem["tokens"])
    hidden, inner = _widths(problem, config)
    counts = _counts(problem, config)
    random = np.random.default_rng(0)
    rows = np.concatenate([np.sort(random.choice(tokens, n, replace=False)) for n in counts])
    up = random_tensor((len(counts), 2 * inner, hidden), device)
    down = random_tensor((len(counts), hidden, inner), device)
    run = experts(up, down, counts, str(config["format"]))
    token_rows = torch.as_tensor(rows, device=device)
    weights = torch.full((len(rows), 1), 1.0 / int(problem["top_k"]), dtype=up.dtype, device=device)
    activations = random_tensor((tokens, hidden), device)
    return lambda: combine_experts(activations, token_rows, weights, run)


def experts(
    up: torch.Tensor, down: torch.Tensor, counts: Sequence[int], kind: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function of all experts on rows sorted by expert, ``counts`` per expert.

    ``up`` is gate and up projection of every expert in 16 bits, (experts, 2 · inner, hidden), and
    ``down`` is (experts, hidden, inner); ``kind`` is the number format.
    """
    if kind == "bf16" and hasattr(functional, "grouped_mm"):  # torch 2.10 on
        ends = torch.as_tensor(np.cumsum(counts), dtype=torch.int32, device=up.device)
        wide, narrow = up.transpose(1, 2), down.transpose(1, 2)
        return lambda rows: functional.grouped_mm(
            silu_and_mul(functional.grouped_mm(rows, wide, offs=ends)), narrow, offs=ends
        )
    pairs = [
        (FORMATS[kind](a), FORMATS[kind](b))
        for a, b, count in zip(up, down, counts, strict=True) if count
    ]  # fmt: skip
    nonzero_counts = [count for count in counts if count]

    def one_by_one(rows: torch.Tensor) -> torch.Tensor:
        results = []
        for (first, second), part in zip(pairs, torch.split(rows, nonzero_counts), strict=True):
            inside = silu_and_mul(first.multiply(first.prepare(part)))
            results.append(second.multiply(second.prepare(inside)))
        return torch.cat(results).to(rows.dtype)

    return one_by_one


def combine_experts(
    activations: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    run: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return the weighted sum of the experts' outputs per token, (tokens, hidden).

    ``rows`` is the token and ``weights`` the weight of each token-expert pair, sorted by expert.
    """
    made = run(activations[rows]).mul_(weights)
    return torch.zeros_like(activations).index_add_(0, rows, made)


def _widths(problem: FrozenParameters, config: FrozenParameters) -> tuple[int, int]:
    return int(problem["hidden"]), int(problem["intermediate"]) // int(config.get("tp", 1))


def _counts(problem: FrozenParameters, config: FrozenParameters) -> list[int]:
    """Return the tokens of each expert of the busiest rank.

    It has the most popular expert and an evenly spaced selection of the others.
    """
    n, top_k, tokens = (int(problem[name]) for name in ("experts", "top_k", "tokens"))
    local = max(n // int(config.get("ep", 1)), 1)
    exponent = routing_exponent(str(problem.get("distribution", "balanced")))
    share = mean_counts(tokens, top_k, n, exponent)
    others = np.linspace(1, n - 1, local - 1).round().astype(int)
    chosen = share[[0, *others]]
    # whole tokens with the same sum as the shares, so that a few tokens still reach experts
    ends = np.cumsum(chosen).round().astype(int)
    counts = np.diff(ends, prepend=0).clip(max=tokens)
    counts[0] = max(counts[0], 1)
    return [int(count) for count in counts]
