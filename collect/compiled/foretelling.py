"""Foretells which configurations of a kernel cannot run on a GPU, from unoptimized code alone.

A block fails on an architecture if it has too many threads, uses a type that the architecture
lacks, or needs more shared memory than there is. Triton's unoptimized code (TTIR) shows the tiles
that a step of a loop loads, and those that its products read in every step. Loops that follow each
other reuse the memory. How many steps are kept at a time depends on the architecture:

- Since sm_80, and on AMD, ``num_stages - 1`` steps are prefetched, and at least one is kept.
- Asynchronous matrix units (sm_90, sm_100) also read the current step from shared memory, if the
  block is tall enough; gfx950 copies directly to shared memory, with padding of
  elements below 32 bits.
- On AMD, an operand that a step computes passes through shared memory, beside the steps; one that
  was there before does not. With such operands, four stages or more are two.
- Triton 3.9 multiplies without matrix units on sm_75, in fp32: operands of 16 bits are converted
  one after the other, beside those of all steps; those of 32 bits are held together.
- A product outside of a ``for`` loop (also in a ``while`` loop, or unrolled) passes both loaded
  operands through shared memory together; on AMD and sm_75, one after the other.

Sums also pass through it into the layout of a result, but in parts of 64 KiB at most, which all
architectures have.

Not foretold is what transposes, scans, sorts and histograms need without a product, and what blocks
of a cluster load twice: such a configuration "may run".

This was found by compiling (Triton 3.9), and ``benchmarks/lists_that_fit.py`` checks it. Compiling
takes 10 to 100 times as long.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

from foretune.collect.compiled.compile_result import error_reason
from foretune.collect.compiled.gpu_targets import TARGETS, Target
from foretune.collect.compiled.static_features import MAX_THREADS
from foretune.errors import UsageError

if TYPE_CHECKING:
    from foretune.collect.compiled.compiling import SpecializedKernel

DEFAULT_WARPS = 4
WHOLE_NUMBERS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Options of a launch that are whole numbers."""
CLUSTERS = (1, 2, 4, 8, 16)
"""Values of ``num_ctas``: Triton crashes with others, and NVIDIA's GPUs launch no larger ones."""
DEFAULT_STAGES = {"cuda": 3, "hip": 2}
"""Triton's ``num_stages`` by backend, if a configuration does not set it."""
ASYNCHRONOUS = ("sm_90", "sm_100")
"""Architectures whose matrix units read both operands from shared memory."""
MIN_ASYNCHRONOUS_ROWS = 64
MIN_ASYNCHRONOUS_WARPS = 4
BUFFERED_COPIES = ("gfx950",)
"""Architectures that keep the current step, too, because they copy directly."""
PADDING = 1.04
"""Shared memory of a padded buffer over its content, on those; of 32 bits, none is padded."""
MAX_CHAINED_STAGES = 3
"""Maximum stages that AMD's compiler keeps if a product reads what another one computed."""
WITHOUT_MATRIX_UNITS = ("sm_75",)
WIDE_BITS = 32
"""Bits of elements that need no conversion on the way through shared memory."""

_TENSOR = re.compile(r"tensor<((?:\d+x)+)(!tt\.ptr<\w+>|\w+)")
_MATRIX = r"tensor<([\dx]+)x\w+>"
_DOT = re.compile(rf"tt\.dot(?:_scaled)? .*?: *{_MATRIX} \* {_MATRIX} -> {_MATRIX}")
_PLAIN_DOT = re.compile(
    r"tt\.dot (%[\w#]+), (%[\w#]+), .*?: *(tensor<[^>]+>) \* (tensor<[^>]+>) ->"
)
_CHANGES = ("tt.trans", "tt.fp_to_fp", "tt.reshape", "arith.ext", "arith.trunc", "arith.sitofp")
"""Operations whose result is still what was loaded."""
_LOOP_STAGES = re.compile(r"tt\.num_stages = (\d+)")
_NAME = re.compile(r"%\w+")
_LOADS = ("tt.load", "tt.descriptor_load")


@dataclass(frozen=True)
class LoopCode:
    """The matrices of a loop.

    Attributes:
        step_bytes: bytes that a step loads, without loops inside.
        held_bytes: bytes of operands of products that were made before, and are read in each step.
        operand_bytes: bytes of the largest other operand.
        computed_bytes: bytes of the largest operand that a step computes, not loads; 0 without one.
        stages: ``num_stages`` that the code gives the loop (``tl.range``); None without.
    """

    step_bytes: int
    held_bytes: int
    operand_bytes: int
    computed_bytes: int
    stages: int | None = None


