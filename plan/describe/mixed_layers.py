"""Reads ``config.json`` of models with different kinds of layers.

Fields are interpreted as in vLLM and transformers: ``nemotron_h``, ``granitemoehybrid``,
``bamba``, ``falcon_h1``, ``lfm2``, ``nemotron_nas`` (DeciLM), ``gemma4``, ``mimo_v2_flash``,
``step3p5``, ``kimi_linear``, ``minimax_m3``, ``deepseek_v4``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import ceil
from typing import Any

from foretune.errors import UsageError
from foretune.plan.describe.description import (
    CompressedAttention,
    Heads,
    Indexer,
    LinearAttention,
    ModelDescription,
)

Fields = Mapping[str, Any]

LAYER_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letter in Nemotron-H's pattern -> kind of layer."""
CHANNELS = 64
"""Channels of a convolution that are split over ranks as one unit."""
SAVED_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}
"""Names of layers in files that transformers saved -> kind."""
COMPRESSION_RATIOS = {0, 4, 128}
"""Tokens per compressed key in DeepSeek-V4, by layer."""
DECI_MULTIPLE = 256
"""DeciLM's MLP widths are rounded up to multiples of this."""


def nemotron_h(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of Nemotron-H: layers are state spaces, attention, MLPs or experts."""
    kinds = text.get("layers_block_type") or [
        LAYER_LETTERS.get(letter, letter) for letter in str(text.get("hybrid_override_pattern", ""))
    ]
    kinds = [SAVED_KINDS.get(kind, kind) for kind in kinds]
    for kind in kinds:
        if kind not in LAYER_LETTERS.values():
            raise UsageError(f"{name}: layers of kind {kind!r} cannot be planned yet")
    count = {kind: kinds.count(kind) for kind in LAYER_LETTERS.values()}
    state = LinearAttention(
        layers=count["mamba"],
        key_heads=text["n_groups"],
        key_dim=text["ssm_state_size"],
        value_heads=text["mamba_num_heads"],
        value_dim=text["mamba_head_dim"],
        convolution=text["conv_kernel"],
        kind="mamba2",
    )
    return {
        "layers": len(kinds),
        "linear": state if count["mamba"] else None,
        "without_attention": count["mlp"] + count["moe"],
        "without_mlp": count["mamba"] + count["attention"],
        "dense_layers": count["mlp"] if count["moe"] else 0,
        "shared_intermediate": text.get("moe_shared_expert_intermediate_size") or 0,
        "expert_hidden": text.get("moe_latent_size") or 0,
    }


def _integer(text: Fields, field: str) -> int:
    value = text[field]
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{field} is {value!r}")
    return value


def mamba2_layers(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of Granite 4, Bamba and Falcon-H1, whose layers all have an MLP."""
    layers, heads = text["num_hidden_layers"], _integer(text, "mamba_n_heads")
    beside = "mamba_d_ssm" in text
    head_dim = text["mamba_d_head"]
    if head_dim == "auto":
        head_dim = _integer(text, "mamba_expand") * text["hidden_size"] // heads
    kinds = [SAVED_KINDS.get(k, k) for k in text.get("layer_types") or ()]
    attention = kinds.count("attention") if kinds else len(text.get("attn_layer_indices") or ())
    if set(kinds) - {"mamba", "attention"}:
        raise UsageError(f"{name}: layers without attention cannot be planned yet")
    state = LinearAttention(
        layers=layers if beside else layers - attention,
        key_heads=_integer(text, "mamba_n_groups"),
        key_dim=_integer(text, "mamba_d_state"),
        value_heads=heads,
        value_dim=int(head_dim),
        convolution=_integer(text, "mamba_d_conv"),
        kind="mamba2",
        beside_softmax=beside,
    )
    fields: dict[str, Any] = {"linear": state if state.layers else None}
    if "shared_intermediate_size" in text and not text.get("num_local_experts"):
        fields["intermediate"] = text["shared_intermediate_size"]
    return fields


def short_convolutions(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of LFM2: most layers have a gated convolution over a few tokens."""
    kinds = list(text.get("layer_types") or ())
    if not kinds:
        attention = text.get("full_attn_idxs") or range(text["num_hidden_layers"])
        numbers = range(text["num_hidden_layers"])
        kinds = ["full_attention" if i in attention else "conv" for i in numbers]
    other = sorted(set(kinds) - {"conv", "full_attention"})
    if other:
        raise UsageError(
            f"{name}: layers of kind {other[0]!r} beside short convolutions cannot be planned yet"
        )
    heads = text["hidden_size"] // CHANNELS
    layers = kinds.count("conv")
    fields: dict[str, Any] = {}
    if layers:
        fields["linear"] = LinearAttention(
            layers=layers,
            key_heads=heads,
            key_dim=0,
            value_heads=heads,
            value_dim=CHANNELS,
            convolution=_integer(text, "conv_L_cache"),
            kind="convolution",
        )
    if text.get("model_type") == "lfm2":
        width = int(text.get("block_ff_dim") or text["intermediate_size"])
        if text.get("block_auto_adjust_ff_dim", True):
            multiple = text.get("block_multiple_of", 256)
            width = int(text.get("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
            width = ceil(width / multiple) * multiple
        fields["intermediate"] = width
    return fields


def deci_lm(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of DeciLM: some layers have no attention, and MLP widths vary."""
    layers: Sequence[Fields] = text["block_configs"]
    attention = [layer["attention"] for layer in layers if not layer["attention"]["no_op"]]
    groups = {part["n_heads_in_group"] for part in attention}
    replaced = any(
        part.get("replace_with_linear") or part.get("window_length") for part in attention
    )
    replaced |= any(layer["ffn"].get("replace_with_linear") for layer in layers)
    if replaced or len(groups) != 1:
        raise UsageError(f"{name}: layers with different heads cannot be planned yet")
    dense = [layer["ffn"]["ffn_mult"] for layer in layers if not layer["ffn"]["no_op"]]
    exact = [int(2 * multiple * text["hidden_size"] / 3) for multiple in dense]
    widths = [ceil(width / DECI_MULTIPLE) * DECI_MULTIPLE for width in exact]
    return {
        "kv_heads": text["num_attention_heads"] // groups.pop(),
        "intermediate": max(widths),
        "mlp_widths": tuple((width, widths.count(width)) for width in sorted(set(widths))),
        "without_attention": len(layers) - len(attention),
        "without_mlp": len(layers) - len(widths),
    }


def gemma4(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of Gemma 4: wide full-attention heads, and experts plus a dense MLP."""
    if text.get("num_kv_shared_layers"):
        raise UsageError(f"{name}: layers that share a cache cannot be planned yet")
    dense_width = text["intermediate_size"] if text.get("enable_moe_block") else 0
    heads, dim = text["num_attention_heads"], text["head_dim"]
    return {
        "kv_heads": text.get("num_global_key_value_heads") or text["num_key_value_heads"],
        "head_dim": text["global_head_dim"],
        "shared_values": bool(text.get("attention_k_eq_v")),
        "windowed": Heads(heads, text["num_key_value_heads"], dim, dim),
        "shared_experts": int(dense_width > 0),
        "shared_intermediate": dense_width,
    }


def mimo_v2(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of MiMo-V2: layers with a window have other heads."""
    return {
        "value_dim": text.get("v_head_dim") or 0,
        "windowed_layers": sum(text["hybrid_layer_pattern"]),
        "windowed": Heads(
            text["swa_num_attention_heads"],
            text["swa_num_key_value_heads"],
            text["swa_head_dim"],
            text.get("swa_v_head_dim") or text["swa_head_dim"],
        ),
    }


def step3(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of Step 3.5 and later: layers with a window have more heads."""
    other = text.get("attention_other_setting")
    if not other:
        raise UsageError(
            f"{name}: the heads of windowed layers (attention_other_setting) are missing in this "
            "config.json: use the folder of the published model"
        )
    dim = other["head_dim"]
    return {
        "windowed": Heads(other["num_attention_heads"], other["num_attention_groups"], dim, dim),
        "shared_experts": 1,
        "shared_intermediate": text["share_expert_dim"],
    }


def kimi_delta(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of Kimi's models with delta attention in most layers."""
    linear = text["linear_attn_config"]
    heads, dim = linear["num_heads"], linear["head_dim"]
    return {
        "linear": LinearAttention(
            layers=len(linear["kda_layers"]),
            key_heads=heads,
            key_dim=dim,
            value_heads=heads,
            value_dim=dim,
            convolution=linear["short_conv_kernel_size"],
            kind="kda",
            gate_rank=dim,
            output_gate_rank=0 if linear.get("use_full_rank_gate") else dim,
        ),
        "gated_attention": bool(text.get("mla_use_output_gate")),
        "expert_hidden": text.get("routed_expert_hidden_size") or 0,
    }


def minimax_sparse(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of MiniMax-M3: most layers select blocks of keys."""
    sparse = text["sparse_attention_config"]
    if not sparse.get("use_sparse_attention"):
        return {}
    block = sparse["sparse_block_size"]
    return {
        "index": Indexer(
            sparse["sparse_num_index_heads"],
            sparse["sparse_index_dim"],
            sparse["sparse_topk_blocks"] * block,
            sum(sparse["sparse_attention_freq"]),
            block,
        )
    }


def deepseek_v4(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of DeepSeek-V4: layers compress keys at different ratios."""
    ratios = text["compress_ratios"]
    if not set(ratios) <= COMPRESSION_RATIOS:
        raise UsageError(f"{name}: compression of {max(ratios)} tokens cannot be planned yet")
    fields: dict[str, Any] = {
        "compressed": CompressedAttention(
            q_lora_rank=text["q_lora_rank"],
            o_groups=text["o_groups"],
            o_lora_rank=text["o_lora_rank"],
            window=text["sliding_window"],
            ratios=tuple((ratio, ratios.count(ratio)) for ratio in sorted(set(ratios))),
            residual_streams=text["hc_mult"],
        ),
        "index": Indexer(
            text["index_n_heads"],
            text["index_head_dim"],
            text["index_topk"],
            ratios.count(CompressedAttention.indexed_ratio),
        ),
        "windowed_layers": 0,
    }
    if text.get("expert_dtype") == "fp4":
        groups = (text.get("quantization_config") or {}).get("config_groups")
        fields |= {"weight_format": "fp8_block", "moe_format": "nvfp4" if groups else "mxfp4"}
    return fields


FAMILY_READERS = {
    "compress_ratios": deepseek_v4,
    "mamba_num_heads": nemotron_h,
    "mamba_n_heads": mamba2_layers,
    "conv_L_cache": short_convolutions,
    "block_configs": deci_lm,
    "global_head_dim": gemma4,
    "hybrid_layer_pattern": mimo_v2,
    "share_expert_dim": step3,
    "linear_attn_config": kimi_delta,
    "sparse_attention_config": minimax_sparse,
}
"""Field unique to a family -> function that reads the family's fields."""


def has_family_reader(text: Fields) -> bool:
    """Return whether a file has a field of one of the families here."""
    return any(text.get(field) for field in FAMILY_READERS)


def mixed_layers(text: Fields, name: str) -> dict[str, Any]:
    """Return the fields of a `ModelDescription` about layers that differ; usually empty.

    Raises UsageError for missing fields and unsupported layers.
    """
    for field, reader in FAMILY_READERS.items():
        if text.get(field):
            try:
                found = reader(text, name)
                _require_sizes(found)
                return found
            except UsageError:
                raise
            except (KeyError, TypeError, AttributeError, ValueError) as e:
                raise UsageError(f"{name}: {field} in config.json is not complete: {e!r}") from e
    return {}


def _require_sizes(found: Mapping[str, Any]) -> None:
    """Raise ValueError if a size is no whole number from 0 on."""
    owners: list[tuple[Any, Mapping[str, Any]]] = [(ModelDescription, found)]
    owners += [(part, vars(part)) for part in found.values() if is_dataclass(part)]
    for owner, values in owners:
        for name in (field.name for field in fields(owner) if field.type is int):
            size = values.get(name, 0)
            if type(size) is not int or size < 0:
                raise ValueError(f"{name} is {size!r}")
