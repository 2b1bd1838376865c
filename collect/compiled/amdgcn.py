"""AMD's assembly as numbers: registers, spills, scratch memory, the mix of instructions."""

import re
from collections import Counter
from functools import cache

from foretune.collect.compiled.features import CLASSES
from foretune.errors import ForetuneError

_INSTRUCTION = re.compile(r"\n\t([vsdbfg][a-z]*_\w+)")
_TO_SHARED = re.compile(r"\n\t(?:buffer|global)_load_\w+[^\n]* lds\b")
_METADATA = re.compile(
    r"^\s+(?:- )?\.(agpr_count|vgpr_count|sgpr_count|vgpr_spill_count|private_segment_fixed_size):"
    r"\s+(\d+)",
    re.M,
)
_CODE_BYTES = re.compile(r"^; codeLenInByte = (\d+)", re.M)
_TOTAL = re.compile(r"^; TotalNumVgprs: (\d+)", re.M)
_ACCESS = re.compile(r"(?:global|buffer|flat)_(load|store)_(?:lds_)?(\w+)")
_ACCESS_BYTES = {
    "ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2, "dword": 4,
    "dwordx2": 8, "dwordx3": 12, "dwordx4": 16,
}  # fmt: skip

_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("mma", r"v_s?mfma|v_smfmac|v_wmma"),
        ("atomic", r"(?:global|buffer|flat|ds)_(?:atomic|add|cmpst|max|min|and|or|xor)_?"),
        ("async_copy", r"(?:global|buffer)_load_lds"),
        ("global_load", r"(?:global|buffer|flat)_load"),
        ("global_store", r"(?:global|buffer|flat)_store"),
        ("shuffle", r"ds_(?:bpermute|permute|swizzle)|v_permlane|v_readlane|v_writelane|.*_dpp$"),
        ("shared_load", r"ds_(?:read|load)"),
        ("shared_store", r"ds_(?:write|store)"),
        ("local_load", r"scratch_load"),
        ("local_store", r"scratch_store"),
        ("barrier", r"s_barrier|s_waitcnt|s_sleep|s_setprio|s_sched|buffer_(?:wb|inv)"),
        ("control", r"s_c?branch|s_endpgm|s_setpc|s_swappc|s_getpc|s_trap"),
        ("uniform", r"s_"),
        ("convert", r"v_cvt|v_pack"),
        ("special", r"v_(?:exp|log|rcp|rsq|sqrt|sin|cos)_"),
        ("double", r"v_\w+_f64"),
        ("float", r"v_(?!cmp|mov)\w+_(?:f|bf)(?:16|32)|v_dot2|v_cmpx?_\w+_f(?:16|32)"),
        ("move", r"v_mov|v_accvgpr|v_readfirstlane|v_swap|v_pk_mov"),
        ("integer", r"v_"),
    )
)
"""The first pattern that an instruction begins with decides."""


def read_amdgcn(text: str) -> dict[str, float]:
    """Return what assembly shows, by the names in `foretune.collect.compiled.features.BINARY`.

    Args:
        text: as Triton keeps it (``kernel.asm["amdgcn"]``).

    Raises:
        ForetuneError: it does not say what the kernel needs.
    """
    end = text.find("\n\t.section\t.rodata")  # after it comes data, described by directives
    described = max(text.rfind("amdhsa.kernels:"), 0)
    metadata = {name: int(value) for name, value in _METADATA.findall(text, described)}
    if "vgpr_count" not in metadata:
        raise ForetuneError("this is no assembly of AMD's: it has no .vgpr_count")
    counts: Counter[str] = Counter()
    accesses: Counter[tuple[str, int]] = Counter()
    end = end if end > 0 else len(text)
    for name, n in Counter(_INSTRUCTION.findall(text, 0, end)).items():
        counts[_class_of(name)] += n
        if access := _access(name):
            accesses[access] += n
    if " lds\n" in text:  # loads that say in their operands that they bypass the registers
        bypassing = len(_TO_SHARED.findall(text, 0, end))
        counts["async_copy"] += bypassing
        counts["global_load"] -= bypassing
    total = _TOTAL.search(text, end)
    size = _CODE_BYTES.search(text, end)
    return {
        "registers": float(total.group(1)) if total else float(metadata["vgpr_count"]),
        "accumulator_registers": float(metadata.get("agpr_count", 0)),
        "scalar_registers": float(metadata.get("sgpr_count", 0)),
        "stack_bytes": float(metadata.get("private_segment_fixed_size", 0)),
        "spilled_registers": float(metadata.get("vgpr_spill_count", 0)),
        **({"code_bytes": float(size.group(1))} if size else {}),
        "instructions": float(sum(counts.values())),
        **{f"ops_{name}": float(counts[name]) for name in CLASSES},
        **_amdgcn_widths(accesses),
    }


@cache
def _class_of(name: str) -> str:
    return next((group for group, pattern in _RULES if pattern.match(name)), "other")


@cache
def _access(name: str) -> tuple[str, int] | None:
    found = _ACCESS.match(name)
    width = _ACCESS_BYTES.get(found.group(2).removesuffix("_d16").split("_")[0]) if found else None
    return (found.group(1), width) if found and width else None


def _amdgcn_widths(accesses: Counter[tuple[str, int]]) -> dict[str, float]:
    means = {}
    for name, kinds in (
        ("global_width_bytes", ("load", "store")),
        ("load_access_bytes", ("load",)),
        ("store_access_bytes", ("store",)),
    ):
        chosen = [(width, n) for (kind, width), n in accesses.items() if kind in kinds]
        if chosen:
            means[name] = sum(w * n for w, n in chosen) / sum(n for _, n in chosen)
    return means
