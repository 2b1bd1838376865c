"""Registers, stack and spills of a cubin or of AMD assembly."""

import re
import struct
from collections.abc import Iterator

import numpy as np

from foretune.errors import ForetuneError

BINARY: dict[str, str] = {
    "registers": "registers per thread; AMD: vector registers of both kinds",
    "accumulator_registers": "AMD: accumulation registers among them",
    "scalar_registers": "AMD: scalar registers per wave",
    "stack_bytes": "thread-local memory, bytes",
    "spill_load_bytes": "NVIDIA: bytes per thread of loads of spilled registers in the code",
    "spill_store_bytes": "NVIDIA: bytes per thread of stores of spilled registers in the code",
    "spilled_registers": "AMD: spilled vector registers",
    "code_bytes": "size of the machine code",
}
"""Features of the machine code."""

_METADATA = re.compile(
    r"^\s+(?:- )?\.(agpr_count|vgpr_count|sgpr_count|vgpr_spill_count|private_segment_fixed_size):"
    r"\s+(\d+)",
    re.M,
)
_CODE_BYTES = re.compile(r"^; codeLenInByte = (\d+)", re.M)
_TOTAL = re.compile(r"^; TotalNumVgprs: (\d+)", re.M)

_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_FOUR_BYTES = 0x04
"""Format of attributes whose value follows; other formats hold it in the size field."""
_REGISTERS, _FRAME, _STACK = 0x2F, 0x11, 0x12
"""Attributes of a function: registers, stack frame, stack including its callees."""
_OPCODE_MASK, _LOCAL_LOAD, _LOCAL_STORE = 0x1FF, 0x183, 0x187
"""The bits that hold the opcode, and the opcodes of accesses to thread-local memory."""
_WIDTH_SHIFT, _WIDTH_MASK = 9, 7
_WIDTHS = np.array([1, 1, 2, 2, 4, 8, 16, 32])
"""Bytes per thread by the width field (bits 73-75) of a load or store."""


def read_amdgcn(text: str) -> dict[str, float]:
    """Return the features `BINARY` of AMD assembly (``kernel.asm["amdgcn"]``).

    Raises ForetuneError if the assembly has no metadata of the kernel.
    """
    described = max(text.rfind("amdhsa.kernels:"), 0)
    metadata = {name: float(value) for name, value in _METADATA.findall(text, described)}
    if "vgpr_count" not in metadata:
        raise ForetuneError("this is no AMD assembly: it has no .vgpr_count")
    total, size = _TOTAL.search(text), _CODE_BYTES.search(text)
    return {
        "registers": float(total.group(1)) if total else metadata["vgpr_count"],
        "accumulator_registers": metadata.get("agpr_count", 0.0),
        "scalar_registers": metadata.get("sgpr_count", 0.0),
        "stack_bytes": metadata.get("private_segment_fixed_size", 0.0),
        "spilled_registers": metadata.get("vgpr_spill_count", 0.0),
        **({"code_bytes": float(size.group(1))} if size else {}),
    }


def read_cubin(binary: bytes) -> dict[str, float]:
    """Return the features `BINARY` of a cubin.

    Raises ForetuneError if ``binary`` is no cubin.
    """
    sections = list(_sections(binary))
    attributes = _kernel_attributes(sections)
    code = [data for name, data in sections if name.startswith(".text.")]
    words = np.concatenate([np.frombuffer(part, "<u8").reshape(-1, 2) for part in code])
    opcode, width = words[:, 0] & _OPCODE_MASK, words[:, 1] >> _WIDTH_SHIFT & _WIDTH_MASK
    # The sum of the accesses' widths equals the spills that ptxas reports.
    loads, stores = (_WIDTHS[width[opcode == c]].sum() for c in (_LOCAL_LOAD, _LOCAL_STORE))
    return {
        "registers": float(attributes.get(_REGISTERS, 0)),
        "stack_bytes": float(max(attributes.get(_FRAME, 0), attributes.get(_STACK, 0))),
        "spill_load_bytes": float(loads),
        "spill_store_bytes": float(stores),
        "code_bytes": float(words.nbytes),
    }


def _sections(binary: bytes) -> Iterator[tuple[str, memoryview]]:
    """Yield name and content of each section of an ELF file."""
    if binary[:5] != b"\x7fELF\x02":
        raise ForetuneError("this is no cubin: it does not begin as a 64-bit ELF file does")
    start = int.from_bytes(binary[0x28:0x30], "little")
    size, count, names_at = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [_SECTION_HEADER.unpack_from(binary, start + size * i) for i in range(count)]
    names = headers[names_at][4]
    view = memoryview(binary)
    for name, kind, _, _, offset, length, *_ in headers:
        end = binary.index(b"\0", names + name)
        no_bits = kind == 8  # SHT_NOBITS: no bytes in the file
        yield binary[names + name : end].decode(), view[offset : offset + length * (not no_bits)]


def _kernel_attributes(sections: list[tuple[str, memoryview]]) -> dict[int, int]:
    """Return the kernel's attributes: the maximum over its functions."""
    values: dict[int, int] = {}
    for data in (data for name, data in sections if name == ".nv.info"):
        offset = 0
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
