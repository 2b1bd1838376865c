"""Decoder families as planned, beside what their classes in transformers are.

Run with a Python that has transformers and torch: ``python benchmarks/plan_configs.py``; without
them, it says so and stops. Each ``model_type`` that generates text is either planned or refused:

- parameters: the class's own, with its default sizes, built without memory;
- cache: a tiny model with random weights reads `TOKENS` tokens, and its keys and values are
  counted. Layers with a window may keep one token less than it; indexes and states are left out.

``--refused`` lists why families are refused, ``--not-run`` why a tiny model did not run.
"""

import argparse
import contextlib
import io
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from foretune.errors import ForetuneError
from foretune.plan.cost.memory import request_bytes
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.huggingface import read_config
from foretune.plan.describe.layout import Layout

TOKENS = 32
WINDOW = 8
BF16_BYTES = 2.0
MAX_OFF = 0.01
"""Relative difference of parameters above which a family is named."""

TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "qk_head_dim": 24,
    "rotary_dim": 8,
    "sliding_window": WINDOW,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes of the tiny models, where a class has them."""
TINY_LAYERS = 8
"""Most layers of a tiny model: a period of every known pattern."""


@dataclass(frozen=True)
class Checked:
    """What is known of one family; texts say why something is not."""

    family: str
    refused: str = ""
    parameters_off: float | None = None
    not_built: str = ""
    cached: int | None = None
    planned_cached: tuple[float, ...] = ()
    not_run: str = ""

    @property
    def is_cache_right(self) -> bool:
        """Whether the tiny model cached as many numbers as planned."""
        return any(self.cached == round(planned) for planned in self.planned_cached)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--refused", action="store_true")
    parser.add_argument("--not-run", action="store_true")
    parser.add_argument("families", nargs="*")
    given = parser.parse_args()
    try:
        import torch
        import transformers
        from transformers.models.auto import modeling_auto
    except ImportError as e:
        print(f"skipped: {e}: install transformers and torch")
        return
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    families = given.families or list(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    checked = [check(family) for family in families]

    planned = [one for one in checked if not one.refused]
    built = [one for one in planned if one.parameters_off is not None]
    off = [one for one in built if abs(one.parameters_off or 0.0) > MAX_OFF]
    ran = [one for one in planned if one.cached is not None]
    wrong = [one for one in ran if not one.is_cache_right]
    print(f"transformers {transformers.__version__}: {len(checked)} families that generate text")
    print(f"planned {len(planned)}, refused {len(checked) - len(planned)}")
    print(f"parameters of {len(built)} classes: {len(off)} more than {MAX_OFF:.0%} off")
    for one in off:
        print(f"  {one.family}: {one.parameters_off:+.1%}")
    print(f"caches of {len(ran)} tiny models: {len(wrong)} other than planned")
    for one in wrong:
        numbers = " or ".join(f"{number:.0f}" for number in one.planned_cached)
        print(f"  {one.family}: {one.cached} numbers, planned {numbers}")
    if given.refused:
        _print_reasons(((one.family, one.refused) for one in checked if one.refused), "refused")
    if given.not_run:
        _print_reasons(((one.family, one.not_run) for one in planned if one.not_run), "not run")
        _print_reasons(((o.family, o.not_built) for o in planned if o.not_built), "not built")


def check(family: str) -> Checked:
    """Return what a family's class and its plan say of each other."""
    import transformers

    try:
        config = transformers.CONFIG_MAPPING[family]()
    except Exception as e:  # a class that needs more than its defaults
        return Checked(family, refused=f"its class has no default configuration ({_first_line(e)})")
    try:
        model = read_config(_file(config, family), family)
    except ForetuneError as e:
        return Checked(family, refused=str(e))

    parameters_off = None
    not_built = ""
    try:
        real, has_encoder = _parameters(config)
        counted = model.parameters() + has_encoder * model.encoder_weights
        parameters_off = counted / real - 1.0
    except Exception as e:
        not_built = _first_line(e)
    try:
        cached, planned_cached = _caches(family)
    except Exception as e:
        return Checked(
            family, parameters_off=parameters_off, not_built=not_built, not_run=_first_line(e)
        )
    return Checked(
        family,
        parameters_off=parameters_off,
        not_built=not_built,
        cached=cached,
        planned_cached=planned_cached,
    )


