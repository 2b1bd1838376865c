"""Tiles by the grid, if the names of parameters do not tell.

The two parameters that divide the output are the edges of rows and columns, in this order. The one
over which a block loops is the edge of depth.
"""

from foretune.space import Configuration
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.tiles.edges import Edges, named_size
from foretune.tune.triton.tiles.shape import Tiles, TileShape


def tiles_by_grid(call: Call, edges: Edges) -> Tiles | None:
    """Return the tiles that the grid determines; None if it does not, or if names tell more."""
    if edges.have_names or len(edges.over_grid) != 2 or len(edges.inside_block) != 1:
        return None
    m, n = edges.over_grid
    (k,) = edges.inside_block

    def shape(config: Configuration) -> TileShape:
        return TileShape(float(config[m]), float(config[n]), float(config[k]))

    return Tiles(
        shape=shape,
        size_m=named_size(call.arguments, "M") or edges.output_sizes[m],
        size_n=named_size(call.arguments, "N") or edges.output_sizes[n],
        size_k=named_size(call.arguments, "K"),
        is_attention=False,
    )
