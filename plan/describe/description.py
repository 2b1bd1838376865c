"""Language models as numbers: layers, heads, experts, and their parameters.

Only weights that a serving engine loads and uses for text are counted. Vision encoders, multi-token
prediction modules and biases (under 0.1 % of the weights) are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from foretune.errors import ProblemError

SCALED_NUMBERS = 64
"""Numbers of a key that share a scale in DeepSeek-V4's cache."""
GATED_MATRICES = 3
"""Matrices of a gated MLP: gate, up and down projection."""


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), with a compressed cache."""

    q_lora_rank: int  # width of the compressed queries; 0 if not compressed
    kv_lora_rank: int  # width of the compressed keys and values; cached, with ``qk_rope``
    qk_nope: int  # width of a head's query without position
    qk_rope: int  # width of the rotary part, shared by all heads
    v_head: int  # width of a head's value


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
        """Cached numbers per key head: those of key and value."""
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
    value heads. A ``convolution`` (LFM2) has no state but the last tokens, and a gate per channel
    before and after.
    """

    layers: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    convolution: int  # its length
    kind: str = "gdn"  # kernel that updates the state, or ``convolution``
    gate_rank: int = 0  # width that a per-channel gate is compressed to; 0: one number per head
    beside_softmax: bool = False  # whether these layers also have softmax attention (Falcon-H1)
    output_gate_rank: int = 0  # width that the output's gate is compressed to; 0: not compressed

    @property
    def channels(self) -> int:
        """Width of queries, keys and values together: the convolution's channels."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def split_inputs(self) -> int:
        """Width of the input projections that ranks split: all but compressed gates."""
        output_gate = 0 if self.output_gate_rank else self.value_heads * self.value_dim
        return self.channels + output_gate + self.gate_scalars

    @property
    def compressed_gates(self) -> int:
        """Width of the projections to compressed gates, which every rank has."""
        return self.gate_rank + self.output_gate_rank

    @property
    def gate_scalars(self) -> int:
        """Numbers per token that control the update: decay and strength per value head."""
        if self.kind == "convolution":
            return self.channels
        return self.value_heads * (2 if self.kind == "gdn" else 1)


@dataclass(frozen=True)
class Indexer:
    """Scorer of sparse attention that selects the keys of a query.

    DeepSeek-V3.2 selects single keys by weighted head scores. MiniMax-M3 selects blocks by their
    largest score (vLLM, ``models/minimax_m3``).
    """

    heads: int  # scoring heads, which share one key per token
    head_dim: int
    top_k: int  # number of selected keys
    layers: int = 0  # layers with an indexer; 0 means all with softmax attention
    block: int = 1  # keys per block

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
    (vLLM, ``models/deepseek_v4``). Layers with only the window have ratio 0.
    """

    q_lora_rank: int  # width of the compressed queries
    o_groups: int  # groups of heads whose outputs are compressed
    o_lora_rank: int  # width of the compressed outputs
    window: int
    ratios: tuple[tuple[int, int], ...]  # (tokens per compressed key, layers)
    residual_streams: int = 1  # mixed around each layer
    indexed_ratio: int = 4  # of the layers with an indexer
    rotary_dim: int = 64  # numbers of a key with a position

    def key_bytes(self, dim: int) -> float:
        """Return the bytes of a cached key; vLLM has one format, whatever is asked for.

        It has numbers with a position in 16 bits, the others in fp8 with a byte of scale per 64,
        and a byte of padding: 584 bytes for 512 numbers.
        """
        rotary = min(self.rotary_dim, dim)
        plain = dim - rotary
        return plain + 2 * rotary + ceil(plain / SCALED_NUMBERS) + 1

    def overlap(self, ratio: int) -> int:
        """Return the number of compressed keys that a token contributes to."""
        return 2 if ratio == self.indexed_ratio else 1

    def compressor_width(self, ratio: int, dim: int, index: "Indexer | None") -> int:
        """Return the numbers per token that are compressed: keys and their weights."""
        if not ratio:
            return 0
        keys = 2 * self.overlap(ratio) * dim
        return keys + (2 * self.overlap(ratio) * index.head_dim + index.heads if index else 0)

    def request_bytes(self, tokens: float, dim: int, index: "Indexer | None") -> float:
        """Return the cache bytes of a request in all layers: keys and compression states.

        ``dim`` is the width of a key; states have 32 bits.
        """
        total = 0.0
        for ratio, layers in self.ratios:
            each = min(tokens, self.window) * self.key_bytes(dim)
            if ratio:
                state = 2 * ratio * self.overlap(ratio) * 4
                each += tokens / ratio * self.key_bytes(dim) + state * dim
                if index and ratio == self.indexed_ratio:
                    each += tokens / ratio * index.token_bytes + state * index.head_dim
            total += layers * each
        return total


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of weights in all layers, by how they are split."""

    attention: int  # projections split by heads, except keys and values
    key_value: int  # key and value projections: split by key heads, replicated beyond
    replicated: int  # on every rank: MLA's compression, indexers, experts' input and output
    mlp: int
    shared: int  # shared experts
    experts: int  # routed experts
    router: int
    norms: int
    embedding: int
    head: int  # output projection; 0 if it is the embedding table

    @property
    def total(self) -> int:
        """Number of all weights."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class _LayerWeights:
    """Numbers of weights of one kind of attention in all layers, by how ranks split them."""

    by_heads: int = 0
    by_key_heads: int = 0
    replicated: int = 0
    scales: int = 0  # of norms and convolutions


