"""Mixture of experts: each token passes the products of its top-k experts.

Measured tables use synthetic routing (see `foretune.collect.expert_routing`) and time the rank with
the highest load, because all others wait for it.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from foretune.collect.expert_routing import mean_counts, routing_exponent
from foretune.family import Cells, Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import map_texts, wave_features

MATRICES = 3.0  # gate, up and down projection of a gated expert
WIDE_BYTES = 2.0  # bytes of an intermediate value that is not in the products' format
CHUNK = 2**20  # experts processed at a time, to bound memory


@dataclass(frozen=True)
class ExpertLoad:
    """Load of the busiest rank, per row.

    ``pairs`` counts (token, expert) pairs, ``active`` the experts with at least one token,
    ``largest`` the tokens of the most loaded expert.
    """

    pairs: np.ndarray
    active: np.ndarray
    largest: np.ndarray


class Moe(Family):
    """Columns: problem.tokens, hidden, intermediate, top_k, experts; config.format, tp, ep."""

    name = "moe"

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return the work of the busiest rank; each active expert is read once.

        Besides the products, rows are gathered by expert, activated, scattered and added. A pair's
        row is read or written five times at the hidden width and six times at the inner width; the
        products' inputs are in their own format. Every rank reads and writes all tokens.
        """
        hidden, inner = problem["hidden"], _inner(problem, config)
        kind, load = config.get("format", "bf16"), _load(problem, config)
        weights = load.active * MATRICES * hidden * inner
        wide = load.pairs * (3.0 * hidden + 4.0 * inner) + 2.0 * problem["tokens"] * hidden
        narrow = load.pairs * 2.0 * (hidden + inner)
        return Cost(
            flops=2.0 * MATRICES * load.pairs * hidden * inner,
            bytes_moved=formats.weight_bytes(kind) * weights
            + formats.activation_bytes(kind) * narrow
            + WIDE_BYTES * wide,
            dtype=formats.compute_dtype(kind),
        )

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return tokens per expert, active experts, one expert's sizes and the total tile count."""
        hidden, inner = problem["hidden"], _inner(problem, config)
        load = _load(problem, config)
        per_expert = load.pairs / load.active
        rows = load.active * np.ceil(per_expert / 64)
        return {
            "log2_pairs": np.log2(load.pairs),
            "log2_per_expert": np.log2(per_expert),
            "log2_largest": np.log2(load.largest),
            "imbalance": load.largest / per_expert,
            "log2_active": np.log2(load.active),
            "log2_local_experts": np.log2(_local(problem, config)),
            "log2_inner": np.log2(inner),
            "log2_expert": np.log2(1.0 * hidden * inner),
            "log2_all_experts": np.log2(_local(problem, config) * hidden * inner),
            "sparsity": problem["top_k"] / problem["experts"],
            **wave_features("up", rows * np.ceil(2.0 * inner / 128), device),
            **wave_features("down", rows * np.ceil(hidden / 128), device),
        }


def _inner(problem: Cells, config: Cells) -> Quantity:
    return problem["intermediate"] / (1.0 * config.get("tp", 1.0))


def _local(problem: Cells, config: Cells) -> Quantity:
    return problem["experts"] / (1.0 * config.get("ep", 1.0))


def _load(problem: Cells, config: Cells) -> ExpertLoad:
    ranks, routing = config.get("ep", 1.0), problem.get("distribution", "balanced")
    return max_rank_load(problem["tokens"], problem["top_k"], problem["experts"], ranks, routing)


def max_rank_load(
    tokens: Any, top_k: Any, experts: Any, ranks: Any, distribution: Any
) -> ExpertLoad:
    """Return the largest load among ``ranks`` ranks (scalars or equally long arrays)."""
    sizes = (tokens, top_k, experts, ranks)
    if isinstance(distribution, str) and all(isinstance(v, (int, float)) for v in sizes):
        return _load_of_one(*sizes, distribution)
    exponent = map_texts(distribution, routing_exponent)
    columns = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (*sizes, exponent)))
    shape = columns[0].shape
    rows = np.stack([column.ravel() for column in columns], axis=1)
    number = pd.DataFrame(rows).groupby(list(range(5)), sort=False, dropna=False).ngroup()
    first = np.unique(number, return_index=True)[1]
    found = _loads(rows[first])[number]
    return ExpertLoad(*(found[:, i].reshape(shape) for i in range(3)))


@lru_cache(maxsize=4096)
def _load_of_one(
    tokens: float, top_k: float, experts: float, ranks: float, distribution: str
) -> ExpertLoad:
    sizes = np.array([[tokens, top_k, experts, ranks, routing_exponent(distribution)]], dtype=float)
    return ExpertLoad(*_loads(sizes)[0])


def _loads(rows: np.ndarray) -> np.ndarray:
    """Return pairs, active experts and largest expert of the busiest rank, shape (n, 3)."""
    loads = np.full((len(rows), 3), np.nan)
    _, _, experts, ranks, exponent = rows.T
    known = np.isfinite(rows[:, :4]).all(axis=1) & (ranks > 0)
    even = known & (exponent == 0.0)
    loads[even] = _even(*rows[even, :4].T)
    sizes = np.maximum(np.trunc(np.where(known, experts, 1.0)), 1.0)
    uneven = known & ~even
    kinds = np.unique(np.stack([sizes, exponent], axis=1)[uneven], axis=0)
    for size, power in kinds:
        there = np.flatnonzero(uneven & (sizes == size) & (exponent == power))
        for part in np.array_split(there, max(len(there) * int(size) // CHUNK, 1)):
            loads[part] = _uneven(rows[part, :4], int(size), float(power))
    return loads


def _even(
    tokens: np.ndarray, top_k: np.ndarray, experts: np.ndarray, ranks: np.ndarray
) -> np.ndarray:
    n, pairs = np.maximum(np.trunc(experts), 1.0), tokens * top_k
    local = np.maximum(np.trunc(experts / ranks), 1.0)
    mine = np.maximum(pairs / ranks, 1.0)
    return np.stack([mine, np.minimum(local, mine), np.maximum(pairs / n, 1.0)], axis=1)


def _uneven(rows: np.ndarray, n: int, exponent: float) -> np.ndarray:
    """Return the loads of rows with ``n`` experts and one power-law exponent."""
    tokens, top_k, experts, ranks = (column[:, None] for column in rows.T)
    counts = mean_counts(tokens, top_k, n, exponent)
    local = np.maximum(np.trunc(experts / ranks), 1.0)[:, 0]
    others = counts[:, 1:].mean(axis=1) if n > 1 else 0.0
    largest = counts[:, 0]
    mine = np.maximum(largest + (local - 1) * others, 1.0)
    # Counts are means, so an expert may get no token.
    expected_active = (1.0 - np.exp(-counts)).mean(axis=1) * local
    active = np.minimum(np.maximum(expected_active, 1.0), mine)
    return np.stack([mine, active, np.maximum(largest, 1.0)], axis=1)
