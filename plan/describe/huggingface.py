"""``config.json`` of Hugging Face: what it says about a model.

Names of fields differ between families; those that mean the same are read alike. What a field has
to say about vision, speech or training is not read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretune.errors import UsageError
from foretune.plan.describe.checkpoint import stored_formats
from foretune.plan.describe.description import GATED, ModelDescription
from foretune.plan.describe.mixed_layers import mixed_layers
from foretune.plan.describe.parts import Indexer, LinearAttention, Mla

CONFIG = "config.json"
QUANTIZATION = "hf_quant_config.json"

GENERATORS = ("CausalLM", "ConditionalGeneration", "LMHead")
"""What architectures that generate text have in their names."""
SEEING = "ConditionalGeneration"
"""What architectures that read images beside text have in theirs."""
NOT_UNDERSTOOD = {
    "encoder_layers": "an encoder",
}
"""Field -> the kind of layer it stands for, which no operator list is known for."""

UNGATED = ("gpt_neox", "nemotron", "nemotron_h", "phi", "starcoder2")
"""Families (``model_type``) whose MLPs and experts have no gate: two matrices, not three."""

DRAFTING = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""What families call the number of layers that draft tokens."""
GROUPS = "num_attention_groups"
"""What StepFun's models call their key heads."""

Fields = Mapping[str, Any]


def read_folder(folder: Path, name: str = "") -> ModelDescription:
    """Return the model whose configuration lies in ``folder``.

    Raises:
        UsageError: there is no ``config.json``, or it does not describe a model completely.
    """
    config = read_json(folder / CONFIG)
    quantization = folder / QUANTIZATION
    stored = read_json(quantization) if quantization.is_file() else {}
    return read_config(config, name or str(folder), stored)


def read_config(config: Fields, name: str, quantization: Fields | None = None) -> ModelDescription:
    """Return the model that a ``config.json`` describes.

    Args:
        config: its content.
        name: what to call it.
        quantization: the content of ``hf_quant_config.json``, where there is one.

    Raises:
        UsageError: a field is missing, or stands for layers that are not understood.
    """
    text = _text(config)
    kinds = config.get("architectures") or []
    if kinds and not any(word in kind for kind in kinds for word in GENERATORS):
        raise UsageError(f"{name}: {kinds[0]} generates no text: there is nothing to serve")
    for field, layers in NOT_UNDERSTOOD.items():
        if text.get(field):
            raise UsageError(f"{name}: {layers} ({field} in {CONFIG}) cannot be planned yet")
    heads, hidden = _need(text, name, "num_attention_heads"), _need(text, name, "hidden_size")
    window, windowed = _windows(text)
    mla = _mla(text, name)
    formats = stored_formats({**text, **config}, quantization or {})
    matrices = GATED - 1 if text.get("model_type") in UNGATED else GATED
    usual = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads if mla else _number(text, "num_key_value_heads", GROUPS) or heads,
        "head_dim": mla.qk_nope if mla else _number(text, "head_dim") or hidden // heads,
        "vocab": _need(text, name, "vocab_size"),
        "mla": mla,
        "tied_embeddings": _tied(text, config),
        "sliding_window": window,
        "windowed_layers": windowed,
        "mlp_matrices": matrices,
        "expert_matrices": matrices,
        "gated_attention": bool(text.get("attn_output_gate")) or _is_qwen3_next(text),
        "linear": _linear(text, name),
        "index": _index(text),
        "weight_format": formats.weights,
        "moe_format": formats.moe,
        "kv_format": formats.kv,
        "longest": _number(text, "max_position_embeddings"),
        "drafting_layers": _number(text, *DRAFTING),
        "images": "vision_config" in config or any(SEEING in kind for kind in kinds),
    }
    mixed = mixed_layers(text, name)
    if "layers" not in mixed:
        usual["layers"] = _need(text, name, "num_hidden_layers")
    if "intermediate" not in mixed:
        usual |= _experts(text, name)
    fields = {**usual, **mixed}
    if not fields["windowed_layers"]:
        fields["sliding_window"] = 0
    return ModelDescription(name=name, **fields)


def _text(config: Fields) -> Fields:
    """Return the part on the text decoder: models that also see or hear have one for each."""
    for part in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(part), Mapping):
            found: Fields = config[part]
            return found
    return config


