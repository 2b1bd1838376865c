"""A policy: trained over many problems, it proposes configurations of unseen ones at once.

It learns on predictions: the reward of a task is log(reference / objective). As a searcher it takes
policy-gradient steps on all measurements after each of them: advantages are standardized log
objectives. Samples of the initial policy stay likely, so that a few measurements do not erase its
training.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.device import Device
from foretune.errors import OutputError, PolicyError, UsageError
from foretune.files import read_arrays, read_json, translate_read_errors
from foretune.kernel import Kernel
from foretune.lazy import require
from foretune.models import Predictor
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.progress import SILENT, Progress
from foretune.search.policies.agents import (
    Agents,
    TrainingSchedule,
    one_torch_thread,
    reinforce,
    standardized,
)
from foretune.search.policies.decisions import (
    MIN_DISTINCT,
    ConfigurationDecisions,
    Context,
    Task,
    Vocabulary,
)
from foretune.search.prior import prior_from_predictor
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.searcher import Prior, Searcher
from foretune.space import Configuration, SearchSpace

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


SMALL_SPACE = 20_000
"""Minimum number of configurations predicted per call, because calls have a high fixed cost."""
REFERENCE_SAMPLE = 512
"""Number of random configurations whose median is the reference of a predicted task."""
MIN_P_VALID = 1e-3
"""Lower bound of the probability to run."""


def predicted_tasks(
    predictor: Predictor,
    kernel: Kernel,
    problems: Iterable[Problem],
    device: Device,
    objective: Objective = Objective.TIME,
) -> list[Task]:
    """Return one task per problem, with predicted rewards.

    Raises:
        PredictorError: the predictor has not learned a target that ``objective`` needs.
    """
    tasks: list[Task] = []
    for problem in problems:
        space = kernel.space(problem)
        same = (t.space for t in tasks if _is_same_space(t.space, space))
        space = next(same, space)  # a table of a million rows is kept once
        tasks.append(predicted_task(predictor, problem, space, device, objective))
    return tasks


def predicted_task(
    predictor: Predictor,
    problem: Problem,
    space: SearchSpace,
    device: Device,
    objective: Objective = Objective.TIME,
) -> Task:
    """Return a task with the reward log(reference / predicted objective), predicted on demand.

    The reference is the median of random configurations. The objective is divided by the
    probability to run.

    Raises:
        PredictorError: the predictor has not learned a target that ``objective`` needs.
    """
    known = np.full(len(space), np.nan)

    def predict(numbers: np.ndarray) -> np.ndarray:
        if len(space) <= SMALL_SPACE:
            numbers = np.arange(len(space))
        new = np.unique(numbers[np.isnan(known[numbers])])
        if len(new):
            known[new] = _expected(
                prior_from_predictor(predictor, problem, space, device, objective, new)
            )
        return known

    some = np.random.default_rng(0).permutation(len(space))[:REFERENCE_SAMPLE]
    reference = float(np.median(predict(some)[some]))
    return Task(space, problem, device, lambda numbers: reference - predict(numbers)[numbers])


def prior_task(
    space: SearchSpace, prior: Prior, problem: Problem, device: Device | None = None
) -> Task:
    """Return a task with rewards from a prior: log(median / expected objective)."""
    return _task_of_values(space, _expected(prior), problem, device)


def recorded_task(recorded: RecordedSpace) -> Task:
    """Return a task with rewards from a recorded space: log(median / objective)."""
    return _task_of_values(
        recorded.space, np.log(recorded.values), recorded.problem, recorded.device
    )


def _task_of_values(
    space: SearchSpace, log_values: np.ndarray, problem: Problem, device: Device | None
) -> Task:
    reference = float(np.median(log_values[np.isfinite(log_values)]))
    return Task(space, problem, device, lambda numbers: reference - log_values[numbers])


def _expected(prior: Prior) -> np.ndarray:
    """Return the log of the expected cost of one success, if failures cost as much as runs."""
    return prior.log_mean - np.log(np.maximum(prior.p_valid, MIN_P_VALID))


def _is_same_space(one: SearchSpace, other: SearchSpace) -> bool:
    return one.parameters == other.parameters and np.array_equal(one.codes, other.codes)


SHORT_TRAINING = TrainingSchedule(updates=100, episodes=128, rate=1e-2)
"""Training of a policy for a single space on its prior."""
UPDATES_PER_TELL = 5
"""Updates per measurement."""
LEARNING_RATE = 1e-3
"""Adam's learning rate in these updates."""
ANCHOR_DRAWS = 64
"""Samples of the initial policy; together they weigh as much as all measurements."""
FAILURE_PENALTY = float(np.log(2.0))
"""Log slowdown of a failure, relative to the slowest success."""


