"""Which weights of a model have which format: modules by name, and the rules of a checkpoint.

A checkpoint's files name modules by path (``model.layers.0.self_attn.q_proj``), by wildcard, or by
regular expression. Families spell their modules differently, and files name the fused or the single
projections. Each module here therefore has all usual spellings, and a rule that names one of them
counts for the module.

A plan has two formats of weights: of projections, and of experts (of MLPs, if there are none). If
rules give the modules of one of the two different formats, its format is a mixture.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from foretune.errors import UsageError
from foretune.plan.describe.description import GATED_MATRICES, LinearAttention, ModelDescription
from foretune.plan.describe.formats import Formats, mixture_name

Weights = dict[str, float]
"""Format -> number of weights."""

UNQUANTIZED = "bf16"

REGEX = "re:"
"""Prefix of regular expressions (compressed-tensors)."""
EVERY_LINEAR = ("Linear", "FusedMoE", "MoEGMM")
"""Class names that stand for all modules."""
WHOLE_DECODERS = {
    "model",
    "model.layers",
    "language_model",
    "language_model.model",
    "language_model.model.layers",
    "language_model.layers",
    "model.language_model",
    "model.language_model.layers",
    "transformer.h",
    "backbone.layers",
    "layers",
}
"""Paths that contain all layers."""
LAYER_PREFIXES = (
    "model.layers.",
    "model.language_model.layers.",
    "language_model.model.layers.",
    "backbone.layers.",
    "transformer.h.",
    "layers.",
)
"""Spellings of the path above a layer's number."""
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)")
_LAYER_IN_PATTERN = re.compile(r"layers\\?\.(\d+)\\?\.")
_EXPERT = re.compile(r"experts\.(\d+|\*)(?=\.|$)")
_OTHER_MODELS = re.compile(r"vision|visual|audio|projector|mtp|draft|encoder")
"""Modules of encoders and drafters, which are not planned."""

