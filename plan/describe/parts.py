"""Parts of language models: kinds of attention, and numbers of weights."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), with a compressed cache.

    Attributes:
        q_lora_rank: width of the compressed queries; 0 if not compressed.
        kv_lora_rank: width of the compressed keys and values; the cache holds this plus ``qk_rope``
            per token.
        qk_nope: width of a head's query without position.
        qk_rope: width of the rotary part, shared by all heads.
        v_head: width of a head's value.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope: int
    qk_rope: int
    v_head: int


@dataclass(frozen=True)
class Heads:
    """Heads of softmax attention.

    Attributes:
        heads, kv_heads: query heads, and key-value heads.
        head_dim, value_dim: width of a head's query and key, and of its value.
        shared_values: whether values are derived from the projected keys (Gemma 4).
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    shared_values: bool = False

    @property
    def cached_width(self) -> int:
        """Cached numbers per key head: key and value."""
        return self.head_dim + self.value_dim

    @property
    def projected_width(self) -> int:
        """Projected numbers per key head."""
        return self.head_dim if self.shared_values else self.cached_width


@dataclass(frozen=True)
class LinearAttention:
    """Layers with a fixed-size state instead of a cache.

    All kinds have an input projection, a short convolution, a state per value head that each token
    updates, and an output projection. ``gdn`` is the gated delta rule (arXiv:2412.06464), ``kda``
    Kimi's with a gate per channel (arXiv:2510.26692), ``mamba2`` a state-space layer
    (arXiv:2405.21060): its groups are key heads, its state size is the key width, its heads are
    value heads.

    Attributes:
        layers: number of layers of this kind.
        key_heads, key_dim, value_heads, value_dim: shape of the state.
        convolution: length of the convolution.
        kind: ``gdn``, ``kda`` or ``mamba2``: the kernel that updates the state.
        gate_rank: width that a per-channel gate is compressed to; 0 for one number per head.
    """

    layers: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    convolution: int
    kind: str = "gdn"
    gate_rank: int = 0

    @property
    def channels(self) -> int:
        """Width of queries, keys and values together: the convolution's channels."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def gate_scalars(self) -> int:
        """Numbers per token that control the update: decay and strength per value head."""
        return self.value_heads * (2 if self.kind == "gdn" else 1)


@dataclass(frozen=True)
class Indexer:
    """Scorer of sparse attention that selects the keys of a query.

    DeepSeek-V3.2 selects single keys by weighted head scores. MiniMax-M3 selects blocks by their
    largest score (vLLM, ``models/minimax_m3``).

    Attributes:
        heads, head_dim: scoring heads, which share one key per token.
        top_k: number of selected keys.
        layers: layers with an indexer; 0 means all with softmax attention.
        block: keys per block.
    """

    heads: int
    head_dim: int
    top_k: int
    layers: int = 0
    block: int = 1

    @property
    def selects_blocks(self) -> bool:
        """Whether it selects blocks; its heads are then split as key heads, without weights."""
        return self.block > 1

    @property
    def score_weights(self) -> int:
        """Weights of the heads' scores, per token."""
        return 0 if self.selects_blocks else self.heads

    @property
    def token_bytes(self) -> float:
        """Bytes of a key: 8 bits with a scale per 128, or 16 bits for blocks."""
        return self.head_dim * (2.0 if self.selects_blocks else 1 + 4 / 128)


@dataclass(frozen=True)
class CompressedAttention:
    """DeepSeek-V4's attention: uncompressed keys in a window, compressed keys before it.

    All heads share one vector per key, which is also its value. Layers compress ``ratio`` tokens
    into a key. Where an indexer selects keys (``indexed_ratio``), compression windows overlap
    (vLLM, ``models/deepseek_v4``).

    Attributes:
        q_lora_rank: width of the compressed queries.
        o_groups, o_lora_rank: groups of heads whose outputs are compressed, and the compressed
            width.
        window: uncompressed keys.
        ratios: (tokens per compressed key, layers); 0 tokens for layers with only the window.
        residual_streams: residual streams mixed around each layer.
        indexed_ratio: ratio of the layers with an indexer.
    """

    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    ratios: tuple[tuple[int, int], ...]
    residual_streams: int = 1
    indexed_ratio: int = 4

    def overlap(self, ratio: int) -> int:
        """Return the number of compressed keys that a token contributes to."""
        return 2 if ratio == self.indexed_ratio else 1

    def compressor_width(self, ratio: int, dim: int, index: "Indexer | None") -> int:
        """Return the numbers per token that compression is made of: keys and their weights."""
        if not ratio:
            return 0
        keys = 2 * self.overlap(ratio) * dim
        return keys + (2 * self.overlap(ratio) * index.head_dim + index.heads if index else 0)

    def request_bytes(self, tokens: float, dim: int, size: float, index: "Indexer | None") -> float:
        """Return the cache bytes of a request in all layers: keys and compression states.

        ``dim`` is the width of a key, ``size`` the bytes of a cached number; states have 32 bits.
        """
        total = 0.0
        for ratio, layers in self.ratios:
            each = min(tokens, self.window) * dim * size
            if ratio:
                state = 2 * ratio * self.overlap(ratio) * 4
                each += tokens / ratio * dim * size + state * dim
                if index and ratio == self.indexed_ratio:
                    each += tokens / ratio * index.token_bytes + state * index.head_dim
            total += layers * each
        return total


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of weights in all layers, by how they are split.

    Attributes:
        attention: projections split by heads, except keys and values.
        key_value: key and value projections: split by key heads, replicated beyond.
        replicated: projections replicated on every rank (MLA's compression, indexers, experts'
            input and output projections).
        mlp: dense MLPs.
        shared: shared experts.
        experts: routed experts.
        router: routers.
        norms: scales of the norms.
        embedding: embedding table.
        head: output projection; 0 if it is the embedding table.
    """

    attention: int
    key_value: int
    replicated: int
    mlp: int
    shared: int
    experts: int
    router: int
    norms: int
    embedding: int
    head: int

    @property
    def total(self) -> int:
        """Number of all weights."""
        return sum(vars(self).values())
