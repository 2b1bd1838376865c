"""Reads a model from Hugging Face's ``config.json``.

Families have different names for a field. Fields about vision, speech or training are ignored.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretune.datasets.file_contents import require_real_file
from foretune.datasets.text_encoding import decoded_document
from foretune.errors import ForetuneWarning, UsageError
from foretune.plan.describe import shipped_json
from foretune.plan.describe.description import (
    GATED_MATRICES,
    Indexer,
    LinearAttention,
    Mla,
    ModelDescription,
)
from foretune.plan.describe.encoders import encoder_weights
from foretune.plan.describe.layer_kinds import layer_kinds, windows
from foretune.plan.describe.mixed_layers import has_family_reader, mixed_layers
from foretune.plan.describe.plain_values import plain_values
from foretune.plan.describe.quantization.stored_formats import (
    DESCRIPTION_FIELDS,
    stored_formats,
)
from foretune.support import files

Fields = Mapping[str, Any]

CONFIG_FILE = "config.json"
QUANTIZATION_FILE = "hf_quant_config.json"
"""ModelOpt's description of a quantization."""
OLDER_QUANTIZATION_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Descriptions of older tools -> their ``quant_method``."""

DECODER_PARTS = ("text_config", "llm_config", "language_config", "pretrained_config")
"""Parts of the file that hold the language model of a model with several, or of TensorRT-LLM's
engine."""
NO_MODEL = {
    "peft_type": "an adapter: plan its base model",
    "_class_name": "a model of diffusers, which does not generate text",
    "weight_map": "a list of files with weights: give the model's config.json",
}
"""Field of other files -> what the file is, and what to do."""
IDENTIFYING_FIELDS = ("model_type", "architectures", "architecture", "num_hidden_layers")
"""Every model's file has one of these, or a size by another name."""
SPARSE_STEPS = (
    "interleave_moe_layer_step",
    "decoder_sparse_step",
    "moe_layer_freq",
    "moe_layer_interval",
)
"""Fields that say every how many layers have experts."""
DRAFTING_CLASSES = ("Eagle", "EAGLE", "Medusa", "MLPSpeculator")
"""Parts of names of classes that read the states of another model."""
GATED_FAMILIES = ("qwen3_next", "qwen3_5", "afmoe", "beam", "muse_glimmer")
"""Beginnings of families whose class has a gate on attention's output, whatever the file says."""
GATED_ACTIVATIONS = ("silu", "swish", "glu")
"""Words in names of activations whose MLPs have a gate in any family."""
GATE_PER_ELEMENT = "per-element"
"""Laguna's ``gating`` of a gate as wide as the queries; others have a number per head."""
UNDERSTOOD_LAYER_FIELDS = (
    "sliding_window",
    "sliding_window_pattern",
    "use_sliding_window",
    "max_window_layers",
    "cross_attention_layers",
)
"""Fields that are read in any family."""
MLLAMA_CROSS_LAYERS = (3, 8, 13, 18, 23, 28, 33, 38)
"""Layers of Llama 3.2 Vision that attend to the image, if the file does not say."""
BEGINNING = 60
"""Characters that a message quotes of a file that is not JSON."""
INDEX_OFFSET = 2
"""GLM's ``index_skip_topk_offset``, if the file does not say."""
_FAMILIES = shipped_json("families.json")
_TABLES = shipped_json("config_fields.json")
"""What families' files say:

- ``unsupported_fields``, ``unsupported_families`` (``model_type``): -> kind of layer.
- ``other_parts``: pattern for names of parts that are no language model.
- ``unknown_layers``: pattern for fields that describe layers of no kind here.
- ``unknown_experts``, ``unknown_key_heads``: patterns for fields of their numbers.
- ``planned_kinds``: kinds of layers that every family may mix.
- ``state_fields``: -> layers that only `mixed_layers` can plan.
- ``required_fields``: family -> field without which its layers are not known.
- ``generative_architectures``: parts of the names of classes that generate text.
- ``ungated_families``: their MLPs and experts have two matrices.
- ``quadruple_families``: MLPs four times as wide as the model, if the file does not say.
- ``other_names``: of sizes, in families that transformers does not have.
"""
NAMES: dict[str, list[str]] = _TABLES["names"]
"""Size -> its names in files. Lists ``per_layer`` also have entries of layers that draft tokens;
``in_parts`` are fields that MPT and DBRX keep in parts of the file."""