@dataclass(frozen=True)
class BlockCode:
    """What a block's unoptimized code shows of its memory.

    Attributes:
        loops: the loops that load matrices.
        rows: rows of the smallest product; 0 without one, 1 for one with a batch, which
            asynchronous matrix units do not multiply.
        operand_bits: bits of the widest elements of operands.
        single_operand_bytes: bytes of the largest loaded operand of a product outside of loops.
        single_product_bytes: bytes of both, of the largest such product.
    """

    loops: tuple[LoopCode, ...]
    rows: int
    operand_bits: int
    single_operand_bytes: int = 0
    single_product_bytes: int = 0

    @classmethod
    def parse(cls, code: str) -> "BlockCode":
        """Read Triton's unoptimized code in its textual form, with called functions inlined."""
        lines = code.splitlines()
        multiplied = [line.partition("->")[0] for line in lines if "tt.dot" in line]
        products = [tuple(map(_sizes, found)) for found in _DOT.findall(code)]
        singles = list(_single_products(lines))
        return cls(
            loops=tuple(_loops(code)) if products else (),
            rows=min((r[0] if len(r) == 2 else 1 for _, _, r in products), default=0),
            operand_bits=max(map(_matrix_bits, multiplied), default=0),
            single_operand_bytes=max(map(max, singles), default=0),
            single_product_bytes=max(map(sum, singles), default=0),
        )

    def shared_bytes(self, config: Mapping[str, Any], target: Target) -> float:
        """Return the shared memory that a block of a configuration needs on a target."""
        if not self.rows:
            return 0.0
        if target.name in WITHOUT_MATRIX_UNITS:
            if self.operand_bits >= WIDE_BITS:
                return max((loop.step_bytes for loop in self.loops), default=0)
            widening = WIDE_BITS // max(self.operand_bits, 1)
            operands = max((loop.held_bytes + loop.operand_bytes for loop in self.loops), default=0)
            return widening * max(operands, self.single_operand_bytes)

        needed = max((self._loop_bytes(loop, config, target) for loop in self.loops), default=0.0)
        single = self.single_product_bytes
        if target.backend == "hip":
            single = self.single_operand_bytes
        # The blocks of a cluster divide the tile: each needs its share at least.
        return max(needed, single) / config.get("num_ctas", 1)

    def _loop_bytes(self, loop: LoopCode, config: Mapping[str, Any], target: Target) -> float:
        """Return the shared memory that the steps of a loop need on a target."""
        stages = loop.stages
        if stages is None:
            stages = config.get("num_stages", DEFAULT_STAGES[target.backend])
        if target.backend == "hip":
            padding = PADDING if self.operand_bits < WIDE_BITS else 1.0
            return _amd_loop_bytes(loop, stages, target, padding)

        steps = max(stages - 1, 1)
        warps = config.get("num_warps", DEFAULT_WARPS)
        is_tall = self.rows >= MIN_ASYNCHRONOUS_ROWS and warps >= MIN_ASYNCHRONOUS_WARPS
        if target.name in ASYNCHRONOUS and is_tall:
            steps = max(stages, 1)
        return steps * loop.step_bytes + loop.held_bytes


def _amd_loop_bytes(loop: LoopCode, stages: int, target: Target, padding: float) -> float:
    """Return the shared memory that the steps of a loop need on a GPU of AMD."""
    if stages <= 1:
        return loop.step_bytes / 2.0  # operands pass one after the other
    if loop.computed_bytes and stages > MAX_CHAINED_STAGES:
        stages = 2
    if target.name in BUFFERED_COPIES:
        return padding * (stages * loop.step_bytes + loop.computed_bytes)
    return (stages - 1) * loop.step_bytes + loop.computed_bytes


def foretell(
    kernel: Any,
    arguments: Mapping[str, Any],
    configs: Sequence[Mapping[str, Any]],
    targets: Sequence[Target],
) -> dict[str, list[str]]:
    """Return by target why each configuration cannot run there; "" if it may run.

    ``kernel`` and ``arguments`` are as for `foretune.collect.compiled.compiling.specialize`. Code
    is generated once per configuration, and once per target, 20 to 50 ms each; a configuration
    without code is tried on every target. Raises UsageError if an argument is missing or unknown in
    all configurations; in some, that is their reason.

    Registers are not foretold: whether a small ``maxnreg`` suffices, only compiling tells.
    """
    codes = _Codes(kernel, arguments)
    reasons = {target.name: codes.reasons(configs, target) for target in targets}
    if len(codes.misuses) == len({id(config) for config in configs}):
        raise next(iter(codes.misuses.values()))
    return reasons


