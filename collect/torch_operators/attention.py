"""Attention by torch: causal for prompts, over the whole cache for a new token."""

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from foretune.collect.torch_operators.linear import random_tensor
from foretune.kernel import Launch
from foretune.values import FrozenParameters


def cannot_run(problem: FrozenParameters, config: FrozenParameters) -> str:
    """Return why torch does not run it; empty if it does."""
    for name in ("format", "kv_format"):
        if config.get(name, "bf16") != "bf16":
            return f"attention of torch computes in bf16, not in {config[name]}"
    window = _window(problem)
    if "seq_len" in problem and 0 < window < _keys(problem):
        return "prompts longer than the window: torch computes beyond the window, too"
    return ""


def memory_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    """Return twice the bytes of queries, outputs and cache."""
    queries = float(problem.get("seq_len", 1)) * float(problem["heads"])
    keys = _keys(problem) * _kv_heads(problem)
    return 4.0 * float(problem["batch"]) * float(problem["head_dim"]) * (2.0 * queries + 2.0 * keys)


def build(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    """Return a call of attention for all requests of a batch."""
    batch, heads, dim = (round(float(problem[n])) for n in ("batch", "heads", "head_dim"))
    rows = int(problem.get("seq_len", 1))
    cache = random_tensor((2, batch, _kv_heads(problem), _keys(problem), dim), device)
    query = random_tensor((batch, heads, rows, dim), device)
    if "seq_len" in problem:
        return lambda: prefill(query, cache[0], cache[1])
    return lambda: decode(query, cache[0], cache[1])


def prefill(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return causal attention of the last tokens of prompts.

    ``query`` is (batch, heads, new tokens, head size), ``keys`` and ``values`` are (batch, key
    heads, tokens, head size).
    """
    new, total = query.shape[2], keys.shape[2]
    grouped = keys.shape[1] != query.shape[1]
    if new == total:
        return functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, enable_gqa=grouped
        )
    mask = causal_lower_right(new, total)
    if grouped:  # this mask needs one key head per head
        share = query.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(share, dim=1) for x in (keys, values))
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)


def decode(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return attention of one new token per request, (batch, heads, 1, head size).

    Heads that share a key head are rows of one product: the cache is read once for all of them.
    """
    batch, heads, _, dim = query.shape
    shared = query.view(batch, keys.shape[1], heads // keys.shape[1], dim)
    return functional.scaled_dot_product_attention(shared, keys, values).view(query.shape)


def _keys(problem: FrozenParameters) -> int:
    """Return the number of cached keys per request."""
    if "seq_len" in problem:
        return round(float(problem["seq_len"])) + round(float(problem.get("prefix_len", 0)))
    window, keys = _window(problem), round(float(problem["kv_len"]))
    return min(keys, window) if window else keys


def _window(problem: FrozenParameters) -> int:
    return int(problem.get("window", 0))


def _kv_heads(problem: FrozenParameters) -> int:
    return int(problem.get("kv_heads", 0)) or int(problem["heads"])