def read_folder(folder: Path) -> ModelDescription:
    """Return the model in a folder; raises UsageError without a complete ``config.json``."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return read_checkpoint(folder / CONFIG_FILE, folder / QUANTIZATION_FILE, str(named))


def read_checkpoint(config: Path, quantization: Path, name: str) -> ModelDescription:
    """Return the model of ``config.json`` and, if it exists, ``hf_quant_config.json``.

    Older tools wrote files of their own beside ``config.json``.
    """
    content = read_json(config)
    if quantization.is_file():
        return read_config(content, name, read_json(quantization))
    described = any(content.get(field) for field in DESCRIPTION_FIELDS)
    for file, method in OLDER_QUANTIZATION_FILES.items():
        older = config.with_name(file)
        if not described and older.is_file():
            description = {"quant_method": method, **read_json(older)}
            return read_config(content, name, {"quantization": description})
    return read_config(content, name)


def read_config(config: Fields, name: str, quantization: Fields | None = None) -> ModelDescription:
    """Return the model that a ``config.json`` describes.

    ``quantization`` is the content of ``hf_quant_config.json``, if any. Raises UsageError for
    missing fields and unsupported layers.
    """
    with (
        files.translate_read_errors(name, UsageError, f"has a damaged {CONFIG_FILE}: {{}}"),
        _with_name(name),
    ):
        model = _read_config(plain_values(config), name, plain_values(quantization or {}))
    if model.softmax_layers < 1:
        raise UsageError(f"{name}: layers that all lack attention cannot be planned yet")
    return model


@contextmanager
def _with_name(name: str) -> Iterator[None]:
    """Put the model's name before messages that lack it."""
    try:
        yield
    except UsageError as e:
        if str(e).startswith(f"{name}: "):
            raise
        raise UsageError(f"{name}: {e}") from e


def _read_config(config: Fields, name: str, quantization: Fields) -> ModelDescription:
    decoder = _decoder_part(config)
    _require_known_format(decoder, name)
    text = _without_drafting_layers(_with_family_facts(decoder, config))
    architectures = _architectures(config, decoder, name)
    _require_planned(text, name)
    _require_identified(decoder, name)

    mixed = mixed_layers(text, name)
    family = str(text.get("model_type"))
    kinds = []
    if "windowed_layers" not in mixed:
        kinds = layer_kinds(text, family, known=family in _FAMILIES)
    if not mixed:
        _require_planned_kinds({**text, "layer_types": kinds}, name)
    fields = {**_common_fields(text, config, name, kinds), **mixed}
    if "layers" not in mixed:
        fields["layers"] = _required_int(text, name, "num_hidden_layers")
    if "intermediate" not in mixed:
        fields = {**fields, **_experts(text, name), **mixed}
    if not fields["windowed_layers"]:
        fields["sliding_window"] = 0
    encoder = encoder_weights(config, fields["hidden"])
    fields["images"] = encoder > 0 or "vision_config" in config or _reads_images(architectures)
    fields["encoder_weights"] = encoder
    model = ModelDescription(name=name, **fields)

    # A family may have its own rule for the formats of its checkpoints.
    if "weight_format" in mixed:
        return model
    described = {**text, **config, "model_type": family}
    formats = stored_formats(described, quantization, model)
    return replace(
        model, weight_format=formats.weights, moe_format=formats.moe, kv_format=formats.kv
    )


def _reads_images(architectures: Sequence[str]) -> bool:
    """Whether a class's name says so; ChatGLM's text models have such a name, too."""
    return any("ConditionalGeneration" in a and not a.startswith("ChatGLM") for a in architectures)


def _decoder_part(config: Fields) -> Fields:
    """Return the part of the file about the language model."""
    parts = (config.get(part) for part in DECODER_PARTS)
    return next((part for part in parts if isinstance(part, Mapping)), config)