class _Codes:
    """The code of a kernel's configurations, generated once for the targets that can."""

    def __init__(self, kernel: Any, arguments: Mapping[str, Any]) -> None:
        self._kernel = kernel
        self._arguments = arguments
        self._blocks: dict[int, BlockCode] = {}
        """By configuration. Without code on one target, another one may still have it."""
        self.misuses: dict[int, UsageError] = {}
        """By configuration: an argument is missing or unknown on all targets."""

    def reasons(self, configs: Sequence[Mapping[str, Any]], target: Target) -> list[str]:
        """Return why each configuration cannot run on a target."""
        lacking = self._lacking(configs, target)
        return [self._reason(config, target, lacking) for config in configs]

    def _lacking(self, configs: Sequence[Mapping[str, Any]], target: Target) -> str:
        """Return what a target lacks for the kernel, such as a type; "" if nothing is known.

        A configuration that has code for another target is asked, so that an error of a single
        configuration does not count as one of the target.
        """
        for config in configs:
            if id(config) not in self._blocks:
                continue
            specialized = self._specialized(config, target)
            if isinstance(specialized, str):
                continue
            block = self._generated(specialized)
            return block if isinstance(block, str) else ""
        return ""

    def _reason(self, config: Mapping[str, Any], target: Target, lacking: str) -> str:
        """Return why a configuration cannot run on a target that lacks something, or nothing."""
        # What needs no code: numbers, threads, clusters, and the options of the target.
        excess = _option_excess(config, target)
        if excess:
            return excess
        specialized = self._specialized(config, target)
        if isinstance(specialized, str) or lacking:
            return lacking or str(specialized)

        if id(config) not in self._blocks:
            block = self._generated(specialized)
            if isinstance(block, str):
                return block
            self._blocks[id(config)] = block
        needed = self._blocks[id(config)].shared_bytes(config, target)
        limit = target.limits.shared_bytes_per_cta
        if needed > limit:
            return f"it needs {needed:.0f} bytes of shared memory, {target.name} has {limit}"
        return ""

    def _specialized(self, config: Mapping[str, Any], target: Target) -> "SpecializedKernel | str":
        """Return the kernel with a configuration's options, or why a target does not take them."""
        from foretune.collect.compiled.compiling import foreign_options, specialize

        # Lists for several GPUs have options of one maker.
        foreign = foreign_options(self._kernel, config, target, TARGETS.values())
        if foreign:
            return f"{target.name} has no option {', '.join(foreign)}"
        try:
            return specialize(self._kernel, [], self._arguments, config, target)
        except UsageError as e:
            self.misuses[id(config)] = e
            return str(e)
        except Exception as e:  # whatever Triton, or the user's code, raises
            return error_reason(e)

    def _generated(self, specialized: "SpecializedKernel") -> BlockCode | str:
        """Return the code of a configuration, or the reason why there is none."""
        from foretune.collect.compiled.compiling import first_code

        try:
            return BlockCode.parse(first_code(specialized, inline=True))
        except Exception as e:  # whatever Triton, or the user's code, raises
            return error_reason(e)


def _option_excess(config: Mapping[str, Any], target: Target) -> str:
    """Return why a target cannot launch with the options of a configuration; "" if it can."""
    options = {name: config[name] for name in WHOLE_NUMBERS if name in config}
    for name, value in options.items():
        if not isinstance(value, Integral):
            return f"{name} is {value!r}: give a whole number"

    threads = options.get("num_warps", DEFAULT_WARPS) * target.warp_size
    if threads > MAX_THREADS:
        return f"it needs {threads} threads, {target.name} has {MAX_THREADS}"
    blocks = options.get("num_ctas", 1)
    if blocks not in CLUSTERS:
        return f"a cluster has {', '.join(map(str, CLUSTERS))} blocks, not {blocks}"
    registers = options.get("maxnreg", 1)
    if registers < 1:
        return f"maxnreg is {registers}: give at least 1"
    return ""


