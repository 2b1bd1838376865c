"""Compile targets: GPU architectures and their limits.

Sources of the limits. NVIDIA: CUDA Programming Guide, appendix on compute capabilities (technical
specifications per capability), and the allocation units of CUDA's occupancy calculator. AMD: CDNA
and RDNA instruction set architecture guides, and LLVM's AMDGPU subtarget (``AMDGPUBaseInfo``). For
gfx942, the tests compare with LLVM's occupancy comment in the assembly.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretune.errors import UnknownName

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget

KIB = 1024


@dataclass(frozen=True)
class Limits:
    """Limits of one streaming multiprocessor (AMD: compute unit).

    ``registers`` are 32-bit, per lane and partition (processing blocks with a register file):
    NVIDIA's 16,384 per partition and 32 lanes, AMD's 512 vector registers per SIMD, both kinds
    together; they are allocated in units of ``register_granule`` per thread. At most ``warps``
    (AMD: waves) are resident, and ``ctas`` blocks of more than one warp. A block has at most
    ``shared_bytes_per_cta`` of the ``shared_bytes`` (AMD: LDS), allocated by ``shared_granule``, of
    which the system reserves ``shared_reserved``. ``tensor_memory`` is the number of columns
    of tensor memory, 0 on targets without it.
    """

    warps: int
    ctas: int
    shared_bytes: int
    shared_bytes_per_cta: int
    shared_granule: int
    shared_reserved: int = 0
    tensor_memory: int = 0
    registers: int = 512
    register_granule: int = 8
    partitions: int = 4


@dataclass(frozen=True)
class Target:
    """An architecture to compile for, such as ``sm_90`` or ``gfx942``.

    ``backend`` (``cuda`` or ``hip``) and ``arch`` (90, ``"gfx942"``) are Triton's names;
    ``warp_size`` is threads per warp (AMD: wave); ``limits`` are those of one multiprocessor.
    """

    name: str
    backend: str
    arch: int | str
    warp_size: int
    limits: Limits

    @property
    def triton_target(self) -> "GPUTarget":
        """Triton's target object."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self.backend, self.arch, self.warp_size)


def _nvidia(
    arch: int,
    warps: int,
    ctas: int,
    shared_kib: int,
    tensor_memory: int = 0,
    reserved_kib: int = 1,
) -> Target:
    limits = Limits(
        warps=warps,
        ctas=ctas,
        shared_bytes=shared_kib * KIB,
        shared_bytes_per_cta=(shared_kib - reserved_kib) * KIB,
        shared_granule=128,
        shared_reserved=reserved_kib * KIB,
        tensor_memory=tensor_memory,
    )
    return Target(name=f"sm_{arch}", backend="cuda", arch=arch, warp_size=32, limits=limits)


def _amd(arch: str, lds_kib: int) -> Target:
    limits = Limits(
        warps=32,
        ctas=16,  # the number of barriers; blocks of one wave need none
        shared_bytes=lds_kib * KIB,
        shared_bytes_per_cta=lds_kib * KIB,
        shared_granule=512,
    )
    return Target(name=arch, backend="hip", arch=arch, warp_size=64, limits=limits)


def _rdna(arch: str) -> Target:
    limits = Limits(
        warps=32,
        ctas=16,
        shared_bytes=64 * KIB,
        shared_bytes_per_cta=64 * KIB,
        shared_granule=1024,
        registers=1536,
        register_granule=24,
        partitions=2,
    )
    return Target(name=arch, backend="hip", arch=arch, warp_size=32, limits=limits)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _nvidia(75, warps=32, ctas=16, shared_kib=64, reserved_kib=0),
        _nvidia(80, warps=64, ctas=32, shared_kib=164),
        _nvidia(86, warps=48, ctas=16, shared_kib=100),
        _nvidia(89, warps=48, ctas=24, shared_kib=100),
        _nvidia(90, warps=64, ctas=32, shared_kib=228),
        _nvidia(100, warps=64, ctas=32, shared_kib=228, tensor_memory=512),
        _nvidia(120, warps=48, ctas=24, shared_kib=100),
        _amd("gfx90a", lds_kib=64),
        _amd("gfx942", lds_kib=64),
        _amd("gfx950", lds_kib=160),
        _rdna("gfx1100"),
        _rdna("gfx1201"),
    )
}


def get_target(name: str) -> Target:
    """Return the target called ``sm_90``, ``sm_90a``, ``cuda:90``, ``hip:gfx942``, ….

    Raises UnknownName if there is none.
    """
    lower = name.strip().lower().removeprefix("hip:")
    with_capability = re.sub(r"^(?:cuda:|sm_?)(\d+)[af]?$", r"sm_\1", lower)
    # AMD's driver reports features too, like gfx942:sramecc+:xnack-.
    without_features = with_capability.partition(":")[0]
    if without_features not in TARGETS:
        raise UnknownName("target", name, TARGETS)
    return TARGETS[without_features]
