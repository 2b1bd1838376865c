"""Describes the launch of every candidate of a call that multiplies tiles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretune.features.launches import TileLaunch
from foretune.space import Configuration
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.tiles.by_code import ShapeLaw, tiles_by_code
from foretune.tune.triton.tiles.by_grid import tiles_by_grid
from foretune.tune.triton.tiles.by_name import tiles_by_name
from foretune.tune.triton.tiles.edges import Edges
from foretune.tune.triton.tiles.operands import (
    bits_of,
    bytes_of,
    find_operands,
    head_width,
    is_contiguous_along,
    is_exact,
    is_transposed,
    log_alignment,
    multiplied,
)
from foretune.tune.triton.tiles.shape import Tiles

DEFAULT_DEPTH = 1024.0
"""Inner size of a product, if unknown."""
SPLIT = "SPLIT_K"
"""Usual name of the number of parts into which programs split the depth."""
DEFAULT_WARPS = 4
DEFAULT_STAGES = 3
"""Triton's ``num_warps`` and ``num_stages``, if a candidate does not set them."""


def tile_launches(
    call: Call, configs: Sequence[Configuration], law: ShapeLaw | None = None
) -> list[TileLaunch] | None:
    """Return the launch of every candidate; None if no product of tiles is recognized.

    Without a product in the code (``law``), there is none; names, grid or code determine the tiles.
    """
    operands = find_operands(call.arguments)
    if not operands or (law is not None and not law.shapes.products):
        return None

    edges = Edges.find(call, configs)
    tiles = (
        tiles_by_name(call, edges, operands)
        or tiles_by_grid(call, edges)
        or tiles_by_code(call, law)
    )
    if tiles is None:
        return None
    a, _ = multiplied(operands, 0.0 if tiles.is_attention else tiles.size_k)
    tiles = _with_rows(tiles, call, configs, a)
    product = _Product.of(call, operands, tiles)
    return [_tile_launch(call, config, tiles, product) for config in configs]


@dataclass(frozen=True)
class _Product:
    """What the launches of all candidates have in common.

    ``a`` and ``b`` are the two operands, or twice the only one. ``inner_size`` is the axis that
    they share, ``head_width`` the width of an attention head; ``is_k_major`` is whether both are
    contiguous along that axis.
    """

    a: Any
    b: Any
    moved_bytes: float
    inner_size: float
    head_width: float
    is_exact: bool
    is_k_major: bool

    @classmethod
    def of(cls, call: Call, operands: Sequence[Any], tiles: Tiles) -> "_Product":
        a, b = multiplied(operands, 0.0 if tiles.is_attention else tiles.size_k)
        outer_sizes = (tiles.size_m, tiles.size_n)
        shared = [size for size in a.shape if size in b.shape and size not in outer_sizes]
        inner_size = (float(shared[-1]) if shared else 0.0) or DEFAULT_DEPTH
        depth = tiles.size_k or inner_size
        is_k_major = is_contiguous_along(a, depth, 1) and is_contiguous_along(b, depth, 0)
        return cls(
            a=a,
            b=b,
            moved_bytes=float(sum(bytes_of(tensor) for tensor in operands)),
            inner_size=inner_size,
            head_width=head_width(call.arguments, a),
            is_exact=bits_of(a) == 32 and is_exact(call.arguments),
            is_k_major=tiles.is_attention or is_k_major,
        )


def _tile_launch(call: Call, config: Configuration, tiles: Tiles, product: _Product) -> TileLaunch:
    """Return the launch of one candidate."""
    tile = tiles.shape(config)
    m = tile.m
    n = tile.n
    bytes_a = bits_of(product.a) / 8
    bytes_b = bits_of(product.b) / 8
    if tiles.is_attention:
        # Each step loads a tile of keys and one of values, and multiplies both. The block keeps
        # its queries, and has sums for the scores and for the output.
        k = product.head_width
        size_k = k
        steps = math.ceil(tiles.size_n / n) if tiles.size_n else 1.0
        flops = 4.0 * m * n * k
        step_bytes = 2.0 * bytes_b * n * k
        kept_bytes = bytes_a * m * k
        sums = m * (n + k)
    else:
        # Each step loads a tile of either operand and multiplies them.
        k = tile.k or product.head_width
        size_k = tiles.size_k or product.inner_size
        steps = math.ceil(size_k / k / _splits(call, config))
        flops = 2.0 * m * n * k
        step_bytes = k * (bytes_a * m + bytes_b * n)
        kept_bytes = 0.0
        sums = m * n

    return TileLaunch(
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
        kept_bytes=kept_bytes,
        sums=sums,
        moved_bytes=max(product.moved_bytes, 1.0),
        warps=float(config.get("num_warps", DEFAULT_WARPS)),
        stages=float(config.get("num_stages", DEFAULT_STAGES)),
        bits_a=bits_of(product.a),
        bits_b=bits_of(product.b),
        exact=float(product.is_exact),
        transposed_a=float(is_transposed(product.a)),
        transposed_b=float(is_transposed(product.b)),
        alignment=min(log_alignment(product.a), log_alignment(product.b)),
        k_major=float(product.is_k_major),
    )


def _splits(call: Call, config: Configuration) -> float:
    """Return the number of parts of the depth, each of which has programs of its own."""
    if SPLIT in config:
        return float(config[SPLIT])
    splits = 1.0
    for name, value in config.items():
        if type(value) is int and value > 1 and "SPLIT" in name.upper():
            multiplies_programs = call.programs(config) == value * call.programs(
                {**config, name: 1}
            )
            splits *= value if multiplies_programs else 1.0
    return splits


def _with_rows(tiles: Tiles, call: Call, configs: Sequence[Configuration], a: Any) -> Tiles:
    """Return the tiles; if they do not tell the rows and the grid cannot, with the operand's.

    The grid cannot if candidates of different tiles have the same one: its programs are persistent.
    """
    if tiles.size_m:
        return tiles
    shapes = [tiles.shape(config) for config in configs]
    output_tiles = {(shape.m, shape.n) for shape in shapes}
    grids = {call.programs(config) for config in configs}
    if len(output_tiles) == 1 or len(grids) > 1:
        return tiles
    rows = math.prod(a.shape[:-1])
    return replace(tiles, size_m=float(rows))
