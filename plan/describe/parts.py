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
class LinearAttention:
    """Gated delta-rule layers (arXiv:2412.06464): a state of fixed size instead of a cache.

    Attributes:
        layers: how many of the model's layers are of this kind.
        key_heads, key_dim, value_heads, value_dim: shape of the state.
        convolution: length of the convolution before it.
    """

    layers: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    convolution: int

    @property
    def channels(self) -> int:
        """Width of queries, keys and values together: what the convolution runs over."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True)
class Indexer:
    """Sparse attention's small scorer, which chooses the keys that a query sees (DeepSeek-V3.2).

    Attributes:
        heads, head_dim: of the scores; one key per token, shared by the heads.
        top_k: keys that are chosen.
    """

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights by what happens to them when a model is split, all layers together.

    Attributes:
        attention: projections that are split by heads, except those of keys and values.
        key_value: projections to keys and values: split by key heads, copied beyond them.
        latent: projections that every rank has as a whole (MLA's compression, indexers).
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
    latent: int
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
