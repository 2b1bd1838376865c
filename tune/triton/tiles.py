"""Derives the tiles of a call's candidates, whatever the names of its arguments.

Tile edges are recognized by name (``BLOCK_M``, ``BLOCK_SIZE_N``, ``BK``), else by the grid. The
grid is evaluated with an edge of 1 and with an unbounded edge. If the number of programs differs,
the edge divides the output, and the ratio is the output's size. Otherwise the block loops over it.
If neither works, the kernel's code is used (`shape_law`): the unoptimized code of one configuration
and one more per parameter shows which sizes that parameter multiplies.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretune.collect.compiled.gpu_targets import get_target
from foretune.features.launches import TileLaunch
from foretune.space import Configuration
from foretune.tune.triton.kernel import LAUNCH_OPTIONS
from foretune.tune.triton.problem_key import Call

UNBOUNDED_EDGE = 2**30
MIN_EDGE = 8  # minimum edge of a tile for matrix units
DEFAULT_DEPTH, DEFAULT_HEAD_WIDTH = 1024.0, 64.0
"""Inner size of a product and width of an attention head, if unknown."""
NON_SIZE_WORDS = {"STRIDE", "BLOCK", "GROUP", "SPLIT", "TOP", "NUM"}
"""Words in the names of arguments that are not sizes."""
_TILE = re.compile(r"^(?:BLOCK|TILE|B)(?:_?SIZE)?_?([A-Z0-9]*)$", re.IGNORECASE)
DATA_BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "uint8": 8}
"""Element types of operands; longer integers are indices."""
_DOT = re.compile(r"tt\.dot(?:_scaled)? .*?: *tensor<([\dx]+)x\w+>.*? -> tensor<([\dx]+)x\w+>")
_TENSOR = re.compile(r"tensor<((?:\d+x)+)")


@dataclass(frozen=True)
class BlockShapes:
    """What a block computes: its products (rows, columns, depth); its largest tile's elements."""

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

    `shapes` are those of the configuration `base`. `exponents` has, by parameter, the power with
    which it multiplies each of `BlockShapes.sizes`.
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
    """Return the shapes of a call's blocks; None if code cannot be generated without a launch."""
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


def tile_launches(
    call: Call, configs: Sequence[Configuration], law: ShapeLaw | None = None
) -> list[TileLaunch] | None:
    """Return the launch of every candidate; None if no product of tiles is recognized.

    Without a product in the code (``law``), there is none; names, grid or code determine the tiles.
    """
    operands = [t for t in _tensors(call.arguments) if _bits(t)]
    if not operands or (law is not None and not law.shapes.products):
        return None
    tiles = _tiles_by_name(call, configs, operands) or _tiles_by_code(call, law)
    if tiles is None:
        return None
    a, b = operands[0], operands[min(1, len(operands) - 1)]
    tiles = _with_rows(tiles, call, configs, a)
    exact = float(_bits(a) == 32 and _is_exact(call.arguments))
    both = [s for s in a.shape if s in b.shape and s not in (tiles.size_m, tiles.size_n)]
    inner_size = (float(both[-1]) if both else 0.0) or DEFAULT_DEPTH
    moved = float(sum(math.prod(t.shape) * _bits(t) / 8 for t in operands))
    width = _head_width(call.arguments, a)
    launches = []
    for config in configs:
        m, n, depth = tiles.edges(config)
        byte_a, byte_b = _bits(a) / 8, _bits(b) / 8
        if tiles.is_attention:  # loops over keys and values
            k, size_k = width, width
            steps = math.ceil(tiles.size_n / n) if tiles.size_n else 1.0
            flops, step_bytes = 4.0 * m * n * k, 2.0 * byte_b * n * k
            sums, kept = m * (n + k), byte_a * m * k
        else:
            k = depth or width
            size_k = tiles.size_k or inner_size
            steps = math.ceil(size_k / k / float(config.get("SPLIT_K", 1)))
            flops, step_bytes = 2.0 * m * n * k, k * (byte_a * m + byte_b * n)
            sums, kept = m * n, 0.0
        launches.append(
            TileLaunch(
                tiles=tiles.count(call, config),
                tile_m=m,
                tile_n=n,
                tile_k=k,
                size_m=tiles.size_m or m,
                size_n=tiles.size_n or n,
                size_k=size_k,
                steps=steps,
                flops=flops,
                step_bytes=step_bytes,
                kept_bytes=kept,
                sums=sums,
                moved_bytes=max(moved, 1.0),
                warps=float(config.get("num_warps", 4)),
                stages=float(config.get("num_stages", 3)),
                bits_a=_bits(a),
                bits_b=_bits(b),
                exact=exact,
                transposed_a=_transposed(a),
                transposed_b=_transposed(b),
                alignment=min(_alignment(a), _alignment(b)),
            )
        )
    return launches