def _file(config: Any, family: str) -> dict[str, Any]:
    """Return a configuration as its ``config.json`` would be."""
    from transformers.models.auto import modeling_auto

    named = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
    architecture = named if isinstance(named, str) else named[0]
    return {**config.to_dict(), "architectures": [architecture], "model_type": family}


def _parameters(config: Any) -> tuple[int, bool]:
    """Return the number of a class's weights, and whether an encoder of images is among them."""
    import torch
    import transformers

    with torch.device("meta"), contextlib.redirect_stdout(io.StringIO()):
        model = transformers.AutoModelForCausalLM.from_config(config)
    weights = dict(model.named_parameters())
    has_encoder = any(word in name for name in weights for word in ("vision", "image", "img"))
    return sum({id(weight): weight.numel() for weight in weights.values()}.values()), has_encoder


def _caches(family: str) -> tuple[int, tuple[float, ...]]:
    """Return how many numbers a tiny model caches, and how many are planned for it."""
    import torch
    import transformers

    config = _tiny(transformers.CONFIG_MAPPING[family])
    with contextlib.redirect_stdout(io.StringIO()):
        network = transformers.AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.arange(TOKENS).reshape(1, TOKENS) % 100 + 3
    with torch.no_grad():
        cache = network(tokens, use_cache=True).past_key_values
    cached = sum(
        tensor.numel()
        for layer in cache.layers
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))
        if isinstance(tensor, torch.Tensor)
    )
    file = _file(config, family)
    model = read_config(file, family)
    shorter = read_config(_shorter(file), family)
    # Most classes of transformers cache the expanded keys and values of latent attention, engines
    # the latent ones.
    return cached, (_planned_numbers(model), _planned_numbers(shorter), _expanded_numbers(model))


def _tiny(config_class: Any) -> Any:
    """Return a small configuration with the class's pattern of layers."""
    defaults = config_class()
    text = defaults.get_text_config()
    names = {**getattr(text, "attribute_map", {})}
    sizes: dict[str, Any] = {
        name: value
        for name, value in TINY.items()
        if getattr(text, names.get(name, name), None) is not None
    }
    # Classes with latent attention keep the width of rotated keys there; others compute it.
    has_other_width = hasattr(text, "qk_rope_head_dim") or isinstance(
        getattr(type(text), "head_dim", None), property
    )
    if has_other_width:
        sizes.pop("head_dim", None)
    if hasattr(text, "kv_lora_rank"):
        sizes["num_key_value_heads"] = TINY["num_attention_heads"]
    layers = min(getattr(text, "num_hidden_layers", TINY_LAYERS), TINY_LAYERS)
    sizes["num_hidden_layers"] = layers
    for name in ("layer_types", "mlp_layer_types"):
        kinds = getattr(text, name, None)
        if kinds:
            sizes[name] = list(kinds)[:layers]
    if type(text) is config_class:
        return config_class(**sizes)
    return config_class(text_config=sizes)


def _shorter(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file whose windows are one token shorter."""
    shorter = dict(file)
    if file.get("sliding_window"):
        shorter["sliding_window"] = file["sliding_window"] - 1
    if isinstance(file.get("text_config"), dict):
        shorter["text_config"] = _shorter(file["text_config"])
    return shorter


def _planned_numbers(model: ModelDescription) -> float:
    """Return how many keys and values are planned, without states of linear layers."""
    empty = request_bytes(model, Layout(), Formats(), 0)
    indexed = model.indexed_layers * TOKENS * model.index.token_bytes if model.index else 0.0
    keys_and_values = request_bytes(model, Layout(), Formats(), TOKENS) - empty - indexed
    return keys_and_values / BF16_BYTES


def _expanded_numbers(model: ModelDescription) -> float:
    """Return how many numbers latent attention caches without its compression."""
    if model.mla is None:
        return 0.0
    mla = model.mla
    width = mla.qk_nope + mla.qk_rope + mla.v_head
    return float(TOKENS * model.layers * model.heads * width)


def _print_reasons(reasons: Iterable[tuple[str, str]], title: str) -> None:
    print(f"\n{title}:")
    for family, reason in reasons:
        print(f"  {family}: {reason}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]


if __name__ == "__main__":
    main()
