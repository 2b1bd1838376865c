"""Foretells which configurations of a kernel cannot run on a GPU, from unoptimized code alone.

A block fails on an architecture if it has too many threads, uses a type that the architecture
lacks, or needs more shared memory than there is. Triton's unoptimized code (TTIR) shows the tiles
that a step of a loop loads; how many steps are kept at a time depends on the architecture:

- Since sm_80, and on AMD, ``num_stages - 1`` steps are prefetched, and at least one is kept.
- Asynchronous matrix units (sm_90, sm_100) also read the current step from shared memory, if the
  block is tall enough; gfx950 copies directly to shared memory, with padding.
- Triton 3.9 multiplies without matrix units on sm_75: a step holds one operand at a time, in fp32.
- At the end, sums pass through shared memory to get into the layout of the result.

This was found by compiling (Triton 3.9), and ``benchmarks/lists_that_fit.py`` checks it. Compiling
takes 10 to 100 times as long.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.collect.compiled.gpu_targets import Target
from foretune.collect.compiled.static_features import MAX_THREADS
from foretune.errors import UsageError

DEFAULT_WARPS = 4
DEFAULT_STAGES = {"cuda": 3, "hip": 2}
"""Triton's ``num_stages`` by backend, if a configuration does not set it."""
ASYNCHRONOUS = ("sm_90", "sm_100")
"""Architectures whose matrix units read both operands from shared memory."""
MIN_ASYNCHRONOUS_ROWS = 64
MIN_ASYNCHRONOUS_WARPS = 4
BUFFERED_COPIES = ("gfx950",)
"""Architectures that keep the current step, too, because they copy directly."""
PADDING = 1.04
"""Shared memory of a padded buffer over its content, on those."""
WITHOUT_MATRIX_UNITS = ("sm_75",)
WITH_RESULT_IN_SHARED = ("sm_75", "sm_80", "sm_86", "sm_89")
"""Architectures on which all sums pass through shared memory at once."""
FP32_BYTES = 4

_TENSOR = re.compile(r"tensor<((?:\d+x)+)(!tt\.ptr<\w+>|\w+)")
_MATRIX = r"tensor<([\dx]+)x\w+>"
_DOT = re.compile(rf"tt\.dot(?:_scaled)? .*?: *{_MATRIX} \* {_MATRIX} -> {_MATRIX}")
_LOADS = ("tt.load", "tt.descriptor_load")
_STORES = ("tt.store", "tt.descriptor_store")


@dataclass(frozen=True)
class BlockCode:
    """What a block's unoptimized code shows of its memory.

    Attributes:
        step_bytes: bytes of the matrices that a step of a loop loads.
        rows: rows of the smallest product; 0 without one.
        operand_elements: elements of the largest operand of a product.
        result_bytes: bytes of the largest matrix that is stored.
    """

    step_bytes: int
    rows: int
    operand_elements: int
    result_bytes: int

    @classmethod
    def parse(cls, code: str) -> "BlockCode":
        """Read Triton's unoptimized code in its textual form."""
        step_bytes = 0
        result_bytes = 0
        # A loop's region ends where its indentation does.
        loop_indents: list[int] = []
        for line in code.splitlines():
            indent = len(line) - len(line.lstrip())
            if loop_indents and indent <= loop_indents[-1] and line.strip().startswith("}"):
                loop_indents.pop()
            if "scf.for" in line:
                loop_indents.append(indent)
            if loop_indents and any(load in line for load in _LOADS):
                step_bytes += _matrix_bytes(line)
            if any(store in line for store in _STORES):
                result_bytes = max(result_bytes, _matrix_bytes(line))

        products = [tuple(map(_sizes, found)) for found in _DOT.findall(code)]
        operands = [math.prod(sizes) for left, right, _ in products for sizes in (left, right)]
        return cls(
            step_bytes=step_bytes if products else 0,
            rows=min((result[-2] for _, _, result in products), default=0),
            operand_elements=max(operands, default=0),
            result_bytes=result_bytes if products else 0,
        )

    def shared_bytes(self, config: Mapping[str, Any], target: Target) -> float:
        """Return the shared memory that a block of a configuration needs on a target."""
        if not self.rows:
            return 0.0
        if target.name in WITHOUT_MATRIX_UNITS:
            return max(FP32_BYTES * self.operand_elements, self.result_bytes)

        stages = config.get("num_stages", DEFAULT_STAGES[target.backend])
        steps = max(stages - 1, 1)
        warps = config.get("num_warps", DEFAULT_WARPS)
        is_tall = self.rows >= MIN_ASYNCHRONOUS_ROWS and warps >= MIN_ASYNCHRONOUS_WARPS
        if target.name in ASYNCHRONOUS and is_tall:
            steps = max(stages, 1)
        needed = float(steps * self.step_bytes)
        if target.backend == "hip" and stages <= 1:
            needed = self.step_bytes / 2.0  # operands pass one after the other
        if target.name in BUFFERED_COPIES and stages > 1:
            needed = PADDING * stages * self.step_bytes
        if target.name in WITH_RESULT_IN_SHARED:
            needed = max(needed, self.result_bytes)
        return needed