@dataclass(frozen=True)
class _Tiles:
    """The tiles of a call, whose ``edges`` divide the sizes; unknown sizes are 0.

    ``edges`` returns rows, columns and depth of a configuration's tile. In attention, a block loops
    over columns instead of the depth.
    """

    edges: Callable[[Configuration], tuple[float, float, float]]
    size_m: float
    size_n: float
    size_k: float
    is_attention: bool

    def count(self, call: Call, config: Configuration) -> float:
        """Return the number of tiles; persistent programs compute several."""
        m, n, _ = self.edges(config)
        across = [(self.size_m, m)] + ([] if self.is_attention else [(self.size_n, n)])
        tiles = math.prod(math.ceil(size / edge) for size, edge in across if size)
        programs = call.programs(config)
        return max(float(tiles), programs) if programs == programs else float(tiles)


def _tiles_by_name(
    call: Call, configs: Sequence[Configuration], operands: Sequence[Any]
) -> _Tiles | None:
    """Return the tiles that parameter names and grid determine; None if they do not."""
    divided = {name: _divided_size(call, configs[0], name) for name in _edge_candidates(configs)}
    over_grid = [name for name, size in divided.items() if size > 1]
    letters = {_edge_letter(name): name for name in divided}
    if not {"M", "N"} <= letters.keys() and len(over_grid) == 2:
        inside = [name for name in divided if name not in over_grid]
        letters = dict(zip("MN", over_grid, strict=True))
        letters |= {"K": inside[0]} if len(inside) == 1 else {}
    m, n, k = (letters.get(letter) for letter in "MNK")
    if m is None or n is None:
        return None
    along = m in over_grid and n not in over_grid
    heads = sum(len(t.shape) > 2 for t in operands) >= 3  # queries, keys and values
    is_attention = k is None and along and heads
    size_m, size_n, size_k = (
        _named_size(call.arguments, letter) or divided.get(knob or "", 0.0)
        for letter, knob in zip("MNK", (m, n, k), strict=True)
    )
    if (k is None and not is_attention) or not size_m or not (size_n or is_attention):
        return None

    def edges(config: Configuration) -> tuple[float, float, float]:
        return float(config[m]), float(config[n]), float(config[k]) if k else 0.0

    return _Tiles(edges, size_m, size_n, size_k, is_attention)


def _tiles_by_code(call: Call, law: ShapeLaw | None) -> _Tiles | None:
    """Return the tiles of the code's products; None if there is no code."""
    if law is None:
        return None
    products = law.shapes.products
    # scores of queries and keys, then scores times values
    is_attention = len(products) > 1 and products[0][1] == products[1][2]
    largest = 0 if is_attention else max(range(len(products)), key=lambda i: math.prod(products[i]))
    at = 1 + 3 * largest

    def edges(config: Configuration) -> tuple[float, float, float]:
        m, n, k = law.sizes(config)[at : at + 3]
        return m, n, k

    size_m, size_n, size_k = (
        _named_size(call.arguments, letter)
        or (_divided_size(call, law.base, name) if (name := law.controlling(at + i)) else 0.0)
        for i, letter in enumerate("MNK")
    )
    return _Tiles(edges, size_m, size_n, size_k, is_attention)