@dataclass
class _OpenLoop:
    """A loop that is being read: its indentation, the names that it sets, and what it has.

    ``loaded`` are the names of what a step loads, also after a change of type or order.
    """

    indent: int
    names: set[str]
    step_bytes: int = 0
    held: dict[str, int] = field(default_factory=dict)
    operand_bytes: int = 0
    loaded: set[str] = field(default_factory=set)
    computed_bytes: int = 0

    def read(self, line: str) -> None:
        """Add what a line of the loop's code sets, loads and multiplies."""
        result, _, operation = line.partition(" = ")
        results = _NAME.findall(result)
        if any(load in operation for load in _LOADS):
            self.step_bytes += _matrix_bytes(line)
            self.loaded.update(results)
        if operation.startswith(_CHANGES) and self.loaded.intersection(_NAME.findall(operation)):
            self.loaded.update(results)
        for operand, operand_bytes in _operands(line):
            if operand not in self.names:
                self.held[operand] = operand_bytes
                continue
            self.operand_bytes = max(self.operand_bytes, operand_bytes)
            if operand not in self.loaded:
                self.computed_bytes = max(self.computed_bytes, operand_bytes)
        self.names.update(results)

    def code(self, last_line: str) -> LoopCode:
        """Return what was read; the last line has the loop's own options."""
        stages = _LOOP_STAGES.search(last_line)
        return LoopCode(
            step_bytes=self.step_bytes,
            held_bytes=sum(self.held.values()),
            operand_bytes=self.operand_bytes,
            computed_bytes=self.computed_bytes,
            stages=int(stages[1]) if stages else None,
        )


def _loops(code: str) -> Iterator[LoopCode]:
    """Yield the loops that load matrices."""
    open_loops: list[_OpenLoop] = []
    for line in code.splitlines():
        text = line.strip()
        indent = len(line) - len(line.lstrip())

        # A loop's region ends where its indentation does.
        if open_loops and indent <= open_loops[-1].indent and text.startswith("}"):
            loop = open_loops.pop().code(line)
            if loop.step_bytes:
                yield loop
        if "scf.for" in line:
            open_loops.append(_OpenLoop(indent, set(_NAME.findall(line))))
        if open_loops:
            open_loops[-1].read(line)


def _single_products(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the bytes of both operands of each product outside of loops, 0 of what is not loaded.

    Operands that were computed are in registers.
    """
    loaded: set[str] = set()
    loop_indent: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if loop_indent is not None:
            if indent <= loop_indent and line.lstrip().startswith("}"):
                loop_indent = None
            continue
        if "scf.for" in line:
            loop_indent = indent
            continue

        result, _, operation = line.strip().partition(" = ")
        is_loaded = any(load in operation for load in _LOADS)
        is_changed = operation.startswith(_CHANGES) and loaded.intersection(
            _NAME.findall(operation)
        )
        if is_loaded or is_changed:
            loaded.update(_NAME.findall(result))
        if operands := _operands(line):
            left, right = (size if name in loaded else 0 for name, size in operands)
            yield left, right


def _operands(line: str) -> list[tuple[str, int]]:
    """Return the names of the two operands of a plain product, and their bytes."""
    found = _PLAIN_DOT.search(line)
    if found is None:
        return []
    left, right, left_tensor, right_tensor = found.groups()
    return [
        (left.partition("#")[0], _matrix_bytes(left_tensor)),
        (right.partition("#")[0], _matrix_bytes(right_tensor)),
    ]


def _matrix_bytes(line: str) -> int:
    """Return the bytes of the largest matrix of pointers or numbers in a line of code."""
    matrices = _matrices(line)
    return max((math.prod(sizes) * bits // 8 for sizes, bits in matrices), default=0)


def _matrix_bits(line: str) -> int:
    """Return the bits of the widest elements of matrices in a line of code."""
    return max((bits for _, bits in _matrices(line)), default=0)


def _matrices(line: str) -> list[tuple[list[int], int]]:
    """Return the sizes of the matrices in a line of code, and the bits of their elements."""
    tensors = [
        (_sizes(shape.rstrip("x")), _bits(element)) for shape, element in _TENSOR.findall(line)
    ]
    return [(sizes, bits) for sizes, bits in tensors if len(sizes) > 1]


def _sizes(shape: str) -> list[int]:
    return [int(size) for size in shape.split("x")]


def _bits(element: str) -> int:
    """Return the bits of an element such as ``f16``, ``i8``, ``f8E4M3FN`` or a pointer to one."""
    name = element.removeprefix("!tt.ptr<").rstrip(">")
    found = re.match(r"[a-z]+(\d+)", name)
    return int(found[1]) if found else 0
