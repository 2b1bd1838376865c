"""Completes AITER's tables for a model's layers with the votes of similar layers.

A layer that AITER's tables lack gets a default. This module lists the layers of a model and their
tables, and fills the gaps (`foretune.plan.engine_files.aiter`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foretune.errors import OutputError, UsageError
from foretune.files import atomic_write
from foretune.plan.cost.decoder import step_operators
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout, illegal_because
from foretune.plan.engine_files.aiter import TABLE_KINDS, KernelChoice, TunedTable
from foretune.plan.engine_files.folder import read_card, refuse_foreign_file
from foretune.plan.engine_files.tuned_layers import MANIFEST_NAME
from foretune.problem import Problem

LINEAR_TABLES = {
    "fp8_block": ("a8w8_blockscale_tuned_gemm", "a8w8_blockscale_bpreshuffle_tuned_gemm"),
    "fp8": ("a8w8_bpreshuffle_tuned_gemm",),
    "int8": ("a8w8_tuned_gemm",),
}
"""Format of linear layers -> tables of the different engine versions."""
EXPERT_TABLE = "tuned_fmoe"
QUANTIZATION_TYPES = {
    "bf16": "No", "fp8": "per_Token", "fp8_static": "per_Tensor", "fp8_block": "per_1x128",
}  # fmt: skip
"""Format of experts -> the table's quantization type."""


