"""The ``static.<name>`` columns of a run table: features of compiled code, and occupancy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretune.collect.compiled.gpu_targets import Limits, Target
from foretune.collect.compiled.machine_code import BINARY, read_amdgcn, read_cubin

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

FEATURES: dict[str, str] = {
    "warps": "warps of one block",
    "shared_bytes": "shared memory of one block, bytes",
    "tensor_memory": "NVIDIA: columns of tensor memory",
    **BINARY,
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


@dataclass(frozen=True)
class Occupancy:
    """Occupancy of one multiprocessor by a kernel.

    Resident blocks and warps, the share of the maximum number of warps, what limits them (one of
    `LIMITERS`), and why no block fits (empty if one does).
    """

    ctas_per_sm: int
    warps_per_sm: int
    fraction: float
    limiter: str
    excess: str = ""

    @property
    def fits(self) -> bool:
        """Whether the kernel can be launched."""
        return not self.excess


def occupancy(
    target: Target,
    *,
    warps: int,
    registers: int,
    shared_bytes: int,
    tensor_memory: int = 0,
) -> Occupancy:
    """Return the occupancy of one multiprocessor by blocks of a kernel.

    Warps, shared memory and columns of tensor memory are per block, registers per thread; on AMD
    they are vector registers of both kinds.
    """
    limits = target.limits
    max_blocks = {
        "registers": _by_registers(limits, warps, registers),
        "shared": _by_shared(limits, shared_bytes),
        "warps": limits.warps // warps,
        "ctas": limits.warps if warps == 1 and target.backend == "hip" else limits.ctas,
    }
    if tensor_memory:
        max_blocks["tensor_memory"] = limits.tensor_memory // tensor_memory
    limiter = min(max_blocks, key=lambda name: (max_blocks[name], LIMITERS.index(name)))
    excess = _excess(target, warps, registers, shared_bytes, tensor_memory)
    ctas = 0 if excess else max_blocks[limiter]
    return Occupancy(ctas, ctas * warps, ctas * warps / limits.warps, limiter, excess)


def _by_registers(limits: Limits, warps: int, registers: int) -> int:
    allocated = _round_up(max(registers, 1), limits.register_granule)
    return limits.registers // allocated * limits.partitions // warps


def _by_shared(limits: Limits, shared_bytes: int) -> int:
    needed = _round_up(shared_bytes + limits.shared_reserved, limits.shared_granule)
    return limits.shared_bytes // needed if needed else limits.shared_bytes


def _excess(
    target: Target, warps: int, registers: int, shared_bytes: int, tensor_memory: int
) -> str:
    limits = target.limits
    if shared_bytes > limits.shared_bytes_per_cta:
        limit = limits.shared_bytes_per_cta
        return f"it needs {shared_bytes} bytes of shared memory, {target.name} has {limit}"
    if tensor_memory > limits.tensor_memory:
        limit = limits.tensor_memory
        return f"it needs {tensor_memory} columns of tensor memory, {target.name} has {limit}"
    if _by_registers(limits, warps, registers) == 0:
        return f"{warps} warps of {registers} registers do not fit on {target.name}"
    if warps * target.warp_size > 1024:
        return f"it needs {warps * target.warp_size} threads, {target.name} has 1024"
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
    elif "amdgcn" in compiled.asm:  # not with TRITON_STORE_BINARY_ONLY
        features |= read_amdgcn(compiled.asm["amdgcn"])
    if "registers" in features:
        filled = occupancy_of(features, target)
        features |= {
            "fits": float(filled.fits),
            "ctas_per_sm": float(filled.ctas_per_sm),
            "warps_per_sm": float(filled.warps_per_sm),
            "occupancy": filled.fraction,
            **{f"limited_by_{name}": float(filled.limiter == name) for name in LIMITERS},
        }
    return features


def occupancy_of(features: dict[str, float], target: Target) -> Occupancy:
    """Return the occupancy of a multiprocessor of ``target`` by a kernel with these features."""
    return occupancy(
        target,
        warps=int(features["warps"]),
        registers=int(features["registers"]),
        shared_bytes=int(features["shared_bytes"]),
        tensor_memory=int(features.get("tensor_memory", 0)),
    )
