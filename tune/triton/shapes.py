"""Derives from a kernel's code what its blocks compute: products of tiles, or elements.

Names of parameters say little. So the unoptimized code of some configurations is generated: one,
and one more for each parameter, with another value of it. This shows which sizes each parameter
multiplies.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.collect.compiled.gpu_targets import get_target
from foretune.space import Configuration
from foretune.tune.triton.kernel import LAUNCH_OPTIONS
from foretune.tune.triton.problem_key import Call

_DOT = re.compile(r"tt\.dot(?:_scaled)? .*?: *tensor<([\dx]+)x\w+>.*? -> tensor<([\dx]+)x\w+>")
_TENSOR = re.compile(r"tensor<((?:\d+x)+)")


@dataclass(frozen=True)
class BlockShapes:
    """The computation of one block.

    Attributes:
        products: rows, columns and depth of every product of tiles, in the order of the code.
        elements: elements of the largest tile.
    """

    products: tuple[tuple[int, int, int], ...]
    elements: int

    @classmethod
    def from_code(cls, code: str) -> "BlockShapes":
        """Parse Triton's unoptimized code (TTIR)."""
        products = []
        for left, result in _DOT.findall(code):
            depth = int(left.split("x")[-1])
            rows, columns = map(int, result.split("x")[-2:])
            products.append((rows, columns, depth))
        sizes = [math.prod(map(int, found.split("x")[:-1])) for found in _TENSOR.findall(code)]
        return cls(tuple(products), max(sizes, default=1))

    @property
    def sizes(self) -> tuple[int, ...]:
        """All sizes as one tuple: `elements`, then those of the products."""
        return (self.elements, *(size for product in self.products for size in product))


@dataclass(frozen=True)
class ShapeLaw:
    """The shapes of a kernel's blocks as a function of its parameters.

    Attributes:
        base: the configuration whose shapes are `shapes`.
        shapes: shapes of this configuration.
        exponents: parameter -> the power with which it multiplies each of `BlockShapes.sizes`.
    """

    base: Configuration
    shapes: BlockShapes
    exponents: Mapping[str, tuple[float, ...]]

    def sizes(self, config: Configuration) -> list[float]:
        """Return `BlockShapes.sizes` of a configuration."""
        sizes = [float(size) for size in self.shapes.sizes]
        for name, powers in self.exponents.items():
            ratio = float(config[name]) / float(self.base[name])
            sizes = [size * ratio**power for size, power in zip(sizes, powers, strict=True)]
        return sizes

    def controlling(self, number: int) -> str | None:
        """Return the parameter that multiplies a size; None if none or several do."""
        names = [name for name, powers in self.exponents.items() if powers[number]]
        return names[0] if len(names) == 1 else None


def shape_law(call: Call, configs: Sequence[Configuration]) -> ShapeLaw | None:
    """Return the shapes of a call's blocks; None if the code cannot be generated.

    That happens if the kernel runs in the interpreter, the device is not a known target, or the
    arguments are too unusual to be described without a launch.
    """
    if call.function is None:
        return None
    try:
        base, shapes = configs[0], _shapes(call, configs[0])
    except Exception:  # anything that Triton, or the user's code, raises
        return None
    exponents = {}
    for name in base:
        values = [v for c in configs if type(v := c.get(name)) is int and v > 0]
        if name in LAUNCH_OPTIONS or len(values) < len(configs):
            continue
        others = sorted({*values} - {values[0]})
        found = next(filter(None, (_powers(call, base, shapes, name, v) for v in others)), None)
        if found is not None:
            exponents[name] = found
    return ShapeLaw(base, shapes, exponents)


def _powers(
    call: Call, base: Configuration, shapes: BlockShapes, name: str, value: int
) -> tuple[float, ...] | None:
    """Return the power with which ``name`` multiplies each size; None if ``value`` is invalid."""
    try:
        other = _shapes(call, Configuration({**base, name: value}))
    except Exception:
        return None
    if len(other.sizes) != len(shapes.sizes):
        return None
    octaves = math.log(value / float(base[name]))
    return tuple(
        round(math.log(b / a) / octaves, 3) for a, b in zip(shapes.sizes, other.sizes, strict=True)
    )


def _shapes(call: Call, config: Configuration) -> BlockShapes:
    from foretune.collect.compiled.compiling import first_code, specialize

    knobs: dict[str, Any] = {n: v for n, v in config.items() if n != "pre_hook"}
    arguments = {n: v for n, v in call.arguments.items() if n not in knobs}
    target = get_target(call.device.architecture)
    return BlockShapes.from_code(
        first_code(specialize(call.function, [], arguments, knobs, target))
    )