def _require_known_format(decoder: Fields, name: str) -> None:
    """Raise UsageError for other files, and those in a publisher's own format (``params.json``)."""
    for field, what in NO_MODEL.items():
        if field in decoder:
            base = decoder.get("base_model_name_or_path")
            raise UsageError(f"{name}: this file is {what}{f', {base}' if base else ''}")
    own_names = ("dim", "n_layers", "n_heads")
    if "hidden_size" not in decoder and all(field in decoder for field in own_names):
        raise UsageError(
            f"{name}: this file has its publisher's own fields ({', '.join(own_names)}): use the "
            f"{CONFIG_FILE} of the model's repository on Hugging Face"
        )


def _require_identified(decoder: Fields, name: str) -> None:
    """Raise UsageError for JSON that describes no model, like ``generation_config.json``."""
    sizes = {name for names in _TABLES["other_names"].values() for name in names}
    has_width = any(decoder.get(each) for each in ("hidden_size", "n_embd", "d_model"))
    part = "" if has_width else _part_with_sizes(decoder)
    if part and str(decoder.get("model_type")) not in _FAMILIES:
        raise UsageError(
            f"{name}: the sizes are in its part {part}, which may be the language model: give that "
            f"part as the {CONFIG_FILE}"
        )
    if not any(field in decoder for field in (*IDENTIFYING_FIELDS, "hidden_size", *sizes)):
        raise UsageError(
            f"{name}: this file describes no model: it has none of {', '.join(IDENTIFYING_FIELDS)}"
        )


def _part_with_sizes(fields: Fields, path: str = "") -> str:
    """Return the path of the first part that has the sizes of a decoder; empty if none has."""
    for name, part in fields.items():
        if not isinstance(part, Mapping) or re.search(_TABLES["other_parts"], name):
            continue
        inside = f"{path}.{name}" if path else name
        if part.get("hidden_size") and part.get("num_attention_heads"):
            return inside
        if deeper := _part_with_sizes(part, inside):
            return deeper
    return ""


def _architectures(config: Fields, decoder: Fields, name: str) -> list[str]:
    """Return the names of the model's classes; raises UsageError if none generates text."""
    architectures = config.get("architectures") or []
    is_list = isinstance(architectures, list)
    if not is_list or not all(isinstance(each, str) for each in architectures):
        raise UsageError(f"{name}: architectures in {CONFIG_FILE} must be a list of names")
    architectures = [*architectures, *(decoder.get("architectures") or [])]
    words = _TABLES["generative_architectures"]
    generates = "AutoModelForCausalLM" in (config.get("auto_map") or {}) or any(
        word in architecture for architecture in architectures for word in words
    )
    drafts = [each for each in architectures if any(word in each for word in DRAFTING_CLASSES)]
    if drafts:
        raise UsageError(
            f"{name}: {drafts[0]} drafts tokens for another model and is no model of its own: plan "
            "that model"
        )
    if architectures and not generates:
        raise UsageError(
            f"{name}: {architectures[0]} is not known to generate text: choose another model, or "
            f"write the class of its language model (…ForCausalLM) into architectures"
        )
    return architectures


def _require_planned(text: Fields, name: str) -> None:
    """Raise UsageError for fields and families that cannot be planned."""
    for field, layers in _TABLES["unsupported_fields"].items():
        if text.get(field) and not _is_equal_in_all(text[field]):
            raise UsageError(f"{name}: {layers} ({field} in {CONFIG_FILE}) cannot be planned yet")
    if text.get("word_embed_proj_dim") not in (None, text.get("hidden_size")):
        raise UsageError(f"{name}: embeddings of another width cannot be planned yet")
    family = str(text.get("model_type"))
    if layers := _TABLES["unsupported_families"].get(family):
        raise UsageError(f"{name}: {layers} ({family}) cannot be planned yet")
    required = _TABLES["required_fields"].get(family)
    if required and not text.get(required):
        raise UsageError(f"{name}: {CONFIG_FILE} of {family} needs {required}: add it")
    if family in _FAMILIES or has_family_reader(text):
        return
    for field, value in text.items():
        understood = field in UNDERSTOOD_LAYER_FIELDS or not value
        if not understood and re.search(_TABLES["unknown_layers"], field):
            raise UsageError(
                f"{name}: layers with {field} ({family} in {CONFIG_FILE}) cannot be planned yet"
            )
    _require_usual_names(text, name)


def _is_equal_in_all(value: Any) -> bool:
    """Whether a list has the same number for all layers."""
    return isinstance(value, list) and len(set(map(str, value))) == 1


