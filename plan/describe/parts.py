"""Parts of language models: kinds of attention, and weights by how they are split."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): a compressed cache.

    Attributes:
        q_lora_rank: width of the compressed queries; 0 where queries are not compressed.
        kv_lora_rank: width of the compressed keys and values: what the cache holds per token,
            with ``qk_rope`` more.
        qk_nope: width of a head's query without position.
        qk_rope: width of the part with rotary position, shared by all heads.
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
        heads, kv_heads: of queries, and of keys and values.
        head_dim, value_dim: width of a head's query and key, and of its value.
        shared_values: whether keys are projected alone, and values are made of them (Gemma 4).
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    shared_values: bool = False

    @property
    def cached_width(self) -> int:
        """Numbers of a key head's key and value."""
        return self.head_dim + self.value_dim

    @property
    def projected_width(self) -> int:
        """Numbers that are projected for a key head."""
        return self.head_dim if self.shared_values else self.cached_width


@dataclass(frozen=True)
class LinearAttention:
    """Layers with a state of fixed size instead of a cache.

    Three kinds have the same parts: an input projection, a short convolution, a state per value
    head that each token updates, and an output projection. ``gdn`` is the gated delta rule
    (arXiv:2412.06464), ``kda`` Kimi's, whose gate has a number per channel (arXiv:2510.26692),
    ``mamba2`` a state-space layer (arXiv:2405.21060): its groups are the key heads, the size of its
    state is the width of a key, and its heads are the value heads.

    Attributes:
        layers: how many of the model's layers are of this kind.
        key_heads, key_dim, value_heads, value_dim: shape of the state.
        convolution: length of the convolution before it.
        kind: ``gdn``, ``kda`` or ``mamba2``: the kernel that updates the state.
        gate_rank: width that a gate per channel is compressed to; 0 for one number per head.
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
        """Width of queries, keys and values together: what the convolution runs over."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def gate_scalars(self) -> int:
        """Numbers per token that steer the update, one per value head: decay, and its strength."""
        return self.value_heads * (2 if self.kind == "gdn" else 1)


@dataclass(frozen=True)
class Indexer:
    """Sparse attention's small scorer, which chooses the keys that a query sees.

    DeepSeek-V3.2 chooses single keys, and weighs the scores of the heads; MiniMax-M3 chooses
    blocks, by the largest score in them (vLLM, ``models/minimax_m3``).

    Attributes:
        heads, head_dim: of the scores; one key per token, shared by the heads.
        top_k: keys that are chosen.
        layers: that have it; 0 means all with softmax attention.
        block: keys that are chosen together.
    """

    heads: int
    head_dim: int
    top_k: int
    layers: int = 0
    block: int = 1

    @property
    def selects_blocks(self) -> bool:
        """Whether it chooses blocks: its heads are then split as key heads are, without weights."""
        return self.block > 1

    @property
    def score_weights(self) -> int:
        """Weights of the heads' scores, per token."""
        return 0 if self.selects_blocks else self.heads

    @property
    def token_bytes(self) -> float:
        """Bytes of a key: eight bits with a scale for every 128, or sixteen bits for blocks."""
        return self.head_dim * (2.0 if self.selects_blocks else 1 + 4 / 128)


@dataclass(frozen=True)
class CompressedAttention:
    """DeepSeek-V4's attention: keys in a window as they are, all before them compressed.

    All heads share one vector per key, which is its value too. Layers compress ``ratio`` tokens
    into a key; where an indexer chooses among these keys (``indexed_ratio``), windows of
    compression overlap (vLLM, ``models/deepseek_v4``).

    Attributes:
        q_lora_rank: width of the compressed queries.
        o_groups, o_lora_rank: groups of heads whose outputs are compressed, and to which width.
        window: keys that are seen as they are.
        ratios: (tokens per compressed key, layers); 0 tokens for layers with the window alone.
        residual_streams: residual streams that are mixed around each layer.
        indexed_ratio: the ratio of the layers with an indexer.
    """

    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    ratios: tuple[tuple[int, int], ...]
    residual_streams: int = 1
    indexed_ratio: int = 4

    def overlap(self, ratio: int) -> int:
        """Return how many compressed keys a token is part of."""
        return 2 if ratio == self.indexed_ratio else 1

    def compressor_width(self, ratio: int, dim: int, index: "Indexer | None") -> int:
        """Return the numbers per token that compression is made of: keys and their weights."""
        if not ratio:
            return 0
        keys = 2 * self.overlap(ratio) * dim
        return keys + (2 * self.overlap(ratio) * index.head_dim + index.heads if index else 0)

    def request_bytes(self, tokens: float, dim: int, size: float, index: "Indexer | None") -> float:
        """Return what all layers' caches take for a request: keys, and states of compression.

        Args:
            tokens: of the request.
            dim: width of a key.
            size: bytes of a number in the cache; states have 32 bits.
            index: what chooses keys.
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
    """Numbers of weights by what happens to them when a model is split, all layers together.

    Attributes:
        attention: projections that are split by heads, except those of keys and values.
        key_value: projections to keys and values: split by key heads, copied beyond them.
        replicated: projections that every rank has as a whole (MLA's compression, indexers, those
            into and out of the narrower space of experts).
        mlp: dense MLPs.
        shared: shared experts.
        experts: routed experts.
        router: what scores the experts.
        norms: scales of the norms.
        embedding: the table of the vocabulary.
        head: the output projection; 0 where it is the table again.
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
        """All of them."""
        return sum(vars(self).values())
