"""Static.* columns, occupancy."""

from dataclasses import dataclass
from typing import Any

from triton.compiler import CompiledKernel

from foretune.collect.compiled.compiling import SpecializedKernel, Ttgir
from foretune.collect.compiled.machine_code import read_amdgcn, read_cubin
from foretune.collect.compiled.targets import Limits, Target
from foretune.collect.compiled.ttgir import read_ttgir

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


def ttgir_features(ttgir: Ttgir, specialized: SpecializedKernel) -> dict[str, float]:
    """Return what the first stages show, by the names in `FEATURES`.

    Args:
        ttgir: what `compile_ttgir` returned.
        specialized: what was compiled.
    """
    features = {
        **specialization_features(specialized.source, specialized.declared_constants),
        **read_ttgir(ttgir.text),
    }
    if ttgir.shared_bytes is not None:
        limits = specialized.target.limits
        features["shared_bytes"] = float(ttgir.shared_bytes)
        features["fits"] = float(ttgir.shared_bytes <= limits.shared_bytes_per_cta)
    return features


def static_features(
    compiled: CompiledKernel, target: Target, declared_constants: frozenset[str] | None = None
) -> dict[str, float]:
    """Return all that a compiled kernel shows, by the names in `FEATURES`.

    Args:
        compiled: what Triton compiled, or found in its cache.
        target: what it was compiled for.
        declared_constants: parameters the kernel declares ``tl.constexpr``; taken from the kernel
            if None.
    """
    if declared_constants is None:
        declared_constants = frozenset(p.name for p in compiled.src.fn.params if p.is_constexpr)
    features = specialization_features(compiled.src, declared_constants)
    if "ttgir" in compiled.asm:  # not with TRITON_STORE_BINARY_ONLY
        features |= read_ttgir(compiled.asm["ttgir"])
    metadata = compiled.metadata
    features["warps"] = float(metadata.num_warps)
    features["shared_bytes"] = float(metadata.shared)
    if target.backend == "cuda":
        features |= read_cubin(compiled.asm["cubin"], int(target.arch))
        features["tensor_memory"] = float(getattr(metadata, "tmem_size", 0) or 0)
        features["scratch_bytes"] = float(metadata.global_scratch_size)
    elif "amdgcn" in compiled.asm:
        features |= read_amdgcn(compiled.asm["amdgcn"])
    if "registers" in features:
        features |= _occupancy_features(occupancy_of(features, target))
    return features


def occupancy_of(features: dict[str, float], target: Target) -> Occupancy:
    """Return how a kernel with these features fills a multiprocessor of ``target``."""
    return occupancy(
        target,
        warps=int(features["warps"]),
        registers=int(features["registers"]),
        shared_bytes=int(features["shared_bytes"]),
        tensor_memory=int(features.get("tensor_memory", 0)),
    )


def specialization_features(source: Any, declared_constants: frozenset[str]) -> dict[str, float]:
    """Return what the compiler was told about the arguments.

    Args:
        source: of Triton: signature, constants, attributes.
        declared_constants: parameters that the kernel declares ``tl.constexpr``.
    """
    divisible = {
        path[0] for path, found in source.attrs.items() if ["tt.divisibility", 16] in found
    }
    counts = dict.fromkeys(
        ("pointers", "pointers_aligned", "integers", "integers_divisible", "integers_one"), 0
    )
    for position, (name, kind) in enumerate(source.signature.items()):
        text = str(kind)
        if text.startswith("*"):
            counts["pointers"] += 1
            counts["pointers_aligned"] += position in divisible
        elif text[:1] in "iu" and text != "i1":
            counts["integers"] += 1
            counts["integers_divisible"] += position in divisible
        elif text == "constexpr" and name not in declared_constants:
            is_one = source.constants.get((position,)) == 1
            counts["integers"] += is_one
            counts["integers_one"] += is_one
    return {name: float(n) for name, n in counts.items()}


def _occupancy_features(filled: Occupancy) -> dict[str, float]:
    return {
        "fits": float(filled.fits),
        "ctas_per_sm": float(filled.ctas_per_sm),
        "warps_per_sm": float(filled.warps_per_sm),
        "occupancy": filled.fraction,
        **{f"limited_by_{name}": float(filled.limiter == name) for name in LIMITERS},
    }
