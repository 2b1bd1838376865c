"""Gymnasium environments of sequential decisions, with action masks.

Importing this module registers ``foretune/Configure-v0``. Gymnasium also
imports it for ``foretune.search.policies.environment:foretune/Configure-v0``::

    env = gymnasium.make("foretune.search.policies.environment:foretune/Configure-v0", tasks=tasks)
    observation, info = env.reset(seed=0)
    env.step(env.action_space.sample(info["action_mask"]))

`gymnasium.make_vec` makes a vectorized environment. The reward, log(reference / objective), comes
with the last choice. An illegal choice ends the episode with the smallest reward.
``action_masks()`` serves MaskablePPO of sb3-contrib.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from foretune.errors import UsageError
from foretune.lazy import require
from foretune.search.policies.decisions import (
    FAILURE_REWARD,
    MAX_OBSERVATION,
    ConfigurationDecisions,
    Decisions,
    Task,
)
from foretune.space import Configuration

require("gymnasium", "rl", "an environment")
import gymnasium  # noqa: E402
from gymnasium import spaces  # noqa: E402
from gymnasium.vector import AutoresetMode, VectorEnv  # noqa: E402

Info = dict[str, Any]


class DecisionEnv(gymnasium.Env[np.ndarray, np.int64]):
    """Episodes of ``decisions``, each of a random task.

    ``reset(options={"task": i})`` chooses the task. ``info`` has ``action_mask`` (int8, one per
    choice) and ``task``, its number.

    Raises:
        UsageError: there is nothing to decide.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, decisions: Decisions, render_mode: str | None = None) -> None:
        self.decisions = decisions
        self.render_mode = render_mode
        self.observation_space, self.action_space = _spaces(decisions)
        self._episodes = _Episodes(decisions, 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, Info]:
        """Start an episode of a random task, or of ``options["task"]``."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(self.decisions.tasks))
        self._episodes.begin(np.array([0]), np.array([(options or {}).get("task", drawn)]))
        return self._episodes.observe()[0], self._info()

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Make a choice."""
        rewards, ended = self._episodes.choose(np.array([action]), np.array([True]))
        return self._episodes.observe()[0], float(rewards[0]), bool(ended[0]), False, self._info()

    def action_masks(self) -> np.ndarray:
        """Return a mask of legal choices, for MaskablePPO."""
        return self._episodes.legal()[0]

    @property
    def chosen(self) -> np.ndarray:
        """The choices of this episode so far."""
        return self._episodes.chosen[0, : self._episodes.counts[0]].copy()

    def _info(self) -> Info:
        return {
            "action_mask": self.action_masks().astype(np.int8),
            "task": int(self._episodes.tasks[0]),
        }


class DecisionVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Many episodes at once; finished ones restart at the next step."""

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, decisions: Decisions, num_envs: int = 1) -> None:
        self.decisions = decisions
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _spaces(decisions)
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)
        self._episodes = _Episodes(decisions, num_envs)
        self._ended = np.zeros(num_envs, dtype=bool)

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, Info]:
        """Start an episode of a random task in every environment."""
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        self._begin(np.arange(self.num_envs))
        return self._episodes.observe(), self._info()

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Make a choice in every episode; finished episodes restart instead."""
        over = self._ended.copy()
        self._begin(np.flatnonzero(over))
        rewards, ended = self._episodes.choose(np.asarray(actions), ~over)
        self._ended = ended
        never = np.zeros(self.num_envs, dtype=bool)
        return self._episodes.observe(), rewards, ended.copy(), never, self._info()

    def _begin(self, rows: np.ndarray) -> None:
        self._episodes.begin(rows, self.np_random.integers(self.decisions.tasks, size=len(rows)))
        self._ended[rows] = False

    def _info(self) -> Info:
        return {
            "action_mask": self._episodes.legal().astype(np.int8),
            "task": self._episodes.tasks.copy(),
        }


class ConfigureEnv(DecisionEnv):
    """Chooses the values of tunable parameters, one after the other (`ConfigurationDecisions`)."""

    def __init__(self, tasks: Sequence[Task], render_mode: str | None = None) -> None:
        self.configuring = ConfigurationDecisions(tasks)
        super().__init__(self.configuring, render_mode)

    @property
    def configuration(self) -> Configuration:
        """The chosen configuration, once the episode is complete."""
        task = int(self._episodes.tasks[0])
        (number,) = self.configuring.indices_of(task, self.chosen[None, :])
        return self.configuring.spaces[task][int(number)]


class ConfigureVectorEnv(DecisionVectorEnv):
    """Many configurations at once."""

    def __init__(self, tasks: Sequence[Task], num_envs: int = 1) -> None:
        super().__init__(ConfigurationDecisions(tasks), num_envs)


class _Episodes:
    """Episodes of different progress."""

    def __init__(self, decisions: Decisions, n: int) -> None:
        self._decisions = decisions
        self.tasks = np.zeros(n, dtype=np.int64)
        self.counts = np.zeros(n, dtype=np.int64)
        self.chosen = np.zeros((n, decisions.steps), dtype=np.int64)

    def begin(self, rows: np.ndarray, tasks: np.ndarray) -> None:
        self.tasks[rows], self.counts[rows], self.chosen[rows] = tasks, 0, 0

    def observe(self) -> np.ndarray:
        seen = np.empty((len(self.tasks), len(self._decisions.owners)), dtype=np.float32)
        for rows, chosen in self._groups_by_length():
            seen[rows] = self._decisions.observe(self.tasks[rows], chosen)
        return seen

    def legal(self) -> np.ndarray:
        """Return a mask of legal choices; all False for complete episodes."""
        legal = np.zeros((len(self.tasks), self._decisions.choices), dtype=bool)
        for rows, chosen in self._groups_by_length():
            if chosen.shape[1] < self._decisions.steps:
                legal[rows] = self._decisions.legal(self.tasks[rows], chosen)
        return legal

    def choose(self, actions: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Make the choices of active episodes; return rewards, and which episodes just ended."""
        every = np.arange(len(self.tasks))
        fine = active & self.legal()[every, actions]
        self.chosen[every[fine], self.counts[fine]] = actions[fine]
        self.counts[fine] += 1
        lengths = np.array([self._decisions.length(int(task)) for task in self.tasks])
        complete = fine & (self.counts == lengths)
        rewards = np.where(active & ~fine, FAILURE_REWARD, 0.0)
        if complete.any():
            rewards[complete] = self._decisions.reward(self.tasks[complete], self.chosen[complete])
        return rewards, complete | (active & ~fine)

    def _groups_by_length(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the episodes grouped by progress: rows, and their choices."""
        parts = ((np.flatnonzero(self.counts == n), n) for n in np.unique(self.counts))
        return [(rows, self.chosen[rows, :n]) for rows, n in parts]


def _spaces(decisions: Decisions) -> tuple[spaces.Box, spaces.Discrete]:
    if decisions.steps == 0:
        raise UsageError("there is nothing to decide: the space has no parameters")
    shape = (len(decisions.owners),)
    box = spaces.Box(-MAX_OBSERVATION, MAX_OBSERVATION, shape, np.float32)
    return box, spaces.Discrete(decisions.choices)


gymnasium.register(
    id="foretune/Configure-v0",
    entry_point=f"{__name__}:ConfigureEnv",
    vector_entry_point=f"{__name__}:ConfigureVectorEnv",
)
