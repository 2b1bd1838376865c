"""The Gymnasium environments: clean, legal, deterministic, one at a time and many at once."""

import importlib
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.device import Device
from foretune.errors import MissingExtra, UsageError
from foretune.problem import Problem
from foretune.search.policies.decisions import FAILURE_REWARD, ConfigurationDecisions
from foretune.search.policies.encoding import MAX_OBSERVATION, Context, Vocabulary
from foretune.search.policies.tasks import Task
from foretune.space import Configuration, SearchSpace

gymnasium = pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env

environment = importlib.import_module("foretune.search.policies.environment")

CONFIGURE = "foretune.search.policies.environment:foretune/Configure-v0"
SPACE = SearchSpace(
    {"tile": (1, 2, 4, 8), "order": ("ij", "ji"), "pack": (False, True), "only": (7,)},
    ["tile * (1 + pack) <= 8", "order != 'ji' or tile > 1"],
)


def task(n=64, space=SPACE):
    """The larger the number of a configuration, the better."""
    return Task(
        space, Problem(n=n), Device("Toy", "cpu", specs={"cores": 2.0}), lambda i: i / len(space)
    )


TASKS = [task(n) for n in (64, 128, 256, 512, 4096)]


def episode(env, rng, **reset):
    """Play legal random choices to the end; return what each step gave."""
    _, info = env.reset(**reset)
    steps = []
    while not steps or not steps[-1][2]:
        mask = info["action_mask"]
        assert mask.any()
        assert np.array_equal(mask, env.unwrapped.action_masks())
        steps.append(env.step(int(rng.choice(np.flatnonzero(mask)))))
        info = steps[-1][4]
    return steps


def test_gymnasium_finds_nothing_to_object_to():
    env = gymnasium.make(CONFIGURE, tasks=TASKS)
    check_env(env.unwrapped, skip_render_check=True)


def test_environment_same_seed_same_episodes():
    env = gymnasium.make(CONFIGURE, tasks=TASKS)
    one = episode(env, np.random.default_rng(0), seed=5)
    again = episode(env, np.random.default_rng(0), seed=5)
    assert [s[1:4] for s in one] == [s[1:4] for s in again]
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(one, again, strict=True))
    seen = {env.reset()[1]["task"] for _ in range(50)}
    assert seen == set(range(env.unwrapped.decisions.tasks))


def test_environment_illegal_choice_ends_episode():
    env = gymnasium.make(CONFIGURE, tasks=TASKS)
    illegal = None
    rng = np.random.default_rng(0)
    while illegal is None:
        _, info = env.reset(seed=1)
        ended = False
        while not ended and illegal is None:
            forbidden = np.flatnonzero(info["action_mask"] == 0)
            if len(forbidden):
                illegal = int(forbidden[0])
            else:
                choice = int(rng.choice(np.flatnonzero(info["action_mask"])))
                _, _, ended, _, info = env.step(choice)
    _, reward, terminated, truncated, _ = env.step(illegal)
    assert (reward, terminated, truncated) == (FAILURE_REWARD, True, False)


def test_environment_episode_is_configuration_with_final_reward():
    env = gymnasium.make(CONFIGURE, tasks=TASKS).unwrapped
    rng = np.random.default_rng(0)
    for _ in range(30):
        steps = episode(env, rng, options={"task": 2})
        assert len(steps) == len(SPACE.names)
        assert steps[-1][4]["task"] == 2
        assert env.configuration in SPACE
        assert [s[1] for s in steps[:-1]] == [0.0] * 3
        assert steps[-1][1] == pytest.approx(SPACE.index(env.configuration) / len(SPACE))


def test_environment_reaches_every_configuration():
    env = gymnasium.make(CONFIGURE, tasks=[task()]).unwrapped
    for config in SPACE:
        env.reset()
        for name, values in env.decisions.vocabulary.parameters.items():
            env.step(values.index(config[name]))
        assert env.configuration == config