def foretell(
    kernel: Any,
    arguments: Mapping[str, Any],
    configs: Sequence[Mapping[str, Any]],
    targets: Sequence[Target],
) -> dict[str, list[str]]:
    """Return by target why each configuration cannot run there; "" if it may run.

    ``kernel`` and ``arguments`` are as for `foretune.collect.compiled.compiling.specialize`. Code
    is generated once per configuration, and once per target, 20 to 50 ms each. Raises UsageError if
    an argument is missing or unknown.
    """
    codes = _Codes(kernel, arguments)
    reasons: dict[str, list[str]] = {}
    for target in targets:
        missing = codes.error(configs[0], target)
        reasons[target.name] = [missing or codes.reason(config, target) for config in configs]
    return reasons


class _Codes:
    """The code of a kernel's configurations, generated once for the targets that can."""

    def __init__(self, kernel: Any, arguments: Mapping[str, Any]) -> None:
        self._kernel = kernel
        self._arguments = arguments
        self._blocks: dict[int, BlockCode | str] = {}

    def error(self, config: Mapping[str, Any], target: Target) -> str:
        """Return why no code can be generated for a target, as for a type that it lacks."""
        block = self._generate(config, target)
        return block if isinstance(block, str) else ""

    def reason(self, config: Mapping[str, Any], target: Target) -> str:
        """Return why a configuration cannot run on a target that has the kernel's types."""
        threads = config.get("num_warps", DEFAULT_WARPS) * target.warp_size
        if threads > MAX_THREADS:
            return f"it needs {threads} threads, {target.name} has {MAX_THREADS}"

        if id(config) not in self._blocks:
            self._blocks[id(config)] = self._generate(config, target)
        block = self._blocks[id(config)]
        if isinstance(block, str):
            return block
        needed = block.shared_bytes(config, target)
        limit = target.limits.shared_bytes_per_cta
        if needed > limit:
            return f"it needs {needed:.0f} bytes of shared memory, {target.name} has {limit}"
        return ""

    def _generate(self, config: Mapping[str, Any], target: Target) -> BlockCode | str:
        """Return the code of a configuration, or the reason why there is none."""
        from foretune.collect.compiled.compiling import first_code, specialize

        try:
            return BlockCode.parse(
                first_code(specialize(self._kernel, [], self._arguments, config, target))
            )
        except UsageError:
            raise
        except Exception as e:  # whatever Triton, or the user's code, raises
            lines = [line.strip() for line in str(e).splitlines() if line.strip()]
            return f"{type(e).__name__}: {lines[-1] if lines else 'no reason given'}"


def _matrix_bytes(line: str) -> int:
    """Return the bytes of the largest matrix of pointers or numbers in a line of code."""
    largest = 0
    for shape, element in _TENSOR.findall(line):
        sizes = _sizes(shape.rstrip("x"))
        if len(sizes) > 1:
            largest = max(largest, math.prod(sizes) * _bits(element) // 8)
    return largest


def _sizes(shape: str) -> list[int]:
    return [int(size) for size in shape.split("x")]


def _bits(element: str) -> int:
    """Return the bits of an element such as ``f16``, ``i8``, ``f8E4M3FN`` or a pointer to one."""
    name = element.removeprefix("!tt.ptr<").rstrip(">")
    found = re.match(r"[a-z]+(\d+)", name)
    return int(found[1]) if found else 0
