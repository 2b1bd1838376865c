"""Triton kernels that take a GPU's memory apart (`machine_probe.gpu_dissection`)."""

import triton
import triton.language as tl


@triton.jit
def chase(lines, position, steps):
    """Follow ``lines`` from ``position``, and store where it ended."""
    at = tl.load(position)
    for _ in range(steps):
        at = tl.load(lines + at)
    tl.store(position, at)


@triton.jit
def read(numbers, sums, blocks, times, BLOCK: tl.constexpr):
    """Add the numbers of every n-th block to this program's sums, ``times`` times."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for _ in range(times):
        for block in range(program, blocks, programs):
            total += tl.load(numbers + block * BLOCK + offsets, cache_modifier=".cg")
    tl.store(sums + program * BLOCK + offsets, total)