@st.composite
def spaces(draw):
    """A space of some of the configurations of a few parameters, as a run table may hold."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    configs = st.tuples(*(st.integers(0, size - 1) for size in sizes))
    chosen = draw(st.lists(configs, min_size=1, max_size=20, unique=True))
    return SearchSpace.from_configs(
        Configuration({f"p{i}": v for i, v in enumerate(c)}) for c in chosen
    )


@given(spaces(), st.integers(0, 100))
def test_masks_allow_what_is_legal_and_nothing_else(space, seed):
    decisions = ConfigurationDecisions([Task(space)])
    begun = {()}
    for step in range(decisions.steps):
        allowed = set()
        for prefix in begun:
            legal = decisions.legal(np.array([0]), np.array([prefix], dtype=int).reshape(1, step))
            allowed |= {(*prefix, int(v)) for v in np.flatnonzero(legal[0])}
        begun = allowed
    codes, numbers = decisions.vocabulary.codes(space)
    assert begun == set(map(tuple, codes.tolist()))
    assert np.array_equal(decisions.indices_of(0, codes), numbers)


def test_spaces_of_several_problems_share_a_vocabulary():
    small = SearchSpace({"tile": (1, 2), "order": ("ji", "ij")})
    large = SearchSpace({"order": ("ij", "kij"), "tile": (2, 16)})
    decisions = ConfigurationDecisions([Task(small), Task(large)])
    assert decisions.vocabulary.parameters == {"tile": (1, 2, 16), "order": ("ji", "ij", "kij")}
    none = np.zeros((2, 0), dtype=int)
    assert decisions.legal(np.array([0, 1]), none).tolist() == [[1, 1, 0], [0, 1, 1]]
    numbers = decisions.indices_of(1, np.array([[2, 2]]))
    assert large[int(numbers[0])] == {"tile": 16, "order": "kij"}
    with pytest.raises(UsageError, match="the policy knows tile, order"):
        ConfigurationDecisions([Task(small), Task(SearchSpace({"tile": (1,)}))])
    with pytest.raises(UsageError, match="only values that the policy knows"):
        ConfigurationDecisions(
            [Task(small)], Vocabulary({"tile": (3,), "order": ("ij",)}), Context.from_tasks([])
        )


def test_problems_are_told_apart_where_there_are_enough():
    assert Context.from_tasks(TASKS).names == ("problem.n",)
    assert Context.from_tasks(TASKS[:4]).names == ()
    rows = Context.from_tasks(TASKS).encode([*TASKS, task(2**60), Task(SPACE)])
    assert rows[:5].mean() == pytest.approx(0, abs=1e-6)
    assert (rows[5], rows[6]) == (MAX_OBSERVATION, 0.0)


def test_texts_are_indicators():
    tasks = [Task(SPACE, Problem(n=n, dtype=d)) for n, d in zip(range(9), "abc" * 3, strict=True)]
    context = Context.from_tasks(tasks)
    assert context.names == ("problem.dtype=a", "problem.dtype=b", "problem.dtype=c", "problem.n")
    rows = context.encode([*tasks, Task(SPACE, Problem(n=1, dtype="new"))])
    assert (rows[0, :3] > 0).tolist() == [True, False, False]
    assert (rows[-1, :3] < 0).all()


def test_gymnasium_vectorizes_it():
    envs = gymnasium.make_vec(CONFIGURE, num_envs=2, tasks=TASKS)
    _, info = envs.reset(seed=0)
    assert info["action_mask"].shape == (2, 4)
    envs.close()


def test_environment_unusable_tasks_are_refused():
    with pytest.raises(UsageError, match="there is nothing to decide"):
        environment.ConfigureEnv([Task(SearchSpace({}))])
    with pytest.raises(UsageError, match="there is no task"):
        environment.ConfigureEnv([])
    env = environment.ConfigureEnv([Task(SPACE)])
    with pytest.raises(UsageError, match="task 0 has no reward"):
        episode(env, np.random.default_rng(0))


def test_environment_without_gymnasium_names_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "foretune.search.policies.environment")
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[rl\]'"):
        importlib.import_module("foretune.search.policies.environment")
