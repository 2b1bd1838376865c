"""Placement as sequential decisions: a device, or a precision, for one operator after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from foretune.device import Device
from foretune.errors import UsageError
from foretune.features import rows_of
from foretune.models import Predictor
from foretune.problem import Problem
from foretune.search.policies.decisions import FAILURE_REWARD, MAX_OBSERVATION, UNOWNED, Decisions
from foretune.space import Configuration


@dataclass(frozen=True, eq=False)
class Placement:
    """A chain of operators, each of which runs in one of several ways.

    Attributes:
        latency_ms: of every operator (rows) under every choice, milliseconds; infinite where an
            operator cannot run that way.
        transfer_ms: from the choice of an operator (rows) to that of the next, milliseconds.
        use: what every operator takes of something limited under every choice: GiB of a device's
            memory, points of accuracy.
        limit: of the sum of ``use``.

    Raises:
        UsageError: shapes do not fit, a number is negative or NaN, or no placement is legal.
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
        """What the operators from each on take at least, shape (operators + 1,)."""
        min_use = np.where(np.isfinite(self.latency_ms), self.use, np.inf).min(axis=1)
        return np.append(np.cumsum(min_use[::-1])[::-1], 0.0)

    def fits(self, use: np.ndarray | float) -> np.ndarray:
        """Return whether a sum of uses keeps the limit; sums in another order do too."""
        slack = 1e-9 * max(1.0, self.limit) if np.isfinite(self.limit) else 0.0
        return np.isfinite(use) & (use <= self.limit + slack)

    def total_ms(self, chosen: np.ndarray) -> np.ndarray:
        """Return the latency of complete placements (rows), milliseconds."""
        operators = np.arange(len(self.latency_ms))
        moved = self.transfer_ms[chosen[:, :-1], chosen[:, 1:]].sum(axis=1)
        return self.latency_ms[operators, chosen].sum(axis=1) + moved

    def greedy(self) -> np.ndarray:
        """Return the placement that takes the cheapest legal choice at every operator."""
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

        Dynamic programming over the chain: of the beginnings that end in the same choice, those
        that neither cost nor use less than another are dropped. Exact; their number can grow
        exponentially where ``use`` takes many different values.
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
"""A beginning: its latency, its use, its choices."""


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
    """Return what ``predictor`` expects of every operator under every choice, milliseconds.

    A choice is a configuration (a format, say) on a device; ``operators`` are problems of the
    predictor's kernel. The result is a placement's ``latency_ms``.

    Raises:
        PredictorError: the predictor needs what operators or choices do not say.
    """
    rows = [
        rows_of(predictor.kernel_name_, problem, [config], device)
        for problem in operators
        for config, device in choices
    ]
    predicted = predictor.predict(pd.concat(rows, ignore_index=True))
    return predicted["time_ms"].to_numpy().reshape(len(operators), len(choices))


class PlacementDecisions(Decisions):
    """Chooses how operators run, in their order; a choice that breaks the limit later is illegal.

    The reward is log(greedy / total latency): above 0 is better than taking the cheapest legal
    choice every time.

    Args:
        placements: what is placed; all with as many choices.

    Raises:
        UsageError: there is none, or they differ in choices.
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
        self.owners = np.full(4 * self.choices + 3, UNOWNED)
        self._reference = np.array([p.total_ms(p.greedy()[None, :])[0] for p in placements])

    def length(self, task: int) -> int:
        """Return how many operators ``task`` has."""
        return len(self.placements[task].latency_ms)

    def observe(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return costs and uses of the next operator, and how much is left of the limit.

        Per choice: latency, transfer to it and latency of the operator after, over the mean of the
        operators' least latencies; its use above the least, over what is left to spend. Then how
        much of that the rest would take if all chose their fastest; the rest's share of the least
        latency; and whether anything came before.
        """
        seen = np.zeros((len(tasks), len(self.owners)), dtype=np.float32)
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
    """Return part / whole; nothing of nothing is 0."""
    return np.divide(part, np.maximum(whole, 1e-12))
