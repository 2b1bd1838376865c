"""The tuned files that a serving engine would look for and miss, guessed from similar layers.

Engines warn that no tuned file exists for a model's layers on a GPU, and take defaults. Which files
they look for follows from the model, its layout and its formats; what goes into them is what tuned
files of similar layers agree on (`foretune.tune.exporting.winners`). Nothing here is measured.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from foretune.errors import OutputError, UsageError
from foretune.plan.cost.decoder import step_operators
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout, illegal_because
from foretune.replacing import replacing
from foretune.tune.exporting.layer import Engine, Layer
from foretune.tune.exporting.vllm import TunedLayer, write_layer
from foretune.tune.exporting.winners import CARD, Guess, Winners

__all__ = ["EngineFile", "engine_files", "layers_of", "write_files"]

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Numbers of tokens that most tuned files have an entry for."""
IN_BLOCKS = "fp8_block"
"""The one format of linear layers that engines multiply with tuned Triton kernels."""
BLOCK = (128, 128)
PACKED = "int4_w4a16"
EXPERTS = {
    "bf16": "", "fp8": "fp8_w8a8", "fp8_static": "fp8_w8a8", IN_BLOCKS: "fp8_w8a8",
    "int8_wo": "int8_w8a16", "int4_wo": PACKED,
}  # fmt: skip
"""Format of routed experts -> what file names call it, where a Triton kernel multiplies them."""
LINEAR = "linear"
"""Folder of files that engines look for in their own package only."""
VERSION = re.compile(r"\d+(\.\d+)*")
Status = Literal["there", "guessed", "nothing similar"]


@dataclass(frozen=True)
class EngineFile:
    """A file that an engine looks for.

    Attributes:
        layer: which its name says.
        parts: of the model that use it.
        status: whether the engine has it, or what can be said without it.
        guesses: number of tokens -> configuration, where it is guessed.
    """

    layer: Layer
    parts: tuple[str, ...]
    status: Status
    guesses: Mapping[int, Guess]

    @property
    def agreement(self) -> float:
        """Mean agreement of the votes; NaN where nothing is guessed."""
        found = [guess.agreement for guess in self.guesses.values()]
        return sum(found) / len(found) if found else float("nan")


def layers_of(
    model: ModelDescription, layout: Layout, formats: Formats, device: str, engine: Engine
) -> dict[Layer, tuple[str, ...]]:
    """Return the layers that an engine looks up tuned files for, and the parts that use each.

    Args:
        model: that is served.
        layout: over which ranks.
        formats: of its weights.
        device: the GPU's name, as its driver gives it.
        engine: that serves it.

    Raises:
        UsageError: the model cannot be spread like this.
    """
    if reason := illegal_because(model, layout, formats):
        raise UsageError(f"{model.name} cannot be served on {layout}: {reason}")
    found: dict[Layer, list[str]] = {}
    for layer, part in _looked_up(model, layout, formats, device, engine):
        parts = found.setdefault(layer, [])
        if part not in parts:
            parts.append(part)
    return {layer: tuple(parts) for layer, parts in found.items()}


def engine_files(
    layers: Mapping[Layer, tuple[str, ...]], own: Winners, known: Winners
) -> list[EngineFile]:
    """Return the file of each layer, with what to write where the engine lacks it.

    Args:
        layers: see `layers_of`.
        own: the engine's tuned files.
        known: those that have a vote.
    """
    files = []
    for layer, parts in layers.items():
        if layer in own.layers:
            files.append(EngineFile(layer, parts, "there", {}))
            continue
        found = {tokens: known.guess(layer, tokens) for tokens in TOKENS}
        guesses = {tokens: guess for tokens, guess in found.items() if guess}
        status: Status = "guessed" if guesses else "nothing similar"
        files.append(EngineFile(layer, parts, status, guesses))
    return files


def write_files(
    folder: Path, files: Sequence[EngineFile], engine: Engine, triton: str = ""
) -> list[Path]:
    """Write the guessed files as the engine reads them, and a card that says what they are.

    Files of linear layers go to `LINEAR` in the folder: engines read these in their own package
    only.

    Args:
        folder: vLLM reads ``VLLM_TUNED_CONFIG_FOLDER``.
        files: those with guesses are written.
        engine: that reads them.
        triton: the version of Triton that SGLang's files are for.

    Returns:
        The files, without the card.

    Raises:
        OutputError, StoreError: they cannot be written, or would replace what was not guessed.
        UsageError: SGLang keeps files by the version of Triton, which is not given.
    """
    places = {
        _folder_of(f.layer, engine, triton) / f.layer.named(engine): f for f in files if f.guesses
    }
    card = _read_card(folder / CARD)
    for place in places:
        if (folder / place).exists() and place.as_posix() not in card:
            raise OutputError(f"{folder / place} is there and no guess: give --out another folder")
    card |= {place.as_posix(): _about(file) for place, file in places.items()}
    with replacing(folder / CARD) as new:
        text = {"engine": engine, "measured": False, "files": card}
        new.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    for place, file in places.items():
        configs = {tokens: guess.config for tokens, guess in file.guesses.items()}
        write_layer(folder / place, TunedLayer(file.layer, configs))
    return [folder / place for place in places]


def _looked_up(
    model: ModelDescription, layout: Layout, formats: Formats, device: str, engine: Engine
) -> Iterator[tuple[Layer, str]]:
    steps: tuple[tuple[Literal["prefill", "decode"], int], ...] = (("prefill", 128), ("decode", 1))
    for phase, new_tokens in steps:
        for operator in step_operators(model, layout, formats, 1, new_tokens, 128, phase):
            if operator.kernel == "gemm" and operator.config.get("format") == IN_BLOCKS:
                columns, depth = int(operator.problem["N"]), int(operator.problem["K"])
                linear = Layer(0, columns, device, EXPERTS[IN_BLOCKS], BLOCK, depth)
                yield linear, operator.name
    if model.is_moe and formats.moe in EXPERTS:
        dtype, block = EXPERTS[formats.moe], BLOCK if formats.moe == IN_BLOCKS else None
        experts = -(-model.experts // layout.moe_ep)
        size = model.moe_intermediate // layout.moe_tp
        if engine == "sglang" and dtype == PACKED:
            size //= 2  # of bytes, each of which holds two
        yield Layer(experts, size, device, dtype, block), "experts"
        alike = model.shared_width == model.moe_intermediate
        if engine == "sglang" and layout.moe_ep == 1 and alike:
            yield Layer(experts + 1, size, device, dtype, block), "with the shared expert"


def _folder_of(layer: Layer, engine: Engine, triton: str) -> Path:
    if not layer.experts:
        return Path(LINEAR)
    if engine == "vllm":
        return Path()
    if not VERSION.fullmatch(triton):
        raise UsageError("SGLang keeps tuned files by version of Triton: give --triton, like 3.5.1")
    return Path("configs") / f"triton_{triton.replace('.', '_')}"


def _read_card(path: Path) -> dict[str, Any]:
    """Return what an earlier run wrote; nothing where there is no card."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["files"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise OutputError(f"{path} is no card of guessed files: give --out another folder") from e


def _about(file: EngineFile) -> dict[str, object]:
    return {
        "parts": file.parts,
        "agreement": {tokens: round(g.agreement, 3) for tokens, g in file.guesses.items()},
        "nearest": sorted({guess.nearest.file_name for guess in file.guesses.values()}),
    }
