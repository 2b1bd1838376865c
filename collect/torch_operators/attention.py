"""Attention: causal for prompts, and over the whole cache for a new token."""

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from foretune.collect.torch_operators.tensors import random_tensor
from foretune.kernel import Launch
from foretune.values import FrozenParameters

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""Format of attention and of its cache -> torch's."""


def prefill(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return causal attention of the last tokens of prompts.

    ``query`` is (batch, heads, new tokens, head size), ``keys`` and ``values`` are (batch, key
    heads, tokens, head size).
    """
    heads, new_tokens = query.shape[1:3]
    key_heads, tokens = keys.shape[1:3]
    is_grouped = key_heads != heads
    if new_tokens == tokens:
        return functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, enable_gqa=is_grouped
        )

    # Behind a prefix the mask is another one, which needs one key head per head.
    mask = causal_lower_right(new_tokens, tokens)
    if is_grouped:
        heads_per_key = heads // key_heads
        keys = keys.repeat_interleave(heads_per_key, dim=1)
        values = values.repeat_interleave(heads_per_key, dim=1)
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)


def decode(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return attention of one new token per request, (batch, heads, 1, head size).

    Heads that share a key head are rows of one product: the cache is read once for all of them.
    """
    batch, heads, _, head_size = query.shape
    key_heads = keys.shape[1]
    shared = query.view(batch, key_heads, heads // key_heads, head_size)
    return functional.scaled_dot_product_attention(shared, keys, values).view(query.shape)


def cannot_run(problem: FrozenParameters, config: FrozenParameters) -> str:
    """Return why torch cannot run an operator; "" if it can."""
    number_format = config.get("format", "bf16")
    for name in ("format", "kv_format"):
        if config.get(name, "bf16") not in DTYPES:
            return f"torch computes attention in {' and '.join(DTYPES)}, not in {config[name]}"
    if config.get("kv_format", number_format) != number_format:
        return "torch computes attention in the format of the cache"

    # Torch has no sliding window. For a new token, the cache is cut to the window instead.
    is_prompt = "seq_len" in problem
    window = _window(problem)
    if is_prompt and 0 < window < _keys(problem):
        return "prompts longer than the window: torch computes beyond the window, too"
    return ""


def memory_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    """Return the bytes of queries, results, keys and values, each twice: drawn and converted."""
    bytes_per_number = 2.0 if config.get("format", "bf16") == "bf16" else 4.0
    query_vectors = float(problem.get("seq_len", 1)) * float(problem["heads"])
    key_vectors = _keys(problem) * _kv_heads(problem)

    # As many results as queries, and as many values as keys.
    vectors = 2.0 * query_vectors + 2.0 * key_vectors
    numbers = float(problem["batch"]) * float(problem["head_dim"]) * vectors
    return 2.0 * bytes_per_number * numbers


def build(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    """Return a call that runs an operator on random queries, keys and values."""
    batch = round(float(problem["batch"]))
    heads = round(float(problem["heads"]))
    head_size = round(float(problem["head_dim"]))
    new_tokens = int(problem.get("seq_len", 1))
    cache_shape = (2, batch, _kv_heads(problem), _keys(problem), head_size)
    dtype = DTYPES[str(config.get("format", "bf16"))]
    keys, values = random_tensor(cache_shape, device).to(dtype)
    query = random_tensor((batch, heads, new_tokens, head_size), device).to(dtype)
    if "seq_len" in problem:
        return lambda: prefill(query, keys, values)
    return lambda: decode(query, keys, values)


def _keys(problem: FrozenParameters) -> int:
    """Return the number of tokens that a new one attends to."""
    if "seq_len" in problem:
        return round(float(problem["seq_len"])) + round(float(problem.get("prefix_len", 0)))
    window = _window(problem)
    keys = round(float(problem["kv_len"]))
    return min(keys, window) if window else keys


def _window(problem: FrozenParameters) -> int:
    """Return the size of the sliding window; 0 without one."""
    return int(problem.get("window", 0))


def _kv_heads(problem: FrozenParameters) -> int:
    return int(problem.get("kv_heads", 0)) or int(problem["heads"])