@dataclass(frozen=True)
class TableLayer:
    """A layer that engines look up in one of AITER's tables.

    Attributes:
        table: its name.
        layer: sizes and formats, as in its columns.
        parts: parts of the model that use it.
        tuned_tokens: numbers of tokens in the table.
        guesses: number of tokens -> kernel, if the table has none.
    """

    table: str
    layer: Problem
    parts: tuple[str, ...]
    tuned_tokens: Sequence[int] = ()
    guesses: Mapping[int, KernelChoice] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Whether the table has the layer, or a guess was found."""
        if self.tuned_tokens:
            return "there"
        return "guessed" if self.guesses else "nothing similar"

    @property
    def agreement(self) -> float:
        """Mean share of the votes; NaN without guesses."""
        shares = [choice.agreement for choice in self.guesses.values()]
        return sum(shares) / len(shares) if shares else float("nan")


def read_tables(folders: Sequence[Path]) -> dict[str, TunedTable]:
    """Return each table from the first folder that has it.

    Raises UsageError if there is none.
    """
    found: dict[str, TunedTable] = {}
    for folder in folders:
        for name, kind in TABLE_KINDS.items():
            if name not in found and (table := TunedTable.read(folder, kind)):
                found[name] = table
    if not found:
        names = ", ".join(map(str, folders)) or "no folder"
        raise UsageError(
            f"no tuned table in {names}: set --tuned to an installed AITER or its wheel"
        )
    return found


def layers_in_tables(
    model: ModelDescription, layout: Layout, formats: Formats, architecture: str
) -> list[TableLayer]:
    """Return the layers of a model that engines look up in AITER's tables.

    Products of 16-bit weights are left out: their table identifies a library's solutions by number.
    Raises UsageError if the model does not allow the layout.
    """
    if reason := illegal_because(model, layout, formats):
        raise UsageError(f"{model.name} cannot be served on {layout}: {reason}")
    parts: dict[tuple[str, Problem], list[str]] = {}
    for table, layer, part in _table_lookups(model, layout, formats, architecture):
        users = parts.setdefault((table, layer), [])
        if part not in users:
            users.append(part)
    return [TableLayer(table, layer, tuple(users)) for (table, layer), users in parts.items()]


def fill_tables(
    layers: Sequence[TableLayer],
    tables: Mapping[str, TunedTable],
    architecture: str,
    compute_units: int,
) -> list[TableLayer]:
    """Return the layers with their table entries, and guesses for layers without.

    Layers of tables that are not installed or lack the architecture are left out. ``compute_units``
    is AITER's key for a GPU.
    """
    filled = []
    for each in layers:
        table = tables.get(each.table)
        if table is None or architecture not in table.architectures:
            continue
        layer = table.layer_of(each.layer)  # older tables have fewer format columns
        tuned_tokens = table.tuned(architecture, compute_units).get(layer, [])
        tokens = [] if tuned_tokens else table.common_token_counts(architecture)
        found = {n: table.guess(layer, n, architecture, compute_units) for n in tokens}
        guesses = {n: choice for n, choice in found.items() if choice}
        filled.append(TableLayer(each.table, layer, each.parts, tuned_tokens, guesses))
    return filled


def write_tables(
    folder: Path,
    layers: Sequence[TableLayer],
    tables: Mapping[str, TunedTable],
    architecture: str,
    compute_units: int,
) -> dict[str, Path]:
    """Write each completed table and a card of the guessed rows.

    Returns environment variable -> file. Raises OutputError if a file cannot be written or is not
    Foretune's.
    """
    new = {name: [each for each in layers if each.table == name and each.guesses]
           for name in tables}  # fmt: skip
    new = {name: entries for name, entries in new.items() if entries}
    if not new:
        return {}
    card = read_card(folder / MANIFEST_NAME)
    for name in new:
        refuse_foreign_file(folder, Path(f"{name}.csv"), card)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, entries in new.items():
            guesses = {(e.layer, n): choice for e in entries for n, choice in e.guesses.items()}
            card[f"{name}.csv"] = [_card_entry(entry) for entry in entries]
            with atomic_write(folder / f"{name}.csv") as path:
                rows = tables[name].with_guesses(architecture, compute_units, guesses)
                rows.to_csv(path, index=False)
        with atomic_write(folder / MANIFEST_NAME) as path:
            text = json.dumps({"engine": "aiter", "files": card}, indent=1)
            path.write_text(text + "\n", encoding="utf-8")
    except OSError as e:
        raise OutputError(f"cannot write into {folder}: {e.strerror or e}") from e
    return {TABLE_KINDS[name].variable: folder / f"{name}.csv" for name in new}


def _table_lookups(
    model: ModelDescription, layout: Layout, formats: Formats, architecture: str
) -> Iterator[tuple[str, Problem, str]]:
    fp8_dtype = "torch.float8_e4m3fnuz" if architecture == "gfx942" else "torch.float8_e4m3fn"
    for operator in step_operators(model, layout, formats, 1, 1, 128, "decode"):
        number_format = str(operator.config.get("format"))
        if operator.kernel != "gemm" or number_format not in LINEAR_TABLES:
            continue
        sizes = {name: int(operator.problem[name]) for name in ("N", "K")}
        weights = "torch.int8" if number_format == "int8" else fp8_dtype
        for table in LINEAR_TABLES[number_format]:
            yield table, Problem({**sizes, "q_dtype_w": weights}), operator.name
    if model.is_moe and formats.moe in QUANTIZATION_TYPES:
        weights = "torch.bfloat16" if formats.moe == "bf16" else fp8_dtype
        layer = {
            "model_dim": model.hidden, "inter_dim": model.moe_intermediate // layout.moe_tp,
            "expert": model.experts, "topk": model.experts_per_token, "q_dtype_w": weights,
            "act_type": "ActivationType.Silu", "dtype": "torch.bfloat16", "q_dtype_a": weights,
            "q_type": f"QuantType.{QUANTIZATION_TYPES[formats.moe]}", "use_g1u1": 1,
            "doweight_stage1": 0,
        }  # fmt: skip
        yield EXPERT_TABLE, Problem(layer), "experts"
        if model.shared_width == model.moe_intermediate:  # engines may fuse it with the others
            layer |= {"expert": model.experts + 1, "topk": model.experts_per_token + 1}
            yield EXPERT_TABLE, Problem(layer), "with the shared expert"


def _card_entry(entry: TableLayer) -> dict[str, object]:
    return {
        "layer": dict(entry.layer),
        "parts": entry.parts,
        "measured": False,
        "agreement": {n: round(choice.agreement, 3) for n, choice in entry.guesses.items()},
    }
