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


def test_many_at_once_are_the_same_as_one():
    envs = gymnasium.make_vec(PLACE, num_envs=6, placements=PLACEMENTS)
    single = gymnasium.make(PLACE, placements=PLACEMENTS).unwrapped
    assert envs.single_observation_space == single.observation_space
    seen, info = envs.reset(seed=0)
    tasks, chosen = info["task"].copy(), [[] for _ in range(6)]
    rng = np.random.default_rng(0)
    ended, finished = np.zeros(6, dtype=bool), 0
    for _ in range(25):
        assert envs.observation_space.contains(seen)
        legal = [np.flatnonzero(mask) for mask in info["action_mask"]]
        actions = np.array([rng.choice(choices) if len(choices) else 0 for choices in legal])
        seen, rewards, now, truncated, info = envs.step(actions)
        assert not truncated.any()
        for i in range(6):
            if ended[i]:  # this step began anew
                tasks[i], chosen[i] = info["task"][i], []
                assert (rewards[i], now[i]) == (0.0, False)
                continue
            chosen[i].append(int(actions[i]))
            single.reset(options={"task": int(tasks[i])})
            for action in chosen[i]:
                last = single.step(action)
            assert np.array_equal(last[0], seen[i])
            assert (last[1], last[2]) == (rewards[i], now[i])
        ended = now
        finished += now.sum()
    assert finished > 12
