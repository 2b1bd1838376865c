"""A small transformer with real weights, cut the ways that plans cut models.

Every operator of `operators.decoder` is one function here. Ranks compose steps of them,
and the same functions are what is timed one by one, so that a step's prediction and the step
itself speak of the same code. Only the processes of the check import this: it needs torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from foretune.plan.describe.description import ModelDescription

EPSILON = 1e-6
ROPE_BASE = 10_000.0

Tensor = torch.Tensor
Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of every layer: (requests, key heads, tokens, head size)."""


@dataclass(frozen=True)
class RankExchange:
    """How ranks that share a layer exchange their parts; those of a single rank do nothing.

    Attributes:
        rank: of this process among them.
        ranks: how many.
        all_reduce: sums a tensor over all ranks, in place.
        all_gather: joins the ranks' columns of a matrix.
    """

    rank: int = 0
    ranks: int = 1
    all_reduce: Callable[[Tensor], Tensor] = lambda part: part
    all_gather: Callable[[Tensor], Tensor] = lambda part: part


@dataclass(frozen=True)
class Layer:
    """One rank's weights of a layer, output features first."""

    before: Tensor
    qkv: Tensor
    out: Tensor
    between: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Shard:
    """What one rank holds of a model: some layers, and its slice of each.

    Attributes:
        model: the whole.
        layers: of this stage.
        exchange: with the ranks that hold the other slices.
        embedding: rows of this rank's tokens; None but in the first stage.
        head: like it, and ``norm`` before it; None but in the last stage.
    """

    model: ModelDescription
    layers: list[Layer]
    exchange: RankExchange
    embedding: Tensor | None
    norm: Tensor | None
    head: Tensor | None

    @property
    def heads(self) -> int:
        """Query heads on this rank."""
        return self.model.heads // self.exchange.ranks

    @property
    def kv_heads(self) -> int:
        """Key heads on this rank."""
        return self.model.kv_heads // self.exchange.ranks

    def empty_cache(self, batch: int, tokens: int) -> Cache:
        """Return room for ``tokens`` of each of ``batch`` requests."""
        shape = batch, self.kv_heads, tokens, self.model.head_dim
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in self.layers]


