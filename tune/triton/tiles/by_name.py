"""Tiles by the names of parameters, such as ``BLOCK_M``, ``BLOCK_SIZE_N`` or ``BK``."""

from collections.abc import Sequence
from typing import Any

from foretune.space import Configuration
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.tiles.edges import Edges, named_size
from foretune.tune.triton.tiles.shape import Tiles, TileShape

ATTENTION_OPERANDS = 3
"""Queries, keys and values: at least so many operands of attention have a batch or heads."""


def tiles_by_name(call: Call, edges: Edges, operands: Sequence[Any]) -> Tiles | None:
    """Return the tiles that names determine; None if they do not.

    The sizes are arguments such as M; of others, the grid tells the size.
    """
    if not edges.have_names:
        return None
    m = edges.by_letter["M"]
    n = edges.by_letter["N"]
    k = edges.by_letter.get("K")

    # Attention: blocks divide the rows, loop over the columns, and have no edge of depth.
    loops_over_columns = m in edges.over_grid and n not in edges.over_grid
    batched_operands = sum(len(tensor.shape) > 2 for tensor in operands)
    is_attention = k is None and loops_over_columns and batched_operands >= ATTENTION_OPERANDS
    if k is None and not is_attention:
        return None

    size_m = named_size(call.arguments, "M") or edges.output_sizes[m]
    size_n = named_size(call.arguments, "N") or edges.output_sizes[n]
    size_k = named_size(call.arguments, "K")
    if k is not None and not size_k:
        size_k = edges.output_sizes[k]
    if not size_m or not (size_n or is_attention):
        return None

    def shape(config: Configuration) -> TileShape:
        depth = 0.0 if k is None else float(config[k])
        return TileShape(float(config[m]), float(config[n]), depth)

    return Tiles(shape, size_m, size_n, size_k, is_attention)
