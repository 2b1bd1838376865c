"""The tuned files that a serving engine would look for and miss, guessed from similar layers.

Engines warn that no tuned file exists for a model's layers on a GPU, and take defaults. Which files
they look for follows from the model, its layout and its formats; what goes into them is what tuned
files of similar layers agree on (`foretune.tune.exporting.winners`). Nothing here is measured.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretune.errors import UsageError
from foretune.plan.cost.decoder import step_operators
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, find_format
from foretune.plan.describe.layout import Layout, illegal_because
from foretune.replacing import replacing
from foretune.tune.exporting.layer import Engine, Layer
from foretune.tune.exporting.vllm import TunedLayer, write_layer
from foretune.tune.exporting.winners import Guess, Winners

__all__ = ["EngineFile", "engine_files", "layers_of", "write_files"]

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Numbers of tokens that most tuned files have an entry for."""
EXPERTS = {
    "bf16": "", "fp8": "fp8_w8a8", "fp8_static": "fp8_w8a8", "fp8_block": "fp8_w8a8",
    "int8": "int8_w8a8", "int8_wo": "int8_w8a16", "int4_wo": "int4_w4a16",
}  # fmt: skip
"""Format of routed experts -> what file names call it, where a Triton kernel multiplies them."""
IN_BLOCKS = "fp8_block"
"""The one format of other weights that engines multiply with tuned Triton kernels."""
BLOCK = (128, 128)
CARD = "foretune.json"
PRODUCTS = "products"
"""Folder of files that engines look for in their own package only."""
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
    model: ModelDescription, layout: Layout, formats: Formats, device: str
) -> dict[Layer, tuple[str, ...]]:
    """Return the layers that engines look up tuned files for, and the model's parts that use each.

    Args:
        model: that is served.
        layout: over which ranks.
        formats: of its weights.
        device: the GPU's name, as its driver gives it.

    Raises:
        UsageError: the model cannot be spread like this.
    """
    if reason := illegal_because(model, layout, formats):
        raise UsageError(f"{model.name} cannot be served on {layout}: {reason}")
    found: dict[Layer, list[str]] = {}
    for layer, part in _each(model, layout, formats, device):
        parts = found.setdefault(layer, [])
        if part not in parts:
            parts.append(part)
    return {layer: tuple(parts) for layer, parts in found.items()}


def engine_files(layers: Mapping[Layer, tuple[str, ...]], winners: Winners,
                 engine: Engine) -> list[EngineFile]:  # fmt: skip
    """Return the file of each layer, with what to write where the engine lacks it.

    Args:
        layers: see `layers_of`.
        winners: the tuned files that are known.
        engine: that looks for them.
    """
    files = []
    for layer, parts in layers.items():
        if winners.has(layer, engine):
            files.append(EngineFile(layer, parts, "there", {}))
            continue
        found = {tokens: winners.guess(layer, tokens) for tokens in TOKENS}
        guesses = {tokens: guess for tokens, guess in found.items() if guess}
        status: Status = "guessed" if guesses else "nothing similar"
        files.append(EngineFile(layer, parts, status, guesses))
    return files


def write_files(
    folder: Path, files: Sequence[EngineFile], engine: Engine, triton: str = ""
) -> list[Path]:
    """Write the guessed files as the engine reads them, and a card that says what they are.

    Args:
        folder: vLLM reads ``VLLM_TUNED_CONFIG_FOLDER``, SGLang ``SGLANG_MOE_CONFIG_DIR``; files of
            products go to `PRODUCTS` in it, for engines read these in their own package only.
        files: those with guesses are written.
        engine: that reads them.
        triton: the version of Triton that SGLang's files are for.

    Returns:
        The files, without the card.

    Raises:
        OutputError, StoreError: they cannot be written.
        UsageError: SGLang keeps files by the version of Triton, which is not given.
    """
    guessed = [file for file in files if file.guesses]
    paths = []
    for file in guessed:
        configs = {tokens: guess.config for tokens, guess in file.guesses.items()}
        place = _folder_of(folder, file.layer, engine, triton)
        paths.append(write_layer(place / file.layer.named(engine), TunedLayer(file.layer, configs)))
    with replacing(folder / CARD) as new:
        card = {str(p.relative_to(folder)): _said(f) for p, f in zip(paths, guessed, strict=True)}
        text = {"engine": engine, "measured": False, "files": card}
        new.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    return paths


def _each(
    model: ModelDescription, layout: Layout, formats: Formats, device: str
) -> Iterator[tuple[Layer, str]]:
    steps = (("prefill", 128), ("decode", 1))
    for phase, new_tokens in steps:
        for operator in step_operators(model, layout, formats, 1, new_tokens, 128, phase):  # type: ignore[arg-type]
            problem, kind = operator.problem, operator.config.get("format")
            if operator.kernel == "gemm" and kind == IN_BLOCKS:
                columns, depth = int(problem["N"]), int(problem["K"])
                product = Layer(0, columns, device, EXPERTS[IN_BLOCKS], BLOCK, depth)
                yield product, operator.name
            elif operator.kernel == "moe" and formats.moe in EXPERTS:
                experts = -(-int(problem["experts"]) // layout.moe_ep)
                size = int(problem["intermediate"]) // layout.moe_tp
                block = BLOCK if find_format(formats.moe).name == IN_BLOCKS else None
                yield Layer(experts, size, device, EXPERTS[formats.moe], block), operator.name


def _folder_of(folder: Path, layer: Layer, engine: Engine, triton: str) -> Path:
    if not layer.experts:
        return folder / PRODUCTS
    if engine == "vllm":
        return folder
    if not triton:
        raise UsageError("SGLang keeps tuned files by version of Triton: give --triton, like 3.5.1")
    return folder / "configs" / f"triton_{triton.replace('.', '_')}"


def _said(file: EngineFile) -> dict[str, object]:
    nearest = {tokens: guess.nearest.file_name for tokens, guess in file.guesses.items()}
    return {
        "parts": file.parts,
        "agreement": {tokens: round(g.agreement, 3) for tokens, g in file.guesses.items()},
        "nearest": sorted(set(nearest.values())),
    }