def _with_rows(tiles: _Tiles, call: Call, configs: Sequence[Configuration], a: Any) -> _Tiles:
    """Return the tiles; if all grids are equal (persistent programs), with the operand's rows."""
    edges, grids = {tiles.edges(c)[:2] for c in configs}, {call.programs(c) for c in configs}
    if tiles.size_m or len(edges) == 1 or len(grids) > 1:
        return tiles
    return replace(tiles, size_m=float(math.prod(a.shape[:-1])))


def _edge_candidates(configs: Sequence[Configuration]) -> list[str]:
    """Return the parameters that may be tile edges: powers of two."""
    names = []
    for name in configs[0]:
        values = [c.get(name) for c in configs]
        is_power_of_two = all(type(v) is int and v >= MIN_EDGE and v & (v - 1) == 0 for v in values)
        if is_power_of_two and _edge_letter(name) is not None:
            names.append(name)
    return names


def _edge_letter(name: str) -> str | None:
    """Return the edge's letter, else its name; None if the parameter is not an edge."""
    words = ("GROUP", "SPLIT", "STAGES", "WARPS", "SMS")
    if name in LAUNCH_OPTIONS or any(word in name.upper() for word in words):
        return None
    found = _TILE.match(name)
    return found[1].upper() if found else name


def _divided_size(call: Call, config: Configuration, knob: str) -> float:
    """Return the output size that a parameter divides; 0 or 1 if it divides none."""
    min_programs = call.programs({**config, knob: UNBOUNDED_EDGE})
    many = call.programs({**config, knob: 1})
    return many / min_programs if min_programs > 0 and many > min_programs else 0.0


def _named_size(arguments: Mapping[str, Any], letter: str) -> float:
    """Return the integer argument named by a letter; 0 if there is none."""
    numbers = {n.upper(): float(v) for n, v in arguments.items() if type(v) is int and v > 0}
    words = {n: n.split("_") for n in numbers}
    called = [
        n for n, w in words.items() if letter in (w[0], w[-1]) and not NON_SIZE_WORDS & set(w)
    ]
    return numbers.get(letter, numbers[called[0]] if called else 0.0)


def _head_width(arguments: Mapping[str, Any], a: Any) -> float:
    for name, value in arguments.items():
        if type(value) is int and value >= MIN_EDGE and "DIM" in name.upper():
            return float(value)
    return float(a.shape[-1]) if len(a.shape) > 1 and a.shape[-1] <= 512 else DEFAULT_HEAD_WIDTH


def _tensors(arguments: Mapping[str, Any]) -> list[Any]:
    """Return the tensors, including those of descriptors, in the order of the arguments."""
    values = [getattr(v, "base", v) for v in arguments.values()]
    return [v for v in values if hasattr(v, "dtype") and hasattr(v, "stride")]


def _bits(tensor: Any) -> float:
    """Return the bits per element; 0 for indices."""
    name = str(tensor.dtype).removeprefix("torch.")
    return 8.0 if name.startswith("float8") else float(DATA_BITS.get(name, 0))


def _is_exact(arguments: Mapping[str, Any]) -> bool:
    """Whether arguments turn off TF32 rounding."""
    precisions = [v for n, v in arguments.items() if re.search("TF32|PRECISION", n, re.I)]
    return any(v is False or v == 0 or v == "ieee" for v in precisions)


def _transposed(tensor: Any) -> float:
    strides = tuple(tensor.stride())
    return float(len(strides) > 1 and strides[-1] != 1 and 1 in strides[:-1])


def _alignment(tensor: Any) -> float:
    """Return log2 of the alignment of an operand's rows, in bytes."""
    steps = [s for s in tensor.stride() if s > 1] or [16]
    step = int(min(steps) * _bits(tensor) / 8)
    return math.log2(min(step & -step, 16)) if step else 0.0
