"""Placements as Gymnasium environments: importing this module registers both.

``foretune/Place-v0`` places operators on devices or in precisions, ``foretune/PlaceTensors-v0``
tensors in memories.
"""

from collections.abc import Sequence

import gymnasium

from foretune.search.policies.environment import DecisionEnv
from placement.decisions import Placement, PlacementDecisions
from placement.tensors import TensorDecisions, TensorGraph


class PlaceEnv(DecisionEnv):
    """Chooses a device or precision for one operator after the other (`PlacementDecisions`)."""

    def __init__(self, placements: Sequence[Placement], render_mode: str | None = None) -> None:
        super().__init__(PlacementDecisions(placements), render_mode)


class PlaceTensorsEnv(DecisionEnv):
    """Chooses a memory for one tensor after the other (`TensorDecisions`)."""

    def __init__(self, graphs: Sequence[TensorGraph], render_mode: str | None = None) -> None:
        super().__init__(TensorDecisions(graphs), render_mode)


for name, kind in (("Place-v0", "PlaceEnv"), ("PlaceTensors-v0", "PlaceTensorsEnv")):
    gymnasium.register(id=f"foretune/{name}", entry_point=f"{__name__}:{kind}")
