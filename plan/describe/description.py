"""Language models as numbers: layers, heads, experts, and the parameters that follow from them.

What counts is what a serving engine loads and computes: the text decoder. Vision towers, modules
that predict several tokens at once and biases (under a thousandth of the weights) are left out.
"""

from dataclasses import dataclass

from foretune.errors import ProblemError
from foretune.plan.describe.parts import Indexer, LinearAttention, Mla, Parameters

GATED = 3
"""Matrices of a gated MLP: gate, up and down projection."""


@dataclass(frozen=True)
class ModelDescription:
    """A transformer that generates text.

    Attributes:
        name: as users and model hubs call it.
        layers: of the decoder.
        hidden: width of the residual stream.
        heads, kv_heads, head_dim: of softmax attention; with ``mla`` the heads only.
        vocab: entries of the vocabulary.
        intermediate: width of a dense MLP; 0 where no layer has one.
        experts: routed experts per layer; 0 for a dense model.
        experts_per_token: that each token passes.
        shared_experts: that every token passes.
        moe_intermediate: width of one routed expert.
        dense_layers: leading layers with a dense MLP, of a model with experts.
        mla: its shape, where attention is of that kind.
        tied_embeddings: whether the output projection is the embedding table.
        sliding_window: keys that layers with a window see; 0 where none has one.
        windowed_layers: how many layers have it.
        shared_intermediate: width of all shared experts together; 0 means that of as many routed
            ones.
        gated_attention: whether a gate as wide as the queries multiplies attention's output.
        mlp_matrices: of a dense MLP: 3 where one of them gates, 2 in models like GPT-3.
        linear: layers without a cache, where there are any.
        index: the scorer of sparse attention, where there is one.
        weight_format: number format of the checkpoint's projections, as in `FORMATS`.
        moe_format: of its routed experts.
        kv_format: of the cache that it was calibrated for.
        longest: tokens of prompt and answer together that it was made for; 0 if unknown.
        images: whether it reads images too, whose encoder is left out here.

    Raises:
        ProblemError: sizes that contradict each other.
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
    mlp_matrices: int = GATED
    linear: LinearAttention | None = None
    index: Indexer | None = None
    weight_format: str = "bf16"
    moe_format: str = "bf16"
    kv_format: str = "bf16"
    longest: int = 0
    images: bool = False

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
        return self.layers - self.dense_layers if self.is_moe else 0

    @property
    def mlp_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.layers - self.moe_layers

    @property
    def linear_layers(self) -> int:
        """Layers whose attention has a state instead of a cache."""
        return self.linear.layers if self.linear else 0

    @property
    def softmax_layers(self) -> int:
        """Layers with softmax attention, windowed or not."""
        return self.layers - self.linear_layers

    @property
    def shared_width(self) -> int:
        """Width of all shared experts together."""
        if not self.shared_experts:
            return 0
        return self.shared_intermediate or self.shared_experts * self.moe_intermediate

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert."""
        return GATED * self.hidden * self.moe_intermediate

    def weights(self) -> Parameters:
        """Return the numbers of weights, by kind."""
        attention, key_value, latent = self._attention()
        linear, scales = self._linear()
        return Parameters(
            attention=self.softmax_layers * attention + linear,
            key_value=self.softmax_layers * key_value,
            latent=self.softmax_layers * latent,
            mlp=self.mlp_layers * self.mlp_matrices * self.hidden * self.intermediate,
            shared=self.moe_layers * GATED * self.hidden * self.shared_width,
            experts=self.moe_layers * self.experts * self.expert_parameters,
            router=self.moe_layers * self.hidden * self.experts,
            norms=(2 * self.layers + 1) * self.hidden + scales,
            embedding=self.vocab * self.hidden,
            head=0 if self.tied_embeddings else self.vocab * self.hidden,
        )

    def parameters(self) -> int:
        """Return the number of weights."""
        return self.weights().total

    def active_parameters(self) -> int:
        """Return the weights that one token is multiplied with.

        Those of its experts, and the output projection, but not the embedding table, of which it
        reads one row. Some publishers count that too.
        """
        weights = self.weights()
        idle = self.moe_layers * (self.experts - self.experts_per_token) * self.expert_parameters
        unread = 0 if self.tied_embeddings else weights.embedding
        return weights.total - idle - unread

    def _attention(self) -> tuple[int, int, int]:
        """Return weights of one softmax layer: split by heads, by key heads, and not at all."""
        latent = 0
        if self.index:
            ranks = self.mla.q_lora_rank if self.mla else self.hidden
            scorer = self.index.heads * self.index.head_dim
            latent = ranks * scorer + self.hidden * (self.index.head_dim + self.index.heads)
        if self.mla is None:
            width = self.heads * self.head_dim
            queries = 2 * width if self.gated_attention else width
            key_value = 2 * self.hidden * self.kv_heads * self.head_dim
            return self.hidden * (queries + width), key_value, latent
        mla = self.mla
        query_width = self.heads * (mla.qk_nope + mla.qk_rope)
        latent += self.hidden * (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope)
        attention = (
            (mla.q_lora_rank or self.hidden) * query_width
            + mla.kv_lora_rank * self.heads * (mla.qk_nope + mla.v_head)
            + self.heads * mla.v_head * self.hidden
        )
        return attention, 0, latent

    def _linear(self) -> tuple[int, int]:
        """Return weights of all linear layers' projections, and their other scales."""
        if self.linear is None:
            return 0, 0
        linear = self.linear
        values = linear.value_heads * linear.value_dim
        inputs = linear.channels + values + 2 * linear.value_heads
        scales = linear.channels * linear.convolution + 2 * linear.value_heads + linear.value_dim
        return linear.layers * self.hidden * (inputs + values), linear.layers * scales