class PolicySearcher(Searcher):
    """Proposes the configurations that a policy finds likeliest.

    Without a given policy, it trains one on the prior of this space; without a prior, it starts
    from uniform probabilities. A given policy was already trained on predictions; a prior then gets
    its own guide.

    Args:
        args, named: as for `Searcher`.
        policy: trained on other problems of the same kernel.

    Raises:
        UsageError: the policy's parameters differ from the space's.
        MissingExtra: torch is not installed.
    """

    def __init__(self, *args: Any, policy: Policy | None = None, **named: Any) -> None:
        self._policy = policy
        self.uses_prior = policy is None
        super().__init__(*args, **named)

    def _prepare(self) -> None:
        torch = require("torch", "rl", "policy search")
        self._is_trained = self._policy is not None or self.prior is not None
        policy = self._policy or self._train_policy()
        self._decisions = policy.decisions(Task(self.space, self.problem, self.device))
        self._agents = policy.agents.copy()
        self._adam = torch.optim.Adam(self._agents.networks.parameters(), lr=LEARNING_RATE)
        self._anchors = self._draw(ANCHOR_DRAWS)

    def _train_policy(self) -> Policy:
        """Return a policy for this space, trained on its prior if there is one."""
        if self.prior is None:
            schedule, task = (
                TrainingSchedule(updates=0),
                Task(self.space, self.problem, self.device),
            )
        else:
            task = prior_task(self.space, self.prior, self.problem, self.device)
            schedule = SHORT_TRAINING
        return Policy.train([task], schedule=schedule, seed=self.seed)

    def _propose(self, n: int) -> list[int]:
        numbers = dict.fromkeys(i for i in self._candidates(n) if i not in self.proposed)
        chosen = list(numbers)[:n]
        others = (i for i in self.random_indices(n) if i not in numbers)
        return chosen + [i for i, _ in zip(others, range(n - len(chosen)), strict=False)]

    def _candidates(self, n: int) -> list[int]:
        """Return the policy's preferred configurations in order; samples if it is untrained."""
        if not self._is_trained:
            return self._decisions.indices_of(0, self._draw(n + BEAM_WIDTH)).tolist()
        width = n + len(self.proposed) + BEAM_WIDTH
        likeliest, _ = self._agents.beam_search(self._decisions, 0, width)
        return self._decisions.indices_of(0, likeliest).tolist()

    def _learn(self, new_values: dict[int, float]) -> None:
        known = [(self._encode(i), value) for i, value in self.observed.items()]
        codes = [c for c, _ in known if c is not None]
        values = np.log([value for c, value in known if c is not None])
        finite = np.isfinite(values)
        if finite.sum() == 0 or len(values) < 2:
            return
        values[~finite] = values[finite].max() + FAILURE_PENALTY
        weights = np.append(
            -standardized(values) / len(values), np.full(ANCHOR_DRAWS, 1.0 / ANCHOR_DRAWS)
        )
        self._improve(np.vstack([codes, self._anchors]), weights.astype(np.float32))

    def _improve(self, chosen: np.ndarray, weights: np.ndarray) -> None:
        """Make episodes likelier in proportion to their weights."""
        import torch

        tasks, by = np.zeros(len(chosen), dtype=np.int64), torch.from_numpy(weights)
        with one_torch_thread():
            for _ in range(UPDATES_PER_TELL):
                loss = -(by * self._agents.log_likelihood(self._decisions, tasks, chosen)).sum()
                self._adam.zero_grad()
                torch.autograd.backward(loss)
                self._adam.step()

    def _draw(self, n: int) -> np.ndarray:
        import torch

        with torch.no_grad(), one_torch_thread():
            return self._agents.sample_episodes(
                self._decisions, np.zeros(n, dtype=np.int64), self.rng
            )[0]

    def _encode(self, number: int) -> list[int] | None:
        return self._decisions.vocabulary.encode(self.space[number])
