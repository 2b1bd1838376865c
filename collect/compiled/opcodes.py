"""NVIDIA's machine instructions by number: which mnemonic, and what kind of work it is.

An instruction of sm_80 and later is 16 bytes, and its lowest nine bits say what it does (the next
three where its operands come from). The table was learned by disassembling kernels that Triton
compiled, with the nvdisasm it brings: ``benchmarks/opcodes.py`` does so with any folder of them.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

from foretune.collect.compiled.features import CLASSES

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
"""Class of `foretune.collect.compiled.features.CLASSES` -> mnemonics."""

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
