"""A policy: trained over many problems, it proposes configurations of unseen ones at once."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.errors import OutputError, PolicyError, UsageError
from foretune.files import read_arrays, read_json, translate_read_errors
from foretune.progress import SILENT, Progress
from foretune.search.policies.agents import Agents
from foretune.search.policies.configuring import ConfigurationDecisions
from foretune.search.policies.encoding import MIN_DISTINCT, Context, Vocabulary
from foretune.search.policies.reinforce import TrainingSchedule, reinforce
from foretune.search.policies.tasks import Task
from foretune.space import Configuration

FORMAT_VERSION = 1
CARD, WEIGHTS = "policy.json", "weights.npz"
BEAM_WIDTH = 256
"""Width of the beam search for the likeliest configurations."""
FULL_TRAINING = TrainingSchedule()


@dataclass(frozen=True, eq=False)
class Policy:
    """Probabilities of configurations, given a problem's sizes and a device's specs.

    Attributes:
        kernel: name of the kernel; may be empty.
        vocabulary: the parameters and values it can choose.
        context: encoding of problems and devices.
        groups: names of the parameters that each agent sets.
        agents: the networks.
        training: how it was trained.
    """

    kernel: str
    vocabulary: Vocabulary
    context: Context
    groups: tuple[tuple[str, ...], ...]
    agents: Agents
    training: Mapping[str, Any]

    @classmethod
    def train(
        cls,
        tasks: Sequence[Task],
        groups: Sequence[Sequence[str]] | None = None,
        schedule: TrainingSchedule = FULL_TRAINING,
        seed: int = 0,
        kernel: str = "",
        min_distinct: int = MIN_DISTINCT,
        progress: Progress = SILENT,
    ) -> Self:
        """Train on the rewards of ``tasks``.

        Args:
            tasks: problems with rewards, usually predicted ones (`predicted_tasks`).
            groups: parameters of each agent (`name_groups`); None has one agent for all.
            schedule: length of the training.
            seed: seed of all random choices.
            kernel: name of the kernel.
            min_distinct: minimum number of problems, or devices, for them to be inputs (`Context`).
            progress: advanced with every update.

        Raises:
            UsageError: no task, tasks of different parameters, or unknown parameters in groups.
            MissingExtra: torch is not installed.
        """
        vocabulary = Vocabulary.from_spaces(task.space for task in tasks)
        decisions = ConfigurationDecisions(
            tasks, vocabulary, Context.from_tasks(tasks, min_distinct)
        )
        names = list(decisions.vocabulary.parameters)
        grouped = tuple(map(tuple, groups or [names]))
        agents = Agents(decisions, _steps(grouped, names), seed)
        mean_reward = reinforce(agents, decisions, schedule, seed, progress)
        training = {
            "problems": len(tasks), "seed": seed, **asdict(schedule), "mean_reward": mean_reward,
        }  # fmt: skip
        return cls(kernel, decisions.vocabulary, decisions.context, grouped, agents, training)

    def decisions(self, task: Task) -> ConfigurationDecisions:
        """Return ``task`` in this policy's encoding.

        Raises:
            UsageError: its space has other parameters, or no configuration with known values.
        """
        return ConfigurationDecisions([task], self.vocabulary, self.context)

    def propose(self, task: Task, n: int = 10) -> list[tuple[Configuration, float]]:
        """Return up to ``n`` configurations and their probabilities, likeliest first.

        Nothing is predicted or measured.

        Raises:
            UsageError: see `decisions`.
        """
        decisions = self.decisions(task)
        chosen, log_p = self.agents.beam_search(decisions, 0, max(n, BEAM_WIDTH))
        numbers = decisions.indices_of(0, chosen[:n])
        probabilities = np.exp(log_p[:n]).tolist()
        return [(task.space[int(i)], p) for i, p in zip(numbers, probabilities, strict=True)]

    def score(self, tasks: Sequence[Task], n: int = 10, draws: int = 1000) -> dict[str, float]:
        """Return geometric mean speed-ups of the proposals over the reference.

        ``first`` is the likeliest configuration of each task, ``best`` the best of the ``n``
        likeliest, ``random`` the best of ``draws`` random ones.

        Raises:
            UsageError: see `decisions`; or a task has no reward.
        """
        rng, rewards = np.random.default_rng(0), []
        for task in tasks:
            decisions = self.decisions(task)
            chosen, _ = self.agents.beam_search(decisions, 0, max(n, BEAM_WIDTH))
            drawn = rng.permutation(len(task.space))[:draws]
            earned = decisions.reward(np.zeros(len(chosen[:n]), dtype=np.int64), chosen[:n])
            assert task.reward is not None  # `decisions.reward` has asked it
            rewards.append((earned[0], earned.max(), task.reward(drawn).max()))
        means = np.exp(np.mean(rewards, axis=0)).tolist()
        return dict(zip(("first", "best", "random"), means, strict=True))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the policy to ``folder`` as a JSON card and plain arrays.

        Raises:
            OutputError: the folder cannot be written.
        """
        folder = Path(folder)
        card = {
            "format": FORMAT_VERSION,
            "kernel": self.kernel,
            "parameters": self.vocabulary.parameters,
            "context": {
                "names": self.context.names,
                "mean": self.context.mean.tolist(),
                "deviation": self.context.deviation.tolist(),
            },
            "groups": self.groups,
            "training": self.training,
        }
        weights: dict[str, Any] = self.agents.weights()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CARD).unlink(missing_ok=True)  # interrupted from here on, it is no policy
            np.savez(folder / WEIGHTS, **weights)
            (folder / CARD).write_text(json.dumps(card, indent=1), encoding="utf-8")
        except OSError as e:
            raise OutputError(f"cannot write the policy to {folder}: {e.strerror or e}") from e

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a saved policy.

        Raises:
            PolicyError: there is no policy, it has another version, or it is damaged.
            MissingExtra: torch is not installed.
        """
        folder = Path(folder)
        with translate_read_errors(
            folder, PolicyError, "holds no policy: train one with Policy.train"
        ):
            card = read_json(folder / CARD)
            version = card["format"]
        if version != FORMAT_VERSION:
            raise PolicyError(f"{folder} was made by another version of Foretune: train it again")
        with translate_read_errors(folder, PolicyError, "is damaged ({}): train the policy again"):
            vocabulary = Vocabulary({k: tuple(v) for k, v in card["parameters"].items()})
            known = card["context"]
            context = Context(
                tuple(known["names"]), np.array(known["mean"]), np.array(known["deviation"])
            )
            groups = tuple(map(tuple, card["groups"]))
            shape = ConfigurationDecisions([], vocabulary, context)
            agents = Agents(shape, _steps(groups, list(vocabulary.parameters)))
            agents.set_weights(read_arrays(folder / WEIGHTS))
            return cls(card["kernel"], vocabulary, context, groups, agents, card["training"])


def name_groups(names: Sequence[str]) -> list[list[str]]:
    """Group parameters by their name up to the last underscore: ``tile_x``, ``tile_y``."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition("_")[0] or name, []).append(name)
    return list(groups.values())


def _steps(groups: Sequence[Sequence[str]], names: list[str]) -> list[list[int]]:
    if sorted(name for group in groups for name in group) != sorted(names):
        raise UsageError(
            f"groups {', '.join('+'.join(g) for g in groups)} must hold each parameter once: "
            f"{', '.join(names)}"
        )
    return [[names.index(name) for name in group] for group in groups]