def _round_up(width: float, multiple: int) -> float:
    return width if multiple == 1 else multiple * ceil(width / multiple)


@dataclass(frozen=True)
class ModelDescription:
    """A transformer that generates text.

    Raises ProblemError if the sizes are inconsistent.

    Attributes:
        name: name on model hubs.
        hidden: width of the residual stream.
        heads, kv_heads, head_dim: of softmax attention; with ``mla`` only ``heads`` counts.
        intermediate: width of a dense MLP; 0 if no layer has one.
        experts: routed experts per layer; 0 for a dense model.
        shared_experts: experts used by every token.
        moe_intermediate: width of one routed expert.
        dense_layers: layers with a dense MLP, in a model with experts: the leading ones, unless
            ``alternating``.
        tied_embeddings: whether the output projection is the embedding table.
        sliding_window: keys visible in layers with a window; 0 without.
        shared_intermediate: width of all shared experts together; 0 means that of as many routed
            experts.
        gated_attention: whether a gate as wide as the queries multiplies attention's output.
        mlp_matrices: per dense MLP: 3 with a gate, 2 without (like GPT-3).
        weight_format: number format of the checkpoint's projections, as in `FORMATS`.
        moe_format: of its routed experts, or of its MLPs if it has none; empty means
            ``weight_format``.
        kv_format: cache format it was calibrated for.
        longest: maximum tokens of prompt and answer; 0 if unknown.
        images: whether it also reads images or sound.
        encoder_weights: of the encoders that do so; 0 if unknown.
        value_dim: width of a head's value; 0 means that of its key.
        shared_values: whether values are derived from the projected keys.
        windowed: heads of layers with a window, if different.
        without_attention, without_mlp: layers with only an MLP, or only attention.
        mlp_widths: (width, layers) of dense MLPs with different widths; empty means
            ``intermediate``.
        expert_hidden: width of the experts' input and output; 0 means ``hidden``.
        expert_matrices: per expert: 3 with a gate, 2 without.
        drafting_layers: layers that draft tokens (multi-token prediction); not counted elsewhere.
        draft_model: a smaller model loaded to draft tokens.
        cross_attention_layers: layers that attend to an image instead of the text, as part of those
            with softmax attention; they cache no text.
        format_guessed: whether the formats come from the name alone.
        expert_multiples: to which kernels pad the experts' hidden and intermediate width on a rank,
            if they are in MXFP4.
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
    moe_format: str = ""
    kv_format: str = "bf16"
    longest: int = 0
    images: bool = False
    encoder_weights: int = 0
    value_dim: int = 0
    shared_values: bool = False
    windowed: Heads | None = None
    without_attention: int = 0
    without_mlp: int = 0
    mlp_widths: tuple[tuple[int, int], ...] = ()
    expert_hidden: int = 0
    expert_matrices: int = GATED_MATRICES
    compressed: CompressedAttention | None = None
    alternating: bool = False
    drafting_layers: int = 0
    draft_model: "ModelDescription | None" = None
    cross_attention_layers: int = 0
    format_guessed: bool = False
    expert_multiples: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "moe_format", self.moe_format or self.weight_format)
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
        if self.cross_attention_layers > self.softmax_layers - self.windowed_layers:
            raise ProblemError(f"{self.name}: more layers of cross attention than of attention")

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
    def softmax_layers(self) -> int:
        """Layers with softmax attention, windowed or not."""
        alone = self.linear.layers if self.linear and not self.linear.beside_softmax else 0
        return self.layers - self.without_attention - alone

    @property
    def attentions(self) -> int:
        """Number of attentions of any kind; a layer may have two in parallel."""
        return self.softmax_layers + (self.linear.layers if self.linear else 0)

    @property
    def norms(self) -> int:
        """Norms on the residual stream: before each attention and MLP, and the head."""
        return 2 * self.layers - self.without_attention - self.without_mlp + 1

    @property
    def has_mixed_layers(self) -> bool:
        """Whether layers differ in more than their window or sparsity."""
        linear = self.compressed or (self.linear is not None and self.linear.kind != "gdn")
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

    def padded_expert_parameters(self, slices: int) -> float:
        """Return the weights of a rank's slice of one expert, as MXFP4 kernels pad it."""
        hidden_multiple, inner_multiple = self.expert_multiples
        hidden = _round_up(self.expert_hidden or self.hidden, hidden_multiple)
        inner = _round_up(self.moe_intermediate / slices, inner_multiple)
        return self.expert_matrices * hidden * inner

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
        attention = self._attention()
        linear = self._linear()
        index = self._index()
        widths = sum(width * layers for width, layers in self.dense_widths)
        expert_projections = self.moe_layers * 2 * self.hidden * self.expert_hidden
        replicated = attention.replicated + linear.replicated + index.replicated
        return ParameterCounts(
            attention=attention.by_heads + linear.by_heads,
            key_value=attention.by_key_heads + index.by_key_heads,
            replicated=replicated + expert_projections,
            mlp=self.mlp_matrices * self.hidden * widths,
            shared=self.moe_layers * self.expert_matrices * self.hidden * self.shared_width,
            experts=self.moe_layers * self.experts * self.expert_parameters,
            router=self.moe_layers * self.hidden * self.experts,
            norms=self.norms * self.hidden + linear.scales,
            embedding=self.vocab * self.hidden,
            head=0 if self.tied_embeddings else self.vocab * self.hidden,
        )

    def parameters(self) -> int:
        """Return the number of weights of the language model."""
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

    def _attention(self) -> "_LayerWeights":
        if self.compressed:
            return self._compressed(self.compressed)
        if self.mla:
            return self._latent(self.mla)
        return self._softmax()

    def _softmax(self) -> "_LayerWeights":
        attention = 0
        key_value = 0
        for layers, _, heads in self.softmax_groups():
            gates = heads.value_dim if self.gated_attention else 0
            attention += layers * heads.heads * (heads.cached_width + gates)
            key_value += layers * heads.kv_heads * heads.projected_width
        return _LayerWeights(by_heads=self.hidden * attention, by_key_heads=self.hidden * key_value)

    def _latent(self, mla: Mla) -> "_LayerWeights":
        gates = self.hidden * mla.v_head if self.gated_attention else 0
        latent = self.hidden * (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope)
        attention = self.heads * (
            (mla.q_lora_rank or self.hidden) * (mla.qk_nope + mla.qk_rope)
            + mla.kv_lora_rank * (mla.qk_nope + mla.v_head)
            + mla.v_head * self.hidden
            + gates
        )
        layers = self.softmax_layers
        return _LayerWeights(by_heads=layers * attention, replicated=layers * latent)

    def _compressed(self, shape: CompressedAttention) -> "_LayerWeights":
        """Return weights of compressed attention and its indexers."""
        width = self.heads * self.head_dim
        each = width * (shape.q_lora_rank + shape.o_lora_rank)
        each += shape.o_groups * shape.o_lora_rank * self.hidden
        replicated = self.layers * self.hidden * (shape.q_lora_rank + self.head_dim)
        for ratio, layers in shape.ratios:
            index = self.index if ratio == shape.indexed_ratio else None
            replicated += layers * self.hidden * shape.compressor_width(ratio, self.head_dim, index)
            if index:
                replicated += layers * shape.q_lora_rank * index.heads * index.head_dim
        return _LayerWeights(by_heads=self.layers * each, replicated=replicated)

    def _index(self) -> "_LayerWeights":
        """Return weights of all indexers, except those of compressed attention."""
        index = self.index
        if index is None or self.compressed:
            return _LayerWeights()
        layers = self.indexed_layers
        query_inputs = self.mla.q_lora_rank if self.mla else self.hidden
        queries = layers * query_inputs * index.heads * index.head_dim
        keys = layers * self.hidden * (index.head_dim + index.score_weights)
        if index.selects_blocks:
            return _LayerWeights(by_key_heads=queries, replicated=keys)
        return _LayerWeights(replicated=queries + keys)

    def _linear(self) -> "_LayerWeights":
        if self.linear is None:
            return _LayerWeights()
        linear = self.linear
        values = linear.value_heads * linear.value_dim
        gates = linear.gate_rank * linear.key_heads * linear.key_dim
        gates += linear.output_gate_rank * values
        scales = linear.channels * linear.convolution + 2 * linear.value_heads + linear.value_dim
        projections = self.hidden * (linear.split_inputs + values) + gates
        return _LayerWeights(
            by_heads=linear.layers * projections,
            replicated=linear.layers * self.hidden * linear.compressed_gates,
            scales=linear.layers * scales,
        )
