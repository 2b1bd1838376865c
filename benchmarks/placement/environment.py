"""Placements as Gymnasium environments: importing this module registers both.

``foretune/Place-v0`` places operators on devices or in precisions, ``foretune/PlaceTensors-v0``
tensors in memories.
"""

from collections.abc import Sequence

import gymnasium

from foretune.search.policies.environment import DecisionEnv, DecisionVectorEnv
from placement.decisions import Placement, PlacementDecisions
from placement.tensors import TensorDecisions, TensorGraph


class PlaceEnv(DecisionEnv):
    """Chooses a device or precision for one operator after the other (`PlacementDecisions`)."""

    def __init__(self, placements: Sequence[Placement], render_mode: str | None = None) -> None:
        super().__init__(PlacementDecisions(placements), render_mode)


class PlaceVectorEnv(DecisionVectorEnv):
    """Many placements at once."""

    def __init__(self, placements: Sequence[Placement], num_envs: int = 1) -> None:
        super().__init__(PlacementDecisions(placements), num_envs)


class PlaceTensorsEnv(DecisionEnv):
    """Chooses a memory for one tensor after the other (`TensorDecisions`)."""

    def __init__(self, graphs: Sequence[TensorGraph], render_mode: str | None = None) -> None:
        super().__init__(TensorDecisions(graphs), render_mode)


for name, single, vector in (
    ("Place-v0", "PlaceEnv", f"{__name__}:PlaceVectorEnv"),
    ("PlaceTensors-v0", "PlaceTensorsEnv", None),
):
    gymnasium.register(
        id=f"foretune/{name}", entry_point=f"{__name__}:{single}", vector_entry_point=vector
    )
