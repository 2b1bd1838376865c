"""Weights of encoders of images and sound, as a model's ``config.json`` describes them."""

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]

ENCODER_PARTS = ("vision_config", "audio_config")
"""Parts of the file about encoders."""
COMPOSED_PART = "thinker_config"
"""The part of models that also speak that has the encoders and the language model."""
WIDTHS = ("embed_dim", "vt_hidden_size", "hidden_size", "d_model", "width")
DEPTHS = ("depth", "vt_num_hidden_layers", "num_hidden_layers", "encoder_layers", "layers")
INNER_WIDTHS = ("vt_intermediate_size", "intermediate_size", "encoder_ffn_dim", "mlp_dim")
GATED = ("pixtral", "qwen2_5_vl", "qwen2_5_omni_vision_encoder")
"""Beginnings of the types of encoders whose MLPs have a gate, unless their activation says so."""
PIXTRAL = {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096}
"""The sizes of Pixtral's encoder, which its files leave out."""
GLM = ("glm4v", "glm_ocr")
"""Beginnings of the types of encoders whose ``intermediate_size`` is of the part that merges."""


def encoder_weights(config: Fields, hidden: int) -> int:
    """Return how many weights the encoders have, and the layers that project to ``hidden``.

    A transformer is assumed; 0 if no part of the file has its sizes.
    """
    composed = config.get(COMPOSED_PART)
    whole = composed if isinstance(composed, Mapping) else config
    parts = (whole.get(part) for part in ENCODER_PARTS)
    return round(sum(_weights(part, hidden) for part in parts if isinstance(part, Mapping)))


def _weights(encoder: Fields, hidden: int) -> float:
    kind = str(encoder.get("model_type"))
    sizes = {**PIXTRAL, **encoder} if kind == "pixtral" else encoder
    width = _first(sizes, WIDTHS)
    layers = _first(sizes, DEPTHS) + _first(sizes, ("num_global_layers",))
    inner = _first(sizes, INNER_WIDTHS) or width * _first(sizes, ("mlp_ratio",))
    if not (width and layers and inner):
        return 0.0
    gated = kind.startswith((*GATED, *GLM)) or sizes.get("hidden_act") in ("silu", "swiglu")
    matrices = 3 if gated else 2
    if kind.startswith("glm4v"):
        merging = hidden * hidden + 3 * hidden * inner
        return layers * width * (4 * width + matrices * hidden) + merging
    merged = width * (_first(sizes, ("spatial_merge_size",)) or 1) ** 2
    projections = 1 + len(sizes.get("deepstack_visual_indexes") or ())
    projection = max(merged, hidden) * hidden if merged == width else merged * (merged + hidden)
    return layers * width * (4 * width + matrices * inner) + projections * projection


def _first(sizes: Fields, names: tuple[str, ...]) -> float:
    """Return the first positive number among fields; 0 without."""
    values = (sizes.get(name) for name in names)
    return next((v for v in values if isinstance(v, int | float) and v > 0), 0.0)
