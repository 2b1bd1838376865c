"""Gymnasium environments of sequential decisions, with action masks.

Importing this module registers ``foretune/Configure-v0``. Gymnasium also
imports it for ``foretune.search.policies.environment:foretune/Configure-v0``::

    env = gymnasium.make("foretune.search.policies.environment:foretune/Configure-v0", tasks=tasks)
    observation, info = env.reset(seed=0)
    env.step(env.action_space.sample(info["action_mask"]))

The reward, log(reference / objective), comes with the last choice. An illegal choice ends the
episode with the smallest reward. ``action_masks()`` serves MaskablePPO of sb3-contrib.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from foretune.errors import UsageError
from foretune.search.policies.decisions import FAILURE_REWARD, ConfigurationDecisions, Decisions
from foretune.search.policies.encoding import MAX_OBSERVATION
from foretune.search.policies.tasks import Task
from foretune.space import Configuration
from foretune.support.lazy import require

require("gymnasium", "rl", "an environment")
import gymnasium  # noqa: E402
from gymnasium import spaces  # noqa: E402

Info = dict[str, Any]


class DecisionEnv(gymnasium.Env[np.ndarray, np.int64]):
    """Episodes of ``decisions``, each of a random task.

    ``reset(options={"task": i})`` chooses the task. ``info`` has ``action_mask`` (int8, one per
    choice) and ``task``, its number.

    Raises UsageError if there is nothing to decide.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, decisions: Decisions, render_mode: str | None = None) -> None:
        if decisions.steps == 0:
            raise UsageError("there is nothing to decide: the space has no parameters")
        self.decisions = decisions
        self.render_mode = render_mode
        self.observation_space = spaces.Box(
            -MAX_OBSERVATION, MAX_OBSERVATION, (decisions.width,), np.float32
        )
        self.action_space = spaces.Discrete(decisions.choices)
        self._task = np.zeros(1, dtype=np.int64)
        self.chosen = np.zeros(0, dtype=np.int64)
        """The choices of this episode so far."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, Info]:
        """Start an episode of a random task, or of ``options["task"]``."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(self.decisions.tasks))
        self._task[0] = (options or {}).get("task", drawn)
        self.chosen = self.chosen[:0]
        return self._observe()

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Make a choice."""
        if self.action_masks()[action]:
            self.chosen = np.append(self.chosen, action)
            has_ended = len(self.chosen) == self.decisions.length(int(self._task[0]))
            reward = 0.0
            if has_ended:
                reward = float(self.decisions.reward(self._task, self.chosen[None, :])[0])
        else:
            has_ended = True
            reward = FAILURE_REWARD
        observation, info = self._observe()
        return observation, reward, has_ended, False, info

    def action_masks(self) -> np.ndarray:
        """Return a mask of legal choices, for MaskablePPO; none after the last."""
        if len(self.chosen) == self.decisions.steps:
            return np.zeros(self.decisions.choices, dtype=bool)
        return self.decisions.legal(self._task, self.chosen[None, :])[0]

    def _observe(self) -> tuple[np.ndarray, Info]:
        observation = self.decisions.observe(self._task, self.chosen[None, :])[0]
        mask = self.action_masks().astype(np.int8)
        return observation, {"action_mask": mask, "task": int(self._task[0])}


class ConfigureEnv(DecisionEnv):
    """Chooses the values of tunable parameters, one after the other (`ConfigurationDecisions`)."""

    def __init__(self, tasks: Sequence[Task], render_mode: str | None = None) -> None:
        self.configuring = ConfigurationDecisions(tasks)
        super().__init__(self.configuring, render_mode)

    @property
    def configuration(self) -> Configuration:
        """The chosen configuration, once the episode is complete."""
        task = int(self._task[0])
        (number,) = self.configuring.indices_of(task, self.chosen[None, :])
        return self.configuring.spaces[task][int(number)]


gymnasium.register(id="foretune/Configure-v0", entry_point=f"{__name__}:ConfigureEnv")
