"""The kind of each layer of a model: full, windowed, chunked or linear attention.

Many files leave ``layer_types`` out, because the model's class knows the pattern. Patterns of
transformers' classes are shipped. For other families, an installed transformers is asked. A window
whose layers are not known is refused: as a window everywhere, or nowhere, it would give a plan
with a wrong cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.errors import UsageError
from foretune.plan.describe import shipped_json

Fields = Mapping[str, Any]

_TABLE = shipped_json("layer_patterns.json")
KIND_OF_LETTER: dict[str, str] = _TABLE["letters"]
"""Letter in a pattern -> kind of layer."""
PATTERNS: dict[str, str] = _TABLE["patterns"]
"""``model_type`` -> kinds of its first layers, which repeat. With ``!`` the last layer is full;
with ``<`` the pattern ends with the last layer."""
IRREGULAR: list[str] = _TABLE["irregular"]
"""Families whose layers do not repeat."""
WINDOWS_IN_ALL_LAYERS: list[str] = _TABLE["windows_in_all_layers"]
WINDOWS_IN_LAST_LAYERS: list[str] = _TABLE["windows_in_last_layers"]
"""Families with windows from ``max_window_layers`` on."""
WINDOWS_IF_USED: dict[str, str] = _TABLE["windows_if_used"]
"""Families with windows if ``use_sliding_window`` is set -> in which layers."""
DEFAULT_WINDOWS: dict[str, int] = _TABLE["windows"]
"""``model_type`` -> the window if the file does not say."""
DEFAULT_CHUNK = 8192
"""Llama 4's ``attention_chunk_size``, if the file does not say."""

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"


@dataclass(frozen=True)
class Windows:
    """The layers that see only the last keys."""

    keys: int = 0
    layers: int = 0


def layer_kinds(text: Fields, family: str, known: bool) -> list[str]:
    """Return the kind of each layer; empty if all have the attention of the family.

    ``known`` says whether the family's class is one of transformers'. Raises UsageError if the
    layers with a window are not known.
    """
    layers = text.get("num_hidden_layers") or 0
    stated = text.get("layer_types")
    if stated:
        if isinstance(layers, int) and len(stated) < layers:
            raise UsageError(
                f"layer_types in config.json has {len(stated)} entries for {layers} layers"
            )
        return [str(kind) for kind in stated]
    if not isinstance(layers, int) or layers < 1:
        return []
    if text.get("no_rope_layers") and family.startswith("llama4"):
        return [CHUNKED if rotary else FULL for rotary in text["no_rope_layers"]][:layers]

    period = _stated_period(text)
    if period:
        return [FULL if (layer + 1) % period == 0 else SLIDING for layer in range(layers)]
    if family in PATTERNS:
        return _repeated(PATTERNS[family], layers)
    if family in IRREGULAR or not known:
        return _kinds_of_class(text, family) or _kinds_of_unknown(text, family)
    return _windowed_kinds(text, family, layers)


def _stated_period(text: Fields) -> int:
    """Return after how many layers a full one follows, if the file says; else 0."""
    period = text.get("sliding_window_pattern", text.get("global_attn_every_n_layers"))
    if isinstance(period, str):  # a letter per layer, like LLLG
        return len(period)
    return period if isinstance(period, int) and period > 0 else 0


def _repeated(pattern: str, layers: int) -> list[str]:
    letters = pattern.strip("<!")
    start = -layers % len(letters) if pattern.startswith("<") else 0
    numbers = range(start, start + layers)
    kinds = [KIND_OF_LETTER[letters[number % len(letters)]] for number in numbers]
    if pattern.endswith("!"):
        kinds[-1] = FULL
    return kinds


def _windowed_kinds(text: Fields, family: str, layers: int) -> list[str]:
    """Return the kinds of layers of families whose windows depend on other fields."""
    first = text.get("max_window_layers", layers)
    last_layers = [FULL if layer < first else SLIDING for layer in range(layers)]
    if family in WINDOWS_IN_ALL_LAYERS:
        return layers * [SLIDING]
    if family in WINDOWS_IN_LAST_LAYERS:
        return last_layers
    if family not in WINDOWS_IF_USED or not text.get("use_sliding_window"):
        return []
    where = WINDOWS_IF_USED[family]
    if where == "all":
        return layers * [SLIDING]
    if where == "alternate":
        return [SLIDING if i % 2 == 0 and i < first else FULL for i in range(layers)]
    if where == "without_rope":
        interval = text.get("no_rope_layer_interval", 4)
        rotary = text.get("no_rope_layers") or [(i + 1) % interval for i in range(layers)]
        return [FULL if each else SLIDING for each in rotary[:layers]]
    return last_layers


def _kinds_of_class(text: Fields, family: str) -> list[str]:
    """Return the kinds that an installed transformers gives to the layers; empty if none."""
    try:
        from transformers import CONFIG_MAPPING  # type: ignore[import-not-found]
    except ImportError:
        return []
    if family not in CONFIG_MAPPING:
        return []
    fields = {name: value for name, value in text.items() if name != "model_type"}
    try:
        kinds = CONFIG_MAPPING[family](**fields).layer_types
    except Exception:  # whatever a class does with fields of another version
        return []
    return [str(kind) for kind in kinds or ()]


def _kinds_of_unknown(text: Fields, family: str) -> list[str]:
    """Return the kinds of layers of a family that no table has."""
    window = text.get("sliding_window")
    layers = text["num_hidden_layers"]
    longest = text.get("max_position_embeddings")
    used = text.get("use_sliding_window", True)
    if family in IRREGULAR:
        raise UsageError(f"{family} needs layer_types in config.json: add the kind of each layer")
    if not isinstance(window, int) or window < 1 or not used:
        return []
    if isinstance(longest, int) and window >= longest:
        return []
    if "max_window_layers" in text:
        first = text["max_window_layers"]
        return [FULL if layer < first else SLIDING for layer in range(layers)]
    raise UsageError(
        f"which layers of {family} have the window of {window} tokens is not known: add "
        "layer_types to config.json, a kind for each layer"
    )


def windows(text: Fields, family: str, kinds: Sequence[str]) -> Windows:
    """Return the window of the layers, and how many have one.

    Raises UsageError if layers have a window whose size is not known.
    """
    windowed = kinds.count(SLIDING)
    if windowed and "sliding_window" not in text and family not in DEFAULT_WINDOWS:
        raise UsageError("config.json has layers with a window but no sliding_window: add it")
    keys = text.get("sliding_window", DEFAULT_WINDOWS.get(family))
    chunked = kinds.count(CHUNKED)
    if chunked:
        windowed = chunked
        keys = text.get("attention_chunk_size", DEFAULT_CHUNK)
    if not isinstance(keys, int) or keys < 1 or text.get("use_sliding_window") is False:
        return Windows()
    return Windows(keys=keys, layers=windowed)
