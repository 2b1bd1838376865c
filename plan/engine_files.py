"""The tuned files that a serving engine would look for and miss, guessed from similar layers.

Engines warn that no tuned file exists for a model's layers on a GPU, and take defaults. Which files
they look for follows from the model, its layout and its formats; what goes into them is what tuned
files of similar layers agree on (`foretune.tune.exporting.winners`), or what was measured
(`foretune.plan.engine_measuring`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from foretune.errors import UsageError
from foretune.plan.cost.decoder import step_operators
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout, illegal_because
from foretune.space import Configuration
from foretune.tune.exporting.layer import Engine, Layer
from foretune.tune.exporting.winners import Guess, Winners

__all__ = ["EngineFile", "Entry", "engine_files", "layers_of"]

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
Status = Literal["there", "guessed", "nothing similar", "measured", "default is best"]


@dataclass(frozen=True)
class Entry:
    """What was measured for one number of tokens.

    Attributes:
        config: the winner; the engine's default where nothing beats it for certain.
        gain: the default's time over the winner's, median over rounds side by side.
        gain_low: lower end of its 95 % interval.
        gain_high: upper end.
    """

    config: Configuration
    gain: float = 1.0
    gain_low: float = 1.0
    gain_high: float = 1.0

    @property
    def wins(self) -> bool:
        """Whether it beats the engine's default for certain."""
        return self.gain_low > 1.0


@dataclass(frozen=True)
class EngineFile:
    """A file that an engine looks for.

    Attributes:
        layer: which its name says.
        parts: of the model that use it.
        status: whether the engine has it, or what can be said without it.
        guesses: number of tokens -> configuration, where it is guessed.
        measured: number of tokens -> what was measured.
        failed: number of tokens -> why it could not be measured.
    """

    layer: Layer
    parts: tuple[str, ...]
    status: Status
    guesses: Mapping[int, Guess] = field(default_factory=dict)
    measured: Mapping[int, Entry] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def configs(self) -> dict[int, Configuration]:
        """What a file of it holds; empty where none is written.

        Engines take the entry of the nearest number of tokens. So a measured file has the default,
        too, where that is best, and a file is written only if some entry beats it.
        """
        if any(entry.wins for entry in self.measured.values()):
            return {tokens: entry.config for tokens, entry in self.measured.items()}
        if self.measured or self.failed:
            return {}
        return {tokens: guess.config for tokens, guess in self.guesses.items()}

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
            files.append(EngineFile(layer, parts, "there"))
            continue
        found = {tokens: known.guess(layer, tokens) for tokens in TOKENS}
        guesses = {tokens: guess for tokens, guess in found.items() if guess}
        status: Status = "guessed" if guesses else "nothing similar"
        files.append(EngineFile(layer, parts, status, guesses))
    return files


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