def _experts(text: Fields, name: str) -> dict[str, int]:
    """Return the fields on MLPs, dense ones and experts."""
    experts = _number(
        text, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"
    )
    dense = _number(text, "intermediate_size_mlp", "dense_intermediate_size")
    if not experts:
        return {"intermediate": dense or _need(text, name, "intermediate_size")}
    own = _number(text, "moe_intermediate_size") or _need(text, name, "intermediate_size")
    shared, width = _shared(text)
    return {
        "intermediate": dense or _number(text, "intermediate_size"),
        "experts": experts,
        "experts_per_token": _need(
            text, name, "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k"
        ),
        "shared_experts": shared,
        "shared_intermediate": width,
        "moe_intermediate": own,
        "dense_layers": _dense_layers(text, _number(text, "num_hidden_layers")),
    }


def _shared(text: Fields) -> tuple[int, int]:
    """Return how many shared experts there are, and their width where that is given."""
    if _is_llama4(text):
        return 1, 0
    width = _number(text, "shared_expert_intermediate_size", "shared_intermediate_size")
    return _number(text, "n_shared_experts", "num_shared_experts") or int(width > 0), width


def _dense_layers(text: Fields, layers: int) -> int:
    if step := _number(text, "interleave_moe_layer_step"):
        return layers - layers // step
    if kinds := text.get("mlp_layer_types"):
        return sum(kind == "dense" for kind in kinds)
    if isinstance(sparse := text.get("moe_layer_freq"), list):
        return sparse.count(0)
    if chosen := text.get("moe_layers_enum"):
        return layers - len(str(chosen).split(","))
    step = _number(text, "decoder_sparse_step")
    without = set(text.get("mlp_only_layers") or ())
    if step > 1 or without:
        step = step or 1
        return sum(i in without or (i + 1) % step > 0 for i in range(layers))
    return _number(text, "first_k_dense_replace")


def _windows(text: Fields) -> tuple[int, int]:
    """Return the keys a window has, and in how many layers."""
    layers = _number(text, "num_hidden_layers")
    if _is_llama4(text):  # chunks, in three layers of four
        return _number(text, "attention_chunk_size"), layers - layers // 4
    window = _number(text, "sliding_window")
    if kinds := text.get("layer_types"):
        return window, sum(kind == "sliding_attention" for kind in kinds)
    if not window or text.get("use_sliding_window") is False:
        return 0, 0
    if pattern := _number(text, "sliding_window_pattern"):
        return window, layers - layers // pattern
    if "use_sliding_window" in text:  # Qwen2: the layers after those without
        return window, max(layers - _number(text, "max_window_layers"), 0)
    return window, layers


def _mla(text: Fields, name: str) -> Mla | None:
    if not _number(text, "kv_lora_rank"):
        return None
    return Mla(
        q_lora_rank=_number(text, "q_lora_rank"),
        kv_lora_rank=_number(text, "kv_lora_rank"),
        qk_nope=_need(text, name, "qk_nope_head_dim"),
        qk_rope=_need(text, name, "qk_rope_head_dim"),
        v_head=_need(text, name, "v_head_dim"),
    )


def _linear(text: Fields, name: str) -> LinearAttention | None:
    if not _number(text, "linear_num_value_heads"):
        return None
    layers = _need(text, name, "num_hidden_layers")
    if kinds := text.get("layer_types"):
        count = sum(kind == "linear_attention" for kind in kinds)
    else:
        count = layers - layers // _need(text, name, "full_attention_interval")
    return LinearAttention(
        layers=count,
        key_heads=_need(text, name, "linear_num_key_heads"),
        key_dim=_need(text, name, "linear_key_head_dim"),
        value_heads=_need(text, name, "linear_num_value_heads"),
        value_dim=_need(text, name, "linear_value_head_dim"),
        convolution=_need(text, name, "linear_conv_kernel_dim"),
    )


def _index(text: Fields) -> Indexer | None:
    if not _number(text, "index_topk"):
        return None
    return Indexer(
        _number(text, "index_n_heads"), _number(text, "index_head_dim"), _number(text, "index_topk")
    )


def _tied(text: Fields, config: Fields) -> bool:
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    if tied is None:  # transformers leaves out a family's default
        return str(text.get("model_type", "")).startswith("gemma")
    return bool(tied)


def _is_llama4(text: Fields) -> bool:
    return str(text.get("model_type", "")).startswith("llama4")


def _is_qwen3_next(text: Fields) -> bool:
    return str(text.get("model_type", "")).startswith("qwen3_next")


def _number(text: Fields, *names: str) -> int:
    """Return the first of the fields that is a positive whole number; 0 without one."""
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _need(text: Fields, owner: str, *names: str) -> int:
    if value := _number(text, *names):
        return value
    raise UsageError(f"{owner}: {CONFIG} has no {names[0]} that is a positive number: add it")


def read_json(path: Path) -> Fields:
    """Return the JSON object in a file.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from e
    except ValueError as e:
        raise UsageError(f"{path} is not JSON: {e}") from e
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no JSON object")
    return content
