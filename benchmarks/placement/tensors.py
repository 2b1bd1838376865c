"""Tensors of a graph placed in memories of different speeds, as sequential decisions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from foretune.search.policies.decisions import FAILURE_REWARD, MAX_OBSERVATION, Decisions


@dataclass(frozen=True, eq=False)
class TensorGraph:
    """Tensors with lifetimes, and memories that hold them. The last memory holds everything.

    Attributes:
        mib: size of each tensor.
        first: the step that writes each tensor.
        last: the last step that reads it.
        moved_mib: what all of its reads and writes move.
        rooms_mib: capacity of each memory but the last, fastest first.
        ms_per_mib: time to move a MiB, of every memory.
    """

    mib: np.ndarray
    first: np.ndarray
    last: np.ndarray
    moved_mib: np.ndarray
    rooms_mib: np.ndarray
    ms_per_mib: np.ndarray

    @cached_property
    def live_mib(self) -> np.ndarray:
        """What each tensor (rows) takes at each step (columns), MiB."""
        steps = np.arange(self.last.max() + 1)
        live = (self.first[:, None] <= steps) & (steps <= self.last[:, None])
        return live * self.mib[:, None]

    @cached_property
    def cost_ms(self) -> np.ndarray:
        """The time of each tensor's traffic (rows) in each memory."""
        return self.moved_mib[:, None] * self.ms_per_mib

    @cached_property
    def order(self) -> np.ndarray:
        """The tensors, those first whose traffic is largest for what they take and how long."""
        return np.argsort(-self.moved_mib / self.live_mib.sum(axis=1), kind="stable")

    def total_ms(self, placed: np.ndarray) -> np.ndarray:
        """Return the time of all traffic; ``placed`` (rows) are memories in the order of placing.

        Graphs must be placed as a whole.
        """
        return self.cost_ms[self.order, placed].sum(axis=1)

    def free_mib(self, placed: np.ndarray) -> np.ndarray:
        """Return what is free in every memory but the last at every step, for each row, MiB."""
        held = placed[:, None, :] == np.arange(len(self.rooms_mib))[:, None]
        return self.rooms_mib[:, None] - held @ self.live_mib[self.order[: placed.shape[1]]]

    def greedy(self) -> np.ndarray:
        """Return the placement of each tensor, in order, in the fastest memory that has room."""
        free = np.repeat(self.rooms_mib[:, None], self.live_mib.shape[1], axis=1)
        placed = []
        for live in self.live_mib[self.order]:
            fits = (free >= live).all(axis=1)
            memory = int(np.argmax(fits)) if fits.any() else len(fits)
            if memory < len(free):
                free[memory] -= live
            placed.append(memory)
        return np.array(placed)

    def solve(self, seconds: float) -> tuple[np.ndarray | None, bool]:
        """Return the best placement that HiGHS finds, and whether it proved it to be the best."""
        tensors, memories = self.cost_ms.shape
        limited = len(self.rooms_mib)
        # Rooms change where a tensor is written; between two such steps they only get larger.
        live = self.live_mib[self.order][:, np.unique(self.first)]
        which, step = np.nonzero(live)
        rows = [step + memory * live.shape[1] for memory in range(limited)]
        columns = [which * memories + memory for memory in range(limited)]
        full = coo_array(
            (np.tile(live[which, step], limited), (np.concatenate(rows), np.concatenate(columns))),
            shape=(limited * live.shape[1], tensors * memories),
        )
        variables = np.arange(tensors * memories)
        once = coo_array((np.ones(len(variables)), (variables // memories, variables)))
        found = milp(
            self.cost_ms[self.order].ravel(),
            integrality=np.ones(len(variables)),
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(full, ub=np.repeat(self.rooms_mib, live.shape[1])),
                LinearConstraint(once, 1, 1),
            ],
            options={"time_limit": seconds, "mip_rel_gap": 1e-4},
        )
        if found.x is None:
            return None, False
        return found.x.reshape(tensors, memories).argmax(axis=1), found.status == 0


class TensorDecisions(Decisions):
    """Chooses a memory for one tensor after the other; a memory without room is illegal.

    The reward is log(greedy / time of the traffic).
    """

    def __init__(self, graphs: Sequence[TensorGraph]) -> None:
        self.graphs = list(graphs)
        self.tasks, self.choices = len(self.graphs), len(self.graphs[0].ms_per_mib)
        self.steps = max(len(graph.mib) for graph in self.graphs)
        self.width = 4 + 4 * (self.choices - 1)
        self.greedy_ms = np.array([g.total_ms(g.greedy()[None])[0] for g in self.graphs])

    def length(self, task: int) -> int:
        """Return the number of tensors of ``task``."""
        return len(self.graphs[task].mib)

    def observe(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the next tensor, and how much room its life meets in each memory.

        The tensor: its size, traffic and steps, each relative to the graph's mean, and the share
        of tensors that are placed. Per memory with a limit: the share of the tensor in what is
        free, in its capacity, and what later tensors want in that life relative to the free room,
        at most and in the mean.
        """
        seen = np.zeros((len(tasks), self.width), dtype=np.float32)
        step = chosen.shape[1]
        for task in np.unique(tasks):
            if step >= self.length(task):
                continue
            graph, here = self.graphs[task], tasks == task
            tensor = graph.order[step]
            life = slice(graph.first[tensor], graph.last[tensor] + 1)
            free = graph.free_mib(chosen[here])[:, :, life]
            wanted = graph.live_mib[graph.order[step + 1 :], life].sum(axis=0)
            tight = np.maximum(free, 1e-6)
            steps = graph.last - graph.first + 1
            of_tensors = (graph.mib, graph.moved_mib, steps)
            facts = [*(v[tensor] / v.mean() for v in of_tensors), step / self.length(task)]
            parts = [
                np.tile(np.array(facts), (int(here.sum()), 1)),
                graph.mib[tensor] / tight.min(axis=2),
                np.tile(graph.mib[tensor] / graph.rooms_mib, (int(here.sum()), 1)),
                (wanted / tight).max(axis=2),
                (wanted / tight).mean(axis=2),
            ]
            seen[here] = np.minimum(np.log1p(np.hstack(parts)), MAX_OBSERVATION)
        return seen

    def legal(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return which memories have room for the next tensor for as long as it lives."""
        legal = np.zeros((len(tasks), self.choices), dtype=bool)
        step = chosen.shape[1]
        for task in np.unique(tasks):
            here, graph = tasks == task, self.graphs[task]
            if step >= self.length(task):
                legal[here, 0] = True
                continue
            live = graph.live_mib[graph.order[step]]
            legal[here, :-1] = (graph.free_mib(chosen[here]) >= live).all(axis=2)
            legal[here, -1] = True
        return legal

    def reward(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return log(greedy / time of the traffic) of complete placements."""
        totals = np.empty(len(tasks))
        for task in np.unique(tasks):
            here = tasks == task
            totals[here] = self.graphs[task].total_ms(chosen[here, : self.length(task)])
        return np.maximum(np.log(self.greedy_ms[tasks] / totals), FAILURE_REWARD)
