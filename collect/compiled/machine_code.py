"""Registers, spills, instruction mix of cubin and AMDGCN."""

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from foretune.collect.compiled.feature_names import CLASSES
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
    """Return what assembly shows, by the names in `foretune.collect.compiled.feature_names.BINARY`.

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


OPCODE_MASK = 0x1FF
"""The bits that tell instructions apart."""

OPCODE_TABLE = """
ATOMG 1a3 1a8 1a9; ATOMS 18c; BAR 11d; BPT 15c; BRA 147; BREAK 142; BREV 101; BRX 149;
BSSY 145; BSYNC 141; CALL 143 144; CCTL 140 18f; CGAERRBAR 1ab; CREDUX 0cc; CS2R 005;
DADD 029; DEPBAR 11a; DFMA 02b; DMMA 03f; DMUL 028; DSETP 02a; ELECT 02f; ERRBAR 1ab;
EXIT 14d; F2F 104 110; F2FP 03e; F2I 105 111; FADD 021; FADD2 04b; FCHK 102; FENCE 1c6;
FFMA 023; FFMA2 049; FHADD 021; FLO 100; FMNMX 009; FMNMX3 076; FMUL 020; FMUL2 04a; FRND 107;
FSEL 008;
FSETP 00b; HADD2 030; HFMA2 031 035; HGMMA 1f0; HMMA 03c; HMNMX2 040; HMUL2 032; HSET2 033;
HSETP2 034; I2F 106 112; I2FP 045; IABS 013; IADD3 010; IDP 026; IGMMA 1f1;
IMAD 024 025 027; IMMA 037; IMNMX 017; ISETP 00c; LDC 182; LDCU 1ac; LDG 181; LDGDEPBAR 1af;
LDGSTS 1ae; LDL 183; LDS 184; LDSM 03b; LDTM 1ee; LEA 011; LEPC 14e; LOP3 012; MATCH 1a1;
MEMBAR 192; MOV 002; MUFU 108; NANOSLEEP 15d; NOP 118; OMMA 07f; P2R 003; PLOP3 01c;
POPC 109; PRMT 016; QGMMA 1f3; QMMA 07a; R2P 004; R2UR 0ca 1c2; RED 18e; REDG 18e 1a6;
REDUX 1c4; RET 150; S2R 119; S2UR 1c3; SEL 007; SGXT 01a; SHF 019; SHFL 189; STG 186;
STL 187; STS 188; STSM 044; STTM 1ed; SYNCS 1a7 1b1 1b2; UCGABAR_ARV 1c7; UCGABAR_WAIT 1c7;
UFLO 0bd; UIADD3 090 097; UIMAD 0a4 0a5; UISETP 08c; ULDC 0b9; ULEA 091; ULOP3 092; UMOV 082;
USEL 087; USETMAXREG 1c8; USGXT 09a; USHF 099; UTCATOMSWS 1e3; UTCBAR 1e9; UTCHMMA 1ea;
UTCIMMA 1ea; UTCOMMA 1ea; UTCQMMA 1ea; UTMACCTL 1b9; UTMACMDFLUSH 1b7; UTMALDG 1b4;
UTMASTG 1b5; UVIRTCOUNT 04c; VIADD 036; VIADDMNMX 046; VIMNMX 048; VOTE 006; VOTEU 086;
WARPGROUP 1c5; WARPSYNC 148; YIELD 146
"""
"""Mnemonic and its numbers (hexadecimal), as ``benchmarks/opcodes.py`` prints them; of several
mnemonics with one number the first counts."""

BLACKWELL_OPCODES = {0x035: "IADD"}
"""Numbers that mean something else from sm_100 on."""
BLACKWELL = 100

CLASS_MNEMONICS: dict[str, str] = {
    "mma": "HMMA IMMA DMMA BMMA QMMA OMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA",
    "async_copy": "LDGSTS UTMALDG UTMASTG UTMAREDG UBLKCP",
    "global_load": "LDG LD",
    "global_store": "STG ST",
    "shared_load": "LDS LDSM",
    "shared_store": "STS STSM",
    "local_load": "LDL",
    "local_store": "STL",
    "tensor_memory": "LDTM STTM UTCCP",
    "atomic": "ATOM ATOMG ATOMS RED REDG",
    "shuffle": "SHFL REDUX CREDUX VOTE VOTEU MATCH",
    "barrier": "BAR SYNCS DEPBAR LDGDEPBAR MEMBAR FENCE WARPSYNC UCGABAR_ARV UCGABAR_WAIT UTCBAR"
    " WARPGROUP ERRBAR CGAERRBAR CCTL UTMACCTL UTMACMDFLUSH UTCATOMSWS",
    "float": "FADD FADD2 FFMA FFMA2 FMUL FMUL2 FMNMX FMNMX3 FSEL FSETP FCHK HADD2 HFMA2 HMUL2"
    " HMNMX2 HSET2 HSETP2 FHADD",
    "double": "DADD DMUL DFMA DSETP",
    "special": "MUFU",
    "convert": "F2F F2FP F2I I2F I2FP FRND",
    "integer": "IADD IADD3 IMAD IMNMX VIMNMX VIADD VIADDMNMX ISETP IABS IDP LEA LOP3 PLOP3 SHF SEL"
    " PRMT SGXT POPC FLO BREV",
    "move": "MOV S2R CS2R R2P P2R LDC",
    "uniform": "UIADD3 UIMAD UISETP ULEA ULOP3 UMOV USEL USHF USGXT UFLO ULDC LDCU R2UR S2UR"
    " UVIRTCOUNT",
    "control": "BRA BRX BREAK BSSY BSYNC CALL RET EXIT YIELD NANOSLEEP BPT LEPC ELECT USETMAXREG",
}
"""Class of `foretune.collect.compiled.feature_names.CLASSES` -> mnemonics."""

IGNORED = "NOP"


@cache
def mnemonics(arch: int) -> dict[int, str]:
    """Return number -> mnemonic of an architecture, e.g. 90."""
    entries = (line.split() for line in OPCODE_TABLE.replace("\n", " ").split(";"))
    known: dict[int, str] = {}
    for name, *codes in entries:
        for code in codes:
            known.setdefault(int(code, 16), name)
    return known | BLACKWELL_OPCODES if arch >= BLACKWELL else known


@cache
def classes(arch: int) -> npt.NDArray[np.int8]:
    """Return for every number its class: a position in `CLASSES`, or -1 for what is ignored."""
    order = list(CLASSES)
    class_of = {
        name: order.index(group)
        for group, names in CLASS_MNEMONICS.items()
        for name in names.split()
    }
    class_of[IGNORED] = -1
    table = np.full(OPCODE_MASK + 1, order.index("other"), dtype=np.int8)
    for code, name in mnemonics(arch).items():
        table[code] = class_of.get(name, order.index("other"))
    return table


_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_FOUR_BYTES = 0x04
"""Format of an attribute whose value follows it; all others hold theirs in the size field."""
_REGISTERS, _FRAME, _STACK = 0x2F, 0x11, 0x12
"""Attributes: registers of a function, its stack frame, the stack it needs with all it calls."""

_WIDTH_SHIFT, _WIDTH_MASK = 9, 7
_WIDTHS = np.array([1, 1, 2, 2, 4, 8, 16, 32])
"""Bytes per thread by the width field (bits 73-75) of a load or store."""
_COPY_WIDTHS = np.array([4, 4, 8, 8, 16, 16, 0, 0])
"""The same of LDGSTS from sm_100 on, whose field begins one bit higher."""


@dataclass(frozen=True)
class Section:
    """A section of an ELF file."""

    name: str
    data: memoryview


def read_cubin(binary: bytes, arch: int) -> dict[str, float]:
    """Return what a cubin shows, by the names in `foretune.collect.compiled.feature_names.BINARY`.

    Args:
        binary: the file.
        arch: what it was compiled for, e.g. 90.

    Raises:
        ForetuneError: it is no cubin.
    """
    sections = list(_sections(binary))
    attributes = _kernel_attributes(sections)
    code = [s.data for s in sections if s.name.startswith(".text.")]
    words = np.concatenate([np.frombuffer(part, "<u8").reshape(-1, 2) for part in code])
    return {
        "registers": float(attributes.get(_REGISTERS, 0)),
        "stack_bytes": float(max(attributes.get(_FRAME, 0), attributes.get(_STACK, 0))),
        "code_bytes": float(words.nbytes),
        **_mix(words, arch),
        **_cubin_widths(words, arch),
    }


def _sections(binary: bytes) -> Iterator[Section]:
    if binary[:5] != b"\x7fELF\x02":
        raise ForetuneError("this is no cubin: it does not begin as a 64-bit ELF file does")
    start = int.from_bytes(binary[0x28:0x30], "little")
    size, count, names_at = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [_SECTION_HEADER.unpack_from(binary, start + size * i) for i in range(count)]
    names = headers[names_at][4]
    view = memoryview(binary)
    for name, kind, _, _, offset, length, *_ in headers:
        end = binary.index(b"\0", names + name)
        no_bits = kind == 8  # takes no room in the file
        data = view[offset : offset if no_bits else offset + length]
        yield Section(binary[names + name : end].decode(), data)


def _kernel_attributes(sections: list[Section]) -> dict[int, int]:
    """Return the attributes of the kernel: the largest among its functions."""
    values: dict[int, int] = {}
    for section in sections:
        if section.name != ".nv.info":
            continue
        data, offset = section.data, 0
        while offset + 4 <= len(data):
            form, attribute, size = struct.unpack_from("<BBH", data, offset)
            offset += 4
            if form != _FOUR_BYTES:
                continue
            if attribute in (_REGISTERS, _FRAME, _STACK) and size >= 8:
                _, value = struct.unpack_from("<II", data, offset)
                values[attribute] = max(values.get(attribute, 0), value)
            offset += size
    return values


def _mix(words: npt.NDArray[np.uint64], arch: int) -> dict[str, float]:
    class_of = classes(arch)[words[:, 0] & OPCODE_MASK]
    counts = np.bincount(class_of[class_of >= 0], minlength=len(CLASSES))
    mix = {f"ops_{name}": float(n) for name, n in zip(CLASSES, counts, strict=True)}
    return {"instructions": float(counts.sum()), **mix}


def _cubin_widths(words: npt.NDArray[np.uint64], arch: int) -> dict[str, float]:
    code, field = words[:, 0] & OPCODE_MASK, (words[:, 1] >> _WIDTH_SHIFT) & _WIDTH_MASK
    by_name = {name: number for number, name in mnemonics(arch).items()}
    copy_widths = _COPY_WIDTHS if arch >= BLACKWELL else _WIDTHS

    def bytes_of(name: str, widths: npt.NDArray[np.int64] = _WIDTHS) -> npt.NDArray[np.int64]:
        return widths[field[code == by_name[name]]]

    loads = np.concatenate([bytes_of("LDG"), bytes_of("LDGSTS", copy_widths)])
    stores = bytes_of("STG")
    means = {
        "load_access_bytes": loads,
        "store_access_bytes": stores,
        "global_width_bytes": np.concatenate([loads, stores]),
    }
    return {
        # What ptxas reports as spills is the sum of these widths.
        "spill_load_bytes": float(bytes_of("LDL").sum()),
        "spill_store_bytes": float(bytes_of("STL").sum()),
        **{name: float(widths.mean()) for name, widths in means.items() if len(widths)},
    }
