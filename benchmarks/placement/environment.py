"""Placement as a Gymnasium environment: importing this module registers ``foretune/Place-v0``."""

from collections.abc import Sequence

import gymnasium

from foretune.search.policies.environment import DecisionEnv
from placement.decisions import Placement, PlacementDecisions


class PlaceEnv(DecisionEnv):
    """Chooses a device or precision for one operator after the other (`PlacementDecisions`)."""

    def __init__(self, placements: Sequence[Placement], render_mode: str | None = None) -> None:
        super().__init__(PlacementDecisions(placements), render_mode)


gymnasium.register(id="foretune/Place-v0", entry_point=f"{__name__}:PlaceEnv")
