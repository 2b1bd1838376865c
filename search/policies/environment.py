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
from foretune.search.policies.decisions import (
    FAILURE_REWARD,
    MAX_OBSERVATION,
    ConfigurationDecisions,
    Decisions,
    Task,
)
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
        self.decisions = decisions
        self.render_mode = render_mode
        if decisions.steps == 0:
            raise UsageError("there is nothing to decide: the space has no parameters")
        bound, shape = MAX_OBSERVATION, (decisions.width,)
        self.observation_space = spaces.Box(-bound, bound, shape, np.float32)
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
        self._task[0], self.chosen = (options or {}).get("task", drawn), self.chosen[:0]
        return self._seen()

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Make a choice."""
        reward, ended = FAILURE_REWARD, True
        if self.action_masks()[action]:
            self.chosen = np.append(self.chosen, action)
            ended = len(self.chosen) == self.decisions.length(int(self._task[0]))
            found = self.decisions.reward(self._task, self.chosen[None, :]) if ended else [0.0]
            reward = float(found[0])
        seen, info = self._seen()
        return seen, reward, ended, False, info

    def action_masks(self) -> np.ndarray:
        """Return a mask of legal choices, for MaskablePPO; none after the last."""
        if len(self.chosen) == self.decisions.steps:
            return np.zeros(self.decisions.choices, dtype=bool)
        return self.decisions.legal(self._task, self.chosen[None, :])[0]

    def _seen(self) -> tuple[np.ndarray, Info]:
        info = {"action_mask": self.action_masks().astype(np.int8), "task": int(self._task[0])}
        return self.decisions.observe(self._task, self.chosen[None, :])[0], info


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
