"""Placement as a Gymnasium environment, whose episodes differ in length."""

import numpy as np
import pytest
from placement.decisions import Placement

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("torch")
from gymnasium.utils.env_checker import check_env

PLACE = "placement.environment:foretune/Place-v0"
PLACEMENTS = [
    Placement([[3.0, 1.0], [2.0, 1.0], [1.0, 2.0]], [[0, 1], [1, 0]], [[0, 1]] * 3, 2.0),
    Placement([[1.0, 2.0], [np.inf, 1.0]], 0.0),
]


def test_gymnasium_finds_nothing_to_object_to():
    check_env(gymnasium.make(PLACE, placements=PLACEMENTS).unwrapped, skip_render_check=True)


def test_episodes_end_at_their_length_and_pay_then():
    env = gymnasium.make(PLACE, placements=PLACEMENTS).unwrapped
    for task, choices in enumerate(([1, 1, 0], [0, 1])):
        env.reset(options={"task": task})
        steps = [env.step(choice) for choice in choices]
        assert [s[2] for s in steps] == [False] * (len(choices) - 1) + [True]
        placed = np.array([choices])
        totals = [PLACEMENTS[task].total_ms(p) for p in (PLACEMENTS[task].greedy()[None], placed)]
        assert steps[-1][1] == pytest.approx(float(np.log(totals[0] / totals[1])[0]))


def test_gymnasium_vectorizes_it():
    envs = gymnasium.make_vec(PLACE, num_envs=3, placements=PLACEMENTS)
    _, info = envs.reset(seed=0)
    assert info["action_mask"].shape == (3, 2)
    envs.close()
