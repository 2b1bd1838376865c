"""The shape of a tile, and the tiles of a call."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from foretune.space import Configuration
from foretune.tune.triton.problem_key import Call


@dataclass(frozen=True)
class TileShape:
    """The edges of a block's product: rows, columns, and depth of a step; 0 if unknown."""

    m: float
    n: float
    k: float


@dataclass(frozen=True)
class Tiles:
    """The tiles of a call.

    In attention, a block loops over the columns (keys and values), else over the depth.

    Attributes:
        shape: returns the tile of a configuration; its edges divide the sizes.
        size_m: rows of the output; 0 if unknown, as for all sizes.
        size_n: columns of the output; in attention the number of keys.
        size_k: depth of the product.
        is_attention: whether the blocks compute attention.
    """

    shape: Callable[[Configuration], TileShape]
    size_m: float
    size_n: float
    size_k: float
    is_attention: bool

    def count(self, call: Call, config: Configuration) -> float:
        """Return the number of tiles; persistent programs compute several."""
        tile = self.shape(config)
        tiles = 1
        if self.size_m:
            tiles *= math.ceil(self.size_m / tile.m)
        if self.size_n and not self.is_attention:
            tiles *= math.ceil(self.size_n / tile.n)

        # There may be more programs than tiles, for example one for each matrix of a batch.
        programs = call.programs(config)
        if math.isnan(programs):
            return float(tiles)
        return max(float(tiles), programs)
