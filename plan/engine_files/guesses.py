"""Tuned files that a serving engine lacks, guessed from similar layers.

Engines warn if no tuned file exists for a model's layers on a GPU, and use defaults. The model, its
layout and its formats determine the files. Their content is the vote of similar layers
(`foretune.plan.engine_files.tuned_layers`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from foretune.errors import UsageError
from foretune.plan.cost.decoder import step_operators
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout, illegal_because
from foretune.plan.engine_files.layer import Engine, Layer
from foretune.plan.engine_files.tuned_layers import Guess, TunedLayerIndex
from foretune.space import Configuration

TOKEN_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Numbers of tokens in most tuned files."""
BLOCKWISE_FP8 = "fp8_block"
"""The only format of linear layers with tuned Triton kernels."""
BLOCK_SHAPE = (128, 128)
PACKED_INT4 = "int4_w4a16"
EXPERT_DTYPES = {
    "bf16": "", "fp8": "fp8_w8a8", "fp8_static": "fp8_w8a8", BLOCKWISE_FP8: "fp8_w8a8",
    "int8_wo": "int8_w8a16", "int4_wo": PACKED_INT4,
}  # fmt: skip
"""Format of routed experts -> its name in file names, for Triton kernels."""
Status = Literal["there", "guessed", "nothing similar"]


@dataclass(frozen=True)
class EngineFile:
    """A file that an engine looks for.

    Attributes:
        layer: the layer in its name.
        parts: parts of the model that use it.
        status: whether the engine has it, or the result of guessing.
        guesses: number of tokens -> guess.
    """

    layer: Layer
    parts: tuple[str, ...]
    status: Status
    guesses: Mapping[int, Guess] = field(default_factory=dict)

    @property
    def configs(self) -> dict[int, Configuration]:
        """Content of the file to write; empty if none is written."""
        return {tokens: guess.config for tokens, guess in self.guesses.items()}

    @property
    def agreement(self) -> float:
        """Mean agreement of the guesses; NaN without guesses."""
        found = [guess.agreement for guess in self.guesses.values()]
        return sum(found) / len(found) if found else float("nan")


def tuned_file_layers(
    model: ModelDescription, layout: Layout, formats: Formats, device: str, engine: Engine
) -> dict[Layer, tuple[str, ...]]:
    """Return the layers that an engine looks up tuned files for, and the parts that use each.

    ``device`` is the driver's name of the GPU. Raises UsageError if the model does not allow the
    layout.
    """
    if reason := illegal_because(model, layout, formats):
        raise UsageError(f"{model.name} cannot be served on {layout}: {reason}")
    found: dict[Layer, list[str]] = {}
    for layer, part in _layer_lookups(model, layout, formats, device, engine):
        parts = found.setdefault(layer, [])
        if part not in parts:
            parts.append(part)
    return {layer: tuple(parts) for layer, parts in found.items()}


def engine_files(
    layers: Mapping[Layer, tuple[str, ...]], existing: TunedLayerIndex, known: TunedLayerIndex
) -> list[EngineFile]:
    """Return the file of each layer, with guesses where the engine has none.

    ``existing`` has the engine's tuned files, ``known`` those that vote.
    """
    files = []
    for layer, parts in layers.items():
        if layer in existing.layers:
            files.append(EngineFile(layer, parts, "there"))
            continue
        found = {tokens: known.guess(layer, tokens) for tokens in TOKEN_COUNTS}
        guesses = {tokens: guess for tokens, guess in found.items() if guess}
        status: Status = "guessed" if guesses else "nothing similar"
        files.append(EngineFile(layer, parts, status, guesses))
    return files


def _layer_lookups(
    model: ModelDescription, layout: Layout, formats: Formats, device: str, engine: Engine
) -> Iterator[tuple[Layer, str]]:
    steps: tuple[tuple[Literal["prefill", "decode"], int], ...] = (("prefill", 128), ("decode", 1))
    for phase, new_tokens in steps:
        for operator in step_operators(model, layout, formats, 1, new_tokens, 128, phase):
            if operator.kernel == "gemm" and operator.config.get("format") == BLOCKWISE_FP8:
                columns, depth = int(operator.problem["N"]), int(operator.problem["K"])
                linear = Layer(0, columns, device, EXPERT_DTYPES[BLOCKWISE_FP8], BLOCK_SHAPE, depth)
                yield linear, operator.name
    if model.is_moe and formats.moe in EXPERT_DTYPES:
        dtype = EXPERT_DTYPES[formats.moe]
        block = BLOCK_SHAPE if formats.moe == BLOCKWISE_FP8 else None
        experts = -(-model.experts // layout.moe_ep)
        size = model.moe_intermediate // layout.moe_tp
        if engine == "sglang" and dtype == PACKED_INT4:
            size //= 2  # counted in bytes of two values each
        yield Layer(experts, size, device, dtype, block), "experts"
        same_width = model.shared_width == model.moe_intermediate
        if engine == "sglang" and layout.moe_ep == 1 and same_width:
            yield Layer(experts + 1, size, device, dtype, block), "with the shared expert"
