"""NVIDIA's binaries as numbers: registers, stack, spills, the mix of instructions.

A cubin is an ELF file. Its ``.nv.info`` section says what a kernel needs; its ``.text`` sections
hold instructions of 16 bytes, of which a few bits are enough here: no disassembler is started.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foretune.collect.compiled.features import CLASSES
from foretune.collect.compiled.opcodes import BLACKWELL, OPCODE_MASK, classes, mnemonics
from foretune.errors import ForetuneError

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
    """Return what a cubin shows, by the names in `foretune.collect.compiled.features.BINARY`.

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
