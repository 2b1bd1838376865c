"""Language models as numbers: layers, heads, experts, and their parameters.

Only what a serving engine loads and computes for text is counted. Vision encoders, multi-token
prediction modules and biases (under 0.1 % of the weights) are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from foretune.errors import ProblemError
from foretune.plan.describe.parts import (
    CompressedAttention,
    Heads,
    Indexer,
    LinearAttention,
    Mla,
    ParameterCounts,
)

GATED_MATRICES = 3
"""Matrices of a gated MLP: gate, up and down projection."""


@dataclass(frozen=True)
class ModelDescription:
    """A transformer that generates text.

    Raises ProblemError if the sizes are inconsistent.

    Attributes:
        name: as on model hubs.
        layers: decoder layers.
        hidden: width of the residual stream.
        heads, kv_heads, head_dim: of softmax attention; with ``mla`` only the heads.
        vocab: vocabulary size.
        intermediate: width of a dense MLP; 0 if no layer has one.
        experts: routed experts per layer; 0 for a dense model.
        experts_per_token: routed experts per token.
        shared_experts: experts used by every token.
        moe_intermediate: width of one routed expert.
        dense_layers: leading layers with a dense MLP, in a model with experts.
        mla: shape of latent attention, if any.
        tied_embeddings: whether the output projection is the embedding table.
        sliding_window: keys visible in layers with a window; 0 without.
        windowed_layers: number of layers with a window.
        shared_intermediate: width of all shared experts together; 0 means that of as many routed
            experts.
        gated_attention: whether a gate as wide as the queries multiplies attention's output.
        mlp_matrices: per dense MLP: 3 with a gate, 2 without (like GPT-3).
        linear: recurrent layers, if any.
        index: the indexer of sparse attention, if any.
        weight_format: number format of the checkpoint's projections, as in `FORMATS`.
        moe_format: of its routed experts.
        kv_format: cache format it was calibrated for.
        longest: maximum tokens of prompt and answer; 0 if unknown.
        images: whether it also reads images; the encoder is left out.
        value_dim: width of a head's value; 0 means that of its key.
        shared_values: whether values are derived from the projected keys.
        windowed: heads of layers with a window, if different.
        without_attention, without_mlp: layers with only an MLP, or only attention.
        mlp_widths: (width, layers) of dense MLPs with different widths; empty means
            ``intermediate``.
        expert_hidden: width of the experts' input and output; 0 means ``hidden``.
        expert_matrices: per expert: 3 with a gate, 2 without.
        compressed: shape of DeepSeek-V4's attention, if used.
        drafting_layers: layers that draft tokens (multi-token prediction); not counted elsewhere.
        draft_model: a smaller model loaded to draft tokens.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    moe_intermediate: int = 0
    dense_layers: int = 0
    mla: Mla | None = None
    tied_embeddings: bool = False
    sliding_window: int = 0
    windowed_layers: int = 0
    shared_intermediate: int = 0
    gated_attention: bool = False
    mlp_matrices: int = GATED_MATRICES
    linear: LinearAttention | None = None
    index: Indexer | None = None
    weight_format: str = "bf16"
    moe_format: str = "bf16"
    kv_format: str = "bf16"
    longest: int = 0
    images: bool = False
    value_dim: int = 0
    shared_values: bool = False
    windowed: Heads | None = None
    without_attention: int = 0
    without_mlp: int = 0
    mlp_widths: tuple[tuple[int, int], ...] = ()
    expert_hidden: int = 0
    expert_matrices: int = GATED_MATRICES
    compressed: CompressedAttention | None = None
    drafting_layers: int = 0
    draft_model: "ModelDescription | None" = None

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, field) < 1:
                raise ProblemError(f"{self.name}: {field}={getattr(self, field)} must be positive")
        if self.heads % self.kv_heads:
            raise ProblemError(
                f"{self.name}: {self.heads} heads cannot share {self.kv_heads} key heads evenly"
            )
        if self.experts_per_token > self.experts:
            raise ProblemError(
                f"{self.name}: {self.experts_per_token} of {self.experts} experts per token"
            )
        if not 0 <= self.dense_layers <= self.layers:
            raise ProblemError(f"{self.name}: {self.dense_layers} of {self.layers} layers dense")
        if self.windowed_layers > self.softmax_layers:
            raise ProblemError(f"{self.name}: more layers with a window than with attention")

    @property
    def is_moe(self) -> bool:
        """Whether it has routed experts."""
        return self.experts > 0

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.without_mlp - self.dense_layers if self.is_moe else 0

    @property
    def mlp_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.layers - self.without_mlp - self.moe_layers

    @property
    def linear_layers(self) -> int:
        """Layers with a recurrent state instead of a cache."""
        return self.linear.layers if self.linear else 0

    @property
    def softmax_layers(self) -> int:
        """Layers with softmax attention, windowed or not."""
        return self.attention_layers - self.linear_layers

    @property
    def attention_layers(self) -> int:
        """Layers with attention of any kind."""
        return self.layers - self.without_attention

    @property
    def norms(self) -> int:
        """Norms on the residual stream: before each attention and MLP, and the head."""
        return 2 * self.layers - self.without_attention - self.without_mlp + 1

    @property
    def has_mixed_layers(self) -> bool:
        """Whether layers differ in more than their window or sparsity."""
        linear = self.linear is not None and self.linear.kind != "gdn"
        if self.compressed:
            return True
        parts = self.without_attention + self.without_mlp + self.expert_hidden
        return bool(linear or parts or self.windowed or self.mlp_widths or self.value_dim)

    @property
    def dense_widths(self) -> tuple[tuple[int, int], ...]:
        """(Width, layers) of dense MLPs."""
        return self.mlp_widths or ((self.intermediate, self.mlp_layers),)

    def softmax_groups(self) -> Iterator[tuple[int, int, Heads]]:
        """Yield the kinds of softmax attention: layers, window (0: all keys), heads."""
        width = self.value_dim or self.head_dim
        full = Heads(self.heads, self.kv_heads, self.head_dim, width, self.shared_values)
        if rest := self.softmax_layers - self.windowed_layers:
            yield rest, 0, full
        if self.windowed_layers:
            yield self.windowed_layers, self.sliding_window, self.windowed or full

    @property
    def indexed_layers(self) -> int:
        """Layers with sparse attention."""
        return (self.index.layers or self.softmax_layers) if self.index else 0

    @property
    def shared_width(self) -> int:
        """Width of all shared experts together."""
        if not self.shared_experts:
            return 0
        return self.shared_intermediate or self.shared_experts * self.moe_intermediate

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert."""
        return self.expert_matrices * (self.expert_hidden or self.hidden) * self.moe_intermediate

    def weights(self) -> ParameterCounts:
        """Return the numbers of weights, by kind."""
        kind = self._compressed if self.compressed else self._latent if self.mla else self._softmax
        attention, key_value, latent = kind()
        linear, linear_replicated, scales = self._linear()
        index, index_replicated = self._index()
        widths = sum(width * layers for width, layers in self.dense_widths)
        expert_projections = self.moe_layers * 2 * self.hidden * self.expert_hidden
        return ParameterCounts(
            attention=attention + linear,
            key_value=key_value + index,
            replicated=latent + linear_replicated + index_replicated + expert_projections,
            mlp=self.mlp_matrices * self.hidden * widths,
            shared=self.moe_layers * self.expert_matrices * self.hidden * self.shared_width,
            experts=self.moe_layers * self.experts * self.expert_parameters,
            router=self.moe_layers * self.hidden * self.experts,
            norms=self.norms * self.hidden + scales,
            embedding=self.vocab * self.hidden,
            head=0 if self.tied_embeddings else self.vocab * self.hidden,
        )

    def parameters(self) -> int:
        """Return the number of weights."""
        return self.weights().total

    def active_parameters(self) -> int:
        """Return the number of weights used per token.

        Experts that the token is not routed to and the embedding table are not counted. Some
        publishers count the table.
        """
        weights = self.weights()
        idle = self.moe_layers * (self.experts - self.experts_per_token) * self.expert_parameters
        unused_embedding = 0 if self.tied_embeddings else weights.embedding
        return weights.total - idle - unused_embedding

    def _softmax(self) -> tuple[int, int, int]:
        """Return weights of softmax layers: split by heads, by key heads, replicated."""
        attention = key_value = 0
        for layers, _, heads in self.softmax_groups():
            gates = heads.value_dim if self.gated_attention else 0
            attention += layers * heads.heads * (heads.cached_width + gates)
            key_value += layers * heads.kv_heads * heads.projected_width
        return self.hidden * attention, self.hidden * key_value, 0

    def _latent(self) -> tuple[int, int, int]:
        """Return weights of latent attention, split likewise."""
        assert self.mla is not None
        mla, layers = self.mla, self.softmax_layers
        gates = self.hidden * mla.v_head if self.gated_attention else 0
        latent = self.hidden * (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope)
        attention = self.heads * (
            (mla.q_lora_rank or self.hidden) * (mla.qk_nope + mla.qk_rope)
            + mla.kv_lora_rank * (mla.qk_nope + mla.v_head)
            + mla.v_head * self.hidden
            + gates
        )
        return layers * attention, 0, layers * latent

    def _compressed(self) -> tuple[int, int, int]:
        """Return weights of compressed attention and its indexers, split likewise."""
        assert self.compressed is not None
        shape, width = self.compressed, self.heads * self.head_dim
        each = width * (shape.q_lora_rank + shape.o_lora_rank)
        each += shape.o_groups * shape.o_lora_rank * self.hidden
        replicated = self.layers * self.hidden * (shape.q_lora_rank + self.head_dim)
        for ratio, layers in shape.ratios:
            index = self.index if ratio == shape.indexed_ratio else None
            replicated += layers * self.hidden * shape.compressor_width(ratio, self.head_dim, index)
            if index:
                replicated += layers * shape.q_lora_rank * index.heads * index.head_dim
        return self.layers * each, 0, replicated

    def _index(self) -> tuple[int, int]:
        """Return weights of all indexers: split by key heads, replicated."""
        if self.index is None or self.compressed:
            return 0, 0
        index, layers = self.index, self.indexed_layers
        ranks = self.mla.q_lora_rank if self.mla else self.hidden
        queries = layers * ranks * index.heads * index.head_dim
        keys = layers * self.hidden * (index.head_dim + index.score_weights)
        return (queries, keys) if index.selects_blocks else (0, queries + keys)

    def _linear(self) -> tuple[int, int, int]:
        """Return weights of linear layers: split by heads, replicated, other scales."""
        if self.linear is None:
            return 0, 0, 0
        linear = self.linear
        values = linear.value_heads * linear.value_dim
        inputs = linear.channels + values + linear.gate_scalars
        gate = linear.gate_rank * linear.key_heads * linear.key_dim
        scales = linear.channels * linear.convolution + 2 * linear.value_heads + linear.value_dim
        return (
            linear.layers * (self.hidden * (inputs + values) + gate),
            linear.layers * self.hidden * linear.gate_rank,
            linear.layers * scales,
        )