def make_shard(
    model: ModelDescription, exchange: RankExchange, stage: int = 0, stages: int = 1, seed: int = 0
) -> Shard:
    """Return a rank's part of the model that ``seed`` means; all ranks draw the same weights."""
    generator = torch.Generator().manual_seed(seed)

    def weight(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    hidden = model.hidden
    dim = model.head_dim
    ranks = exchange.ranks
    first = stage * model.layers // stages
    last = (stage + 1) * model.layers // stages
    embedding = weight(model.vocab, hidden)
    head = weight(model.vocab, hidden)
    layers = []
    for index in range(model.layers):
        q = weight(model.heads * dim, hidden)
        k, v = (weight(model.kv_heads * dim, hidden) for _ in range(2))
        out = weight(hidden, model.heads * dim)
        gate, up = (weight(model.intermediate, hidden) for _ in range(2))
        down = weight(hidden, model.intermediate)
        if first <= index < last:
            ones = torch.ones(hidden)
            qkv = torch.cat([_rows(part, exchange) for part in (q, k, v)])
            gate_up = torch.cat([_rows(part, exchange) for part in (gate, up)])
            layers.append(
                Layer(ones, qkv, _columns(out, exchange), ones, gate_up, _columns(down, exchange))
            )
    if model.vocab % ranks:
        raise ValueError(f"{model.vocab} tokens cannot be split over {ranks} ranks")
    return Shard(
        model,
        layers,
        exchange,
        embedding=_rows(embedding, exchange) if stage == 0 else None,
        norm=torch.ones(hidden) if stage == stages - 1 else None,
        head=_rows(head, exchange) if stage == stages - 1 else None,
    )


def forward(shard: Shard, inputs: Tensor, cache: Cache, start: int) -> Tensor:
    """Run a stage on new tokens of some requests.

    Args:
        shard: what this rank holds.
        inputs: token numbers (requests, tokens) in the first stage, else what the stage before
            returned.
        cache: of keys and values; the new tokens' are written into it.
        start: tokens that the cache holds already.

    Returns:
        Logits of every request's last token in the last stage, else activations for the next.
    """
    if shard.embedding is not None:  # noqa: SIM108
        x = embed(inputs, shard.embedding, shard.exchange)
    else:
        x = inputs
    rotation = angles(start, x.shape[1], shard.model.head_dim)
    update = None
    for layer, (keys, values) in zip(shard.layers, cache, strict=True):
        x, normal = normalize(x, update, layer.before)
        attention = _attention(shard, layer, normal, keys, values, start, rotation)
        x, normal = normalize(x, shard.exchange.all_reduce(attention), layer.between)
        update = shard.exchange.all_reduce(project(gate(project(normal, layer.up)), layer.down))
    if shard.head is None or shard.norm is None:
        return x if update is None else x + update
    _, normal = normalize(x, update, shard.norm)
    return shard.exchange.all_gather(project(normal[:, -1], shard.head))


def _attention(
    shard: Shard, layer: Layer, x: Tensor, keys: Tensor, values: Tensor, start: int, rotation: Any
) -> Tensor:
    batch, tokens, _ = x.shape
    split = project(x, layer.qkv).view(batch, tokens, -1, shard.model.head_dim)
    rotated = rotate(split[:, :, : shard.heads + shard.kv_heads], rotation)
    queries = rotated[:, :, : shard.heads]
    new_keys = rotated[:, :, shard.heads :]
    new_values = split[:, :, shard.heads + shard.kv_heads :]
    return project(attend(queries, new_keys, new_values, keys, values, start), layer.out)


def embed(tokens: Tensor, table: Tensor, exchange: RankExchange) -> Tensor:
    """Return the tokens' rows of a table of which this rank holds some."""
    if exchange.ranks == 1:
        return functional.embedding(tokens, table)
    local_tokens = tokens - exchange.rank * len(table)
    remote = (local_tokens < 0) | (local_tokens >= len(table))
    found = functional.embedding(local_tokens.masked_fill(remote, 0), table)
    return exchange.all_reduce(found.masked_fill_(remote.unsqueeze(-1), 0.0))


def project(x: Tensor, weight: Tensor) -> Tensor:
    """Return a projection without bias (``gemm``)."""
    return functional.linear(x, weight)


def normalize(x: Tensor, rest: Tensor | None, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the residual with what the last block adds, and its root-mean-square norm."""
    total = x if rest is None else x + rest
    return total, functional.rms_norm(total, (total.shape[-1],), scale, EPSILON)


def angles(start: int, tokens: int, dim: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the rotary embedding of tokens from ``start``."""
    rates = ROPE_BASE ** (-torch.arange(0, dim, 2) / dim)
    phase = torch.outer(torch.arange(start, start + tokens).float(), rates).unsqueeze(1)
    return phase.cos(), phase.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Return queries and keys turned by their position (``rope``)."""
    cosine, sine = rotation
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


def attend(
    queries: Tensor, new_keys: Tensor, new_values: Tensor, keys: Tensor, values: Tensor, start: int
) -> Tensor:
    """Write new tokens' keys and values into the cache, and return attention over all of it.

    New tokens come as (requests, tokens, heads, head size) and leave as (requests, tokens, heads
    times head size).
    """
    batch, tokens, heads, _ = queries.shape
    end = start + tokens
    keys[:, :, start:end] = new_keys.transpose(1, 2)
    values[:, :, start:end] = new_values.transpose(1, 2)
    mixed = functional.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys[:, :, :end],
        values[:, :, :end],
        is_causal=start == 0,
        enable_gqa=heads != keys.shape[1],
    )
    return mixed.transpose(1, 2).reshape(batch, tokens, -1)


def gate(both: Tensor) -> Tensor:
    """Return ``silu(left) * right`` of the up-projection's halves (``silu_and_mul``)."""
    left, right = both.chunk(2, dim=-1)
    return functional.silu(left) * right


def _rows(weight: Tensor, exchange: RankExchange) -> Tensor:
    return weight.chunk(exchange.ranks, dim=0)[exchange.rank].contiguous()


def _columns(weight: Tensor, exchange: RankExchange) -> Tensor:
    return weight.chunk(exchange.ranks, dim=1)[exchange.rank].contiguous()
