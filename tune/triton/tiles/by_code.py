"""Tiles by the kernel's code: which sizes of a block each parameter multiplies.

Triton's unoptimized code (TTIR) of one configuration has the shapes of a block's tensors. The code
with one parameter changed shows the powers with which that parameter multiplies them. This gives
the shapes of every configuration (`ShapeLaw`) from one compilation per parameter, or few more.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.collect.compiled.gpu_targets import get_target
from foretune.errors import UsageError, describe_error, warn
from foretune.space import Configuration
from foretune.tune.triton.kernel import LAUNCH_OPTIONS
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.tiles.edges import divided_size, named_size
from foretune.tune.triton.tiles.shape import Tiles, TileShape

MAX_TRIED = 3
"""Configurations whose code is tried: the first of a list may be for another GPU, or broken."""
EXPONENT_DIGITS = 3
"""Decimal places of an exponent."""
_DOT = re.compile(r"tt\.dot(?:_scaled)? .*?: *tensor<([\dx]+)x\w+>.*? -> tensor<([\dx]+)x\w+>")
_TENSOR = re.compile(r"tensor<((?:\d+x)+)")


@dataclass(frozen=True)
class BlockShapes:
    """What a block computes: its products, and the number of elements of its largest tensor."""

    products: tuple[TileShape, ...]
    elements: int

    @classmethod
    def from_code(cls, code: str) -> "BlockShapes":
        """Parse Triton's unoptimized code."""
        products = []
        for left_operand, result in _DOT.findall(code):
            depth = int(left_operand.split("x")[-1])
            rows, columns = map(int, result.split("x")[-2:])  # a batch comes first
            products.append(TileShape(rows, columns, depth))

        elements = 1
        for tensor_shape in _TENSOR.findall(code):
            sizes = [int(size) for size in tensor_shape.split("x")[:-1]]
            elements = max(elements, math.prod(sizes))
        return cls(tuple(products), elements)

    @property
    def sizes(self) -> tuple[float, ...]:
        """All sizes as one tuple: `elements`, then rows, columns and depth of each product."""
        sizes: list[float] = [self.elements]
        for product in self.products:
            sizes += [product.m, product.n, product.k]
        return tuple(sizes)


@dataclass(frozen=True)
class ShapeLaw:
    """The shapes of a kernel's blocks as a function of its parameters.

    Attributes:
        base: a configuration.
        shapes: its shapes.
        exponents: by parameter, the power with which it multiplies each of `BlockShapes.sizes`.
    """

    base: Configuration
    shapes: BlockShapes
    exponents: Mapping[str, tuple[float, ...]]

    def elements(self, config: Configuration) -> float:
        """Return the elements of a configuration's largest tensor."""
        return self._sizes(config)[0]

    def product(self, config: Configuration, number: int) -> TileShape:
        """Return one of a configuration's products."""
        first = _first_size(number)
        m, n, k = self._sizes(config)[first : first + 3]
        return TileShape(m, n, k)

    def controlling(self, number: int) -> list[str | None]:
        """Return the parameters that multiply rows, columns and depth of a product.

        None if none or several multiply that size.
        """
        first = _first_size(number)
        controlling: list[str | None] = []
        for size in range(first, first + 3):
            names = [name for name, powers in self.exponents.items() if powers[size]]
            controlling.append(names[0] if len(names) == 1 else None)
        return controlling

    def _sizes(self, config: Configuration) -> list[float]:
        """Return `BlockShapes.sizes` of a configuration."""
        sizes = [float(size) for size in self.shapes.sizes]
        for name, powers in self.exponents.items():
            ratio = float(config[name]) / float(self.base[name])
            sizes = [size * ratio**power for size, power in zip(sizes, powers, strict=True)]
        return sizes


