"""The tiles that a call's candidates compute, whatever the names of its arguments.

Three ways are tried in turn, and each returns `Tiles` or None. Names such as ``BLOCK_M`` or ``BK``
tell the edges (`by_name`). Else the grid is evaluated with other edges: if the number of programs
changes, the edge divides the output (`by_grid`). Else the kernel's unoptimized code shows which
sizes each parameter multiplies (`by_code`). `launch` describes a launch of every candidate.
"""

from foretune.tune.triton.tiles.by_code import BlockShapes, ShapeLaw, shape_law
from foretune.tune.triton.tiles.launch import tile_launches
from foretune.tune.triton.tiles.shape import Tiles, TileShape

__all__ = ["BlockShapes", "ShapeLaw", "TileShape", "Tiles", "shape_law", "tile_launches"]