ATTENTIONS = ("self_attn", "attn", "attention", "self_attention", "mixer")
LINEAR_ATTENTIONS = ("linear_attn", "mixer", "mamba", "conv", "temporal_block")
MLPS = ("mlp", "feed_forward", "ffn", "mixer")
EXPERTS = (
    "mlp.experts",
    "block_sparse_moe.experts",
    "feed_forward.experts",
    "ffn.experts",
    "mixer.experts",
    "moe.experts",
)
SHARED_EXPERTS = (
    "mlp.shared_expert",
    "mlp.shared_experts",
    "mlp.shared_mlp",
    "feed_forward.shared_expert",
    "ffn.shared_experts",
    "mixer.shared_experts",
    "block_sparse_moe.shared_experts",
    "share_expert",
    "shared_mlp",
)
FAMILY_CONTAINERS = {
    "gemma4_text": {"shared": ("mlp",), "experts": ("experts",)},
    "step3p5": {"shared": ("share_expert",), "experts": ("moe",)},
}
"""``model_type`` -> its own paths of shared and routed experts. Gemma 4 has a dense MLP beside the
experts, which descriptions count as a shared expert."""
QUERY = ("q_proj", "wq", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv")
KEY = ("k_proj", "wk", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv")
VALUE = ("v_proj", "wv", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv")
OUTPUT = ("o_proj", "wo", "out_proj", "dense")
GATE = ("gate_proj", "gate_up_proj", "w1")
UP = ("up_proj", "gate_up_proj", "w3", "fc1", "c_fc", "dense_h_to_4h")
DOWN = ("down_proj", "w2", "fc2", "dense_4h_to_h")


@dataclass(frozen=True)
class Module:
    """A projection that a model's layers have.

    Attributes:
        part: ``attention``, ``mlp``, ``shared`` or ``experts``.
        paths: its spellings below a layer.
        weights: numbers of weights in one layer.
        layers: the layers that may have it.
        count: how many of them do.
    """

    part: str
    paths: tuple[str, ...]
    weights: float
    layers: range
    count: int


class _Pattern:
    """A regular expression for full paths of modules.

    ``only_layer`` is the layer that it names, if one; ``same_in_all`` means that it depends on no
    layer's number.
    """

    def __init__(self, pattern: re.Pattern[str], only_layer: int | None, same_in_all: bool) -> None:
        self._pattern = pattern
        self._only_layer = only_layer
        self._same_in_all = same_in_all
        self._matches: dict[tuple[int, Module], bool] = {}

    def matches(self, layer: int, module: Module) -> bool:
        if self._only_layer not in (None, layer):
            return False
        key = (0 if self._same_in_all else layer, module)
        if key not in self._matches:
            self._matches[key] = any(map(self._pattern.match, _spellings(key[0], module)))
        return self._matches[key]


def _spellings(layer: int, module: Module) -> Iterator[str]:
    """Yield full paths of a layer's module; experts also with the number of one."""
    for prefix, path in product(LAYER_PREFIXES, module.paths):
        yield f"{prefix}{layer}.{path}"
        if module.part == "experts":
            yield f"{prefix}{layer}.{path.replace('experts', 'experts.0', 1)}"


class NamedModules:
    """The modules that a file names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._everything = False
        self._anywhere: set[str] = set()
        self._in_layer: dict[int, set[str]] = {}
        self._patterns: list[_Pattern] = []
        for name in self.names:
            self._add(name)

    def _add(self, name: str) -> None:
        if name in EVERY_LINEAR or name in WHOLE_DECODERS:
            self._everything = True
        elif name.startswith(REGEX) or "\\" in name:
            self._add_pattern(name.removeprefix(REGEX))
        elif any(character in name for character in "*?["):
            self._add_pattern(fnmatch.translate(name))
            self._add_pattern(fnmatch.translate(f"{name}.*"))
        else:
            self._add_path(name.strip("."))

    def _add_pattern(self, text: str) -> None:
        try:
            pattern = re.compile(text)
        except re.error as e:
            raise UsageError(f"{text!r} is not a regular expression: {e}") from e
        # A pattern that names one layer need not be tried on the others.
        numbers = set(_LAYER_IN_PATTERN.findall(text))
        names_one_layer = len(numbers) == 1 and "|" not in text
        only_layer = int(numbers.pop()) if names_one_layer else None
        same_in_all = not re.search(r"\d", text)
        self._patterns.append(_Pattern(pattern, only_layer, same_in_all))

    def _add_path(self, path: str) -> None:
        layer = _LAYER.search(path)
        if layer is None:
            self._anywhere.add(_EXPERT.sub("experts", path))
        elif not _OTHER_MODELS.search(path[: layer.start()]):
            below = _EXPERT.sub("experts", path[layer.end() :])
            self._in_layer.setdefault(int(layer[1]), set()).add(below)

    def contain(self, layer: int, module: Module) -> bool:
        """Return whether the module of a layer, or a module around it, is named."""
        if self._everything:
            return True
        named_here = self._in_layer.get(layer, set())
        for path in module.paths:
            if self._names_path(path, named_here):
                return True
        return any(pattern.matches(layer, module) for pattern in self._patterns)

    def _names_path(self, path: str, named_here: set[str]) -> bool:
        words = path.split(".")
        around = {".".join(words[:end]) for end in range(len(words) + 1)}
        if around & named_here:
            return True
        if not self._anywhere:
            return False
        inside = {
            ".".join(words[start:end])
            for start in range(len(words))
            for end in range(start + 1, len(words) + 1)
        }
        return bool(inside & self._anywhere)


@dataclass(frozen=True)
class Rule:
    """The format of the modules that a file names."""

    format: str
    modules: NamedModules


@dataclass(frozen=True)
class Scheme:
    """The formats of a checkpoint: of the modules that a rule names, and of all others.

    The first rule that names a module decides. Modules that no rule names have the ``default``
    format, or ``beside_experts`` if that is given and they lie beside routed experts.
    ``must_match`` means that the rules list all quantized modules.
    """

    default: str = UNQUANTIZED
    rules: Sequence[Rule] = ()
    cache: str = "bf16"
    beside_experts: str = ""
    must_match: bool = False


def resolve(scheme: Scheme, model: ModelDescription, family: str = "") -> Formats:
    """Return the formats of a model's weights; raises UsageError if no rule names any module.

    ``family`` is the ``model_type``; some have paths of their own.
    """
    weights_of_part: dict[str, Weights] = {}
    for module in model_modules(model, family):
        default = scheme.default
        if model.is_moe and scheme.beside_experts and module.part != "experts":
            default = scheme.beside_experts
        part = weights_of_part.setdefault(module.part, {})
        for name, layers in _layers_by_format(scheme.rules, module, default).items():
            part[name] = part.get(name, 0.0) + layers * module.weights

    used = {name for part in weights_of_part.values() for name in part}
    if scheme.must_match and used <= {UNQUANTIZED}:
        names = [name for rule in scheme.rules for name in rule.modules.names]
        if not names:
            raise UsageError("it names no module with quantized weights")
        raise UsageError(f"its quantized modules ({names[0]}, …) are not known")

    # MLPs count with the projections if there are experts, else as experts.
    attention = weights_of_part.get("attention", {})
    mlps = weights_of_part.get("mlp", {})
    if not model.is_moe:
        return _formats(scheme, attention=attention, beside={}, experts=mlps)
    beside = _sum(mlps, weights_of_part.get("shared", {}))
    return _formats(
        scheme, attention=attention, beside=beside, experts=weights_of_part.get("experts", {})
    )


def _formats(scheme: Scheme, attention: Weights, beside: Weights, experts: Weights) -> Formats:
    """Return formats whose kernels are those of most weights of attention, and of experts."""
    main = _most_common(attention, scheme.default)
    main_of_experts = _most_common(experts, scheme.default)
    projections = _sum(attention, beside)
    return Formats(
        weights=mixture_name(projections, main) if projections else main,
        kv=scheme.cache,
        moe=mixture_name(experts, main_of_experts) if experts else main_of_experts,
    )


def _sum(first: Weights, second: Weights) -> Weights:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


def _most_common(weights: Weights, default: str) -> str:
    """Return the format of most weights; the default one if none has more."""
    return max(weights, key=lambda name: (weights[name], name == default), default=default)


def _layers_by_format(rules: Sequence[Rule], module: Module, default: str) -> dict[str, float]:
    """Return how many layers have the module in each format."""
    named: Counter[str] = Counter()
    for layer in module.layers:
        rule = next((rule for rule in rules if rule.modules.contain(layer, module)), None)
        if rule is not None:
            named[rule.format] += 1

    # Not every layer has the module: a pattern may name it also where it does not exist.
    total = named.total()
    if total >= module.count:
        return {name: module.count * layers / total for name, layers in named.items()}
    named[default] += module.count - total
    return {name: float(layers) for name, layers in named.items()}


def model_modules(model: ModelDescription, family: str = "") -> list[Module]:
    """Return the projections of a model's layers."""
    containers = {"shared": SHARED_EXPERTS, "experts": EXPERTS, **FAMILY_CONTAINERS.get(family, {})}
    every_layer = range(model.layers)
    modules = []
    if model.softmax_layers:
        sizes = _latent_sizes(model) if model.mla else _softmax_sizes(model)
        modules += [
            Module("attention", _paths(ATTENTIONS, names), size, every_layer, model.softmax_layers)
            for names, size in sizes
        ]
    if model.linear:
        modules += [
            Module("attention", paths, size, every_layer, model.linear.layers)
            for paths, size in _linear_sizes(model, model.linear)
        ]

    # In most models with dense layers and experts, the dense ones come first.
    leading = model.is_moe and not model.alternating and not model.without_mlp
    dense = range(model.dense_layers) if leading else every_layer
    sparse = range(model.dense_layers, model.layers) if leading else every_layer
    for width, layers in model.dense_widths:
        if layers and width:
            size = model.hidden * width
            modules += _mlp_modules(
                "mlp", MLPS, size=size, matrices=model.mlp_matrices, layers=dense, count=layers
            )
    if model.moe_layers:
        hidden = model.expert_hidden or model.hidden
        shared_size = model.hidden * model.shared_width
        expert_size = model.experts * hidden * model.moe_intermediate
        matrices = model.expert_matrices
        count = model.moe_layers
        if shared_size:
            modules += _mlp_modules(
                "shared",
                containers["shared"],
                size=shared_size,
                matrices=matrices,
                layers=sparse,
                count=count,
            )
        modules += _mlp_modules(
            "experts",
            containers["experts"],
            size=expert_size,
            matrices=matrices,
            layers=sparse,
            count=count,
        )
    return modules


def _paths(containers: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{container}.{name}" for container in containers for name in names)


def _mlp_modules(
    part: str, containers: Sequence[str], size: int, matrices: int, layers: range, count: int
) -> list[Module]:
    """Return the matrices of an MLP with ``size`` weights each."""
    names = (GATE, UP, DOWN) if matrices == GATED_MATRICES else (UP, DOWN)
    return [Module(part, _paths(containers, name), size, layers, count) for name in names]


def _softmax_sizes(model: ModelDescription) -> list[tuple[Sequence[str], float]]:
    """Return the spellings and weights of softmax attention's projections."""
    heads = next(iter(model.softmax_groups()))[2]
    queries = heads.heads * heads.head_dim
    values = heads.heads * heads.value_dim
    gates = values if model.gated_attention else 0
    sizes: list[tuple[Sequence[str], float]] = [
        (QUERY, model.hidden * (queries + gates)),
        (KEY, model.hidden * heads.kv_heads * heads.head_dim),
        (OUTPUT, model.hidden * values),
    ]
    if not heads.shared_values:
        sizes.append((VALUE, model.hidden * heads.kv_heads * heads.value_dim))
    return sizes


def _latent_sizes(model: ModelDescription) -> list[tuple[Sequence[str], float]]:
    """Return the spellings and weights of latent attention's projections."""
    mla = model.mla
    assert mla is not None
    query_width = model.heads * (mla.qk_nope + mla.qk_rope)
    sizes: list[tuple[Sequence[str], float]] = [
        (
            ("kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa", "fused_qkv_a_proj"),
            model.hidden * (mla.kv_lora_rank + mla.qk_rope),
        ),
        (("kv_b_proj",), mla.kv_lora_rank * model.heads * (mla.qk_nope + mla.v_head)),
        (("o_proj",), model.heads * mla.v_head * model.hidden),
    ]
    if not mla.q_lora_rank:
        return [(("q_proj",), model.hidden * query_width), *sizes]
    down = ("q_a_proj", "fused_qkv_a_proj_with_mqa", "fused_qkv_a_proj")
    return [
        (down, model.hidden * mla.q_lora_rank),
        (("q_b_proj",), mla.q_lora_rank * query_width),
        *sizes,
    ]


def _linear_sizes(
    model: ModelDescription, linear: LinearAttention
) -> list[tuple[tuple[str, ...], float]]:
    """Return the spellings and weights of a linear layer's projections."""
    values = linear.value_heads * linear.value_dim
    channels = ("in_proj", "in_proj_qkv", "in_proj_qkvz", "in_proj_qkvzba")
    gates = ("in_proj", "in_proj_z", "in_proj_qkvz", "in_proj_qkvzba")
    # Kimi's delta attention has the projections of softmax attention.
    own = linear.kind == "kda"
    extra_inputs = _paths(("self_attn",), QUERY) if own else ()
    extra_outputs = _paths(("self_attn",), OUTPUT) if own else ()
    return [
        (_paths(LINEAR_ATTENTIONS, channels) + extra_inputs, model.hidden * linear.channels),
        (_paths(LINEAR_ATTENTIONS, gates) + extra_inputs, model.hidden * values),
        (_paths(LINEAR_ATTENTIONS, ("out_proj",)) + extra_outputs, model.hidden * values),
    ]