def shape_law(call: Call, configs: Sequence[Configuration]) -> ShapeLaw | None:
    """Return the shapes of a call's blocks; None if code cannot be generated without a launch.

    Warns (ForetuneWarning) if the reason is neither the arguments nor the code of the kernel.
    """
    if call.function is None:
        return None
    first = _first_shapes(call, configs)
    if first is None:
        return None
    base, shapes = first

    exponents = {}
    for name in base:
        powers = None if name in LAUNCH_OPTIONS else _powers(call, configs, base, shapes, name)
        if powers is not None:
            exponents[name] = powers
    return ShapeLaw(base, shapes, exponents)


def tiles_by_code(call: Call, law: ShapeLaw | None) -> Tiles | None:
    """Return the tiles of the code's products; None if there is no code."""
    if law is None:
        return None
    products = law.shapes.products

    # Attention: the columns of the scores (queries times keys) are the depth of the next product
    # (scores times values). Its tiles are those of the scores, else of the largest product.
    is_attention = len(products) > 1 and products[0].n == products[1].k
    number = 0 if is_attention else max(range(len(products)), key=lambda i: _volume(products[i]))

    sizes = []
    for letter, parameter in zip("MNK", law.controlling(number), strict=True):
        size = named_size(call.arguments, letter)
        if not size and parameter is not None:
            size = divided_size(call, law.base, parameter)
        sizes.append(size)
    size_m, size_n, size_k = sizes

    def shape(config: Configuration) -> TileShape:
        return law.product(config, number)

    return Tiles(shape, size_m, size_n, size_k, is_attention)


def _first_shapes(
    call: Call, configs: Sequence[Configuration]
) -> tuple[Configuration, BlockShapes] | None:
    """Return the first of a few configurations whose code can be generated, and its shapes.

    A launch says if an argument is missing or wrong (UsageError), or if Triton does not compile the
    code: then nothing is said here. Another error would stay hidden, since tuning goes on without
    an order: it is a warning.
    """
    from triton.compiler import CompilationError

    hidden: Exception | None = None
    for config in configs[:MAX_TRIED]:
        try:
            return config, _shapes(call, config)
        except (UsageError, CompilationError):
            continue
        except Exception as e:
            hidden = hidden or e
    if hidden is not None:
        warn(
            f"the code of {call.kernel} was not read ({describe_error(hidden)}): its "
            "configurations are tried in no learned order"
        )
    return None


def _powers(
    call: Call,
    configs: Sequence[Configuration],
    base: Configuration,
    shapes: BlockShapes,
    name: str,
) -> tuple[float, ...] | None:
    """Return the power with which a parameter multiplies each size; None if unknown.

    ``shapes`` are those of ``base``. The parameter's other values are tried until the code can be
    generated with one.
    """
    values = [value for c in configs if type(value := c.get(name)) is int and value > 0]
    if len(values) < len(configs):
        return None
    base_value = base[name]
    for value in sorted({*values} - {base_value}):
        try:
            changed = _shapes(call, Configuration({**base, name: value}))
        except Exception:  # of a combination that the list may lack
            continue
        if len(changed.sizes) != len(shapes.sizes):
            continue
        octaves = math.log(value / float(base_value))
        return tuple(
            round(math.log(after / before) / octaves, EXPONENT_DIGITS)
            for before, after in zip(shapes.sizes, changed.sizes, strict=True)
        )
    return None


def _shapes(call: Call, config: Configuration) -> BlockShapes:
    """Return the shapes of one configuration; raises whatever its compilation raises."""
    from foretune.collect.compiled.compiling import first_code, specialize

    parameters: dict[str, Any] = {n: v for n, v in config.items() if n != "pre_hook"}
    arguments = {n: v for n, v in call.arguments.items() if n not in parameters}
    target = get_target(call.device.architecture)
    variant = specialize(call.function, [], arguments, parameters, target)
    return BlockShapes.from_code(first_code(variant))


def _first_size(product: int) -> int:
    """Return where a product's sizes begin in `BlockShapes.sizes`."""
    return 1 + 3 * product


def _volume(product: TileShape) -> float:
    return product.m * product.n * product.k