def _require_usual_names(text: Fields, name: str) -> None:
    """Raise UsageError if a family that nobody knows has experts or key heads by other names.

    Left out, they would be planned as a dense model, and as a key head for each query head.
    """
    family = text.get("model_type")
    if not _positive_int(text, *NAMES["experts"]):
        for field, value in text.items():
            if _counts_experts(field, value):
                raise UsageError(
                    f"{name}: experts with {field} ({family} in {CONFIG_FILE}) are not known: call "
                    f"their number num_experts, those of a token num_experts_per_tok, and their "
                    "width moe_intermediate_size"
                )
    if not _positive_int(text, *NAMES["key_heads"]):
        for field, value in text.items():
            if value and re.search(_TABLES["unknown_key_heads"], field):
                raise UsageError(
                    f"{name}: key heads with {field} ({family} in {CONFIG_FILE}) are not known: "
                    "call their number num_key_value_heads"
                )


def _common_fields(text: Fields, config: Fields, name: str, kinds: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a description that most families share."""
    family = str(text.get("model_type"))
    heads = _required_int(text, name, "num_attention_heads")
    hidden = _required_int(text, name, "hidden_size")
    window = windows(text, family, kinds)
    mla = _mla(text, name)
    matrices = GATED_MATRICES - int(family in _TABLES["ungated_families"])
    _warn_of_unknown_gate(text, name)

    # transformers omits a family's default
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    tied_by_default = family.startswith("gemma")
    return {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads if mla else _key_heads(text, heads),
        "head_dim": mla.qk_nope if mla else _positive_int(text, "head_dim") or hidden // heads,
        "vocab": _required_int(text, name, "vocab_size"),
        "mla": mla,
        "tied_embeddings": tied_by_default if tied is None else bool(tied),
        "sliding_window": window.keys,
        "windowed_layers": window.layers,
        "cross_attention_layers": _cross_attention_layers(text, family),
        "mlp_matrices": matrices,
        "expert_matrices": matrices,
        "gated_attention": _has_gated_attention(text, family),
        "linear": _linear(text, name, kinds),
        "index": _index(text),
        "longest": _positive_int(text, *NAMES["length"]),
        "drafting_layers": _positive_int(text, *NAMES["drafting_layers"]),
    }


def _warn_of_unknown_gate(text: Fields, name: str) -> None:
    """Warn if the class of a family is not known, and its activation may have no gate."""
    family = str(text.get("model_type"))
    if family in _FAMILIES or has_family_reader(text):
        return
    activation = str(text.get("hidden_act") or "silu").lower()
    if any(word in activation for word in GATED_ACTIVATIONS):
        return
    warnings.warn(
        f"{name}: whether MLPs of the family {family} with {activation} have a gate is not known: "
        "planned with one, so they may be half as large again as they are",
        ForetuneWarning,
        stacklevel=2,
    )


def _counts_experts(field: str, value: Any) -> bool:
    """Whether a field is a number of experts, or a part that has one."""
    if isinstance(value, Mapping):
        # Another model in the same file has experts of its own.
        if "hidden_size" in value or re.search(_TABLES["other_parts"], field):
            return False
        return any(_counts_experts(name, inner) for name, inner in value.items())
    is_several = isinstance(value, int) and value > 1
    return is_several and re.search(_TABLES["unknown_experts"], field) is not None


def _has_gated_attention(text: Fields, family: str) -> bool:
    """Whether a gate as wide as the queries multiplies attention's output."""
    if family.startswith(GATED_FAMILIES):
        return True
    return bool(text.get("attn_output_gate")) or text.get("gating") == GATE_PER_ELEMENT


def _with_family_facts(text: Fields, config: Fields) -> Fields:
    """Return ``text`` with fields by their usual names, and the defaults of the family's class.

    The defaults are those of transformers, from ``benchmarks/plan_families.py``.
    """
    parts = {**(text.get("ffn_config") or {}), **(text.get("attn_config") or {})}
    text = {**{name: parts[name] for name in NAMES["in_parts"] if name in parts}, **text}
    # Models with several parts name the whole; the class of their text part ends in _text.
    family = str(text.get("model_type") or config.get("model_type"))
    if family not in _FAMILIES and f"{family}_text" in _FAMILIES:
        family = f"{family}_text"
    text = {**text, "model_type": family}
    facts = _FAMILIES.get(family)
    if facts is None:
        aliases = {
            name: text[alias]
            for name, others in _TABLES["other_names"].items()
            for alias in others
            if alias in text
        }
        return {**aliases, **text}
    aliases = {name: text[alias] for name, alias in facts["aliases"].items() if alias in text}
    given = {**aliases, **text}
    outside = {name: config[name] for name in facts["defaults"] if name in config}
    return {**facts["defaults"], **outside, **given}


def _without_drafting_layers(text: Fields) -> Fields:
    layers = _positive_int(text, "num_hidden_layers") or None
    lists = (field for field in NAMES["per_layer"] if isinstance(text.get(field), list))
    return {**text, **{field: text[field][:layers] for field in lists}}


def _key_heads(text: Fields, heads: int) -> int:
    shared = text.get("multi_query", text.get("model_type") in ("falcon", "gpt_bigcode"))
    if shared and not text.get("new_decoder_architecture"):
        return 1
    return _positive_int(text, *NAMES["key_heads"]) or heads


def _require_planned_kinds(text: Fields, name: str) -> None:
    """Raise UsageError if a layer is of a kind that would wrongly be planned as attention."""
    kinds = [kind for field in NAMES["kinds"] for kind in text.get(field) or ()]
    unknown = [f"layers of kind {kind!r}" for kind in kinds if kind not in _TABLES["planned_kinds"]]
    if "linear_attention" in kinds and not text.get("linear_num_value_heads"):
        unknown.append("layers of linear attention")
    unknown += [layers for field, layers in _TABLES["state_fields"].items() if text.get(field)]
    if 0 in (text.get("attn_type_list") or ()):  # MiniMax-Text-01's
        unknown.append("layers of linear attention")
    if unknown:
        raise UsageError(f"{name}: {unknown[0]} cannot be planned yet")


def _experts(text: Fields, name: str) -> dict[str, int]:
    experts = _positive_int(text, *NAMES["experts"])
    dense = _positive_int(text, *NAMES["dense_width"])
    if experts < 2:
        if text.get("model_type") in _TABLES["quadruple_families"]:
            dense = _positive_int(text, *NAMES["width"]) or 4 * text["hidden_size"]
        return {"intermediate": dense or _required_int(text, name, *NAMES["width"])}
    expert_width = _positive_int(text, "moe_intermediate_size") or _required_int(
        text, name, *NAMES["width"]
    )
    width = _positive_int(text, *NAMES["shared_width"])
    shared = _positive_int(text, *NAMES["shared_experts"]) or int(width > 0)
    if str(text.get("model_type")).startswith("llama4"):
        shared, width = 1, 0
    return {
        "intermediate": dense or _positive_int(text, "intermediate_size"),
        "experts": experts,
        "experts_per_token": _required_int(text, name, *NAMES["chosen_experts"]),
        "shared_experts": shared,
        "shared_intermediate": width,
        "moe_intermediate": expert_width,
        "alternating": any(_step(text, name) > 1 for name in SPARSE_STEPS),
        "dense_layers": _dense_layers(text, _positive_int(text, "num_hidden_layers")),
    }


def _dense_layers(text: Fields, layers: int) -> int:
    if step := _positive_int(text, "interleave_moe_layer_step"):
        return layers - layers // step
    if kinds := text.get("mlp_layer_types"):
        return sum(kind == "dense" for kind in kinds)
    if isinstance(sparse := text.get("moe_layer_freq"), list):
        return sparse.count(0)
    if chosen := text.get("moe_layers_enum"):
        return layers - len(str(chosen).split(","))
    step = _positive_int(text, "decoder_sparse_step")
    without = set(text.get("mlp_only_layers") or ())
    if step > 1 or without:
        step = step or 1
        return sum(i in without or (i + 1) % step > 0 for i in range(layers))

    # DeepSeek's and ERNIE's files name the first layers with experts, and every how many have them.
    first = _positive_int(text, *NAMES["dense_layers"])
    end = text.get("moe_layer_end_index")
    last = end if isinstance(end, int) and end >= 0 else layers - 1
    every = _step(text, "moe_layer_freq")
    interval = _step(text, "moe_layer_interval")
    sparse = [
        layer
        for layer in range(first, min(last + 1, layers))
        if layer % every == 0 and (layer + 1) % interval == 0
    ]
    return layers - len(sparse)


def _step(text: Fields, name: str) -> int:
    """Return every how many layers have experts, by a field; 1 if it does not say."""
    value = text.get(name)
    return value if isinstance(value, int) and value > 0 else 1


def _mla(text: Fields, name: str) -> Mla | None:
    if not _positive_int(text, "kv_lora_rank"):
        return None
    if text.get("model_type") == "minicpm3" and not text.get("v_head_dim"):
        width = _required_int(text, name, "hidden_size")
        text = {**text, "v_head_dim": width // _required_int(text, name, "num_attention_heads")}
    required = (_required_int(text, name, field) for field in NAMES["mla"])
    return Mla(_positive_int(text, "q_lora_rank"), *required)


def _cross_attention_layers(text: Fields, family: str) -> int:
    """Return how many layers attend to an image instead of the text."""
    default = MLLAMA_CROSS_LAYERS if family.startswith("mllama") else ()
    listed = text.get("cross_attention_layers", default) or ()
    return sum(layer < text.get("num_hidden_layers", layer + 1) for layer in listed)


def _linear(text: Fields, name: str, kinds: Sequence[str]) -> LinearAttention | None:
    if not _positive_int(text, "linear_num_value_heads"):
        return None
    layers = _required_int(text, name, "num_hidden_layers")
    if kinds and (text.get("layer_types") or "full_attention_interval" not in text):
        count = kinds.count("linear_attention")
    else:
        count = layers - layers // _required_int(text, name, "full_attention_interval")
    heads = [_required_int(text, name, field) for field in NAMES["linear"]]
    return LinearAttention(count, *heads)  # type: ignore[arg-type]  # kind has its default


def _index(text: Fields) -> Indexer | None:
    if not _positive_int(text, "index_topk"):
        return None
    return Indexer(
        heads=_positive_int(text, "index_n_heads"),
        head_dim=_positive_int(text, "index_head_dim"),
        top_k=_positive_int(text, "index_topk"),
        layers=_selecting_layers(text),
    )


def _selecting_layers(text: Fields) -> int:
    """Return how many layers select keys, the others share a selection; 0 if all do."""
    if types := text.get("indexer_types"):
        return list(types).count("full")
    if pattern := text.get("index_topk_pattern"):
        return sum(each in ("F", "full") for each in pattern)
    every = _positive_int(text, "index_topk_freq")
    if every <= 1:
        return 0
    offset = int(text.get("index_skip_topk_offset", INDEX_OFFSET))
    layers = _positive_int(text, "num_hidden_layers")
    return sum(max(layer - offset + 1, 0) % every == 0 for layer in range(layers))


def _positive_int(text: Fields, *names: str) -> int:
    """Return the first of the fields that is a positive integer, or a list of one; else 0.

    Raises UsageError for a list of several, and for a value that is no whole number.
    """
    for name in names:
        value = text.get(name)
        if isinstance(value, (str, float)):
            raise UsageError(
                f"{name} in {CONFIG_FILE} is {value!r}, which is no whole number: correct it"
            )
        if isinstance(value, list) and value and isinstance(value[0], int):
            if len(set(value)) > 1:
                raise UsageError(f"layers of different sizes ({name}) cannot be planned yet")
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _required_int(text: Fields, owner: str, *names: str) -> int:
    if value := _positive_int(text, *names):
        return value
    raise UsageError(f"{owner}: {CONFIG_FILE} needs a positive {names[0]}: add it")


def read_json(path: Path) -> Fields:
    """Return the JSON object in a file; raises UsageError if there is none."""
    try:
        data = files.read_bytes(path)
        require_real_file(data)
        text, _ = decoded_document(data)
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from e
    except ValueError as e:
        raise UsageError(f"{path} cannot be read: {e}") from e
    try:
        content: Fields = files.parse_json(text.removeprefix("\ufeff"))
    except ValueError as e:
        if text.lstrip().startswith(("{", "[")):
            raise UsageError(f"{path} is not JSON: {e}") from e
        beginning = " ".join(text[:BEGINNING].split())
        raise UsageError(
            f"{path} is not JSON: it begins with {beginning!r}: download it again"
        ) from e
    return content
