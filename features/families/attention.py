"""Attention: prefill (many queries, causal), encoder (not causal), decode (one query each)."""

import numpy as np

from foretune.family import Cells, Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import wave_features

QUERY_TILES = (64, 128)
KV_SPLITS = (256, 1024)  # keys per block when a decode kernel splits the cache (flash decoding)


class AttentionPrefill(Family):
    """Columns: problem.batch, seq_len, heads, kv_heads, head_dim (prefix_len, window)."""

    name = "attention_prefill"
    causal = True

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return 4·head_dim operations per unmasked query-key pair."""
        seq = problem["seq_len"]
        cached = seq + problem.get("prefix_len", 0.0)
        return _cost(problem, config, seq, self._keys_per_query(problem), cached)

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return pairs, keys per query, heads per KV head, and waves of query tiles."""
        batch, seq, heads = problem["batch"], problem["seq_len"], problem["heads"]
        keys = self._keys_per_query(problem)
        features = {
            "log2_tokens": np.log2(1.0 * batch * seq),
            "log2_rows": np.log2(1.0 * batch * heads * seq),
            "log2_keys_per_query": np.log2(keys),
            **_heads(problem),
        }
        for tile in QUERY_TILES:
            tiles = batch * heads * np.ceil(seq / tile)
            features |= wave_features(f"queries_{tile}", tiles, device)
        return features

    def _keys_per_query(self, problem: Cells) -> Quantity:
        """Return the mean number of keys that a query attends to."""
        seq, prefix = problem["seq_len"], problem.get("prefix_len", 0.0)
        window = problem.get("window", 0.0)
        window = np.where(np.greater(window, 0), window, np.inf)
        if not self.causal:
            return np.minimum(prefix + seq, window)
        growing = np.clip(window - prefix, 0.0, seq)  # queries before the window is full
        pairs = growing * (prefix + (growing + 1.0) / 2.0)
        full = seq - growing
        return (pairs + full * np.where(full > 0, window, 0.0)) / seq


class AttentionEncoder(AttentionPrefill):
    """Attention in which every query sees every key."""

    name = "attention_encoder"
    causal = False


class AttentionDecode(Family):
    """Columns: problem.batch, kv_len, heads, kv_heads, head_dim (window)."""

    name = "attention_decode"

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return 4·head_dim operations per head and key; the cache is read once."""
        keys = _visible_keys(problem)
        return _cost(problem, config, 1.0, keys, keys)

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return cache sizes, heads per KV head, and the waves of splits of the cache."""
        batch, keys = problem["batch"], _visible_keys(problem)
        features = {
            "log2_keys": np.log2(1.0 * batch * keys),
            "log2_visible": np.log2(1.0 * keys),
            **_heads(problem),
        } | wave_features("kv_heads", batch * _kv_heads(problem), device)
        for split in KV_SPLITS:
            blocks = batch * _kv_heads(problem) * np.ceil(keys / split)
            features |= wave_features(f"split_{split}", blocks, device)
        return features


def _cost(
    problem: Cells, config: Cells, queries: Quantity, keys: Quantity, cached: Quantity
) -> Cost:
    """Return the work of queries with this mean number of keys; the cache is read once."""
    kind = config.get("format", "bf16")
    query_bytes = np.maximum(formats.activation_bytes(kind), 2.0)
    cache_bytes = formats.weight_bytes(config.get("kv_format", kind))
    heads, dim = problem["heads"], problem["head_dim"]
    moved = query_bytes * queries * heads + cache_bytes * cached * _kv_heads(problem)
    return Cost(
        flops=4.0 * problem["batch"] * heads * dim * queries * keys,
        bytes_moved=2.0 * problem["batch"] * dim * moved,
        dtype=formats.compute_dtype(kind),
    )


def _heads(problem: Cells) -> dict[str, Quantity]:
    batch, heads, kv_heads = problem["batch"], problem["heads"], _kv_heads(problem)
    return {
        "heads_per_kv_head": heads / kv_heads,
        "log2_batch_heads": np.log2(1.0 * batch * heads),
        "log2_batch_kv_heads": np.log2(1.0 * batch * kv_heads),
    }


def _kv_heads(problem: Cells) -> Quantity:
    """Return the KV heads; by default one per query head."""
    heads = problem["heads"]
    kv = problem.get("kv_heads", heads)
    return np.multiply(np.where(np.greater(kv, 0), kv, heads), 1.0)


def _visible_keys(problem: Cells) -> Quantity:
    window, keys = problem.get("window", 0.0), problem["kv_len"]
    return np.multiply(np.where(np.greater(window, 0), np.minimum(keys, window), keys), 1.0)
