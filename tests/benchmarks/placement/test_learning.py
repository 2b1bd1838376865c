"""Policies learn to place."""

import numpy as np
import pytest
from placement.decisions import Placement, PlacementDecisions

pytest.importorskip("torch")
from foretune.search.policies.agent import Agent, TrainingSchedule, reinforce


def test_an_agent_learns_to_place():
    """Moving between devices costs more than a faster device gains, but for the large operators."""
    rng = np.random.default_rng(0)

    def chain():
        size = rng.lognormal(0, 1, int(rng.integers(3, 8)))
        return Placement(size[:, None] * [1.0, 0.5], 0.4 * (1 - np.eye(2)))

    learned = PlacementDecisions([chain() for _ in range(32)])
    unseen = PlacementDecisions([chain() for _ in range(20)])
    agent = Agent(learned)
    reinforce(
        agent, learned, TrainingSchedule(updates=60, episodes=128, rate=1e-2, hot=0.2, cold=0.02)
    )
    shares = []
    for i, placement in enumerate(unseen.placements):
        chosen, _ = agent.beam_search(unseen, i, 4)
        totals = placement.total_ms(chosen[:, : unseen.length(i)])
        shares.append(placement.total_ms(placement.optimum()[None, :])[0] / totals.min())
    assert np.mean(shares) > 0.97
