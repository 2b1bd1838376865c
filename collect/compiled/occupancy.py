"""How many blocks a multiprocessor holds at once, and what keeps it from holding more."""

from dataclasses import dataclass

from foretune.collect.compiled.targets import Limits, Target

LIMITERS = ("registers", "shared", "tensor_memory", "warps", "ctas")
"""What can limit the number of resident blocks; the first of several counts."""


@dataclass(frozen=True)
class Occupancy:
    """How a kernel fills a multiprocessor.

    Attributes:
        ctas_per_sm: blocks resident at once; 0 if not even one fits.
        warps_per_sm: their warps.
        fraction: of the most warps there can be.
        limiter: one of `LIMITERS`.
        excess: why not even one block fits; empty if it does.
    """

    ctas_per_sm: int
    warps_per_sm: int
    fraction: float
    limiter: str
    excess: str = ""

    @property
    def fits(self) -> bool:
        """Whether the kernel can be launched at all."""
        return not self.excess


def occupancy(
    target: Target,
    *,
    warps: int,
    registers: int,
    shared_bytes: int,
    tensor_memory: int = 0,
) -> Occupancy:
    """Return how many blocks of a kernel fit on one multiprocessor.

    Args:
        target: what it was compiled for.
        warps: of one block.
        registers: per thread; on AMD of both kinds together.
        shared_bytes: of one block.
        tensor_memory: columns of one block.
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
