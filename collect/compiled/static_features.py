"""Features of compiled code: registers, stack and spills of a cubin or AMD assembly; occupancy."""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foretune.collect.compiled.gpu_targets import Limits, Target
from foretune.errors import ForetuneError

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

FEATURES: dict[str, str] = {
    "warps": "warps of one block",
    "shared_bytes": "shared memory of one block, bytes",
    "tensor_memory": "NVIDIA: columns of tensor memory",
    "registers": "registers per thread; AMD: vector registers of both kinds",
    "accumulator_registers": "AMD: accumulation registers (included in registers)",
    "scalar_registers": "AMD: scalar registers per wave",
    "stack_bytes": "thread-local memory, bytes",
    "spill_load_bytes": "NVIDIA: bytes per thread of loads of spilled registers in the code",
    "spill_store_bytes": "NVIDIA: bytes per thread of stores of spilled registers in the code",
    "spilled_registers": "AMD: spilled vector registers",
    "code_bytes": "size of the machine code",
    "fits": "1 if the target can launch it",
    "ctas_per_sm": "blocks resident on one multiprocessor",
    "warps_per_sm": "warps resident on one multiprocessor",
    "occupancy": "resident warps over the maximum number of warps",
    "limited_by_registers": "1 if registers limit the number of resident blocks",
    "limited_by_shared": "1 if shared memory does",
    "limited_by_tensor_memory": "1 if tensor memory does",
    "limited_by_warps": "1 if the number of warps does",
    "limited_by_ctas": "1 if the number of blocks does",
}
"""All names. Features that a target does not show are absent, never guessed."""

LIMITERS = ("registers", "shared", "tensor_memory", "warps", "ctas")
"""Resources that limit the number of resident blocks; the first one wins a tie."""

MAX_THREADS = 1024
"""Maximum number of threads of one block."""

_METADATA = re.compile(
    r"^\s+(?:- )?\.(agpr_count|vgpr_count|sgpr_count|vgpr_spill_count|private_segment_fixed_size):"
    r"\s+(\d+)",
    re.M,
)
_CODE_BYTES = re.compile(r"^; codeLenInByte = (\d+)", re.M)
_TOTAL = re.compile(r"^; TotalNumVgprs: (\d+)", re.M)

_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SHT_NOBITS = 8
"""Type of ELF sections without bytes in the file."""
_FOUR_BYTES = 0x04
"""Format of attributes whose value follows; other formats hold it in the size field."""
_REGISTERS = 0x2F
_FRAME = 0x11
_STACK = 0x12
"""Attributes of a function: registers, stack frame, stack including its callees."""
_OPCODE_MASK = 0x1FF
_LOCAL_LOAD = 0x183
_LOCAL_STORE = 0x187
"""The bits that hold the opcode, and the opcodes of accesses to thread-local memory."""
_WIDTH_SHIFT = 9
_WIDTH_MASK = 7
_WIDTHS = np.array([1, 1, 2, 2, 4, 8, 16, 32])
"""Bytes per thread by the width field (bits 73-75) of a load or store."""


@dataclass(frozen=True)
class Occupancy:
    """The `FEATURES` about occupancy, and the reason if no block fits ("" otherwise)."""

    features: dict[str, float]
    excess: str


def occupancy_of(features: Mapping[str, float], target: Target) -> Occupancy:
    """Return how many blocks of compiled code a multiprocessor of the target holds."""
    warps = int(features["warps"])
    registers = int(features["registers"])
    shared_bytes = int(features["shared_bytes"])
    tensor_memory = int(features.get("tensor_memory", 0))
    limits = target.limits

    # How many blocks does each resource allow?
    shared = _round_up(shared_bytes + limits.shared_reserved, limits.shared_granule)
    one_wave_of_amd = warps == 1 and target.backend == "hip"
    max_blocks = {
        "registers": _by_registers(limits, warps, registers),
        "shared": limits.shared_bytes // shared if shared else limits.shared_bytes,
        "warps": limits.warps // warps,
        "ctas": limits.warps if one_wave_of_amd else limits.ctas,
    }
    if tensor_memory:
        max_blocks["tensor_memory"] = limits.tensor_memory // tensor_memory
    limiter = min(max_blocks, key=lambda name: (max_blocks[name], LIMITERS.index(name)))

    excess = _excess(
        target,
        warps=warps,
        registers=registers,
        shared_bytes=shared_bytes,
        tensor_memory=tensor_memory,
    )
    ctas = 0 if excess else max_blocks[limiter]
    occupancy = {
        "fits": float(not excess),
        "ctas_per_sm": float(ctas),
        "warps_per_sm": float(ctas * warps),
        "occupancy": ctas * warps / limits.warps,
    }
    for name in LIMITERS:
        occupancy[f"limited_by_{name}"] = float(limiter == name)
    return Occupancy(features=occupancy, excess=excess)


