"""Placement as sequential decisions: a device or precision per operator."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from foretune.device import Device
from foretune.errors import UsageError
from foretune.features.candidates import rows_of
from foretune.models import Predictor
from foretune.problem import Problem
from foretune.search.policies.decisions import FAILURE_REWARD, MAX_OBSERVATION, Decisions
from foretune.space import Configuration


@dataclass(frozen=True, eq=False)
class Placement:
    """A chain of operators, each of which can run in several ways.

    Attributes:
        latency_ms: latency of every operator (rows) under every choice, ms; infinite if impossible.
        transfer_ms: from the choice of an operator (rows) to that of the next, ms.
        use: use of a limited resource by operator and choice: GiB of memory, or points of accuracy.
        limit: upper bound of the sum of ``use``.

    Raises:
        UsageError: shapes do not match, a number is negative or NaN, or no placement is legal.
    """

    latency_ms: np.ndarray
    transfer_ms: np.ndarray
    use: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))
    limit: float = np.inf

    def __post_init__(self) -> None:
        latency_ms = np.asarray(self.latency_ms, dtype=float)
        if latency_ms.ndim != 2 or 0 in latency_ms.shape:
            raise UsageError("latency_ms needs a row per operator and a column per choice")
        operators, choices = latency_ms.shape
        try:
            transfer_ms = np.broadcast_to(np.asarray(self.transfer_ms, float), (choices, choices))
            use = np.broadcast_to(np.asarray(self.use, float), (operators, choices))
        except ValueError:
            raise UsageError(
                f"with {operators} operators of {choices} choices, transfer_ms must be "
                f"{choices} × {choices} and use {operators} × {choices}"
            ) from None
        if not (latency_ms > 0).all():
            raise UsageError("latency_ms must be positive, infinite where an operator cannot run")
        for name, values in (("transfer_ms", transfer_ms), ("use", use)):
            if not ((values >= 0) & np.isfinite(values)).all():
                raise UsageError(f"{name} holds a number that is negative, infinite or NaN")
            object.__setattr__(self, name, values)
        object.__setattr__(self, "latency_ms", latency_ms)
        if not self.fits(min_use := self.min_remaining_use[0]):
            raise UsageError(
                f"no placement is legal: the least use is {min_use:g}, the limit {self.limit:g}"
            )

    @cached_property
    def min_remaining_use(self) -> np.ndarray:
        """Minimum use of the operators from each on, shape (operators + 1,)."""
        min_use = np.where(np.isfinite(self.latency_ms), self.use, np.inf).min(axis=1)
        return np.append(np.cumsum(min_use[::-1])[::-1], 0.0)

    def fits(self, use: np.ndarray | float) -> np.ndarray:
        """Return whether a sum of uses satisfies the limit, up to rounding."""
        slack = 1e-9 * max(1.0, self.limit) if np.isfinite(self.limit) else 0.0
        return np.isfinite(use) & (use <= self.limit + slack)

    def total_ms(self, chosen: np.ndarray) -> np.ndarray:
        """Return the latency of complete placements (rows), ms."""
        operators = np.arange(len(self.latency_ms))
        moved = self.transfer_ms[chosen[:, :-1], chosen[:, 1:]].sum(axis=1)
        return self.latency_ms[operators, chosen].sum(axis=1) + moved

    def greedy(self) -> np.ndarray:
        """Return the placement with the cheapest legal choice at every operator."""
        chosen: list[int] = []
        spent = 0.0
        for operator, latency_ms in enumerate(self.latency_ms):
            cost = latency_ms + (self.transfer_ms[chosen[-1]] if chosen else 0.0)
            fits = self.fits(spent + self.use[operator] + self.min_remaining_use[operator + 1])
            chosen.append(int(np.argmin(np.where(fits, cost, np.inf))))
            spent += self.use[operator, chosen[-1]]
        return np.array(chosen)

    def optimum(self) -> np.ndarray:
        """Return the placement of least total latency.

        Exact, by dynamic programming over the chain: of the prefixes with the same last choice,
        dominated ones are dropped. Their number can grow exponentially if ``use`` has many
        different values.
        """
        ends: list[list[_Label]] = [[(0.0, 0.0, ())]]
        for operator, (latency_ms, use) in enumerate(zip(self.latency_ms, self.use, strict=True)):
            min_use = self.min_remaining_use[operator + 1]
            grown: list[list[_Label]] = []
            for choice in np.flatnonzero(np.isfinite(latency_ms)).tolist():
                labels = []
                for cost, spent, path in (label for labels in ends for label in labels):
                    moved = self.transfer_ms[path[-1], choice] if path else 0.0
                    if self.fits(spent + use[choice] + min_use):
                        total = cost + moved + latency_ms[choice]
                        labels.append((float(total), spent + float(use[choice]), (*path, choice)))
                grown.append(_pareto_labels(labels))
            ends = grown
        return np.array(min(label for labels in ends for label in labels)[2])


_Label = tuple[float, float, tuple[int, ...]]
"""A prefix: its latency, its use, its choices."""


def _pareto_labels(labels: list[_Label]) -> list[_Label]:
    kept: list[_Label] = []
    for label in sorted(labels):
        if not kept or label[1] < kept[-1][1]:
            kept.append(label)
    return kept


def predicted_latencies(
    predictor: Predictor,
    operators: Sequence[Problem],
    choices: Sequence[tuple[Configuration, Device]],
) -> np.ndarray:
    """Return predicted latencies of every operator under every choice, ms.

    A choice is a configuration (for example a format) on a device. Operators are problems of the
    predictor's kernel. The result is a placement's ``latency_ms``.

    Raises:
        PredictorError: operators or choices lack a column that the predictor needs.
    """
    rows = [
        rows_of(predictor.kernel_name_, problem, [config], device)
        for problem in operators
        for config, device in choices
    ]
    predicted = predictor.predict(pd.concat(rows, ignore_index=True))
    return predicted["time_ms"].to_numpy().reshape(len(operators), len(choices))


class PlacementDecisions(Decisions):
    """Chooses how operators run, in order; choices that must break the limit later are illegal.

    The reward is log(greedy / total latency), above 0 if better than the greedy placement.

    Args:
        placements: the placements; all have the same number of choices.

    Raises:
        UsageError: there is none, or their numbers of choices differ.
    """

    def __init__(self, placements: Sequence[Placement]) -> None:
        widths = {p.latency_ms.shape[1] for p in placements}
        if len(widths) != 1:
            raise UsageError(
                f"the placements have {sorted(widths)} choices: give at least one, of equal choices"
            )
        self.placements = list(placements)
        (self.choices,) = widths
        self.tasks = len(self.placements)
        self.steps = max(self.length(task) for task in range(self.tasks))
        self.width = 4 * self.choices + 3
        self._reference = np.array([p.total_ms(p.greedy()[None, :])[0] for p in placements])

    def length(self, task: int) -> int:
        """Return the number of operators of ``task``."""
        return len(self.placements[task].latency_ms)

    def observe(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return costs and uses of the next operator, and the remaining share of the limit.

        Per choice: latency, transfer to it and latency of the next operator, relative to the mean
        of the operators' least latencies; and its excess use, relative to what is left. Then the
        share of that which the remaining operators' fastest choices would take; their share of the
        least latency; and whether this is the first operator.
        """
        seen = np.zeros((len(tasks), self.width), dtype=np.float32)
        for task in np.unique(tasks):
            if chosen.shape[1] < self.length(task):
                here = tasks == task
                seen[here] = self._observe_task(self.placements[task], chosen[here])
        return seen

    def legal(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the choices after which a legal placement remains; 0 after the last operator."""
        legal = np.zeros((len(tasks), self.choices), dtype=bool)
        step = chosen.shape[1]
        for task in np.unique(tasks):
            here, placement = tasks == task, self.placements[task]
            if step >= self.length(task):
                legal[here, 0] = True
                continue
            use = _spent(placement, chosen[here])[:, None] + placement.use[step]
            runs = np.isfinite(placement.latency_ms[step])
            legal[here] = placement.fits(use + placement.min_remaining_use[step + 1]) & runs
        return legal

    def reward(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return log(greedy / total latency) of complete placements."""
        totals = np.empty(len(tasks))
        for task in np.unique(tasks):
            here = tasks == task
            totals[here] = self.placements[task].total_ms(chosen[here, : self.length(task)])
        return np.maximum(np.log(self._reference[tasks] / totals), FAILURE_REWARD)

    def _observe_task(self, placement: Placement, chosen: np.ndarray) -> np.ndarray:
        step, one = chosen.shape[1], np.ones((len(chosen), 1))
        fastest = placement.latency_ms.min(axis=1)
        after = placement.latency_ms[min(step + 1, len(fastest) - 1)]
        moved = placement.transfer_ms[chosen[:, -1]] if step else np.zeros((1, self.choices)) * one
        left = (
            placement.limit - _spent(placement, chosen)[:, None] - placement.min_remaining_use[step]
        )
        extra = placement.use - placement.use.min(axis=1, keepdims=True)
        wanted = extra[np.arange(len(extra)), placement.latency_ms.argmin(axis=1)][step:].sum()
        parts = [
            placement.latency_ms[step] / fastest.mean() * one,
            moved / fastest.mean(),
            after / fastest.mean() * one,
            _share(extra[step] * one, left),
            _share(wanted * one, left),
            fastest[step:].sum() / fastest.sum() * one,
            float(step > 0) * one,
        ]
        return np.minimum(np.log1p(np.hstack(parts)), MAX_OBSERVATION)


def _spent(placement: Placement, chosen: np.ndarray) -> np.ndarray:
    return placement.use[np.arange(chosen.shape[1]), chosen].sum(axis=1)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part / whole; 0 for 0 / 0."""
    return np.divide(part, np.maximum(whole, 1e-12))