def _by_registers(limits: Limits, warps: int, registers: int) -> int:
    """Return the number of blocks that the registers of a multiprocessor allow."""
    allocated = _round_up(max(registers, 1), limits.register_granule)
    warps_per_partition = limits.registers // allocated
    return warps_per_partition * limits.partitions // warps


def _excess(
    target: Target, *, warps: int, registers: int, shared_bytes: int, tensor_memory: int
) -> str:
    """Return why no block fits on the target; "" if one does."""
    limits = target.limits
    needs = (
        (shared_bytes, limits.shared_bytes_per_cta, "bytes of shared memory"),
        (tensor_memory, limits.tensor_memory, "columns of tensor memory"),
        (warps * target.warp_size, MAX_THREADS, "threads"),
    )
    for needed, limit, unit in needs:
        if needed > limit:
            return f"it needs {needed} {unit}, {target.name} has {limit}"
    if _by_registers(limits, warps, registers) == 0:
        return f"{warps} warps of {registers} registers do not fit on {target.name}"
    return ""


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule


def static_features(compiled: "CompiledKernel", target: Target) -> dict[str, float]:
    """Return all features of a compiled kernel."""
    metadata = compiled.metadata
    features = {"warps": float(metadata.num_warps), "shared_bytes": float(metadata.shared)}
    if target.backend == "cuda":
        features |= read_cubin(compiled.asm["cubin"])
        features["tensor_memory"] = float(getattr(metadata, "tmem_size", 0) or 0)
    elif "amdgcn" in compiled.asm:
        # Absent with TRITON_STORE_BINARY_ONLY.
        features |= read_amdgcn(compiled.asm["amdgcn"])
    if "registers" in features:
        features |= occupancy_of(features, target).features
    return features


def read_amdgcn(text: str) -> dict[str, float]:
    """Return the features of AMD assembly; raise ForetuneError if it has no metadata."""
    start_of_metadata = max(text.rfind("amdhsa.kernels:"), 0)
    metadata = {name: float(value) for name, value in _METADATA.findall(text, start_of_metadata)}
    if "vgpr_count" not in metadata:
        raise ForetuneError("this is not AMD assembly: it has no .vgpr_count")

    total = _TOTAL.search(text)
    features = {
        "registers": float(total.group(1)) if total else metadata["vgpr_count"],
        "accumulator_registers": metadata.get("agpr_count", 0.0),
        "scalar_registers": metadata.get("sgpr_count", 0.0),
        "stack_bytes": metadata.get("private_segment_fixed_size", 0.0),
        "spilled_registers": metadata.get("vgpr_spill_count", 0.0),
    }
    code_bytes = _CODE_BYTES.search(text)
    if code_bytes:
        features["code_bytes"] = float(code_bytes.group(1))
    return features


def read_cubin(binary: bytes) -> dict[str, float]:
    """Return the features of a cubin; raise ForetuneError if ``binary`` is not one."""
    sections = list(_sections(binary))
    attributes = _kernel_attributes(sections)
    code = [data for name, data in sections if name.startswith(".text.")]
    words = np.concatenate([np.frombuffer(part, "<u8").reshape(-1, 2) for part in code])

    # The sum of the accesses' widths equals the spills that ptxas reports.
    opcode = words[:, 0] & _OPCODE_MASK
    width = _WIDTHS[words[:, 1] >> _WIDTH_SHIFT & _WIDTH_MASK]
    loaded_bytes = width[opcode == _LOCAL_LOAD].sum()
    stored_bytes = width[opcode == _LOCAL_STORE].sum()
    return {
        "registers": float(attributes.get(_REGISTERS, 0)),
        "stack_bytes": float(max(attributes.get(_FRAME, 0), attributes.get(_STACK, 0))),
        "spill_load_bytes": float(loaded_bytes),
        "spill_store_bytes": float(stored_bytes),
        "code_bytes": float(words.nbytes),
    }


def _sections(binary: bytes) -> Iterator[tuple[str, memoryview]]:
    """Yield name and content of each section of an ELF file."""
    if binary[:5] != b"\x7fELF\x02":
        raise ForetuneError("this is not a cubin: it does not start like a 64-bit ELF file")
    start = int.from_bytes(binary[0x28:0x30], "little")
    size, count, names_at = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [_SECTION_HEADER.unpack_from(binary, start + size * i) for i in range(count)]
    start_of_names = headers[names_at][4]
    view = memoryview(binary)
    for name_offset, kind, _, _, offset, length, *_ in headers:
        name_start = start_of_names + name_offset
        name_end = binary.index(b"\0", name_start)
        length_in_file = 0 if kind == _SHT_NOBITS else length
        yield binary[name_start:name_end].decode(), view[offset : offset + length_in_file]


def _kernel_attributes(sections: list[tuple[str, memoryview]]) -> dict[int, int]:
    """Return the kernel's attributes: the maximum over its functions."""
    values: dict[int, int] = {}
    for name, data in sections:
        if name != ".nv.info":
            continue
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
